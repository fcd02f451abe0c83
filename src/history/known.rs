//! Images in the database.

use std::collections::HashMap;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::ages::{self, AgeRule, Basis, Before, FirstDetection, ImageAge, InventoryAges, Moment};
use super::clock::ClockState;
use super::values::{from_json, maybe_time, moment, store, time};
use crate::model::text::path_text;
use crate::model::{Image, Inventory, StoreId};

/// One stay of an image in a store: from its first detection to the first complete scan that no longer finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Row in the database, to which other tables refer.
    pub row: i64,
    pub store: StoreId,
    pub image_id: String,
    /// Age and use in this life.
    pub age: ImageAge,
    pub last_seen: Timestamp,
    /// First complete scan that no longer found the image; `None` if it is present.
    pub gone_since: Option<Timestamp>,
    /// Names when it was last seen.
    pub names: Vec<String>,
    /// The configuration protected the image when it was last seen.
    pub pinned: bool,
    pub total_bytes: u64,
    pub exclusive_bytes: u64,
    pub frees_bytes: u64,
    /// Size that the runtime's tools printed.
    pub listed_bytes: Option<u64>,
    made: Option<Timestamp>,
    /// A container used the image when it was last seen.
    in_use: bool,
}

#[derive(Clone, Debug, Default)]
pub struct KnownImages {
    stores: HashMap<StoreId, KnownStore>,
    clock: Option<ClockState>,
}

#[derive(Clone, Debug)]
struct KnownStore {
    last_complete: Option<Timestamp>,
    last_wall: Timestamp,
    last_seen: Timestamp,
    lives: HashMap<String, Life>,
}

impl KnownImages {
    #[must_use]
    pub fn image(&self, store: &StoreId, image_id: &str) -> Option<&Life> {
        self.stores.get(store)?.lives.get(image_id)
    }

    /// Returns all present lives, unordered.
    pub fn all(&self) -> impl Iterator<Item = &Life> {
        self.stores.values().flat_map(|store| store.lives.values())
    }

    /// Returns the stored state of the clock, with which new readings are compared.
    #[must_use]
    pub fn clock(&self) -> Option<&ClockState> {
        self.clock.as_ref()
    }

    /// Returns the ages of all images of an inventory, from the records if they contain the image, otherwise from the
    /// disk. The ages are right whether or not this scan has been recorded: an image that was pulled again since the
    /// last record is judged anew, and an image that is in use now counts as used now.
    ///
    /// `ended`: see [`ended_lives`]; empty if the numbers of lives do not matter.
    #[must_use]
    pub fn ages(&self, inventory: &Inventory, now: &Moment, ended: &EndedLives) -> InventoryAges {
        let users = ages::users(inventory);
        let keys = inventory.store_ids();
        let images = inventory
            .images
            .iter()
            .zip(users)
            .map(|(image, users)| self.age(image, &keys[image.store.get()], users, (now, ended)));
        InventoryAges { images: images.collect(), now: now.record_time }
    }

    /// Returns the ages of images on the disk of another node. A container there proves a use at the time at which the
    /// records last saw the store, not now.
    #[must_use]
    pub fn ages_elsewhere(&self, inventory: &Inventory, now: &Moment, ended: &EndedLives) -> InventoryAges {
        let keys = inventory.store_ids();
        let mut ages = self.ages(inventory, now, ended);
        for (age, image) in ages.images.iter_mut().zip(&inventory.images) {
            if age.last_used == Some(now.record_time) {
                let seen = self.stores.get(&keys[image.store.get()]).map(|store| store.last_seen);
                age.last_used = seen.filter(|seen| *seen < now.record_time);
            }
        }
        ages
    }

    /// Returns the stores that the newest record saw.
    pub fn newest_stores(&self) -> impl Iterator<Item = &StoreId> {
        let newest = self.stores.values().map(|store| store.last_seen).max();
        self.stores.iter().filter(move |(_, store)| Some(store.last_seen) == newest).map(|(id, _)| id)
    }

