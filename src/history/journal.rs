//! The journal of a run, written while it runs.
//!
//! That a deletion begins is saved before it does, and its outcome with the next thing at the latest: a
//! run that is killed has left what it did, and of the last deletion a scan finds out. No deletion waits
//! long for that, nor for the disk: only the end of the run is synchronised. The database is held only
//! for the moment of writing: a run takes minutes, and scans want to write too. From the first failure
//! on the run waits in a file, which is written anew with each thing, until its end tries the database
//! once more.

use std::collections::HashSet;
use std::time::Duration;

use super::back_offs::BackOff;
use super::db::{PATIENCE, Records};
use super::files::{DATABASE, Stamp};
use super::health::{Degraded, Error};
use super::pending::{Queue, SaveWarning};
use super::pins::{self, Pin};
use super::run_record::put_from;
pub use super::run_record::{RunEntry, RunRecord};
use super::runs::{BEGUN, Certainty, DeletionRow, Event, RunEnd, Start};
use super::save::save_with_waiting;
use super::state_directory::StateDirectory;
use crate::sys::stop;

/// How long a deletion waits for another writer, and then for a program that is not ours:
/// together a second.
const SHORT: Duration = Duration::from_millis(500);

/// The record of a run in progress. Its errors never fail the run; the caller reports them.
#[derive(Debug)]
#[must_use = "a run without an end looks killed"]
pub struct Journal {
    directory: StateDirectory,
    queue: Queue,
    record: RunRecord,
    /// The database has everything before this position, as far as we know.
    from: usize,
    /// What the files of the database were like when this last wrote to it.
    left: Option<Stamp>,
    /// The keep-list when this last wrote to it.
    pins: Option<Vec<Pin>>,
    /// The position of the deletion that was begun and whose outcome is open.
    open: Option<usize>,
    /// The database could not be written: it is tried again at the end.
    waits: bool,
    /// What became of the last file.
    waiting: Option<SaveWarning>,
    reported: HashSet<&'static str>,
    degraded: Vec<Degraded>,
    warnings: Vec<SaveWarning>,
}

/// What became of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEnd {
    /// Whether all of it is in the database. If not, it waits, unless a warning says that it is
    /// lost.
    pub kept: bool,
    /// Why it is not, or was not for a while, without what was reported before.
    pub degraded: Vec<Degraded>,
    /// What to warn of besides.
    pub warnings: Vec<SaveWarning>,
}

