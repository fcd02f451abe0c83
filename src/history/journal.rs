//! The journal of a run, written while the run deletes.
//!
//! A deletion is saved before it starts, and its outcome at the latest with the next entry. If the run is killed, the
//! database contains everything that it did, and the outcome of the last deletion is determined by the next scan
//! ([`super::runs::confirm`]).
//!
//! Saving must not delay deletions. The wait for other writers is short, and only the end of the run is synchronised to
//! the disk. The database is locked only for the moment of writing, because a run takes minutes and scans want to write
//! too. After the first failure the run is saved in a queue file ([`super::pending`]), which each entry replaces; the
//! end of the run tries the database again.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::back_offs::BackOff;
use super::db::{PATIENCE, Records};
use super::files::{DATABASE, Stamp};
use super::health::{Degraded, Error};
use super::pending::{Queue, SaveWarning};
use super::pins::{self, Pin};
use super::run_record::put_range;
pub use super::run_record::{RunEntry, RunRecord};
use super::runs::{BEGUN, Certainty, DeletionRow, Event, RunEnd, Start};
use super::save::save_with_waiting;
use super::state_directory::StateDirectory;
use crate::sys::stop;

/// Time that a deletion waits for another writer, and then again for another program that has the database open: one
/// second together.
const SHORT: Duration = Duration::from_millis(500);

/// Record of a run in progress. Its errors never fail the run; the caller reports them.
#[derive(Debug)]
#[must_use = "a run without an end looks killed"]
pub struct Journal {
    directory: StateDirectory,
    queue: Queue,
    record: RunRecord,
    /// Entries outside of this range are in the database, as far as known.
    unsaved: Range<usize>,
    /// Stamp of the database files after the last write.
    left: Option<Stamp>,
    /// Keep-list at the last write.
    pins: Option<Vec<Pin>>,
    /// Position of the deletion that was started and has no outcome yet.
    open: Option<usize>,
    /// Positions of deletions that were announced and have not started, in order.
    announced: VecDeque<usize>,
    /// The database could not be written. It is tried again at the end.
    waits: bool,
    /// Result of the last write of the queue file.
    waiting: Option<SaveWarning>,
    reported: HashSet<&'static str>,
    degraded: Vec<Degraded>,
    warnings: Vec<SaveWarning>,
}

/// Measured result of a deletion; the fields are those of [`DeletionRow`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub bytes: Option<i64>,
    pub byproduct_bytes: u64,
    pub others_wrote: bool,
    pub usage_after_percent: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEnd {
    /// The whole record is in the database. If not, it is queued, unless a warning says that it is lost.
    pub kept: bool,
    /// Reasons why the record is not in the database, or was not for a while, except those already reported.
    pub degraded: Vec<Degraded>,
    pub warnings: Vec<SaveWarning>,
}

