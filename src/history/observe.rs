//! Writes a scan record to the database: what is new, what has changed, what is gone. What is
//! as it was costs no write.

mod containers;
mod images;

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use rusqlite::{OptionalExtension, Transaction, params};

use super::ages::Moment;
use super::clock::{self, ClockState, Correction};
use super::scan_record::{ScanRecord, SeenContainer};
use super::{known, retention};
use crate::model::path_text;
use crate::model::{Consistency, StoreKind};

/// What a scan record changed in the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The record time of the scan record.
    pub record_time: Timestamp,
    /// Images seen for the first time, or back again.
    pub images_come: usize,
    /// Images found gone, those among them that were pulled again since.
    pub images_gone: usize,
    /// Containers seen for the first time.
    pub containers_come: usize,
    /// Containers found gone.
    pub containers_gone: usize,
    /// Stores that were scanned later than by this one: nothing was taken of them.
    pub late_stores: usize,
    /// Rows of history that were too old to keep.
    pub forgotten: usize,
}

/// Records a scan record. Of a store that was recorded more recently nothing is taken: a scan that had
/// to wait is applied before the next one, so this is one that ran beside it.
pub fn observe(to: &Transaction<'_>, scan_record: &ScanRecord) -> rusqlite::Result<Observed> {
    if !scan_record.is_sound() {
        let why = "the scan record names stores or images that it does not have";
        return Err(rusqlite::Error::ToSqlConversionFailure(why.into()));
    }
    let last = known::clock(to)?;
    let now = tick(to, last.as_ref(), scan_record)?;
    let mut writer = Writer {
        to,
        scan_record,
        now,
        micros: now.record_time.as_microsecond(),
        in_use: {
            let images = scan_record.images.iter().enumerate().filter(|(_, image)| image.in_use);
            let images = images.map(|(at, _)| at);
            images.chain(scan_record.containers.iter().flat_map(SeenContainer::images)).collect()
        },
        lives: vec![None; scan_record.images.len()],
        uses: HashMap::new(),
        observed: Observed {
            record_time: now.record_time,
            images_come: 0,
            images_gone: 0,
            containers_come: 0,
            containers_gone: 0,
            late_stores: 0,
            forgotten: 0,
        },
    };
    let stores = writer.stores()?;
    let (late, stores): (Vec<_>, Vec<_>) = stores.into_iter().partition(|store| store.is_late);
    for store in &stores {
        writer.images(store)?;
    }
    for store in &stores {
        writer.containers(store)?;
    }
    writer.count_uses()?;
    writer.observed.late_stores = late.len();
    if last.is_none_or(|last| retention::is_due(last.record_time, now.record_time)) {
        writer.observed.forgotten = retention::forget(to, now.record_time)?;
    }
    Ok(writer.observed)
}

/// Lets record time advance to the scan record, unless the scan record is from before.
fn tick(
    to: &Transaction<'_>,
    last: Option<&ClockState>,
    scan_record: &ScanRecord,
) -> rusqlite::Result<Moment> {
    let reading = &scan_record.clock;
    let is_late = last.is_some_and(|last| {
        let follows = last.boot_id == reading.boot_id && reading.since_boot >= last.since_boot;
        !follows && scan_record.record_time < last.record_time
    });
    if is_late {
        return Ok(Moment { record_time: scan_record.record_time, wall: reading.wall });
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
        state.record_time.as_microsecond(),
        state.wall.as_microsecond(),
        state.boot_id,
        state.since_boot,
        state.unsettled_after.map(Timestamp::as_microsecond),
        serde_json::to_string(&state.leaps)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?,
    ])?;
    Ok(())
}

