//! Records a scan: its content, the filesystem usage, the figures of its stores and the run itself.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Transaction, params};

use super::observe::observe;
use super::scan_record::ScanRun;
use super::values::{json, micros};
use super::{runs, usage};
use crate::model::path_text;

/// Records a scan and returns its record time. Of stores that were scanned later than by this one, nothing is
/// taken.
pub fn record(to: &Transaction<'_>, scan: &ScanRun) -> rusqlite::Result<Timestamp> {
    let at = observe(to, &scan.record)?;
    usage::record(to, at, &scan.record.filesystems)?;
    remember(to, at, scan)?;
    let start = runs::Start { run_id: scan.run_id.clone(), ..runs::Start::of(runs::Command::Scan, at) };
    let outcome = if scan.complete { runs::OutcomeKind::Done } else { runs::OutcomeKind::Incomplete };
    let took = SignedDuration::try_from_secs_f64(scan.seconds.max(0.0)).unwrap_or_default();
    let ended = at.checked_add(took).unwrap_or(at);
    runs::record(to, &start, &runs::RunEnd::of(ended, outcome))?;
    thin(to, at)?;
    Ok(at)
}

/// Sums up and forgets what is too old to be kept one by one.
pub fn thin(to: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    usage::thin(to, now)?;
    runs::thin(to, now)
}

/// Remembers what a scan found at `at` (record time), unless a later one has been here before.
pub(super) fn remember(tx: &Transaction<'_>, at: Timestamp, scan: &ScanRun) -> rusqlite::Result<()> {
    for (store, figures) in scan.record.stores.iter().zip(&scan.figures) {
        tx.prepare_cached(
            "INSERT INTO store_figures (store, at, wall, seconds, figures)
             SELECT id, ?4, ?5, ?6, ?7 FROM stores WHERE kind = ?1 AND root = ?2 AND driver = ?3
             ON CONFLICT (store) DO UPDATE SET
                 at = excluded.at, wall = excluded.wall, seconds = excluded.seconds, figures = excluded.figures
             WHERE at <= excluded.at",
        )?
        .execute(params![
            store.key.kind(),
            path_text::to_text(store.key.root()),
            store.key.driver(),
            micros(at),
            micros(scan.record.taken_at),
            scan.seconds,
            json(figures)?,
        ])?;
    }
    // Every store was looked for, and everything could be read: those that were not seen are gone.
    if scan.all_stores && scan.complete {
        tx.prepare_cached("DELETE FROM store_figures WHERE at < ?1")?.execute([micros(at)])?;
    }
    Ok(())
}
