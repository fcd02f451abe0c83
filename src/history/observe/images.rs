//! Lives of images: begun, continued, ended.

use std::collections::HashMap;

use rusqlite::params;

use super::{StoreRow, Writer};
use crate::history::ages::{self, Before};
use crate::history::back_offs;
use crate::history::values::{json, micros, moment, signed};
use crate::model::refs::Root;
use crate::model::repull::KnownOrigin;
use crate::model::{Image, ImageIx};

/// Stored byte count of an image that no scan has measured yet.
const UNMEASURED: i64 = -1;

/// The present life of an image, as stored.
struct StoredLife {
    id: i64,
    made: Option<i64>,
    /// `None`: the store's `last_seen` applies.
    last_seen: Option<i64>,
    in_use: bool,
    last_used: Option<i64>,
}

impl StoredLife {
    fn seen(&self, store: &StoreRow) -> i64 {
        self.last_seen.unwrap_or(store.last_seen)
    }

    fn used(&self, store: &StoreRow) -> Option<i64> {
        if self.in_use { Some(self.seen(store)) } else { self.last_used }
    }
}

impl Writer<'_> {
    pub(super) fn images(&mut self, store: &StoreRow) -> rusqlite::Result<()> {
        let images = self
            .scan
            .inventory
            .images
            .iter()
            .enumerate()
            .map(|(position, image)| (ImageIx::from(position), image));
        let seen: Vec<_> = images
            .filter(|(image_ix, image)| {
                store.positions.contains(&image.store) && self.recorded.has_image(*image_ix)
            })
            .collect();
        let mut lives = self.present_lives(store)?;
        let mut done: HashMap<&str, ImageIx> = HashMap::new();
        // Damaged records may list an image twice. It is in use if either entry is.
        let mut used: HashMap<&str, bool> = HashMap::new();
        for (image_ix, image) in &seen {
            *used.entry(image.id.as_str()).or_default() |= self.in_use.contains(image_ix);
        }
        for (image_ix, image) in seen {
            let key = image.id.as_str();
            if let Some(first) = done.get(key) {
                self.lives[image_ix.get()] = self.lives[first.get()];
                continue;
            }
            done.insert(key, image_ix);
            let in_use = used.get(key).is_some_and(|used| *used);
            let id = match lives.remove(key) {
                Some(life) if self.was_remade(store, &life, image)? => {
                    self.end(store, &life)?;
                    back_offs::forget(self.to, store.id, key, self.now.record_time)?;
                    self.begin(store, image_ix, in_use, Some(life.seen(store)))?
                }
                Some(life) => {
                    self.resume(store, &life, image_ix, in_use)?;
                    life.id
                }
                None => self.begin(store, image_ix, in_use, store.last_complete)?,
            };
            self.lives[image_ix.get()] = Some(id);
        }
        for life in lives.values() {
            if store.is_complete {
                self.end(store, life)?;
            } else {
                self.out_of_sight("images", life.id, store)?;
            }
        }
        if store.is_complete {
            back_offs::forget_gone(self.to, store.id, self.now.record_time)?;
        }
        Ok(())
    }

    fn present_lives(&self, store: &StoreRow) -> rusqlite::Result<HashMap<String, StoredLife>> {
        self.to
            .prepare_cached(
                "SELECT id, made, last_seen, in_use, last_used, image_id FROM images
                 WHERE store = ?1 AND gone_since IS NULL",
            )?
            .query_map([store.id], |row| {
                let life = StoredLife {
                    id: row.get("id")?,
                    made: row.get("made")?,
                    last_seen: row.get("last_seen")?,
                    in_use: row.get("in_use")?,
                    last_used: row.get("last_used")?,
                };
                Ok((row.get("image_id")?, life))
            })?
            .collect()
    }

    fn was_remade(&self, store: &StoreRow, life: &StoredLife, image: &Image) -> rusqlite::Result<bool> {
        // The wall clock at which it dropped out of sight is not stored; record time is nearly the same.
        let seen_wall = moment(life.last_seen.unwrap_or(store.last_wall))?;
        let before = Before { made: life.made.map(moment).transpose()?, seen_wall };
        Ok(ages::was_remade(&before, &image.evidence, &self.now))
    }

    /// Begins a life; returns its row.
    fn begin(
        &self,
        store: &StoreRow,
        image_ix: ImageIx,
        in_use: bool,
        absent_at: Option<i64>,
    ) -> rusqlite::Result<i64> {
        let image = &self.scan.inventory[image_ix];
        let [total_bytes, exclusive_bytes, frees_bytes] = self.sizes(image_ix);
        let (lives, gone): (i64, Option<i64>) = self
            .to
            .prepare_cached(
                "SELECT coalesce(max(life), 0), max(gone_since) FROM images
                 WHERE store = ?1 AND image_id = ?2",
            )?
            .query_row(params![store.id, image.id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
        // A life that ends with this scan proves no more than that it began before it.
        let gone = gone.filter(|gone| *gone < self.micros);
        let absent_at = absent_at.max(gone).map(moment).transpose()?;
        let (first_detected, detection) = ages::first_detection(&image.evidence, absent_at, &self.now);
        self.to
            .prepare_cached(
                "INSERT INTO images (store, image_id, life, first_detected, evidence, made, in_use, names,
                     total_bytes, exclusive_bytes, frees_bytes, listed_bytes, pinned, digests, origin)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            )?
            .execute(params![
                store.id,
                image.id.as_str(),
                lives + 1,
                micros(first_detected),
                json(&detection)?,
                ages::made(&image.evidence).map(micros),
                in_use,
                json(&image.names)?,
                total_bytes,
                exclusive_bytes,
                frees_bytes,
                image.listed_bytes.filter(|_| self.scan.is_measured).map(signed),
                !image.pinned_by.is_empty(),
                json(&image.digests)?,
                origin(image)?,
            ])?;
        Ok(self.to.last_insert_rowid())
    }

    /// Returns the total, exclusive and freed bytes of an image in the stored form.
    fn sizes(&self, image_ix: ImageIx) -> [i64; 3] {
        if !self.scan.is_measured {
            return [UNMEASURED; 3];
        }
        let sizes = self.scan.refs.sizes(self.scan.inventory, Root::Image(image_ix));
        [sizes.total.bytes, sizes.exclusive.bytes, sizes.exclusive.frees_bytes].map(signed)
    }

    fn resume(
        &self,
        store: &StoreRow,
        life: &StoredLife,
        image_ix: ImageIx,
        in_use: bool,
    ) -> rusqlite::Result<()> {
        let image = &self.scan.inventory[image_ix];
        let [total_bytes, exclusive_bytes, frees_bytes] = self.sizes(image_ix);
        let made = life.made.or(ages::made(&image.evidence).map(micros));
        // While the image is in use, `last_used` does not change.
        let last_used = if in_use { life.last_used } else { life.used(store) };
        // Its last container may have existed until now, so it is proven unused only from now on.
        let proven_since = (life.in_use && !in_use).then_some(self.micros);
        // Names that the image no longer has stay known, up to 16 of them. An image that was pulled stays pulled, also if
        // the evidence is lost later (the tools' cache of blobs can be deleted).
        self.to
            .prepare_cached(
                "UPDATE images SET last_seen = NULL, in_use = ?2, last_used = ?3, made = ?4, names = ?5,
                     total_bytes = iif(?14, ?6, total_bytes), exclusive_bytes = iif(?14, ?7, exclusive_bytes),
                     frees_bytes = iif(?14, ?8, frees_bytes), listed_bytes = iif(?14, ?9, listed_bytes),
                     pinned = ?10,
                     proven_since = max(coalesce(?11, proven_since), coalesce(proven_since, ?11)),
                     digests = ?12,
                     origin = iif(origin LIKE '{\"kind\":\"pulled\"%', origin, coalesce(?13, origin)),
                     former_names = iif(names = ?5 OR NOT json_valid(names) OR NOT json_valid(former_names),
                         former_names, (SELECT json_group_array(value) FROM (
                             SELECT value FROM json_each(images.names)
                             UNION SELECT value FROM json_each(images.former_names)
                             EXCEPT SELECT value FROM json_each(?5) LIMIT 16)))
                 WHERE id = ?1
                   AND ((last_seen, in_use, made, names, pinned, digests, origin)
                     IS NOT (NULL, ?2, ?4, ?5, ?10, ?12,
                       iif(origin LIKE '{\"kind\":\"pulled\"%', origin, coalesce(?13, origin)))
                     OR ?14 AND (total_bytes, exclusive_bytes, frees_bytes, listed_bytes)
                       IS NOT (?6, ?7, ?8, ?9))",
            )?
            .execute(params![
                life.id,
                in_use,
                last_used,
                made,
                json(&image.names)?,
                total_bytes,
                exclusive_bytes,
                frees_bytes,
                image.listed_bytes.map(signed),
                !image.pinned_by.is_empty(),
                proven_since,
                json(&image.digests)?,
                origin(image)?,
                self.scan.is_measured,
            ])?;
        Ok(())
    }

    fn end(&self, store: &StoreRow, life: &StoredLife) -> rusqlite::Result<()> {
        self.to
            .prepare_cached(
                "UPDATE images SET gone_since = ?2, last_seen = ?3, last_used = ?4, in_use = 0 WHERE id = ?1",
            )?
            .execute(params![life.id, self.micros, life.seen(store), life.used(store)])?;
        Ok(())
    }
}

/// Returns the origin of an image in the stored form; `None` without evidence.
fn origin(image: &Image) -> rusqlite::Result<Option<String>> {
    KnownOrigin::of(&image.origin).as_ref().map(json).transpose()
}
