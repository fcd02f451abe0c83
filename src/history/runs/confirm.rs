//! What came of deletions that a run could not see to the end.

use jiff::Timestamp;
use rusqlite::{Transaction, params};

use super::read::deletion;
use super::types::{Certainty, Deletion};
use crate::history::values::micros;

/// What a later scan says of something whose deletion was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is not there any more.
    Gone,
    There,
}

/// Records what a scan that began at `seen` says of what was begun before it: `fate`, or `None`
/// where it cannot tell. `idle` is asked where that was begun by a run that has no end: whether none
/// is under way.
pub fn confirm(
    tx: &Transaction<'_>,
    seen: Timestamp,
    idle: impl FnOnce() -> bool,
    fate: impl Fn(&Deletion) -> Option<Fate>,
) -> rusqlite::Result<usize> {
    let unknown = tx
        .prepare_cached(
            "SELECT deletions.*, runs.ended IS NULL AND NOT runs.killed AS open
             FROM deletions JOIN runs ON runs.id = run WHERE deletions.outcome = ?1 AND at < ?2",
        )?
        .query_map(params![Certainty::Unknown, micros(seen)], |row| {
            Ok((row.get("run")?, row.get("position")?, row.get("open")?, deletion(row)?))
        })?
        .collect::<rusqlite::Result<Vec<(i64, i64, bool, Deletion)>>>()?;
    let idle = unknown.iter().any(|(_, _, open, _)| *open) && idle();
    let mut confirmed = 0;
    for (run, position, _, deletion) in unknown.into_iter().filter(|(_, _, open, _)| idle || !open) {
        let error = match fate(&deletion) {
            Some(Fate::Gone) => None,
            Some(Fate::There) => Some("it was begun, and is still there"),
            None => continue,
        };
        confirmed += tx
            .prepare_cached("UPDATE deletions SET outcome = ?3, error = ?4 WHERE run = ?1 AND position = ?2")?
            .execute(params![run, position, Certainty::Confirmed, error])?;
    }
    Ok(confirmed)
}
