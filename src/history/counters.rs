//! Sums over all runs that were ever recorded. Triggers of the database maintain them
//! (`migrations/0001_history.sql`), so that they survive the deletion of the rows, and each row counts once however
//! often it is written.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::known;
use super::runs::{Command, OutcomeKind};
use super::values::{time, unsigned};

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

/// Last run of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct LastRun {
    pub command: Command,
    /// End of the run, or its start if it has no end, converted from record time to the present wall clock.
    pub time: Timestamp,
    /// Outcome; `None` if the run has not ended or was killed.
    pub outcome: Option<OutcomeKind>,
    /// Mount point of the filesystem to which the percentages apply.
    pub mount: Option<String>,
    pub usage_before_percent: Option<f64>,
    pub usage_after_percent: Option<f64>,
}

/// Returns the last run of each command that deletes.
pub fn last_runs(from: &Connection) -> rusqlite::Result<Vec<LastRun>> {
    // Graphs use the wall clock, which may differ from record time.
    let ahead = known::clock(from)?.map(|clock| clock.wall.duration_since(clock.record_time));
    let mut runs = Vec::new();
    for command in [Command::Gc, Command::Rm, Command::Sweep] {
        let last = from
            .prepare_cached(
                "SELECT coalesce(ended, started) AS at, outcome, mount, usage_before_percent, usage_after_percent
                 FROM runs WHERE command = ?1 ORDER BY started DESC, id DESC LIMIT 1",
            )?
            .query_row([command], |row| {
                let recorded = time(row, "at")?;
                Ok(LastRun {
                    command,
                    time: ahead.and_then(|ahead| recorded.checked_add(ahead).ok()).unwrap_or(recorded),
                    outcome: row.get("outcome")?,
                    mount: row.get("mount")?,
                    usage_before_percent: row.get("usage_before_percent")?,
                    usage_after_percent: row.get("usage_after_percent")?,
                })
            })
            .optional()?;
        runs.extend(last);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests;
