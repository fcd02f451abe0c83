//! What a run does, written down while it does it.
//!
//! Each thing is saved when it has happened, so that a run that is killed has left what it
//! did; and no deletion waits long for that. The database is held only for the moment of
//! writing: a run takes minutes, and scans want to write too. While it cannot be written, what
//! it lacks is kept in a spool beside that of the scans, in pieces, and the next run that can
//! write saves them.

mod record;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use record::{Entry, Key, RunRecord, put};

use super::attempts::Attempt;
use super::db::{Error, PATIENCE, Records};
use super::files::DATABASE;
use super::health::Degraded;
use super::place::Place;
use super::runs::{BEGUN, Certainty, Deletion, End, Event, Start};
use super::save::{self, catch_up};
use super::spool::{Note, Spool, Waiting};
use crate::inventory::StoreKey;
use crate::sys::stop;

/// How long a deletion waits for another writer, and then for a program that is not ours:
/// together a second.
const SHORT: Duration = Duration::from_millis(500);

/// A try that failed is not repeated for so many times as long as it took: a writer that
/// stays costs a tenth of the time at most, a full disk nothing that anybody would notice.
const REST: u32 = 10;

/// Entries in a piece of the spool. The last piece is written anew with each entry, so it is
/// short; the spool holds some hundred.
const PIECE: usize = 64;

/// The record of a run under way. Nothing it does can fail the run; what hinders it is for the
/// caller to tell.
#[derive(Debug)]
#[must_use = "a run without an end looks killed"]
pub struct Journal {
    place: Place,
    spool: Spool,
    record: RunRecord,
    /// The database has everything before this position, as far as we know.
    from: usize,
    /// The last piece in the spool begins at this position.
    piece: usize,
    /// Its file.
    file: Option<PathBuf>,
    /// Files of the pieces before it.
    files: Vec<PathBuf>,
    /// Before this the database is not tried again.
    rest: Option<Instant>,
    /// A newer layersweep owns it.
    newer: bool,
    /// Position of the deletion that was begun and whose outcome is open.
    open: Option<usize>,
    /// Runs that waited have been saved.
    caught_up: bool,
    /// Something of it has been written somewhere.
    begun: bool,
    /// Where it could not be written at all.
    lost: Option<Vec<(PathBuf, String)>>,
    told: HashSet<&'static str>,
    degraded: Vec<Degraded>,
    notes: Vec<Note>,
}

/// What became of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether all of it is in the database. If not, it waits, unless a note says that it is
    /// lost.
    pub kept: bool,
    /// Why it is not, or was not for a while; what was told before is left out.
    pub degraded: Vec<Degraded>,
    /// What to warn of besides.
    pub notes: Vec<Note>,
}

