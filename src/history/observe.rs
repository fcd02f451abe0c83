//! Writes a scan to the database: new, changed and vanished objects. Unchanged objects need no write.
//!
//! Most scans find a node as it was, so the time at which an object was last seen is stored once for the whole store.
//! The object's own `last_seen` is NULL while it is present. It is filled when the object drops out of sight, which is
//! when an incomplete scan does not find it, or when it is found to be gone.

mod containers;
mod images;

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use rusqlite::{Transaction, params};

use super::ages::Moment;
use super::clock::{self, ClockState, Correction};
use super::scan_run::{Recorded, ScanRun};
use super::values::{json, micros, signed};
use super::{known, retention};
use crate::model::text::path_text;
use crate::model::{ImageIx, StoreId, StoreIx};

/// Records what a scan found, and returns its record time. Nothing is recorded for a store that a later scan has recorded
/// already, which happens when two scans run at the same time.
pub fn observe(to: &Transaction<'_>, scan: &ScanRun<'_>) -> rusqlite::Result<Timestamp> {
    let last = known::clock(to)?;
    let now = tick(to, last.as_ref(), scan)?;
    let recorded = Recorded::of(scan.inventory);
    let images = (0..scan.inventory.images.len()).map(ImageIx::from);
    let used = images.filter(|image_ix| recorded.has_image(*image_ix) && scan.is_used_elsewhere(*image_ix));
    let of_containers =
        recorded.containers(scan.inventory).flat_map(|container| recorded.images_of(container));
    let mut writer = Writer {
        to,
        scan,
        now,
        micros: micros(now.record_time),
        in_use: used.chain(of_containers).collect(),
        lives: vec![None; scan.inventory.images.len()],
        uses: HashMap::new(),
        recorded: &recorded,
    };
    let stores = writer.stores()?;
    for store in &stores {
        writer.images(store)?;
    }
    for store in &stores {
        writer.containers(store)?;
    }
    writer.count_uses()?;
    for store in stores.iter().filter(|store| store.is_of_another_user) {
        retention::bound(to, store.id)?;
    }
    if last.is_none_or(|last| retention::is_due(last.record_time, now.record_time)) {
        retention::forget(to, now.record_time)?;
    }
    Ok(now.record_time)
}

/// Advances record time to the scan, unless the scan is older than the last reading.
fn tick(to: &Transaction<'_>, last: Option<&ClockState>, scan: &ScanRun<'_>) -> rusqlite::Result<Moment> {
    let reading = &scan.clock;
    let is_late = last.is_some_and(|last| {
        let follows = last.is_same_boot(reading);
        !follows && scan.record_time < last.record_time
    });
    if is_late {
        return Ok(Moment { record_time: scan.record_time, wall: reading.wall });
    }
    let advance = clock::advance(last, reading);
    if let Some(correction) = advance.correction {
        correct(to, correction)?;
    }
    store_clock(to, &advance.state)?;
    Ok(Moment { record_time: advance.state.record_time, wall: reading.wall })
}

fn store_clock(to: &Transaction<'_>, state: &ClockState) -> rusqlite::Result<()> {
    to.prepare_cached(
        "INSERT INTO clock (id, record_time, wall, boot_id, since_boot, unsettled_after, leaps)
         VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id) DO UPDATE SET record_time = ?1, wall = ?2, boot_id = ?3, since_boot = ?4,
             unsettled_after = ?5, leaps = ?6",
    )?
    .execute(params![
        micros(state.record_time),
        micros(state.wall),
        state.boot_id,
        state.since_boot,
        state.unsettled_after.map(micros),
        json(&state.leaps)?,
    ])?;
    Ok(())
}

/// Prevents images from ageing by a leap of record time.
fn correct(to: &Transaction<'_>, correction: Correction) -> rusqlite::Result<()> {
    to.prepare_cached(
        "UPDATE images SET proven_since = counted + ?2
         FROM (SELECT images.id AS image, max(first_detected, coalesce(proven_since, first_detected),
                   CASE WHEN in_use THEN coalesce(images.last_seen, stores.last_seen)
                        ELSE coalesce(last_used, first_detected) END) AS counted
               FROM images JOIN stores ON stores.id = images.store WHERE gone_since IS NULL)
         WHERE id = image AND counted > ?1",
    )?
    .execute(params![micros(correction.after), signed(correction.by.as_micros())])?;
    Ok(())
}

