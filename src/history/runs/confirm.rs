//! Outcomes of deletions that an interrupted run left open.

use jiff::Timestamp;
use rusqlite::{Transaction, params};

use super::read::deletion;
use super::types::{Certainty, DeletionRow};
use crate::history::values::micros;
use crate::model::deletion::plan::TargetKind;

/// State of an object whose deletion was started, as a later scan found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    Gone,
    /// The image no longer exists, but some of its layers do: the next run deletes them ([`super::begun`]).
    GoneInPart,
    /// The object still exists. A leak that was only announced with others leaves no row.
    There,
}

/// Records the outcomes of deletions that were started before `seen`, the start of a scan. Returns the number of
/// confirmed deletions.
///
/// `state` returns what the scan found, or `None` if it cannot tell. `idle` is called if one of the deletions belongs
/// to a run without an end, and returns whether no run is in progress.
pub fn confirm(
    tx: &Transaction<'_>,
    seen: Timestamp,
    idle: impl FnOnce() -> bool,
    state: impl Fn(&DeletionRow) -> Option<Confirmation>,
) -> rusqlite::Result<usize> {
    let unknown = tx
        .prepare_cached(
            "SELECT deletions.*, runs.ended IS NULL AND NOT runs.killed AS open
             FROM deletions JOIN runs ON runs.id = run
             WHERE (deletions.outcome = 'unknown' OR layers != '[]') AND at < ?1",
        )?
        .query_map([micros(seen)], |row| {
            Ok((row.get("run")?, row.get("position")?, row.get("open")?, deletion(row)?))
        })?
        .collect::<rusqlite::Result<Vec<(i64, i64, bool, DeletionRow)>>>()?;
    let idle = unknown.iter().any(|(_, _, open, _)| *open) && idle();
    let mut confirmed = 0;
    for (run, position, _, deletion) in unknown.into_iter().filter(|(_, _, open, _)| idle || !open) {
        let found = state(&deletion);
        if found == Some(Confirmation::There) && deletion.kind == TargetKind::Leak {
            super::cancel(tx, run, position)?;
            continue;
        }
        let error = match found {
            Some(Confirmation::Gone | Confirmation::GoneInPart) if is_of_later(tx, run, position)? => {
                Some("deletion was started; a later run finished it")
            }
            Some(Confirmation::Gone | Confirmation::GoneInPart) => None,
            Some(Confirmation::There) => Some("deletion was started, but it still exists"),
            None => continue,
        };
        confirmed += tx
            .prepare_cached(
                "UPDATE deletions SET
                     error = iif(outcome = 'unknown', ?4, error),
                     outcome = iif(outcome = 'unknown', ?3, outcome),
                     layers = iif(?5, layers, '[]')
                 WHERE run = ?1 AND position = ?2",
            )?
            .execute(params![
                run,
                position,
                Certainty::Confirmed,
                error,
                found == Some(Confirmation::GoneInPart),
            ])?;
    }
    Ok(confirmed)
}

/// Checks whether a later run has deleted the same object, or may have.
fn is_of_later(tx: &Transaction<'_>, run: i64, position: i64) -> rusqlite::Result<bool> {
    tx.prepare_cached(
        "SELECT EXISTS (
             SELECT 1 FROM deletions AS this JOIN deletions AS later USING (kind, object_id)
             WHERE this.run = ?1 AND this.position = ?2 AND later.run > ?1
                 AND later.root IS this.root AND later.driver IS this.driver
                 AND (later.outcome = ?3 OR later.error IS NULL))",
    )?
    .query_row(params![run, position, Certainty::Unknown], |row| row.get(0))
}
