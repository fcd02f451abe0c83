//! All that a run has done so far, and putting it into the database.

use rusqlite::Transaction;
use serde::{Deserialize, Serialize};

use crate::inventory::{Filesystem, StoreKey};
use crate::records::attempts::{self, Attempt};
use crate::records::runs::{self, Certainty, Deletion, End, Event, Kind, Start};
use crate::records::sighting::StoreKeyText;
use crate::records::usage;

/// A run as far as it has come, or a piece of it: entries from one on, and all the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// What it began with.
    pub start: Start,
    /// Position of the first of `entries` within the run.
    pub first: usize,
    /// What it deleted or tried to, in order.
    pub entries: Vec<Entry>,
    /// What the kubelet would have told its node.
    pub events: Vec<Event>,
    /// How it ended; `None`: it has not.
    pub end: Option<End>,
}

/// A deletion or a try, and what is remembered for the next runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What happened.
    pub deletion: Deletion,
    /// The store of an image.
    pub key: Option<Key>,
    /// It would not go: not before this again.
    pub attempt: Option<Attempt>,
    /// It was begun, but not asked for after all: there is nothing to tell.
    #[serde(default)]
    pub spared: bool,
}

/// A [`StoreKey`] as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key(#[serde(with = "StoreKeyText")] pub StoreKey);

impl RunRecord {
    /// A run that has done nothing so far.
    #[must_use]
    pub fn of(start: Start) -> Self {
        Self { start, first: 0, entries: Vec::new(), events: Vec::new(), end: None }
    }

    /// Positions that it has nothing behind.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.saturating_add(self.entries.len())
    }

    /// It has no entry to tell of.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|entry| entry.spared)
    }

    /// The piece from position `first` on.
    #[must_use]
    pub fn piece(&self, first: usize) -> Self {
        let skipped = first.saturating_sub(self.first).min(self.entries.len());
        Self {
            start: self.start.clone(),
            first: self.first + skipped,
            entries: self.entries[skipped..].to_vec(),
            events: self.events.clone(),
            end: self.end.clone(),
        }
    }
}

/// Puts a run, or a piece of it, into the database. May be called with any states of the same
/// run, any number of times: the rows are those of all that was ever put.
///
/// # Errors
/// What SQLite says.
pub fn put(tx: &Transaction<'_>, record: &RunRecord) -> rusqlite::Result<()> {
    put_from(tx, record, 0)
}

/// The same where the database is believed to have all before position `from`. If it has not
/// (another one was put in its place), everything is put.
pub(super) fn put_from(tx: &Transaction<'_>, record: &RunRecord, from: usize) -> rusqlite::Result<()> {
    let from = runs::known(tx, &record.start.run_id)?.map_or(0, |there| there.min(from));
    let run = runs::begin(tx, &record.start)?;
    for (position, entry) in (record.first..).zip(&record.entries) {
        if position < from {
            continue;
        }
        if entry.spared {
            runs::spared(tx, run, position)?;
            continue;
        }
        runs::deleted(tx, run, position, &entry.deletion)?;
        if entry.deletion.outcome == Certainty::Unknown {
            continue;
        }
        let (Some(Key(store)), Kind::Image) = (&entry.key, entry.deletion.kind) else { continue };
        let (id, at) = (&entry.deletion.id, entry.deletion.at);
        match (&entry.attempt, &entry.deletion.error) {
            (Some(attempt), _) => attempts::set(tx, store, id, at, attempt)?,
            (None, None) => attempts::clear(tx, store, id, at)?,
            (None, Some(_)) => {}
        }
    }
    runs::told(tx, run, &record.events)?;
    match &record.end {
        Some(end) => {
            runs::end(tx, run, end)?;
            let filesystems: Vec<_> = end.filesystems.iter().map(Filesystem::from).collect();
            usage::record_alone(tx, end.ended, &filesystems)
        }
        None => Ok(()),
    }
}
