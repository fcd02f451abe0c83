//! Retention of runs: kept, merged into sums, or deleted.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{OptionalExtension, Transaction, params};

use crate::history::usage::{Span, horizon};
use crate::history::values::micros;

const KEEP_QUIET: SignedDuration = SignedDuration::from_hours(7 * 24);
const KEEP_IDLE: SignedDuration = SignedDuration::from_hours(90 * 24);
const KEEP: SignedDuration = SignedDuration::from_hours(731 * 24);

/// Runs without deletions that stand in a row of their own, at most: more are summed up
/// early, so that a scan in an endless loop does not fill the database.
const MOST_SINGLE: i64 = 5000;
/// Deletions, at most; and runs that deleted something.
const MOST_DELETIONS: i64 = 50_000;
const MOST_ACTS: i64 = 10_000;
/// The limits are looked at once in so many runs.
const LOOK: i64 = 128;

/// Microseconds.
const DAY: i64 = 86_400_000_000;

/// Until when runs are summed up and forgotten, as the database has times. Only whole days of UTC become due.
struct Horizons {
    /// Quiet runs before this are summed up.
    quiet: i64,
    /// Runs that deleted nothing but are not quiet (failures) before this too.
    idle: i64,
    /// Everything before this is forgotten.
    all: i64,
}

/// Sums up and forgets what is due. Cheap where nothing is.
pub fn thin(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let before = |keep| micros(horizon(now, keep, Span::Day));
    let mut horizons = Horizons { quiet: before(KEEP_QUIET), idle: before(KEEP_IDLE), all: before(KEEP) };
    let newest: i64 =
        tx.prepare_cached("SELECT coalesce(max(id), 0) FROM runs")?.query_row([], |row| row.get(0))?;
    if newest % LOOK == 0 {
        bound(tx, &mut horizons)?;
    }
    tx.prepare_cached("DELETE FROM deletions WHERE run IN (SELECT id FROM runs WHERE started < ?1)")?
        .execute([horizons.all])?;
    tx.prepare_cached("DELETE FROM runs WHERE started < ?1")?.execute([horizons.all])?;
    sum_up(tx, true, horizons.quiet)?;
    sum_up(tx, false, horizons.idle)
}

/// Moves the horizons nearer, or forgets the oldest acts, where there is too much of
/// something.
fn bound(tx: &Transaction<'_>, horizons: &mut Horizons) -> rusqlite::Result<()> {
    let crowd: Option<i64> = tx
        .prepare_cached(
            "SELECT started FROM runs WHERE summed = 1 AND deletions = 0 ORDER BY started DESC LIMIT 1 OFFSET ?1",
        )?
        .query_row([MOST_SINGLE - 1], |row| row.get(0))
        .optional()?;
    if let Some(crowd) = crowd {
        horizons.quiet = horizons.quiet.max(crowd);
        horizons.idle = horizons.idle.max(crowd);
    }
    // The newest run stays, however much it deleted.
    let to_delete = tx
        .prepare_cached(
            "SELECT id FROM (SELECT id, row_number() OVER newest AS number, sum(deletions) OVER newest AS deleted
                             FROM runs WHERE deletions > 0 WINDOW newest AS (ORDER BY started DESC, id DESC))
             WHERE number > 1 AND (number > ?1 OR deleted > ?2)",
        )?
        .query_map([MOST_ACTS, MOST_DELETIONS], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for id in to_delete {
        tx.execute("DELETE FROM deletions WHERE run = ?1", [id])?;
        tx.execute("DELETE FROM runs WHERE id = ?1", [id])?;
    }
    Ok(())
}

/// Makes one row of all runs of a day that began before `until`, deleted nothing and ended alike. The last one
/// stays, with its errors, and stands for all. What came late joins the row that its day already has.
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
        match id == last {
            true => sum.execute(params![id, started, ended, runs])?,
            false => delete.execute([id])?,
        };
    }
    Ok(())
}