impl Journal {
    /// Begins the record of a run. Nothing is written before [`Self::begin_deletion`], the first event or the end, so a
    /// run with nothing to do writes once.
    pub fn begin(directory: &StateDirectory, start: Start) -> Self {
        Self {
            queue: Queue::of(directory),
            directory: directory.clone(),
            record: RunRecord::of(start),
            unsaved: 0..0,
            left: None,
            pins: None,
            open: None,
            announced: VecDeque::new(),
            waits: false,
            waiting: None,
            reported: HashSet::new(),
            degraded: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Records that a deletion is about to start. If the run is killed meanwhile, a later scan finds the outcome. The
    /// caller then calls [`Self::deleted`], [`Self::failed`] or [`Self::cancelled`], or nothing if the outcome is
    /// unknown.
    ///
    /// Returns the keep-list at that moment, or `None` if the database could not be used.
    pub fn begin_deletion(&mut self, deletion: DeletionRow) -> Option<Vec<Pin>> {
        let position = self.take_announced(&deletion).unwrap_or(self.record.entries.len());
        self.open = Some(position);
        self.put(position, begun(deletion));
        self.save(SHORT);
        self.pins.take()
    }

    /// Records that deletions are about to start in one step, before any of them does. Each is started later with
    /// [`Self::begin_deletion`], or withdrawn.
    pub fn announce(&mut self, deletions: Vec<DeletionRow>) {
        for deletion in deletions {
            let position = self.record.entries.len();
            self.announced.push_back(position);
            self.put(position, begun(deletion));
        }
        self.save(SHORT);
    }

    /// Records that an announced deletion does not start. Does nothing if it has started. Saved with the next entry.
    pub fn withdraw(&mut self, deletion: &DeletionRow) {
        if let Some(position) = self.take_announced(deletion) {
            self.record.entries[position].is_cancelled = true;
            self.note_change(position);
        }
    }

    fn take_announced(&mut self, deletion: &DeletionRow) -> Option<usize> {
        let is_of = |position: &usize| {
            let known = &self.record.entries[*position].deletion;
            (known.kind, &known.store, &known.id, &known.names)
                == (deletion.kind, &deletion.store, &deletion.id, &deletion.names)
        };
        let index = self.announced.iter().position(is_of)?;
        self.announced.remove(index)
    }

    /// Records that the started deletion was not requested after all.
    pub fn cancelled(&mut self) {
        self.change_open(|entry| entry.is_cancelled = true);
    }

    /// Records that the outcome of the started deletion is unknown, for the reason `why`.
    pub fn unproven(&mut self, why: &str) {
        self.change_open(|entry| {
            entry.deletion.error = Some(format!("{why}; its outcome is not known yet"));
        });
    }

    /// Records a deletion. An image is then removed from the list of failed deletions. The measured result may follow
    /// with [`Self::measured`], given the position that is returned.
    pub fn deleted(&mut self, deletion: DeletionRow) -> usize {
        self.add(RunEntry { deletion, back_off: None, is_cancelled: false })
    }

    /// Records the measured result of the deletion at `position`.
    pub fn measured(&mut self, position: usize, measured: Measured) {
        let Measured { bytes, byproduct_bytes, others_wrote, usage_after_percent } = measured;
        self.change(position, |entry| {
            entry.deletion.measured_bytes = bytes;
            entry.deletion.byproduct_bytes = byproduct_bytes;
            entry.deletion.others_wrote = others_wrote;
            entry.deletion.usage_after_percent = usage_after_percent;
        });
    }

    /// Records a failed deletion. `deletion.error` is the reason, and `back_off` delays the next attempt for an image.
    pub fn failed(&mut self, deletion: DeletionRow, back_off: Option<BackOff>) {
        self.add(RunEntry { deletion, back_off, is_cancelled: false });
    }

    /// Records an event that the kubelet would report on its node.
    pub fn event(&mut self, event: Event) {
        self.record.events.push(event);
        self.save(SHORT);
    }

    /// Returns the problems with saving since the last call, each kind once per run.
    pub fn take_degraded(&mut self) -> Vec<Degraded> {
        std::mem::take(&mut self.degraded)
    }

    /// Checks whether the run deleted something, or tried to.
    #[must_use]
    pub fn has_acted(&self) -> bool {
        self.record.entries.iter().any(|entry| !entry.is_cancelled)
    }

    /// Ends the run. Waits for other writers as long as any other command.
    pub fn end(mut self, end: RunEnd) -> JournalEnd {
        self.record.end = Some(end);
        self.waits = false;
        // After a signal there is no time to wait: an unsaved record stays in its queue file.
        let kept = self.save(if stop::is_requested() { SHORT } else { PATIENCE });
        if !kept {
            self.warnings.extend(self.waiting.take());
        }
        JournalEnd { kept, degraded: self.degraded, warnings: self.warnings }
    }

    fn add(&mut self, entry: RunEntry) -> usize {
        let position = self.open.take();
        let is_begun = position.is_some();
        let position = position.unwrap_or(self.record.entries.len());
        self.put(position, entry);
        // The start of the deletion is saved already; its outcome is saved with the next entry.
        if !is_begun {
            self.save(SHORT);
        }
        position
    }

    /// Adds an entry, or replaces the one at `position`.
    fn put(&mut self, position: usize, entry: RunEntry) {
        match self.record.entries.get_mut(position) {
            Some(known) => *known = entry,
            None => self.record.entries.push(entry),
        }
        self.note_change(position);
    }

    fn note_change(&mut self, position: usize) {
        let start = if self.unsaved.is_empty() { position } else { self.unsaved.start.min(position) };
        self.unsaved = start..self.unsaved.end.max(position + 1);
    }

    fn change_open(&mut self, change: impl Fn(&mut RunEntry)) {
        if let Some(position) = self.open.take() {
            self.change(position, change);
        }
    }

    fn change(&mut self, position: usize, change: impl Fn(&mut RunEntry)) {
        let Some(entry) = self.record.entries.get_mut(position) else { return };
        change(entry);
        self.note_change(position);
        self.save(SHORT);
    }

    /// Saves all changes, in the database or else in a queue file. Returns whether all are in the database.
    fn save(&mut self, patience: Duration) -> bool {
        self.pins = None;
        if self.directory.foreign {
            return false;
        }
        if !self.waits {
            match self.write(patience) {
                Ok(()) => {
                    self.unsaved = 0..0;
                    self.waiting = None;
                    return true;
                }
                Err(why) => self.report(why),
            }
            self.waits = true;
        }
        self.waiting = Some(self.queue.put(&self.record));
        false
    }

    /// Opens the database, writes the queued runs and the new entries, and closes it.
    fn write(&mut self, patience: Duration) -> Result<(), Degraded> {
        let mut opened = Records::open_to_write(&self.directory, patience, self.left.take().as_ref())
            .map_err(|error| self.unsaved(error))?;
        opened.degraded.drain(..).for_each(|why| self.report(why));
        // Queue files are deleted once they are saved, so the write must reach the disk first.
        let (waiting, mut warnings) = self.queue.all();
        if self.record.end.is_none() && waiting.is_empty() {
            opened.records.defer_sync().map_err(|error| self.unsaved(error.into()))?;
        }
        let mut degraded = Vec::new();
        let (record, unsaved) = (&self.record, self.unsaved.clone());
        let saved =
            save_with_waiting(&mut opened.records, &self.queue, (&mut degraded, &mut warnings), |tx| {
                put_range(tx, record, &unsaved).and_then(|()| pins::list(tx))
            });
        degraded.into_iter().for_each(|why| self.report(why));
        self.add_warnings(warnings);
        self.left = opened.records.leave().filter(|_| saved.is_ok());
        self.pins = Some(saved.map_err(|error| self.unsaved(error))?.0);
        Ok(())
    }

    fn unsaved(&self, error: Error) -> Degraded {
        match error {
            Error::Degraded(why) => *why,
            Error::Newer { path, found, known } => Degraded::Newer { path, found, known },
            // A statement that SQLite rejects now is rejected again when the file is applied, and the file is renamed.
            Error::Sqlite(error) => {
                Degraded::Io { path: self.directory.dir.join(DATABASE), cause: error.to_string() }
            }
        }
    }

    fn report(&mut self, why: Degraded) {
        if self.reported.insert(why.code()) {
            self.degraded.push(why);
        }
    }

    /// Adds the warnings of a write. Each write returns all of them, so repetitions are dropped.
    fn add_warnings(&mut self, warnings: Vec<SaveWarning>) {
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

/// The entry of a deletion that is about to start.
fn begun(deletion: DeletionRow) -> RunEntry {
    let error = Some(BEGUN.to_owned());
    let deletion = DeletionRow { error, certainty: Certainty::Unknown, ..deletion };
    RunEntry { deletion, back_off: None, is_cancelled: false }
}

#[cfg(test)]
mod tests;
