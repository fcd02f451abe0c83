//! Runs and deletions: the reason, the prediction and the result of each deletion.
//!
//! A run is written when it begins, and each deletion when it is done, so that a killed run has left a record of what
//! it did. Runs that deleted nothing are merged after a while; runs that deleted something are kept for two years.

mod confirm;
mod read;
mod thin;
mod types;

use rusqlite::{Connection, OptionalExtension, Transaction, params};

pub use crate::model::OutcomeKind;
pub use crate::model::deletion::plan::{Reason, TargetKind};
pub use confirm::{Confirmation, confirm};
pub(super) use read::deletion;
pub use read::{Query, Quiet, RunRow, freed, list, quiet, that_deleted};
pub use thin::thin;
pub use types::{
    BEGUN, Certainty, Command, DeletionOutcome, DeletionRow, Event, RunEnd, RunError, Start, new_id,
};

use super::values::{json, micros, signed};
use crate::model::StoreId;
use crate::model::deletion::plan::Phase;
use crate::model::text::path_text;

/// Records that a run begins, and returns its row. A second call with the same id adds values that were unknown before.
pub fn begin(tx: &Transaction<'_>, start: &Start) -> rusqlite::Result<i64> {
    tx.prepare_cached(
        "INSERT INTO runs (run_id, command, started, policy, via, trigger_space, trigger_age, filesystems,
                           wanted_bytes, predicted_bytes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT (run_id) DO UPDATE SET
             policy = coalesce(excluded.policy, policy),
             via = coalesce(excluded.via, via),
             trigger_space = max(excluded.trigger_space, trigger_space),
             trigger_age = max(excluded.trigger_age, trigger_age),
             filesystems = iif(filesystems = '[]', excluded.filesystems, filesystems),
             wanted_bytes = coalesce(excluded.wanted_bytes, wanted_bytes),
             predicted_bytes = coalesce(excluded.predicted_bytes, predicted_bytes)
         RETURNING id",
    )?
    .query_row(
        params![
            start.run_id,
            start.command,
            micros(start.started),
            start.policy,
            start.via,
            start.trigger_space,
            start.trigger_age,
            json(&start.usage)?,
            start.wanted_bytes.map(signed),
            start.predicted_bytes.map(signed),
        ],
        |row| row.get(0),
    )
}

/// Returns the number of recorded deletions of a run; `None` if the run is not recorded.
pub(super) fn known(tx: &Transaction<'_>, run_id: &str) -> rusqlite::Result<Option<usize>> {
    tx.prepare_cached("SELECT deletions FROM runs WHERE run_id = ?1")?
        .query_row([run_id], |row| Ok(usize::try_from(row.get::<_, i64>(0)?).unwrap_or(0)))
        .optional()
}

/// Records the deletion at `position` of a run, counted from 0: before it is requested, with an unknown outcome; when
/// the outcome is known; and when it was measured. Each of these calls may be omitted, and known values are never
/// overwritten.
pub fn deleted(
    tx: &Transaction<'_>,
    run: i64,
    position: usize,
    deletion: &DeletionRow,
) -> rusqlite::Result<()> {
    tx.prepare_cached("UPDATE runs SET deletions = max(deletions, ?2 + 1), quiet = 0 WHERE id = ?1")?
        .execute(params![run, signed(position)])?;
    let store = deletion.store.as_ref();
    tx.prepare_cached(
        "INSERT INTO deletions (run, position, at, kind, store_kind, root, driver, object_id, names, reason,
                                predicted_bytes, measured_bytes, usage_after_percent, error, byproduct_bytes,
                                outcome, layers, others_wrote)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
         ON CONFLICT (run, position) DO UPDATE SET
             at = iif(outcome = 'unknown', excluded.at, at),
             names = iif(outcome = 'unknown', excluded.names, names),
             error = iif(outcome = 'unknown', excluded.error, error),
             outcome = iif(outcome = 'unknown', excluded.outcome, outcome),
             layers = iif(outcome = 'unknown', excluded.layers, layers),
             measured_bytes = coalesce(excluded.measured_bytes, measured_bytes),
             others_wrote = max(excluded.others_wrote, others_wrote),
             usage_after_percent = coalesce(excluded.usage_after_percent, usage_after_percent),
             byproduct_bytes = max(excluded.byproduct_bytes, byproduct_bytes)",
    )?
    .execute(params![
        run,
        signed(position),
        micros(deletion.at),
        deletion.kind,
        store.map(StoreId::kind),
        store.map(|store| path_text::to_text(store.root())),
        store.map(StoreId::driver),
        deletion.id,
        json(&deletion.names)?,
        deletion.reason,
        signed(deletion.predicted_bytes),
        deletion.measured_bytes,
        deletion.usage_after_percent,
        deletion.error,
        signed(deletion.byproduct_bytes),
        deletion.certainty,
        json(&deletion.layers)?,
        deletion.others_wrote,
    ])?;
    Ok(())
}

