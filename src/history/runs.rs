//! What was done: runs, and every deletion with its reason, what was predicted and what
//! came of it.
//!
//! A run is written when it begins, each deletion when it is done, so that a run that is
//! killed has left what it did. Runs that deleted nothing are summed up after a while, those
//! that did are kept for two years.

mod confirm;
mod read;
mod thin;

use std::hash::{BuildHasher, Hasher};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};

pub use confirm::{Fate as Confirmed, confirm};
pub use read::{Act, Query, Quiet, acts, list, quiet};
pub use thin::{Fate, Horizons, fate, thin};

pub use crate::model::OutcomeKind;
pub use crate::model::plan::Reason;

use super::scan_record::SeenFilesystem;
use super::values::{micros, place, signed, words};

words! {
    /// The commands whose runs are recorded.
    Command {
        /// `layersweep scan`.
        Scan = "scan",
        /// `layersweep gc`.
        Gc = "gc",
        /// `layersweep sweep`.
        Sweep = "sweep",
        /// `layersweep rm`.
        Rm = "rm",
    }
}

words! {
    /// What was deleted.
    Kind {
        /// An image.
        Image = "image",
        /// A container.
        Container = "container",
        /// A pod sandbox.
        Sandbox = "sandbox",
        /// A log directory or link.
        Log = "log",
        /// Something that nothing uses.
        Leak = "leak",
        /// A name of an image that keeps others.
        Name = "name",
    }
}

words! {
    /// How it is known what came of a deletion.
    #[derive(Default)]
    Certainty {
        /// It is not: it was begun, and the run may have ended in the middle of it.
        Unknown = "unknown",
        /// The run saw it.
        #[default]
        Seen = "seen",
        /// A later scan saw it.
        Confirmed = "confirmed",
    }
}

/// Why a deletion that was begun counts as none until its outcome is known.
pub const BEGUN: &str = "begun; what came of it is not known yet";

/// What a run began with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Its id, as [`new_id`] makes it.
    pub run_id: String,
    /// The command.
    pub command: Command,
    /// When it began.
    pub started: Timestamp,
    /// It was only to show what it would do.
    pub dry_run: bool,
    /// Name of the policy.
    pub policy: Option<String>,
    /// How it deletes: `cri`, `direct`.
    pub via: Option<String>,
    /// Space was short.
    pub trigger_space: bool,
    /// Something was too old.
    pub trigger_age: bool,
    /// Mount point of the filesystem that the percents are of.
    pub mount: Option<String>,
    /// Percent used before.
    pub usage_before_percent: Option<f64>,
    /// Bytes that were to come free.
    pub wanted_bytes: Option<u64>,
    /// Bytes that the plan promised.
    pub predicted_bytes: Option<u64>,
}

impl Start {
    /// A run of which nothing more is known.
    #[must_use]
    pub fn of(command: Command, started: Timestamp) -> Self {
        Self {
            run_id: new_id(started),
            command,
            started,
            dry_run: false,
            policy: None,
            via: None,
            trigger_space: false,
            trigger_age: false,
            mount: None,
            usage_before_percent: None,
            wanted_bytes: None,
            predicted_bytes: None,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// When.
    pub ended: Timestamp,
    /// How.
    pub outcome: OutcomeKind,
    /// Percent used after.
    pub usage_after_percent: Option<f64>,
    /// Bytes that the filesystem gave back; negative where others wrote more.
    pub measured_bytes: Option<i64>,
    /// Bytes that the kubelet would believe to have freed; only of its policy.
    #[serde(default)]
    pub believed_bytes: Option<u64>,
    /// What failed.
    pub errors: Vec<RunError>,
    /// How full the filesystems were then; none where nothing was tried.
    #[serde(default)]
    pub filesystems: Vec<SeenFilesystem>,
}

impl End {
    /// An end of which nothing more is known.
    #[must_use]
    pub fn of(ended: Timestamp, outcome: OutcomeKind) -> Self {
        Self {
            ended,
            outcome,
            usage_after_percent: None,
            measured_bytes: None,
            believed_bytes: None,
            errors: Vec::new(),
            filesystems: Vec::new(),
        }
    }
}

/// What the kubelet would tell its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The kubelet's word: `FreeDiskSpaceFailed`.
    pub reason: String,
    /// What it says.
    pub message: String,
}

/// Something that failed in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunError {
    /// The object.
    pub id: String,
    /// The step that failed.
    pub step: String,
    /// Why.
    pub message: String,
}

