//! Sums over all runs that were ever recorded. Triggers of the database keep them
//! (`migrations/0001_history.sql`), so that they outlive the rows they come from, and each row
//! counts once, however often and from wherever it is written.

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
    /// An outcome, [`KILLED`], a kind of what was deleted, or [`BYPRODUCT`].
    pub label: String,
    /// How many, or how many bytes.
    pub value: u64,
}

/// Outcome under which interrupted runs are counted.
pub const KILLED: &str = "killed";
/// What leaks count as that went along with something else.
pub const BYPRODUCT: &str = "byproduct";

/// All sums that are not 0.
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

/// The last run of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct LastRun {
    pub command: Command,
    /// When it ended, or began where it has no end; by the wall clock as it is known now.
    pub at: Timestamp,
    /// How it ended; `None`: it has not, or was killed.
    pub outcome: Option<OutcomeKind>,
    /// Mount point of the filesystem that the percents are of.
    pub mount: Option<String>,
    pub usage_before_percent: Option<f64>,
    pub usage_after_percent: Option<f64>,
}

/// The last run of each command that deletes.
pub fn last_runs(from: &Connection) -> rusqlite::Result<Vec<LastRun>> {
    // Record time never goes back; the wall clock, which graphs go by, may be elsewhere.
    let ahead = known::clock(from)?.map(|clock| clock.wall.duration_since(clock.record_time));
    let mut runs = Vec::new();
    for command in [Command::Gc, Command::Rm, Command::Sweep] {
        let last = from
            .prepare_cached(
                "SELECT coalesce(ended, started) AS at, outcome, mount, usage_before_percent, usage_after_percent
                 FROM runs WHERE command = ?1 ORDER BY started DESC, id DESC LIMIT 1",
            )?
            .query_row([command], |row| {
                let at = time(row, "at")?;
                Ok(LastRun {
                    command,
                    at: ahead.and_then(|ahead| at.checked_add(ahead).ok()).unwrap_or(at),
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