impl Journal {
    /// Begins the record of a run. Nothing is written before [`Self::begins`], the first event
    /// or the end: a run with nothing to do writes once.
    pub fn begin(directory: &StateDirectory, start: Start) -> Self {
        Self {
            queue: Queue::of(directory),
            directory: directory.clone(),
            record: RunRecord::of(start),
            from: 0,
            left: None,
            pins: None,
            open: None,
            waits: false,
            waiting: None,
            reported: HashSet::new(),
            degraded: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Something is about to be deleted: if the run is killed meanwhile, that it was begun has a
    /// record, and a later scan says what came of it. What follows is [`Self::gone`],
    /// [`Self::failed`], [`Self::spared`], or nothing if the outcome is unknown.
    ///
    /// Returns the keep-list at that moment; `None` where the database could not be used.
    pub fn begins(&mut self, deletion: DeletionRow) -> Option<Vec<Pin>> {
        let error = Some(BEGUN.to_owned());
        let deletion = DeletionRow { error, certainty: Certainty::Unknown, ..deletion };
        self.open = Some(self.record.entries.len());
        self.record.entries.push(RunEntry { deletion, back_off: None, spared: false });
        self.save(SHORT);
        self.pins.take()
    }

    /// The announced deletion was not requested after all.
    pub fn spared(&mut self) {
        self.change_open(|entry| entry.spared = true);
    }

    /// The outcome of the announced deletion is unknown, for the reason `why`.
    pub fn unproven(&mut self, why: &str) {
        self.change_open(|entry| {
            entry.deletion.error = Some(format!("{why}; its outcome is not known yet"));
        });
    }

    /// Something was deleted; an image then is no longer among those that could not be. What came of it may
    /// follow as [`Self::measured`] at the position that is returned.
    pub fn gone(&mut self, deletion: DeletionRow) -> usize {
        self.add(RunEntry { deletion, back_off: None, spared: false })
    }

    /// The measured result of the deletion at `position`.
    pub fn measured(
        &mut self,
        position: usize,
        measured_bytes: Option<i64>,
        byproduct_bytes: u64,
        usage_after_percent: Option<f64>,
    ) {
        self.change(position, |entry| {
            entry.deletion.measured_bytes = measured_bytes;
            entry.deletion.byproduct_bytes = byproduct_bytes;
            entry.deletion.usage_after_percent = usage_after_percent;
        });
    }

    /// Something could not be deleted: `deletion.error` says why. `back_off` is what is remembered of an image.
    pub fn failed(&mut self, deletion: DeletionRow, back_off: Option<BackOff>) {
        self.add(RunEntry { deletion, back_off, spared: false });
    }

    /// An event that the kubelet would report on its node.
    pub fn event(&mut self, event: Event) {
        self.record.events.push(event);
        self.save(SHORT);
    }

    /// Problems with saving since the last call, each kind once per run.
    pub fn take_degraded(&mut self) -> Vec<Degraded> {
        std::mem::take(&mut self.degraded)
    }

    /// Whether it deleted something, or tried to.
    #[must_use]
    pub fn has_acted(&self) -> bool {
        self.record.entries.iter().any(|entry| !entry.spared)
    }

    /// The run has ended. Waits for other writers as long as any command.
    pub fn end(mut self, end: RunEnd) -> JournalEnd {
        self.record.end = Some(end);
        self.waits = false;
        // After a signal there is no time to wait in; what is not saved waits in its file.
        let kept = self.save(if stop::is_asked() { SHORT } else { PATIENCE });
        if !kept {
            self.warnings.extend(self.waiting.take());
        }
        JournalEnd { kept, degraded: self.degraded, warnings: self.warnings }
    }

    fn add(&mut self, entry: RunEntry) -> usize {
        let Some(position) = self.open.take() else {
            self.record.entries.push(entry);
            self.save(SHORT);
            return self.record.entries.len() - 1;
        };
        // That it was begun is saved: its outcome goes with the next thing.
        self.record.entries[position] = entry;
        self.from = self.from.min(position);
        position
    }

    fn change_open(&mut self, change: impl Fn(&mut RunEntry)) {
        if let Some(position) = self.open.take() {
            self.change(position, change);
        }
    }

    fn change(&mut self, position: usize, change: impl Fn(&mut RunEntry)) {
        let Some(entry) = self.record.entries.get_mut(position) else { return };
        change(entry);
        self.from = self.from.min(position);
        self.save(SHORT);
    }

    /// Saves what has changed, in the database or else in a file; whether all of it is in the
    /// database now.
    fn save(&mut self, patience: Duration) -> bool {
        self.pins = None;
        if self.directory.foreign {
            return false;
        }
        if !self.waits {
            match self.write(patience) {
                Ok(()) => {
                    self.from = self.record.entries.len();
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

    /// Opens the database, writes what waits and what is new, and closes it again.
    fn write(&mut self, patience: Duration) -> Result<(), Degraded> {
        let path = self.directory.dir.join(DATABASE);
        let unsaved = |error| match error {
            Error::Degraded(why) => *why,
            Error::Newer { path, found, known } => Degraded::Newer { path, found, known },
            // What it refuses now, it will refuse from the file, and is renamed there.
            Error::Sqlite(error) => Degraded::Io { path: path.clone(), cause: error.to_string() },
        };
        let mut opened =
            Records::open_to_write(&self.directory, patience, self.left.take().as_ref()).map_err(&unsaved)?;
        opened.degraded.drain(..).for_each(|why| self.report(why));
        // The file of what waits is removed once it is saved, so then that has to be on the disk.
        let (waiting, mut warnings) = self.queue.all();
        if self.record.end.is_none() && waiting.is_empty() {
            opened.records.defer_sync().map_err(|error| unsaved(error.into()))?;
        }
        let mut degraded = Vec::new();
        let (record, from) = (&self.record, self.from);
        let done =
            save_with_waiting(&mut opened.records, &self.queue, (&mut degraded, &mut warnings), |tx| {
                put_from(tx, record, from).and_then(|()| pins::list(tx))
            });
        degraded.into_iter().for_each(|why| self.report(why));
        self.add_warnings(warnings);
        self.left = opened.records.leave().filter(|_| done.is_ok());
        self.pins = Some(done.map_err(unsaved)?.0);
        Ok(())
    }

    fn report(&mut self, why: Degraded) {
        if self.reported.insert(why.code()) {
            self.degraded.push(why);
        }
    }

    /// Warnings come with each try; each is kept once.
    fn add_warnings(&mut self, warnings: Vec<SaveWarning>) {
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

#[cfg(test)]
mod tests;