/// A deletion, or the try.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deletion {
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: Kind,
    /// Root of its store; empty for what lies in none.
    pub store: String,
    /// Its id.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// Why.
    pub reason: Reason,
    /// Bytes that were expected to come free.
    pub predicted_bytes: u64,
    /// Bytes that did; negative where others wrote more meanwhile. `None`: not measured.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks that went along; not part of the measured ones.
    #[serde(default)]
    pub byproduct_bytes: u64,
    /// Percent used after it.
    pub usage_after_percent: Option<f64>,
    /// Why it failed; `None` where it went well.
    pub error: Option<String>,
    /// How that is known.
    #[serde(default)]
    pub outcome: Certainty,
}

/// A run's row in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunKey(i64);

/// An id for a run: its time, and digits that tell two at the same time apart.
#[must_use]
pub fn new_id(started: Timestamp) -> String {
    // Seeded by the system for every process and state.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let time = started.strftime("%Y%m%dT%H%M%SZ");
    format!("{time}-{:06x}", random & 0xff_ffff)
}

/// Records that a run begins. Once more with the same id, it adds what was not known before.
///
/// # Errors
/// What SQLite says.
pub fn begin(tx: &Transaction<'_>, start: &Start) -> rusqlite::Result<RunKey> {
    tx.prepare_cached(
        "INSERT INTO runs (run_id, command, started, dry_run, policy, via, trigger_space, trigger_age, mount,
                           usage_before_percent, wanted_bytes, predicted_bytes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
         ON CONFLICT (run_id) DO UPDATE SET
             policy = coalesce(excluded.policy, policy),
             via = coalesce(excluded.via, via),
             trigger_space = max(excluded.trigger_space, trigger_space),
             trigger_age = max(excluded.trigger_age, trigger_age),
             mount = coalesce(excluded.mount, mount),
             usage_before_percent = coalesce(excluded.usage_before_percent, usage_before_percent),
             wanted_bytes = coalesce(excluded.wanted_bytes, wanted_bytes),
             predicted_bytes = coalesce(excluded.predicted_bytes, predicted_bytes)
         RETURNING id",
    )?
    .query_row(
        params![
            start.run_id,
            start.command,
            micros(start.started),
            start.dry_run,
            start.policy,
            start.via,
            start.trigger_space,
            start.trigger_age,
            start.mount,
            start.usage_before_percent,
            start.wanted_bytes.map(signed),
            start.predicted_bytes.map(signed),
        ],
        |row| row.get(0).map(RunKey),
    )
}

/// How many deletions of the run `run_id` are recorded; `None`: it is not known at all.
///
/// # Errors
/// What SQLite says.
pub(super) fn known(tx: &Transaction<'_>, run_id: &str) -> rusqlite::Result<Option<usize>> {
    tx.prepare_cached("SELECT deletions FROM runs WHERE run_id = ?1")?
        .query_row([run_id], |row| row.get::<_, i64>(0))
        .optional()
        .map(|known| known.map(|known| usize::try_from(known).unwrap_or(0)))
}

/// Records the deletion at `position` of a run, the first at 0: before it is asked for, with an
/// outcome that is unknown; once that is known; and when it was measured. Each may be left out, and
/// nothing that is known is forgotten again.
///
/// # Errors
/// What SQLite says.
pub fn deleted(
    tx: &Transaction<'_>,
    run: RunKey,
    position: usize,
    deletion: &Deletion,
) -> rusqlite::Result<()> {
    tx.prepare_cached("UPDATE runs SET deletions = max(deletions, ?2 + 1), quiet = 0 WHERE id = ?1")?
        .execute(params![run.0, place(position)])?;
    tx.prepare_cached(
        "INSERT INTO deletions (run, position, at, kind, store, object_id, names, reason, predicted_bytes,
                                measured_bytes, usage_after_percent, error, byproduct_bytes, outcome)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT (run, position) DO UPDATE SET
             at = iif(outcome = 'unknown', excluded.at, at),
             error = iif(outcome = 'unknown', excluded.error, error),
             outcome = iif(outcome = 'unknown', excluded.outcome, outcome),
             measured_bytes = coalesce(excluded.measured_bytes, measured_bytes),
             usage_after_percent = coalesce(excluded.usage_after_percent, usage_after_percent),
             byproduct_bytes = max(excluded.byproduct_bytes, byproduct_bytes)",
    )?
    .execute(params![
        run.0,
        place(position),
        micros(deletion.at),
        deletion.kind,
        deletion.store,
        deletion.id,
        json(&deletion.names)?,
        deletion.reason,
        signed(deletion.predicted_bytes),
        deletion.measured_bytes,
        deletion.usage_after_percent,
        deletion.error,
        signed(deletion.byproduct_bytes),
        deletion.outcome,
    ])?;
    Ok(())
}

