//! Retention of runs: kept, merged, or deleted.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{OptionalExtension, Transaction, params};

use crate::history::usage::{Span, horizon};
use crate::history::values::micros;

const KEEP_QUIET: SignedDuration = SignedDuration::from_hours(7 * 24);
const KEEP_IDLE: SignedDuration = SignedDuration::from_hours(90 * 24);
const KEEP: SignedDuration = SignedDuration::from_hours(731 * 24);

/// Maximum number of separate rows of runs without deletions. More are merged early, so that scans in an endless loop
/// do not fill the database.
const MAX_SINGLE: i64 = 5000;
const MAX_DELETIONS: i64 = 50_000;
/// Maximum number of runs with deletions.
const MAX_ACTS: i64 = 10_000;
/// Number of runs between two checks of these limits.
const CHECK_INTERVAL: i64 = 128;

/// A day in microseconds.
const DAY: i64 = 86_400_000_000;

/// Times before which runs are merged or deleted, in the stored form. Only whole days of UTC become due.
struct Horizons {
    /// Quiet runs before this time are merged.
    quiet: i64,
    /// Runs before this time that deleted nothing but are not quiet (failures) are merged too.
    idle: i64,
    /// Everything before this time is deleted.
    all: i64,
}

/// Merges and deletes the runs that are due. Cheap if no run is due.
pub fn thin(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let [quiet, idle, all] = [KEEP_QUIET, KEEP_IDLE, KEEP].map(|keep| micros(horizon(now, keep, Span::Day)));
    let mut horizons = Horizons { quiet, idle, all };
    let newest: i64 =
        tx.prepare_cached("SELECT coalesce(max(id), 0) FROM runs")?.query_row([], |row| row.get(0))?;
    if newest % CHECK_INTERVAL == 0 {
        bound(tx, &mut horizons)?;
    }
    tx.prepare_cached("DELETE FROM deletions WHERE run IN (SELECT id FROM runs WHERE started < ?1)")?
        .execute([horizons.all])?;
    tx.prepare_cached("DELETE FROM runs WHERE started < ?1")?.execute([horizons.all])?;
    sum_up(tx, true, horizons.quiet)?;
    sum_up(tx, false, horizons.idle)
}

/// Enforces the limits: moves the horizons nearer if there are too many rows without deletions, and deletes the oldest
/// runs with deletions.
fn bound(tx: &Transaction<'_>, horizons: &mut Horizons) -> rusqlite::Result<()> {
    let limit: Option<i64> = tx
        .prepare_cached(
            "SELECT started FROM runs WHERE summed = 1 AND deletions = 0 ORDER BY started DESC LIMIT 1 OFFSET ?1",
        )?
        .query_row([MAX_SINGLE - 1], |row| row.get(0))
        .optional()?;
    if let Some(limit) = limit {
        horizons.quiet = horizons.quiet.max(limit);
        horizons.idle = horizons.idle.max(limit);
    }
    // The newest run is kept, however many deletions it has.
    let to_delete = tx
        .prepare_cached(
            "SELECT id FROM (SELECT id, row_number() OVER newest AS number, sum(deletions) OVER newest AS deleted
                             FROM runs WHERE deletions > 0 WINDOW newest AS (ORDER BY started DESC, id DESC))
             WHERE number > 1 AND (number > ?1 OR deleted > ?2)",
        )?
        .query_map([MAX_ACTS, MAX_DELETIONS], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for id in to_delete {
        tx.execute("DELETE FROM deletions WHERE run = ?1", [id])?;
        tx.execute("DELETE FROM runs WHERE id = ?1", [id])?;
    }
    Ok(())
}

/// Merges all runs of a day that began before `until`, deleted nothing and have the same command and outcome. The last
/// of them is kept, with its errors, and represents all. A run that is saved late joins the row of its day.
fn sum_up(tx: &Transaction<'_>, quiet: bool, until: i64) -> rusqlite::Result<()> {
    let first: Option<i64> = tx
        .prepare_cached(
            "SELECT min(started) FROM runs WHERE summed = 1 AND deletions = 0 AND quiet = ?1 AND started < ?2",
        )?
        .query_row(params![quiet, until], |row| row.get(0))?;
    let Some(first) = first else { return Ok(()) };
    let sums = tx
        .prepare_cached(
            "SELECT id, last_value(id) OVER alike AS last, min(started) OVER alike AS started,
                    max(ended) OVER alike AS ended, sum(summed) OVER alike AS runs
             FROM runs WHERE deletions = 0 AND quiet = ?1 AND started >= ?2 AND started < ?3
             WINDOW alike AS (PARTITION BY started / ?4, command, outcome ORDER BY started, id
                              ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        )?
        .query_map(params![quiet, first - first % DAY, until, DAY], |row| {
            Ok((row.get("id")?, row.get("last")?, row.get("started")?, row.get("ended")?, row.get("runs")?))
        })?
        .collect::<rusqlite::Result<Vec<(i64, i64, i64, Option<i64>, i64)>>>()?;
    let mut delete = tx.prepare_cached("DELETE FROM runs WHERE id = ?1")?;
    let mut sum = tx.prepare_cached(
        "UPDATE runs SET started = ?2, ended = ?3, summed = ?4 WHERE id = ?1 AND summed < ?4",
    )?;
    for (id, last, started, ended, runs) in sums {
        if id == last {
            sum.execute(params![id, started, ended, runs])?;
        } else {
            delete.execute([id])?;
        }
    }
    Ok(())
}
