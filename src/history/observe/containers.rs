//! Containers: come, changed, gone; and each once a use of its image.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

use super::{StoreRow, Writer};
use crate::history::scan_record::SeenContainer;
use crate::history::values::signed;

/// A container as stored.
struct Stored {
    id: i64,
    image: Option<i64>,
    created: Option<i64>,
    name: String,
    state: String,
    bytes: i64,
    /// `None`: as the store.
    last_seen: Option<i64>,
    is_gone: bool,
}

const COLUMNS: &str = "id, image, created, name, state, bytes, last_seen, gone_since IS NOT NULL";

impl Stored {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            image: row.get(1)?,
            created: row.get(2)?,
            name: row.get(3)?,
            state: row.get(4)?,
            bytes: row.get(5)?,
            last_seen: row.get(6)?,
            is_gone: row.get(7)?,
        })
    }
}

impl Writer<'_> {
    pub(super) fn containers(&mut self, store: &StoreRow) -> rusqlite::Result<()> {
        let scan_record = self.scan_record;
        let mut present = self.present_containers(store)?;
        let mut done = HashSet::new();
        for container in &scan_record.containers {
            if !store.positions.contains(&container.store) || !done.insert(&container.id) {
                continue;
            }
            match present.remove(&container.id) {
                Some(stored) => self.update(container, &stored)?,
                None if self.insert(store, container)? => self.observed.containers_come += 1,
                None => {
                    if let Some(stored) = self.find(store, container)? {
                        self.update(container, &stored)?;
                    }
                }
            }
        }
        let (mut gone, mut unseen) = (
            self.to.prepare_cached("UPDATE containers SET gone_since = ?2, last_seen = ?3 WHERE id = ?1")?,
            self.to.prepare_cached("UPDATE containers SET last_seen = ?2 WHERE id = ?1")?,
        );
        for stored in present.values() {
            match (store.is_complete, stored.last_seen) {
                (true, seen) => {
                    gone.execute(params![stored.id, self.micros, seen.unwrap_or(store.last_seen)])?;
                    self.observed.containers_gone += 1;
                }
                (false, None) => _ = unseen.execute(params![stored.id, store.last_seen])?,
                (false, Some(_)) => {}
            }
        }
        Ok(())
    }

    fn present_containers(&self, store: &StoreRow) -> rusqlite::Result<HashMap<String, Stored>> {
        let mut select = self.to.prepare_cached(&format!(
            "SELECT {COLUMNS}, container_id FROM containers WHERE store = ?1 AND gone_since IS NULL"
        ))?;
        let rows = select.query_map([store.id], |row| Ok((row.get(8)?, Stored::of(row)?)))?;
        rows.collect()
    }

    fn find(&self, store: &StoreRow, container: &SeenContainer) -> rusqlite::Result<Option<Stored>> {
        self.to
            .prepare_cached(&format!(
                "SELECT {COLUMNS} FROM containers WHERE store = ?1 AND container_id = ?2"
            ))?
            .query_row(params![store.id, container.id], Stored::of)
            .optional()
    }

    /// The life that a container is a use of.
    fn life_of(&self, container: &SeenContainer) -> Option<i64> {
        self.lives[container.image?]
    }

    /// Adds a container and counts it; whether there was none of that id.
    fn insert(&mut self, store: &StoreRow, container: &SeenContainer) -> rusqlite::Result<bool> {
        let life = self.life_of(container);
        let added = self
            .to
            .prepare_cached(
                "INSERT INTO containers (store, container_id, name, owner, image, image_id, created, state,
                     sandbox, bytes, first_seen)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                 ON CONFLICT (store, container_id) DO NOTHING",
            )?
            .execute(params![
                store.id,
                container.id,
                container.name,
                container.owner.as_str(),
                life,
                container.image_id.as_ref().filter(|_| life.is_none()),
                container.created.map(Timestamp::as_microsecond),
                container.state.as_str(),
                container.sandbox,
                signed(container.bytes),
                self.micros,
            ])?;
        if added == 1 {
            self.count(life);
        }
        Ok(added == 1)
    }

    fn count(&mut self, life: Option<i64>) {
        if let Some(life) = life {
            *self.uses.entry(life).or_default() += 1;
        }
    }

    fn update(&mut self, container: &SeenContainer, stored: &Stored) -> rusqlite::Result<()> {
        let life = self.life_of(container).or(stored.image);
        let created = container.created.map(Timestamp::as_microsecond).or(stored.created);
        let (state, bytes) = (container.state.as_str(), signed(container.bytes));
        // `ctr run` may give the same name again and again: another container.
        let is_another = created != stored.created && stored.created.is_some();
        if is_another || life != stored.image {
            self.count(life);
        }
        let same = !stored.is_gone && stored.last_seen.is_none() && !is_another;
        let same = same && life == stored.image && created == stored.created;
        if same && stored.name == container.name && stored.state == state && stored.bytes == bytes {
            return Ok(());
        }
        self.to
            .prepare_cached(
                "UPDATE containers SET image = ?2, created = ?3, name = ?4, state = ?5, bytes = ?6,
                     first_seen = iif(?7, ?8, first_seen), last_seen = NULL, gone_since = NULL
                 WHERE id = ?1",
            )?
            .execute(params![
                stored.id,
                life,
                created,
                container.name,
                state,
                bytes,
                is_another,
                self.micros
            ])?;
        Ok(())
    }
}
