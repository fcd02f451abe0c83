//! Containers: new, changed and gone. Each counts once as a use of its image.

use std::collections::{HashMap, HashSet};

use rusqlite::{OptionalExtension, Row, params};

use super::{StoreRow, Writer};
use crate::history::values::{micros, signed};
use crate::model::refs::Refs;
use crate::model::{Container, ImageId};

struct Stored {
    id: i64,
    image: Option<i64>,
    created: Option<i64>,
    /// `None`: the store's `last_seen` applies.
    last_seen: Option<i64>,
}

impl Stored {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get("id")?,
            image: row.get("image")?,
            created: row.get("created")?,
            last_seen: row.get("last_seen")?,
        })
    }
}

impl Writer<'_> {
    pub(super) fn containers(&mut self, store: &StoreRow) -> rusqlite::Result<()> {
        let (scan, recorded) = (self.scan, self.recorded);
        let mut present: HashMap<String, Stored> = self
            .to
            .prepare_cached(
                "SELECT id, image, created, last_seen, container_id FROM containers
                 WHERE store = ?1 AND gone_since IS NULL",
            )?
            .query_map([store.id], |row| Ok((row.get("container_id")?, Stored::of(row)?)))?
            .collect::<Result<_, _>>()?;
        let mut done = HashSet::new();
        for container in recorded.containers(scan.inventory) {
            if !store.positions.contains(&container.store) || !done.insert(&container.id) {
                continue;
            }
            let stored = match present.remove(container.id.as_str()) {
                Some(stored) => Some(stored),
                None => self.gone(store, container)?,
            };
            match stored {
                Some(stored) => self.update(container, &stored)?,
                None => self.insert(store, container)?,
            }
        }
        let mut end =
            self.to.prepare_cached("UPDATE containers SET gone_since = ?2, last_seen = ?3 WHERE id = ?1")?;
        for stored in present.values() {
            if store.is_complete {
                let last_seen = stored.last_seen.unwrap_or(store.last_seen);
                end.execute(params![stored.id, self.micros, last_seen])?;
            } else {
                self.out_of_sight("containers", stored.id, store)?;
            }
        }
        Ok(())
    }

    /// Finds the row of a container that was gone before.
    fn gone(&self, store: &StoreRow, container: &Container) -> rusqlite::Result<Option<Stored>> {
        self.to
            .prepare_cached(
                "SELECT id, image, created, last_seen FROM containers WHERE store = ?1 AND container_id = ?2",
            )?
            .query_row(params![store.id, container.id.as_str()], Stored::of)
            .optional()
    }

    /// Returns the life of the image that a container uses.
    fn life_of(&self, container: &Container) -> Option<i64> {
        self.lives[container.image?.get()]
    }

    fn insert(&mut self, store: &StoreRow, container: &Container) -> rusqlite::Result<()> {
        let life = self.life_of(container);
        self.to
            .prepare_cached(
                "INSERT INTO containers (store, container_id, name, owner, image, image_id, created, state,
                     sandbox, bytes, first_seen)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                store.id,
                container.id.as_str(),
                container.name,
                container.owner.as_str(),
                life,
                container.image_id.as_ref().filter(|_| life.is_none()).map(ImageId::as_str),
                container.created.map(micros),
                container.state.as_str(),
                container.sandbox,
                signed(Refs::held_bytes(self.scan.inventory, &container.holds)),
                self.micros,
            ])?;
        self.count(life);
        Ok(())
    }

    fn count(&mut self, life: Option<i64>) {
        if let Some(life) = life {
            *self.uses.entry(life).or_default() += 1;
        }
    }

    fn update(&mut self, container: &Container, stored: &Stored) -> rusqlite::Result<()> {
        let life = self.life_of(container).or(stored.image);
        let created = container.created.map(micros).or(stored.created);
        // `ctr run` may give the same name to several containers, one after the other.
        let is_another = created != stored.created && stored.created.is_some();
        if is_another || life != stored.image {
            self.count(life);
        }
        self.to
            .prepare_cached(
                "UPDATE containers SET image = ?2, created = ?3, name = ?4, state = ?5, bytes = iif(?9, ?6, bytes),
                     first_seen = iif(?7, ?8, first_seen), last_seen = NULL, gone_since = NULL
                 WHERE id = ?1
                   AND (image, created, name, state, bytes, last_seen, gone_since)
                       IS NOT (?2, ?3, ?4, ?5, iif(?9, ?6, bytes), NULL, NULL)",
            )?
            .execute(params![
                stored.id,
                life,
                created,
                container.name,
                container.state.as_str(),
                signed(Refs::held_bytes(self.scan.inventory, &container.holds)),
                is_another,
                self.micros,
                self.scan.is_measured,
            ])?;
        Ok(())
    }
}