/// Returns the direct deletions of images that were started and may have left layers.
///
/// # Errors
/// If the database cannot be read.
pub fn begun(connection: &Connection) -> rusqlite::Result<Vec<DeletionRow>> {
    connection
        .prepare_cached("SELECT * FROM deletions WHERE layers != '[]'")?
        .query_map([], read::deletion)?
        .collect()
}

/// Deletes the row of the deletion at `position`, which was started but not requested after all.
pub(super) fn cancel(tx: &Transaction<'_>, run: i64, position: i64) -> rusqlite::Result<()> {
    tx.prepare_cached("DELETE FROM deletions WHERE run = ?1 AND position = ?2 AND outcome = 'unknown'")?
        .execute(params![run, position])?;
    tx.prepare_cached(
        "UPDATE runs SET deletions = (SELECT coalesce(max(position) + 1, 0) FROM deletions WHERE run = id)
         WHERE id = ?1",
    )?
    .execute([run])?;
    Ok(())
}

/// Records the events that the kubelet would have reported up to now.
pub fn record_events(tx: &Transaction<'_>, run: i64, events: &[Event]) -> rusqlite::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    // Events are only ever added, so the longer list is the later one.
    tx.prepare_cached(
        "UPDATE runs SET events = ?2, quiet = 0
         WHERE id = ?1 AND json_array_length(events) < json_array_length(?2)",
    )?
    .execute(params![run, json(&events)?])?;
    Ok(())
}

pub fn end(tx: &Transaction<'_>, run: i64, end: &RunEnd) -> rusqlite::Result<()> {
    let is_peaceful =
        matches!(end.outcome, OutcomeKind::Done | OutcomeKind::Incomplete | OutcomeKind::NotNeeded);
    tx.prepare_cached(
        "UPDATE runs SET ended = ?2, outcome = ?3, filesystems = iif(?4 = '[]', filesystems, ?4),
                         measured_bytes = ?5, errors = ?6,
                         quiet = ?7 AND deletions = 0 AND events = '[]'
                             AND (command = 'scan' OR ?3 = 'not_needed')
         WHERE id = ?1",
    )?
    .execute(params![
        run,
        micros(end.ended),
        end.outcome,
        json(&end.usage)?,
        end.measured_bytes,
        json(&end.errors)?,
        is_peaceful && end.errors.is_empty(),
    ])?;
    Ok(())
}

/// Checks whether the last ended run of `command` failed, in the kubelet's sense: it could not do its work, or did not
/// reach its target. Runs that were killed, or stopped by a user, are ignored.
pub fn last_failed(connection: &Connection, command: Command) -> rusqlite::Result<bool> {
    let outcome = connection
        .prepare_cached(
            "SELECT outcome FROM runs
             WHERE command = ?1 AND ended IS NOT NULL AND outcome IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM json_each(errors) WHERE value ->> 'step' = ?2)
             ORDER BY ended DESC, id DESC LIMIT 1",
        )?
        .query_row(params![command, Phase::Stop.as_str()], |row| row.get(0))
        .optional()?;
    Ok(matches!(outcome, Some(OutcomeKind::Failed | OutcomeKind::NotReached | OutcomeKind::Refused)))
}

/// Records a completed run that deleted nothing: a scan, or a `gc` with nothing to do.
pub fn record(tx: &Transaction<'_>, start: &Start, ended: &RunEnd) -> rusqlite::Result<()> {
    let run = begin(tx, start)?;
    end(tx, run, ended)
}

#[cfg(test)]
pub mod tests;
