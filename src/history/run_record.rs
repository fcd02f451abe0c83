//! A run as it is saved, in the database or in a file that waits for it.

use rusqlite::Transaction;
use serde::{Deserialize, Serialize};

use super::back_offs::{self, BackOff};
use super::runs::{self, Certainty, DeletionRow, Event, RunEnd, Start, TargetKind};
use super::usage;

/// A run as far as it has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    pub start: Start,
    /// What it deleted or tried to, in order.
    pub entries: Vec<RunEntry>,
    /// Events that the kubelet would have reported.
    pub events: Vec<Event>,
    /// How it ended; `None`: it has not.
    pub end: Option<RunEnd>,
}

/// A deletion or a try, and what is remembered for the next runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    pub deletion: DeletionRow,
    /// An image that could not be deleted: not before this again.
    pub back_off: Option<BackOff>,
    /// It was begun, but not asked for after all: there is nothing to tell.
    pub spared: bool,
}

impl RunRecord {
    /// A run that has done nothing so far.
    #[must_use]
    pub fn of(start: Start) -> Self {
        Self { start, entries: Vec::new(), events: Vec::new(), end: None }
    }
}

/// Writes a run to the database. May be called with any states of the same run, any number of times:
/// the rows are those of all that was ever put.
pub fn put(tx: &Transaction<'_>, record: &RunRecord) -> rusqlite::Result<()> {
    put_from(tx, record, 0)
}

/// The same where the database is believed to have all before position `from`. If it has not
/// (another one was put in its place), everything is put.
pub(super) fn put_from(tx: &Transaction<'_>, record: &RunRecord, from: usize) -> rusqlite::Result<()> {
    let from = runs::known(tx, &record.start.run_id)?.map_or(0, |there| there.min(from));
    let run = runs::begin(tx, &record.start)?;
    for (position, entry) in record.entries.iter().enumerate().skip(from) {
        if entry.spared {
            runs::spared(tx, run, position)?;
            continue;
        }
        runs::deleted(tx, run, position, &entry.deletion)?;
        if entry.deletion.certainty == Certainty::Unknown {
            continue;
        }
        let (Some(store), TargetKind::Image) = (&entry.deletion.store, entry.deletion.kind) else { continue };
        let (id, at) = (&entry.deletion.id, entry.deletion.at);
        match (&entry.back_off, &entry.deletion.error) {
            (Some(back_off), _) => back_offs::set(tx, store, id, at, back_off)?,
            (None, None) => back_offs::clear(tx, store, id, at)?,
            (None, Some(_)) => {}
        }
    }
    runs::record_events(tx, run, &record.events)?;
    let Some(end) = &record.end else { return Ok(()) };
    runs::end(tx, run, end)?;
    usage::record_alone(tx, end.ended, &end.filesystems)
}
