//! Uses of images that wait to be saved.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use rusqlite::{OptionalExtension as _, Transaction, params};
use serde::{Deserialize, Serialize};

use super::scan_run::{Recorded, ScanRun};
use super::values::micros;
use crate::model::text::path_text;
use crate::model::{ImageIx, StoreId};

/// Images that scans saw in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Uses {
    images: Vec<UsedImage>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct UsedImage {
    store: StoreId,
    id: String,
    /// Record time of the last scan that saw it in use.
    used_at: Timestamp,
    containers: BTreeMap<String, UsingContainer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct UsingContainer {
    name: String,
    owner: String,
    state: String,
}

impl Uses {
    pub(super) fn of(scan: &ScanRun<'_>) -> Self {
        let (inventory, recorded) = (scan.inventory, Recorded::of(scan.inventory));
        let images = (0..inventory.images.len()).map(ImageIx::from);
        let used =
            images.filter(|image_ix| recorded.has_image(*image_ix) && scan.is_used_elsewhere(*image_ix));
        let mut uses: BTreeMap<ImageIx, BTreeMap<String, UsingContainer>> =
            used.map(|image_ix| (image_ix, BTreeMap::new())).collect();
        for container in recorded.containers(inventory) {
            for image_ix in recorded.images_of(container) {
                let using = UsingContainer {
                    name: container.name.clone(),
                    owner: container.owner.as_str().to_owned(),
                    state: container.state.as_str().to_owned(),
                };
                uses.entry(image_ix).or_default().insert(container.id.to_string(), using);
            }
        }
        let images = uses.into_iter().map(|(image_ix, containers)| {
            let image = &inventory[image_ix];
            let store = StoreId::of(&inventory[image.store]);
            UsedImage { store, id: image.id.to_string(), used_at: scan.record_time, containers }
        });
        Self { images: images.collect() }
    }

    /// Adds uses: of each image the latest counts, and all containers.
    pub(super) fn add(&mut self, other: Self) {
        let mut known: HashMap<(StoreId, String), usize> = HashMap::new();
        for (position, image) in self.images.iter().enumerate() {
            known.insert((image.store.clone(), image.id.clone()), position);
        }
        for image in other.images {
            match known.get(&(image.store.clone(), image.id.clone())) {
                Some(position) => {
                    let same = &mut self.images[*position];
                    same.used_at = same.used_at.max(image.used_at);
                    same.containers.extend(image.containers);
                }
                None => self.images.push(image),
            }
        }
    }

    /// Writes the uses of images that the database contains. Written twice, they change nothing.
    pub(super) fn apply(&self, to: &Transaction<'_>) -> rusqlite::Result<()> {
        self.images.iter().try_for_each(|image| image.apply(to))
    }
}

impl UsedImage {
    fn apply(&self, to: &Transaction<'_>) -> rusqlite::Result<()> {
        let (store, used_at) = (&self.store, micros(self.used_at));
        let found: Option<(i64, i64, i64)> = to
            .prepare_cached(
                "SELECT images.id, stores.id, stores.last_seen FROM images JOIN stores ON stores.id = images.store
                 WHERE kind = ?1 AND root = ?2 AND driver = ?3 AND image_id = ?4
                   AND (gone_since IS NULL OR gone_since > ?5)
                 ORDER BY life DESC LIMIT 1",
            )?
            .query_row(
                params![store.kind(), path_text::to_text(store.root()), store.driver(), self.id, used_at],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .optional()?;
        let Some((image, store, store_seen)) = found else { return Ok(()) };
        let mut insert = to.prepare_cached(
            "INSERT INTO containers (store, container_id, name, owner, image, state, bytes, first_seen, last_seen,
                 gone_since)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?7, ?7) ON CONFLICT DO NOTHING",
        )?;
        let mut new: i64 = 0;
        for (id, container) in &self.containers {
            let UsingContainer { name, owner, state } = container;
            new += i64::from(insert.execute(params![store, id, name, owner, image, state, used_at])? > 0);
        }
        // Its last container may have existed until the last scan, which no longer saw it.
        to.prepare_cached(
            "UPDATE images SET use_count = min(use_count, 1 << 62) + ?2,
                 last_seen = iif(in_use AND coalesce(last_seen, ?4) < ?3, ?3, last_seen),
                 proven_since = iif(in_use OR last_used >= ?3, proven_since, max(coalesce(proven_since, ?3), ?3, ?4)),
                 last_used = iif(in_use OR last_used >= ?3, last_used, ?3)
             WHERE id = ?1",
        )?
        .execute(params![image, new, used_at, store_seen])?;
        Ok(())
    }
}
