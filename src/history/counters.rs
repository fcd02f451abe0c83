//! Sums over all runs that were ever recorded. Triggers of the database maintain them
//! (`migrations/0001_history.sql`), so that they survive the deletion of the rows, and each row counts once however
//! often it is written.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::known;
use super::runs::{Command, OutcomeKind};
use super::values::{from_json, time, unsigned};
use crate::model::deletion::outcome::UsageChange;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// `runs`, `deletions`, `failures`, `freed_bytes` or `predicted_bytes`.
    pub name: String,
    /// `scan`, `gc`, `sweep` or `rm`.
    pub command: String,
    /// An outcome, [`KILLED`], a kind of deleted object, or [`BYPRODUCT`].
    pub label: String,
    /// A number, or a number of bytes.
    pub value: u64,
}

/// Outcome of interrupted runs.
pub const KILLED: &str = "killed";
/// Label of leaks that were deleted along with another object.
pub const BYPRODUCT: &str = "byproduct";

/// Returns all sums that were ever counted. A sum may be 0.
pub fn all(from: &Connection) -> rusqlite::Result<Vec<Counter>> {
    from.prepare_cached("SELECT name, command, label, value FROM counters ORDER BY name, command, label")?
        .query_map([], |row| {
            Ok(Counter {
                name: row.get("name")?,
                command: row.get("command")?,
                label: row.get("label")?,
                value: unsigned(row, "value")?,
            })
        })?
        .collect()
}

#[derive(Clone, Debug, PartialEq)]
pub struct LastRun {
    pub command: Command,
    /// End of the run, or its start if it has no end, converted from record time to the present wall clock.
    pub time: Timestamp,
    /// Outcome; `None` if the run has not ended or was killed.
    pub outcome: Option<OutcomeKind>,
    pub usage: Vec<UsageChange>,
    /// Duration; `None` if the run has not ended or was killed.
    pub seconds: Option<f64>,
    /// True if the usage of a filesystem caused it.
    pub by_space: bool,
    /// True if the age of an image caused it.
    pub by_age: bool,
    pub deletions: u64,
    /// Bytes that it had to free.
    pub wanted_bytes: Option<i64>,
    /// Bytes that it freed; negative if other processes wrote more.
    pub measured_bytes: Option<i64>,
}

pub fn last_runs(from: &Connection) -> rusqlite::Result<Vec<LastRun>> {
    // Graphs use the wall clock, which may differ from record time.
    let ahead = known::clock(from)?.map(|clock| clock.wall.duration_since(clock.record_time));
    let mut runs = Vec::new();
    for command in [Command::Gc, Command::Rm, Command::Sweep] {
        let last = from
            .prepare_cached(
                "SELECT coalesce(ended, started) AS at, outcome, filesystems,
                     (ended - started) / 1e6 AS seconds, trigger_space, trigger_age, deletions, wanted_bytes,
                     measured_bytes
                 FROM runs WHERE command = ?1 ORDER BY started DESC, id DESC LIMIT 1",
            )?
            .query_row([command], |row| {
                let recorded = time(row, "at")?;
                Ok(LastRun {
                    command,
                    time: ahead.and_then(|ahead| recorded.checked_add(ahead).ok()).unwrap_or(recorded),
                    outcome: row.get("outcome")?,
                    usage: from_json(row, "filesystems")?,
                    seconds: row.get("seconds")?,
                    by_space: row.get("trigger_space")?,
                    by_age: row.get("trigger_age")?,
                    deletions: unsigned(row, "deletions")?,
                    wanted_bytes: row.get("wanted_bytes")?,
                    measured_bytes: row.get("measured_bytes")?,
                })
            })
            .optional()?;
        runs.extend(last);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