/// Keeps images from ageing by a leap of record time.
fn correct(to: &Transaction<'_>, correction: Correction) -> rusqlite::Result<()> {
    let by = i64::try_from(correction.by.as_micros()).unwrap_or(i64::MAX);
    to.prepare_cached(
        "UPDATE images SET proven_since = counted + ?2
         FROM (SELECT images.id AS image, max(first_detected, coalesce(proven_since, first_detected),
                   CASE WHEN in_use THEN coalesce(images.last_seen, stores.last_seen)
                        ELSE coalesce(last_used, first_detected) END) AS counted
               FROM images JOIN stores ON stores.id = images.store WHERE gone_since IS NULL)
         WHERE id = image AND counted > ?1",
    )?
    .execute(params![correction.after.as_microsecond(), by])?;
    Ok(())
}

struct Writer<'a> {
    to: &'a Transaction<'a>,
    scan_record: &'a ScanRecord,
    now: Moment,
    /// `now` as it is stored.
    micros: i64,
    /// Positions of images that a container names.
    in_use: HashSet<usize>,
    /// By position of the image: the row of its present life.
    lives: Vec<Option<i64>>,
    /// Containers newly seen on a life.
    uses: HashMap<i64, i64>,
    observed: Observed,
}

/// A store as the records had it before this scan record.
struct StoreRow {
    id: i64,
    kind: StoreKind,
    /// Positions in the scan record; more than one where a store was read twice.
    positions: Vec<usize>,
    /// Everything that is there was listed.
    is_complete: bool,
    /// It was scanned later than by this scan record.
    is_late: bool,
    last_seen: i64,
    last_complete: Option<i64>,
    last_wall: i64,
}

impl Writer<'_> {
    /// Finds or adds the stores, and writes that they were seen.
    fn stores(&self) -> rusqlite::Result<Vec<StoreRow>> {
        let mut stores: Vec<StoreRow> = Vec::new();
        for (at, seen) in self.scan_record.stores.iter().enumerate() {
            let is_complete = seen.consistency == Consistency::Consistent;
            let key = (seen.key.kind().as_str(), path_text::to_text(seen.key.root()), seen.key.driver());
            let found = self
                .to
                .prepare_cached(
                    "SELECT id, last_seen, last_complete, coalesce(last_wall, last_seen) FROM stores
                     WHERE kind = ?1 AND root = ?2 AND driver = ?3",
                )?
                .query_row(key.clone(), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
                .optional()?;
            // What is made while the scan goes on may be newer than what was seen.
            let wall = self.scan_record.taken_at.as_microsecond();
            let (id, last_seen, last_complete, last_wall) = match found {
                Some(found) => found,
                None => {
                    self.to.execute(
                        "INSERT INTO stores (kind, root, driver, first_seen, last_seen, last_wall)
                         VALUES (?1, ?2, ?3, ?4, ?4, ?5)",
                        params![key.0, key.1, key.2, self.micros, wall],
                    )?;
                    (self.to.last_insert_rowid(), self.micros, None, wall)
                }
            };
            if let Some(twice) = stores.iter_mut().find(|store| store.id == id) {
                twice.positions.push(at);
                twice.is_complete &= is_complete;
                continue;
            }
            stores.push(StoreRow {
                id,
                kind: seen.key.kind(),
                positions: vec![at],
                is_complete,
                is_late: last_seen > self.micros,
                last_seen,
                last_complete,
                last_wall,
            });
        }
        for store in stores.iter().filter(|store| !store.is_late) {
            let complete = store.is_complete.then_some(self.micros);
            self.to
                .prepare_cached(
                    "UPDATE stores SET last_seen = ?2, last_complete = coalesce(?3, last_complete),
                     last_wall = ?4 WHERE id = ?1",
                )?
                .execute(params![
                    store.id,
                    self.micros,
                    complete,
                    self.scan_record.taken_at.as_microsecond()
                ])?;
        }
        Ok(stores)
    }

    fn count_uses(&self) -> rusqlite::Result<()> {
        // A sum that is too large would be no integer any more, and refused.
        let mut update = self
            .to
            .prepare_cached("UPDATE images SET use_count = min(use_count, 1 << 62) + ?2 WHERE id = ?1")?;
        for (life, more) in &self.uses {
            update.execute(params![life, more])?;
        }
        Ok(())
    }
}