    /// Returns the images of an inventory that the records do not contain as present.
    #[must_use]
    pub fn missing<'i>(&self, inventory: &'i Inventory) -> Vec<(StoreId, &'i str)> {
        let keys = inventory.store_ids();
        let images = inventory.images.iter().map(|image| (&keys[image.store.get()], image.id.as_str()));
        let missing = images
            .filter(|(store, id)| self.stores.get(store).is_some_and(|store| !store.lives.contains_key(*id)));
        missing.map(|(store, id)| (store.clone(), id)).collect()
    }

    fn age(
        &self,
        image: &Image,
        store: &StoreId,
        users: u64,
        (now, ended): (&Moment, &EndedLives),
    ) -> ImageAge {
        let Some(seen) = self.stores.get(store) else {
            return ages::unrecorded(&image.evidence, None, users, 1, now);
        };
        let Some(life) = seen.lives.get(image.id.as_str()) else {
            let ended = ended.get(&(store.clone(), image.id.to_string())).copied().unwrap_or(0);
            return ages::unrecorded(&image.evidence, seen.last_complete, users, ended + 1, now);
        };
        let is_out_of_sight = life.last_seen < seen.last_seen;
        let seen_wall = if is_out_of_sight { life.last_seen } else { seen.last_wall };
        let before = Before { made: life.made, seen_wall };
        if ages::was_remade(&before, &image.evidence, now) {
            let next = life.age.life + 1;
            return ages::unrecorded(&image.evidence, Some(life.last_seen), users, next, now);
        }
        let mut age = life.age.clone();
        if users > 0 {
            age.last_used = age.last_used.max(Some(now.record_time));
            age.counted_from = age.counted_from.max(now.record_time);
            age.use_count = age.use_count.max(users);
        } else if life.in_use {
            // A container used it at the last scan, and may have existed until now.
            age.counted_from = age.counted_from.max(now.record_time);
        }
        age
    }
}

/// Number of the last ended life of images.
pub type EndedLives = HashMap<(StoreId, String), u32>;

/// Loads the number of the last ended life of each of these images.
pub fn ended_lives(from: &Connection, images: &[(StoreId, &str)]) -> rusqlite::Result<EndedLives> {
    let mut select = from.prepare_cached(
        "SELECT max(life) FROM images JOIN stores ON stores.id = images.store
         WHERE kind = ?1 AND root = ?2 AND driver = ?3 AND image_id = ?4 AND gone_since IS NOT NULL",
    )?;
    let mut ended = EndedLives::new();
    for (store, id) in images {
        let values = params![store.kind(), path_text::to_text(store.root()), store.driver(), id];
        if let Some(life) = select.query_row(values, |row| row.get(0))? {
            ended.insert((store.clone(), (*id).to_owned()), life);
        }
    }
    Ok(ended)
}

/// Loads the stored state of the clock; `None` before the first scan record.
pub fn clock(from: &Connection) -> rusqlite::Result<Option<ClockState>> {
    from.prepare_cached("SELECT * FROM clock")?
        .query_row([], |row| {
            Ok(ClockState {
                record_time: time(row, "record_time")?,
                wall: time(row, "wall")?,
                boot_id: row.get("boot_id")?,
                since_boot: row.get("since_boot")?,
                unsettled_after: maybe_time(row, "unsettled_after")?,
                leaps: from_json(row, "leaps")?,
            })
        })
        .optional()
}

pub fn images(from: &Connection) -> rusqlite::Result<KnownImages> {
    let rows = store_rows(from)?;
    let lives = select_lives(from, &rows, "WHERE gone_since IS NULL", [])?;
    let mut known = KnownImages { stores: rows.into_values().collect(), clock: clock(from)? };
    for life in lives {
        if let Some(store) = known.stores.get_mut(&life.store) {
            store.lives.insert(life.image_id.clone(), life);
        }
    }
    Ok(known)
}

