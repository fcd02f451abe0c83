//! What a sighting adds to a store of which the records know more recent things: uses.

use rusqlite::{OptionalExtension, params};

use super::{StoreRow, Writer};

impl Writer<'_> {
    /// Finds the lives that the images had at the time, and writes when they were used.
    pub(super) fn late_images(&mut self, store: &StoreRow) -> rusqlite::Result<()> {
        let sighting = self.sighting;
        for (at, image) in sighting.images.iter().enumerate() {
            if !store.positions.contains(&image.store) {
                continue;
            }
            self.lives[at] = self
                .to
                .prepare_cached(
                    "SELECT id FROM images WHERE store = ?1 AND image_id = ?2 AND handler = ?3
                         AND first_detected <= ?4 AND coalesce(gone_since > ?4, 1)
                     ORDER BY life DESC LIMIT 1",
                )?
                .query_row(params![store.id, image.id, image.handler, self.micros], |row| row.get(0))
                .optional()?;
            let Some(life) = self.lives[at].filter(|_| self.in_use.contains(&at)) else { continue };
            self.to
                .prepare_cached(
                    "UPDATE images SET last_used = ?2 WHERE id = ?1 AND coalesce(last_used < ?2, 1)",
                )?
                .execute(params![life, self.micros])?;
        }
        Ok(())
    }

    pub(super) fn late_containers(&mut self, store: &StoreRow) -> rusqlite::Result<()> {
        let sighting = self.sighting;
        let gone_since = store.last_complete.filter(|complete| *complete > self.micros);
        for container in &sighting.containers {
            if store.positions.contains(&container.store) && self.insert(store, container, gone_since)? {
                self.observed.containers_come += 1;
            }
        }
        Ok(())
    }
}