/// Forgets the deletion at `position`, which was begun and not asked for after all.
///
/// # Errors
/// What SQLite says.
pub(super) fn spared(tx: &Transaction<'_>, run: RunKey, position: usize) -> rusqlite::Result<()> {
    tx.prepare_cached("DELETE FROM deletions WHERE run = ?1 AND position = ?2 AND outcome = 'unknown'")?
        .execute(params![run.0, place(position)])?;
    tx.prepare_cached(
        "UPDATE runs SET deletions = (SELECT coalesce(max(position) + 1, 0) FROM deletions WHERE run = id)
         WHERE id = ?1",
    )?
    .execute([run.0])?;
    Ok(())
}

/// Records what the kubelet would have told its node so far.
///
/// # Errors
/// What SQLite says.
pub fn told(tx: &Transaction<'_>, run: RunKey, events: &[Event]) -> rusqlite::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    // There are only ever more of them.
    tx.prepare_cached(
        "UPDATE runs SET events = ?2, quiet = 0
         WHERE id = ?1 AND json_array_length(events) < json_array_length(?2)",
    )?
    .execute(params![run.0, json(&events)?])?;
    Ok(())
}

/// Records how a run ended.
///
/// # Errors
/// What SQLite says.
pub fn end(tx: &Transaction<'_>, run: RunKey, end: &End) -> rusqlite::Result<()> {
    let peaceful = matches!(end.outcome, OutcomeKind::Done | OutcomeKind::Incomplete | OutcomeKind::NotNeeded);
    tx.prepare_cached(
        "UPDATE runs SET ended = ?2, outcome = ?3, usage_after_percent = ?4, measured_bytes = ?5, errors = ?6,
                         believed_bytes = ?8,
                         quiet = ?7 AND deletions = 0 AND events = '[]'
                             AND (command = 'scan' OR ?3 = 'not_needed')
         WHERE id = ?1",
    )?
    .execute(params![
        run.0,
        micros(end.ended),
        end.outcome,
        end.usage_after_percent,
        end.measured_bytes,
        json(&end.errors)?,
        peaceful && end.errors.is_empty(),
        end.believed_bytes.map(signed),
    ])?;
    Ok(())
}

/// Whether the last run of `command` that was to act and has ended failed, as the kubelet
/// understands it: it could not do its work, or not reach its target. A run that was killed,
/// or that somebody stopped, says nothing either way.
///
/// # Errors
/// What SQLite says.
pub fn last_failed(connection: &Connection, command: Command) -> rusqlite::Result<bool> {
    let outcome = connection
        .prepare_cached(
            "SELECT outcome FROM runs
             WHERE command = ?1 AND dry_run = 0 AND ended IS NOT NULL AND outcome IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM json_each(errors) WHERE value ->> 'step' = 'stop')
             ORDER BY ended DESC, id DESC LIMIT 1",
        )?
        .query_row([command], |row| row.get(0))
        .optional()?;
    Ok(matches!(outcome, Some(OutcomeKind::Failed | OutcomeKind::NotReached | OutcomeKind::Refused)))
}

/// Records a run that is over and deleted nothing: a scan, or a `gc` with nothing to do.
///
/// # Errors
/// What SQLite says.
pub fn record(tx: &Transaction<'_>, start: &Start, ended: &End) -> rusqlite::Result<RunKey> {
    let run = begin(tx, start)?;
    end(tx, run, ended)?;
    Ok(run)
}

fn json(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

#[cfg(test)]
mod tests;
