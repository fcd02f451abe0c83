//! Records a scan: its content, the filesystem usage, the figures of its stores and the run itself.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Transaction, params};

use super::observe::observe;
use super::scan_run::ScanRun;
use super::values::{json, micros};
use super::{runs, usage};
use crate::model::StoreId;
use crate::model::text::path_text;

/// Records a scan and returns its record time. Nothing is recorded for stores that a later scan has recorded already.
/// A scan that measured nothing is not recorded as a run: it only updates what is known of images and containers.
pub fn record(to: &Transaction<'_>, scan: &ScanRun<'_>) -> rusqlite::Result<Timestamp> {
    let record_time = observe(to, scan)?;
    if !scan.is_measured {
        return Ok(record_time);
    }
    usage::record(to, record_time, &scan.inventory.filesystems)?;
    remember(to, record_time, scan)?;
    let start =
        runs::Start { run_id: scan.run_id.clone(), ..runs::Start::of(runs::Command::Scan, record_time) };
    let outcome = if scan.complete { runs::OutcomeKind::Done } else { runs::OutcomeKind::Incomplete };
    let took = SignedDuration::try_from_secs_f64(scan.seconds.max(0.0)).unwrap_or_default();
    let ended = record_time.checked_add(took).unwrap_or(record_time);
    runs::record(to, &start, &runs::RunEnd::of(ended, outcome))?;
    thin(to, record_time)?;
    Ok(record_time)
}

/// Merges and deletes old usage points and runs.
pub fn thin(to: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    usage::thin(to, now)?;
    runs::thin(to, now)
}

/// Stores the figures of a scan with this record time, unless figures of a later scan are stored.
pub(super) fn remember(
    tx: &Transaction<'_>,
    record_time: Timestamp,
    scan: &ScanRun<'_>,
) -> rusqlite::Result<()> {
    for (store, figures) in scan.inventory.stores.iter().map(StoreId::of).zip(&scan.figures) {
        tx.prepare_cached(
            "INSERT INTO store_figures (store, at, wall, seconds, figures)
             SELECT id, ?4, ?5, ?6, ?7 FROM stores WHERE kind = ?1 AND root = ?2 AND driver = ?3
             ON CONFLICT (store) DO UPDATE SET
                 at = excluded.at, wall = excluded.wall, seconds = excluded.seconds, figures = excluded.figures
             WHERE at <= excluded.at",
        )?
        .execute(params![
            store.kind(),
            path_text::to_text(store.root()),
            store.driver(),
            micros(record_time),
            micros(scan.taken_at),
            scan.seconds,
            json(figures)?,
        ])?;
    }
    // All stores were searched for and read, so the stores that were not seen are gone.
    if scan.all_stores && scan.complete {
        tx.prepare_cached("DELETE FROM store_figures WHERE at < ?1")?.execute([micros(record_time)])?;
    }
    Ok(())
}