impl Journal {
    /// Begins the record of a run. Nothing is written before [`Self::begins`], the first event
    /// or the end: a run with nothing to do writes once.
    pub fn begin(place: &Place, start: Start) -> Self {
        Self {
            spool: Spool::new(place.run_spool()),
            place: place.clone(),
            record: RunRecord::of(start),
            from: 0,
            piece: 0,
            file: None,
            files: Vec::new(),
            rest: None,
            newer: false,
            open: None,
            caught_up: false,
            begun: false,
            lost: None,
            told: HashSet::new(),
            degraded: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The run's id.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.record.start.run_id
    }

    /// Changes what is known of the beginning; saved with what comes next. Its id and time stay.
    pub fn amend(&mut self, change: impl FnOnce(&mut Start)) {
        let (run_id, started) = (self.record.start.run_id.clone(), self.record.start.started);
        change(&mut self.record.start);
        (self.record.start.run_id, self.record.start.started) = (run_id, started);
    }

    /// Something is about to be deleted: if the run is killed meanwhile, that it was begun has a
    /// record, and a later scan says what came of it. What follows is [`Self::gone`],
    /// [`Self::refused`], [`Self::spared`], or nothing where nobody can tell.
    pub fn begins(&mut self, deletion: Deletion) {
        let error = Some(BEGUN.to_owned());
        let deletion = Deletion { error, outcome: Certainty::Unknown, ..deletion };
        self.record.entries.push(Entry { deletion, key: None, attempt: None, spared: false });
        self.open = Some(self.record.len() - 1);
        self.save(SHORT);
    }

    /// What was begun was not asked for after all.
    pub fn spared(&mut self) {
        let Some(position) = self.open.take() else { return };
        if let Some(entry) = self.record.entries.get_mut(position) {
            entry.spared = true;
            self.changed(position);
        }
    }

    /// What came of what was begun nobody can tell now; why.
    pub fn unproven(&mut self, why: &str) {
        let Some(position) = self.open.take() else { return };
        if let Some(entry) = self.record.entries.get_mut(position) {
            entry.deletion.error = Some(format!("{why}; whether it is gone is not known yet"));
            self.changed(position);
        }
    }

    /// Something was deleted; `store` is that of an image, which then is no longer among those
    /// that would not go. What came of it may follow as [`Self::measured`] at the position that
    /// is returned.
    pub fn gone(&mut self, deletion: Deletion, store: Option<&StoreKey>) -> usize {
        self.add(Entry { deletion, key: store.cloned().map(Key), attempt: None, spared: false })
    }

    /// What came of the deletion at `position`.
    pub fn measured(
        &mut self,
        position: usize,
        measured_bytes: Option<i64>,
        byproduct_bytes: u64,
        usage_after_percent: Option<f64>,
    ) {
        let Some(entry) = self.record.entries.get_mut(position) else { return };
        entry.deletion.measured_bytes = measured_bytes;
        entry.deletion.byproduct_bytes = byproduct_bytes;
        entry.deletion.usage_after_percent = usage_after_percent;
        self.changed(position);
    }

    /// Something would not go: `deletion.error` says why. `attempt` is what is remembered of an
    /// image and its store.
    pub fn refused(&mut self, deletion: Deletion, attempt: Option<(&StoreKey, Attempt)>) {
        let (key, attempt) = attempt.map(|(store, attempt)| (Key(store.clone()), attempt)).unzip();
        self.add(Entry { deletion, key, attempt, spared: false });
    }

    /// What the kubelet would tell its node.
    pub fn event(&mut self, reason: &str, message: &str) {
        self.record.events.push(Event { reason: reason.to_owned(), message: message.to_owned() });
        self.save(SHORT);
    }

    /// What has hindered the saving since the last call, each kind once in a run.
    pub fn take_degraded(&mut self) -> Vec<Degraded> {
        std::mem::take(&mut self.degraded)
    }

    /// Whether it deleted something, or tried to.
    #[must_use]
    pub fn has_acted(&self) -> bool {
        !self.record.is_empty()
    }

    /// The run has ended. Waits for other writers as long as any command.
    pub fn end(mut self, end: End) -> Ended {
        self.record.end = Some(end);
        self.rest = None;
        // After a signal there is no time to wait in; what is not saved waits in the spool.
        let kept = self.save(if stop::is_asked() { SHORT } else { PATIENCE });
        if !kept {
            let survives = self.place.run_spool();
            let survives = survives.first().filter(|_| survives.len() > 1);
            for path in self.files.iter().chain(&self.file) {
                let survives_reboot = path.parent() == survives.map(PathBuf::as_path);
                self.notes.push(Note::Kept { path: path.clone(), survives_reboot });
            }
            self.notes.extend(self.lost.take().map(Note::Lost));
        }
        Ended { kept, degraded: self.degraded, notes: self.notes }
    }

    fn add(&mut self, entry: Entry) -> usize {
        let Some(position) = self.open.take() else {
            self.record.entries.push(entry);
            self.save(SHORT);
            return self.record.len() - 1;
        };
        if let Some(begun) = self.record.entries.get_mut(position) {
            *begun = entry;
        }
        self.changed(position);
        position
    }

    /// The entry at `position` is another one now.
    fn changed(&mut self, position: usize) {
        self.from = self.from.min(position);
        self.piece = self.piece.min(position);
        self.save(SHORT);
    }

    /// Saves what has changed, in the database or else in the spool; whether all of it is in
    /// the database now.
    fn save(&mut self, patience: Duration) -> bool {
        if self.place.foreign {
            return false;
        }
        if self.save_in_database(patience) {
            let mut files = std::mem::take(&mut self.files);
            files.extend(self.file.take());
            let notes = self.spool.done(&files);
            self.note(notes);
            self.from = self.record.len();
            self.piece = self.record.len();
            (self.lost, self.begun) = (None, true);
            return true;
        }
        self.save_in_spool();
        false
    }

    fn save_in_database(&mut self, patience: Duration) -> bool {
        let begun = Instant::now();
        if self.newer || self.rest.is_some_and(|rest| begun < rest) {
            return false;
        }
        let Err(error) = self.write(patience) else { return true };
        self.rest = begun.elapsed().checked_mul(REST).and_then(|rest| Instant::now().checked_add(rest));
        self.newer = matches!(error, Error::Newer { .. });
        let path = self.place.dir.join(DATABASE);
        self.tell(match error {
            Error::Degraded(why) => *why,
            Error::Newer { path, found, known } => Degraded::Newer { path, found, known },
            // What it refuses now, it will refuse from the spool, and is set aside there.
            Error::Sqlite(error) => Degraded::Io { path, cause: error.to_string() },
        });
        false
    }

    /// Opens the database, writes, and closes it again.
    fn write(&mut self, patience: Duration) -> Result<(), Error> {
        let mut opened = Records::open_to_write(&self.place, patience)?;
        opened.degraded.drain(..).for_each(|why| self.tell(why));
        let waiting = if self.caught_up { Vec::new() } else { self.waiting() };
        let mut done = save_waiting(&mut opened.records, &waiting, Some((&self.record, self.from)));
        if let Err(Error::Degraded(why)) = &done
            && let damage @ Degraded::Corrupt { .. } = why.as_ref()
        {
            // Once more, in the new database.
            let renewed = opened.records.renew(damage.clone())?;
            self.tell(renewed);
            done = save_waiting(&mut opened.records, &waiting, Some((&self.record, 0)));
        }
        let (_, refused) = done?;
        self.caught_up = true;
        // While nobody else can save the same.
        let notes = settle(&self.spool, &waiting, &refused);
        self.note(notes);
        Ok(())
    }

    /// Runs before this one that wait.
    fn waiting(&mut self) -> Vec<Waiting<RunRecord>> {
        let (mut waiting, notes) = self.spool.take_all::<RunRecord>();
        self.note(notes);
        waiting.retain(|one| one.item.start.run_id != self.record.start.run_id);
        waiting
    }

    /// Puts what the database lacks into the spool.
    fn save_in_spool(&mut self) {
        let mut kept = None;
        for note in self.spool.put(&self.record.piece(self.piece)) {
            match note {
                Note::Kept { path, .. } => kept = Some(path),
                Note::Lost(tried) => self.lost = Some(tried),
                other => self.note(vec![other]),
            }
        }
        let Some(path) = kept else { return };
        (self.lost, self.begun) = (None, true);
        if let Some(before) = self.file.replace(path) {
            let notes = self.spool.done(&[before]);
            self.note(notes);
        }
        if self.record.len() - self.piece >= PIECE {
            self.files.extend(self.file.take());
            self.piece = self.record.len();
        }
    }

    fn tell(&mut self, why: Degraded) {
        if self.told.insert(why.code()) {
            self.degraded.push(why);
        }
    }

    /// Notes come with each try; each is kept once.
    fn note(&mut self, notes: Vec<Note>) {
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}

/// What could not be applied: its place among what waits, and why.
type Refused = Vec<(usize, String)>;

/// Saves what waits, each exactly once, and `own` after it from a position on; how many.
fn save_waiting(
    records: &mut Records,
    waiting: &[Waiting<RunRecord>],
    own: Option<(&RunRecord, usize)>,
) -> Result<(usize, Refused), Error> {
    let mut refused = Vec::new();
    let caught_up = records.write(|tx| {
        let mut caught_up = 0;
        if !waiting.is_empty() {
            caught_up = catch_up(tx, waiting, &mut put, |at, cause| refused.push((at, cause)))?;
        }
        if let Some((own, from)) = own {
            record::put_from(tx, own, from)?;
        }
        Ok(caught_up)
    })?;
    Ok((caught_up, refused))
}

/// Removes the files of what is saved now, and sets aside what cannot be.
fn settle(spool: &Spool, waiting: &[Waiting<RunRecord>], refused: &Refused) -> Vec<Note> {
    let mut notes: Vec<_> = refused.iter().map(|(at, cause)| spool.refuse(&waiting[*at], cause)).collect();
    let paths: Vec<_> = waiting.iter().map(|one| one.path.clone()).collect();
    notes.extend(spool.done(&paths));
    notes
}

/// Runs that waited, seen from a command that is no run itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// How many pieces of runs were saved.
    pub saved: usize,
    /// What to warn of.
    pub notes: Vec<Note>,
}

/// Saves the runs that wait; for commands that have the database open for writing anyway.
///
/// # Errors
/// Why they could not be saved; then they wait on.
pub fn save_all(records: &mut Records, place: &Place) -> Result<CaughtUp, Error> {
    if place.foreign || !records.is_kept() {
        return Ok(CaughtUp::default());
    }
    let spool = Spool::new(place.run_spool());
    let (waiting, mut notes) = spool.take_all::<RunRecord>();
    if waiting.is_empty() {
        return Ok(CaughtUp { saved: 0, notes });
    }
    let (saved, refused) = save_waiting(records, &waiting, None)?;
    notes.extend(settle(&spool, &waiting, &refused));
    Ok(CaughtUp { saved, notes })
}

/// Applies the runs that wait to `records`, a copy in memory, and leaves them waiting; their ids,
/// and what to warn of.
///
/// # Errors
/// What SQLite says about the copy.
pub fn foresee(records: &mut Records, place: &Place) -> Result<(HashSet<String>, Vec<Note>), Error> {
    let mut ids = HashSet::new();
    if place.foreign {
        return Ok((ids, Vec::new()));
    }
    let notes = save::foresee(records, &Spool::new(place.run_spool()), |tx, record: &RunRecord| {
        put(tx, record)?;
        ids.insert(record.start.run_id.clone());
        Ok(())
    })?;
    Ok((ids, notes))
}

#[cfg(test)]
mod tests;