struct Writer<'a> {
    to: &'a Transaction<'a>,
    scan: &'a ScanRun<'a>,
    recorded: &'a Recorded,
    now: Moment,
    /// `now` in the stored form.
    micros: i64,
    in_use: HashSet<ImageIx>,
    /// Row of the present life of each image.
    lives: Vec<Option<i64>>,
    /// Number of new containers of each life, by row.
    uses: HashMap<i64, i64>,
}

/// A store as recorded before this scan.
struct StoreRow {
    id: i64,
    /// Several if a store was read twice.
    positions: Vec<StoreIx>,
    /// The scan listed everything in the store, and all of it is recorded.
    is_complete: bool,
    is_of_another_user: bool,
    last_seen: i64,
    last_complete: Option<i64>,
    last_wall: i64,
}

impl Writer<'_> {
    /// Finds or adds the scanned stores, except those that a later scan has recorded, and records that they were seen.
    fn stores(&self) -> rusqlite::Result<Vec<StoreRow>> {
        // An object created during the scan may be newer than what the scan saw, so the start of the scan counts.
        let wall = micros(self.scan.taken_at);
        let mut stores: Vec<StoreRow> = Vec::new();
        let inventory = self.scan.inventory;
        for (position, seen) in inventory.stores.iter().enumerate() {
            let (store_ix, key) = (StoreIx::from(position), StoreId::of(seen));
            let (kind, root, driver) = (key.kind(), path_text::to_text(key.root()), key.driver());
            self.to
                .prepare_cached(
                    "INSERT INTO stores (kind, root, driver, first_seen, last_seen, last_wall)
                     VALUES (?1, ?2, ?3, ?4, ?4, ?5) ON CONFLICT DO NOTHING",
                )?
                .execute(params![kind, root, driver, self.micros, wall])?;
            let store = self
                .to
                .prepare_cached(
                    "SELECT id, last_seen, last_complete, coalesce(last_wall, last_seen) AS last_wall FROM stores
                     WHERE kind = ?1 AND root = ?2 AND driver = ?3",
                )?
                .query_row(params![kind, root, driver], |row| {
                    Ok(StoreRow {
                        id: row.get("id")?,
                        positions: vec![store_ix],
                        is_complete: self.recorded.is_complete(inventory, store_ix),
                        is_of_another_user: inventory.of_other_users.contains(&store_ix),
                        last_seen: row.get("last_seen")?,
                        last_complete: row.get("last_complete")?,
                        last_wall: row.get("last_wall")?,
                    })
                })?;
            match stores.iter_mut().find(|known| known.id == store.id) {
                Some(twice) => {
                    twice.positions.push(store_ix);
                    twice.is_complete &= store.is_complete;
                }
                None => stores.push(store),
            }
        }
        stores.retain(|store| store.last_seen <= self.micros);
        for store in &stores {
            self.to
                .prepare_cached(
                    "UPDATE stores SET last_seen = ?2, last_complete = coalesce(?3, last_complete),
                     last_wall = ?4 WHERE id = ?1",
                )?
                .execute(params![store.id, self.micros, store.is_complete.then_some(self.micros), wall])?;
        }
        Ok(stores)
    }

    /// Records that a present row of `table` has dropped out of sight, if it has not before. Its `last_seen` is filled,
    /// because that of the store now belongs to this scan.
    fn out_of_sight(&self, table: &str, id: i64, store: &StoreRow) -> rusqlite::Result<()> {
        self.to
            .prepare_cached(&format!(
                "UPDATE {table} SET last_seen = ?2 WHERE id = ?1 AND last_seen IS NULL"
            ))?
            .execute(params![id, store.last_seen])?;
        Ok(())
    }

    fn count_uses(&self) -> rusqlite::Result<()> {
        // A larger sum would overflow to a real number, which the STRICT table refuses.
        let mut update = self
            .to
            .prepare_cached("UPDATE images SET use_count = min(use_count, 1 << 62) + ?2 WHERE id = ?1")?;
        for (life, more) in &self.uses {
            update.execute(params![life, more])?;
        }
        Ok(())
    }
}