/// Loads the stores by row, without those of an unknown kind.
fn store_rows(from: &Connection) -> rusqlite::Result<HashMap<i64, (StoreId, KnownStore)>> {
    let mut select = from.prepare_cached("SELECT * FROM stores")?;
    let stores = select.query_map([], |row| {
        let last_seen = time(row, "last_seen")?;
        let seen = KnownStore {
            last_complete: maybe_time(row, "last_complete")?,
            last_wall: maybe_time(row, "last_wall")?.unwrap_or(last_seen),
            last_seen,
            lives: HashMap::new(),
        };
        let id: i64 = row.get("id")?;
        Ok(store(row, "kind").ok().map(|store| (id, (store, seen))))
    })?;
    stores.filter_map(Result::transpose).collect()
}

/// Loads all lives of an image of a store, the latest first.
pub fn lives(from: &Connection, store: &StoreId, image_id: &str) -> rusqlite::Result<Vec<Life>> {
    select_lives(
        from,
        &store_rows(from)?,
        "WHERE kind = ?1 AND root = ?2 AND driver = ?3 AND image_id = ?4 ORDER BY life DESC",
        params![store.kind(), path_text::to_text(store.root()), store.driver(), image_id],
    )
}

/// Returns the time of the first record; `None` in an empty database.
pub fn began(from: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let first: Option<i64> =
        from.prepare_cached("SELECT min(first_seen) FROM stores")?.query_row([], |row| row.get(0))?;
    first.map(moment).transpose()
}

/// Loads the lives of all images in all stores, those of an image in their order.
pub fn all_lives(from: &Connection) -> rusqlite::Result<Vec<Life>> {
    select_lives(from, &store_rows(from)?, "ORDER BY images.store, image_id, life", [])
}

fn select_lives(
    from: &Connection,
    stores: &HashMap<i64, (StoreId, KnownStore)>,
    which: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<Life>> {
    let mut select = from.prepare_cached(&format!(
        "SELECT images.store, images.id, image_id, life, first_detected, evidence, made,
             coalesce(images.last_seen, stores.last_seen),
             iif(in_use, coalesce(images.last_seen, stores.last_seen), last_used), proven_since, use_count,
             gone_since, names, total_bytes, exclusive_bytes, frees_bytes, listed_bytes, pinned, in_use
         FROM images JOIN stores ON stores.id = images.store {which}"
    ))?;
    let rows = select.query_map(values, |row| {
        let store = stores.get(&row.get(0)?).map(|(store, _)| store.clone());
        store.map(|store| life(row, store)).transpose()
    })?;
    rows.filter_map(Result::transpose).collect()
}

fn life(row: &Row<'_>, store: StoreId) -> rusqlite::Result<Life> {
    let first_detected = moment(row.get(4)?)?;
    let last_used = optional(row, 8)?;
    // A damaged row must not make all others unreadable.
    let detection: Option<FirstDetection> = json(row, 5)?;
    Ok(Life {
        row: row.get(1)?,
        store,
        image_id: row.get(2)?,
        age: ImageAge {
            first_detected,
            detection: detection.unwrap_or(FirstDetection { rule: AgeRule::Unreadable, found: Vec::new() }),
            last_used,
            use_count: count(row.get(10)?),
            life: row.get(3)?,
            counted_from: ages::counted_from(first_detected, last_used, optional(row, 9)?),
            basis: Basis::Records,
        },
        last_seen: moment(row.get(7)?)?,
        gone_since: optional(row, 11)?,
        names: json(row, 12)?.unwrap_or_default(),
        total_bytes: count(row.get(13)?),
        exclusive_bytes: count(row.get(14)?),
        frees_bytes: count(row.get(15)?),
        listed_bytes: row.get::<_, Option<i64>>(16)?.map(count),
        pinned: row.get(17)?,
        made: optional(row, 6)?,
        in_use: row.get(18)?,
    })
}

fn optional(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    row.get::<_, Option<i64>>(column)?.map(moment).transpose()
}

/// Parses a column of JSON; `None` if layersweep did not write it in this form.
fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    Ok(serde_json::from_str(row.get_ref(column)?.as_str()?).ok())
}

/// Converts a stored count; a negative one is damage and counts as 0.
fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
