//! Retention of runs: kept, merged into sums, or deleted.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rusqlite::{OptionalExtension, Transaction, params};

use crate::history::usage::Span;
use crate::history::values::{micros, time, unsigned};

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

/// How a run is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Kept as it is.
    Keep,
    /// Merged into one row per day, command and outcome.
    SumUp,
    Forget,
}

/// Until when runs are summed up and forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHorizons {
    /// Quiet runs before this are summed up.
    pub quiet: Timestamp,
    /// Runs that deleted nothing but are not quiet (failures) before this too.
    pub idle: Timestamp,
    /// Everything before this is forgotten.
    pub all: Timestamp,
}

impl RunHorizons {
    /// Seen from `now`. Only whole days of UTC become due.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        let before = |age: SignedDuration| Span::Day.begin(now.saturating_sub(age).unwrap_or(Timestamp::MIN));
        Self { quiet: before(KEEP_QUIET), idle: before(KEEP_IDLE), all: before(KEEP) }
    }
}

/// What becomes of a run that began at `started`.
#[must_use]
pub fn disposition(
    started: Timestamp,
    quiet: bool,
    deleted_something: bool,
    horizons: &RunHorizons,
) -> Disposition {
    if started < horizons.all {
        Disposition::Forget
    } else if !deleted_something && started < if quiet { horizons.quiet } else { horizons.idle } {
        Disposition::SumUp
    } else {
        Disposition::Keep
    }
}

/// Sums up and forgets what is due. Cheap where nothing is.
pub fn thin(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let mut horizons = RunHorizons::at(now);
    let newest: i64 =
        tx.prepare_cached("SELECT coalesce(max(id), 0) FROM runs")?.query_row([], |row| row.get(0))?;
    if newest % LOOK == 0 {
        bound(tx, &mut horizons)?;
    }
    sum_up(tx, &horizons)?;
    tx.prepare_cached("DELETE FROM deletions WHERE run IN (SELECT id FROM runs WHERE started < ?1)")?
        .execute([micros(horizons.all)])?;
    tx.prepare_cached("DELETE FROM runs WHERE started < ?1")?.execute([micros(horizons.all)])?;
    Ok(())
}

/// Moves the horizons nearer, or forgets the oldest acts, where there is too much of
/// something.
fn bound(tx: &Transaction<'_>, horizons: &mut RunHorizons) -> rusqlite::Result<()> {
    let crowd: Option<Timestamp> = tx
        .prepare_cached(
            "SELECT started FROM runs WHERE summed = 1 AND deletions = 0 ORDER BY started DESC LIMIT 1 OFFSET ?1",
        )?
        .query_row([MOST_SINGLE - 1], |row| time(row, "started"))
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

/// A row that stands for one run or for several.
struct Row {
    id: i64,
    started: Timestamp,
    ended: Option<Timestamp>,
    quiet: bool,
    group: (String, Option<String>),
    runs: u64,
}

fn sum_up(tx: &Transaction<'_>, horizons: &RunHorizons) -> rusqlite::Result<()> {
    let mut due = Vec::new();
    for (quiet, until) in [(true, horizons.quiet), (false, horizons.idle)] {
        let found = tx
            .prepare_cached(
                "SELECT * FROM runs WHERE summed = 1 AND deletions = 0 AND quiet = ?1 AND started < ?2",
            )?
            .query_map(params![quiet, micros(until)], read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        due.extend(found);
    }
    due.retain(|row| disposition(row.started, row.quiet, false, horizons) == Disposition::SumUp);
    let Some(first) = due.iter().map(|row| row.started).min() else { return Ok(()) };
    // What came late joins the row that its day already has.
    let sums = tx
        .prepare_cached("SELECT * FROM runs WHERE summed > 1 AND started >= ?1 AND started < ?2")?
        .query_map([micros(Span::Day.begin(first)), micros(horizons.quiet.max(horizons.idle))], read)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut days: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for row in due.into_iter().chain(sums) {
        days.entry((Span::Day.begin(row.started), row.quiet, row.group.clone())).or_default().push(row);
    }
    for mut rows in days.into_values() {
        rows.sort_by_key(|row| (row.started, row.id));
        // The last one stays, with its errors, and stands for all.
        let Some(last) = rows.pop() else { continue };
        let (mut started, mut ended, mut runs) = (last.started, last.ended, last.runs);
        for row in &rows {
            started = started.min(row.started);
            ended = ended.max(row.ended);
            runs = runs.saturating_add(row.runs);
            tx.prepare_cached("DELETE FROM runs WHERE id = ?1")?.execute([row.id])?;
        }
        if runs > last.runs {
            tx.prepare_cached("UPDATE runs SET started = ?2, ended = ?3, summed = ?4 WHERE id = ?1")?
                .execute(params![
                    last.id,
                    micros(started),
                    ended.map(micros),
                    i64::try_from(runs).unwrap_or(i64::MAX)
                ])?;
        }
    }
    Ok(())
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row {
        id: row.get("id")?,
        started: time(row, "started")?,
        ended: crate::history::values::maybe_time(row, "ended")?,
        quiet: row.get("quiet")?,
        group: (row.get("command")?, row.get("outcome")?),
        runs: unsigned(row, "summed")?,
    })
}
