//! A run in the form in which it is saved, in the database or in a queue file.

use std::ops::Range;

use rusqlite::Transaction;
use serde::{Deserialize, Serialize};

use super::back_offs::{self, BackOff};
use super::runs::{self, Certainty, DeletionRow, Event, RunEnd, Start, TargetKind};
use super::usage;
use super::values::signed;

/// A run up to now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub start: Start,
    /// Its deletions and failed attempts, in order.
    pub entries: Vec<RunEntry>,
    /// Events that the kubelet would have reported.
    pub events: Vec<Event>,
    /// Its end; `None` if it has not ended.
    pub end: Option<RunEnd>,
}

/// A deletion or a failed attempt, with consequences for later runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    pub deletion: DeletionRow,
    /// Delay of the next attempt for an image that could not be deleted.
    pub back_off: Option<BackOff>,
    /// The deletion was started, but not requested after all: it leaves no row.
    #[serde(rename = "spared")]
    pub is_cancelled: bool,
}

impl RunRecord {
    /// Returns a run that has not deleted anything yet.
    #[must_use]
    pub fn of(start: Start) -> Self {
        Self { start, entries: Vec::new(), events: Vec::new(), end: None }
    }
}

/// Writes a run to the database. It may be called with any states of the same run, any number of times: the rows are
/// the union of all states that were written.
pub fn put(tx: &Transaction<'_>, record: &RunRecord) -> rusqlite::Result<()> {
    put_range(tx, record, &(0..record.entries.len()))
}

/// Like [`put`], but skips entries outside of `unsaved`, which the database is believed to contain. Entries before it
/// are written if the database does not contain them (another one was put in its place).
pub(super) fn put_range(
    tx: &Transaction<'_>,
    record: &RunRecord,
    unsaved: &Range<usize>,
) -> rusqlite::Result<()> {
    let known = runs::known(tx, &record.start.run_id)?.unwrap_or(0);
    let (from, to) = if unsaved.is_empty() {
        (known, record.entries.len())
    } else {
        (known.min(unsaved.start), unsaved.end)
    };
    let run = runs::begin(tx, &record.start)?;
    for (position, entry) in record.entries.iter().enumerate().take(to).skip(from) {
        if entry.is_cancelled {
            runs::cancel(tx, run, signed(position))?;
            continue;
        }
        runs::deleted(tx, run, position, &entry.deletion)?;
        if entry.deletion.certainty == Certainty::Unknown {
            continue;
        }
        let (Some(store), TargetKind::Image) = (&entry.deletion.store, entry.deletion.kind) else { continue };
        let (id, time) = (&entry.deletion.id, entry.deletion.at);
        match (&entry.back_off, &entry.deletion.error) {
            (Some(back_off), _) => back_offs::set(tx, store, id, time, back_off)?,
            (None, None) => back_offs::clear(tx, store, id, time)?,
            (None, Some(_)) => {}
        }
    }
    runs::record_events(tx, run, &record.events)?;
    let Some(end) = &record.end else { return Ok(()) };
    runs::end(tx, run, end)?;
    usage::record(tx, end.ended, &end.filesystems)
}
