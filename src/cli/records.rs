//! The records that the flags name: what is known before a survey, and saving one after it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::args::Global;
use super::failure::Failure;
use super::picturing;
use crate::disk::kept::Remembered;
use crate::history::ages::{Ages, Moment};
use crate::history::attempts::{self, Attempt};
use crate::history::known::{self, Known, Life};
use crate::history::pins::{self, Pins};
use crate::history::runs::{self, Command, Confirmed, Deletion, Kind};
use crate::history::scan_record::ScanRecord;
use crate::history::scans::Scan;
use crate::history::{
    self, Access, Caller, DATABASE, Degraded, Note, PATIENCE, Pending, Place, Queue, Records, RunLock, clock,
    figures, sizes,
};
use crate::model::picture::Picture;
use crate::model::refs::Refs;
use crate::model::{Consistency, Finding, Image, ImageIx, Inventory, StoreId, StoreIx};
use crate::report::text::safe;
use crate::stores::Survey;
use crate::sys::clock::{Leap, Reading};
use crate::sys::sysroot::Sysroot;

/// Names the state directory where no flag does.
pub(super) const STATE_DIR: &str = "LAYERSWEEP_STATE_DIR";

/// The records, opened.
#[derive(Debug)]
pub(super) struct Open {
    /// Always usable, maybe as a copy or empty.
    pub(super) records: Records,
    /// Where they lie.
    pub(super) place: Place,
    /// Whether there was a database that could be read.
    pub(super) found: bool,
    /// Whether there is one that could not: what it says is unknown, not nothing.
    pub(super) blind: bool,
}

impl Open {
    /// The database's path for the documents; `None` where there is none.
    pub(super) fn database(&self) -> Option<String> {
        self.found.then(|| self.place.dir.join(DATABASE).to_string_lossy().into_owned())
    }

    /// Reads from them.
    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        self.records.read(work).map_err(|source| failed(&self.place, source))
    }

    /// Writes all or nothing; that it can be kept was made sure of.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        self.records.write(work).map_err(|source| match source {
            history::Error::Degraded(why) => unchanged(&why),
            source => failed(&self.place, source),
        })
    }
}

fn failed(place: &Place, source: history::Error) -> Failure {
    Failure::Records { path: place.dir.join(DATABASE), source }
}

/// Where the flags say that the records lie; inside the sysroot, if there is one.
pub(super) fn place(global: &Global) -> Place {
    let sysroot = global.sysroot.as_deref().map_or_else(Sysroot::live, Sysroot::at);
    let named = global.state_dir.as_deref().map(|dir| match &global.sysroot {
        // Given with the sysroot in front, it means the same.
        Some(top) => below(top, dir).unwrap_or_else(|| dir.to_path_buf()),
        None => dir.to_path_buf(),
    });
    // The variable speaks of this machine, not of the disk that is looked at.
    let ours = || std::env::var_os(STATE_DIR).filter(|dir| !dir.is_empty()).map(std::path::PathBuf::from);
    let named = named.or_else(|| ours().filter(|_| global.sysroot.is_none()));
    history::place(&sysroot, named.as_deref(), &Caller::present())
}

fn below(top: &Path, dir: &Path) -> Option<std::path::PathBuf> {
    let (top, dir) = (std::path::absolute(top).ok()?, std::path::absolute(dir).ok()?);
    Some(Path::new("/").join(dir.strip_prefix(top).ok()?))
}

/// Opens the records. What is wrong with them is told on stderr.
pub(super) fn open(global: &Global, access: Access) -> Result<Open, Failure> {
    let (open, degraded) = open_quietly(global, access)?;
    tell(global, &degraded);
    Ok(open)
}

/// Opens the records to show the past, with what waits to be saved; ids of the runs among that.
/// What is wrong with any of it is told on stderr.
pub(super) fn open_with_waiting(global: &Global) -> Result<(Open, HashSet<String>), Failure> {
    let mut open = open(global, Access::Read)?;
    let (unsaved, notes) = apply_waiting(&mut open)?;
    if !global.quiet {
        let mut stderr = std::io::stderr().lock();
        for note in notes {
            // As in `tell`.
            let _ = writeln!(stderr, "warning: {}", safe(&note.to_string()));
        }
    }
    Ok((open, unsaved))
}

/// The same for who tells in the document what is wrong, and goes without records that a newer
/// layersweep made. Where there are records that cannot be read: why.
pub(super) fn open_with_waiting_anyway(
    global: &Global,
) -> Result<(Open, HashSet<String>, Option<String>), Failure> {
    let (mut open, degraded, newer) = open_anyway(global)?;
    let (unsaved, _) = apply_waiting(&mut open)?;
    let why = || newer.or_else(|| degraded.first().map(ToString::to_string)).unwrap_or_default();
    let unread = open.blind.then(why);
    Ok((open, unsaved, unread))
}

/// The same, with what is wrong handed to the caller.
pub(super) fn look(global: &Global) -> Result<(Open, Vec<Degraded>, Vec<Note>), Failure> {
    let (mut open, degraded) = open_quietly(global, Access::Read)?;
    let (_, notes) = apply_waiting(&mut open)?;
    Ok((open, degraded, notes))
}

/// Applies what waits to a copy of the records; ids of the runs among that, and what to warn of.
fn apply_waiting(open: &mut Open) -> Result<(HashSet<String>, Vec<Note>), Failure> {
    let Open { records, place, .. } = open;
    history::apply_waiting(records, &Queue::of(place)).map_err(|source| failed(place, source))
}

fn read_clocks() -> Result<Reading, Failure> {
    crate::sys::clock::read().map_err(|error| Failure::BadArgument {
        message: format!("reading the clocks: {error}"),
        hint: String::new(),
    })
}

/// A path of the disk that is looked at, as the node itself names it.
pub(super) fn own_path(survey: &Survey, path: &Path) -> PathBuf {
    survey.sysroot.display(path)
}

/// The inventory with the stores where the node itself has them: that is how its records
/// name them.
pub(super) fn own_paths(survey: &Survey) -> Inventory {
    let mut inventory = survey.inventory.clone();
    for store in &mut inventory.stores {
        store.root = own_path(survey, &store.root);
    }
    inventory
}

pub(super) fn open_quietly(global: &Global, access: Access) -> Result<(Open, Vec<Degraded>), Failure> {
    let place = place(global);
    let opened = Records::open_at(&place, access, PATIENCE).map_err(|source| failed(&place, source))?;
    let blind = !opened.found && hides_something(&place, &opened.degraded);
    Ok((Open { records: opened.records, place, found: opened.found, blind }, opened.degraded))
}

/// Opens the records to look; those that a newer layersweep made are left aside, and why is told.
fn open_anyway(global: &Global) -> Result<(Open, Vec<Degraded>, Option<String>), Failure> {
    match open_quietly(global, Access::Read) {
        Ok((open, degraded)) => Ok((open, degraded, None)),
        Err(Failure::Records { source: newer @ history::Error::Newer { .. }, .. }) => {
            let why = newer.to_string();
            let place = place(global);
            let nowhere = Some((std::io::ErrorKind::NotFound, why.clone()));
            let empty = Place { unresolved: nowhere, ..place.clone() };
            let opened =
                Records::open_at(&empty, Access::Read, PATIENCE).map_err(|source| failed(&place, source))?;
            Ok((
                Open { records: opened.records, place, found: false, blind: true },
                opened.degraded,
                Some(why),
            ))
        }
        Err(failure) => Err(failure),
    }
}

/// Whether there may be records that could not be read. Where a new database only could not be
/// made, on a full disk for example, there are none.
fn hides_something(place: &Place, degraded: &[Degraded]) -> bool {
    let only_unwritten = |why: &Degraded| {
        matches!(
            why,
            Degraded::NotWritable { .. }
                | Degraded::Locked { .. }
                | Degraded::DiskFull { .. }
                | Degraded::ReadOnly { .. }
        )
    };
    let exists = || place.dir.join(DATABASE).try_exists().unwrap_or(true);
    !degraded.is_empty() && (!degraded.iter().all(only_unwritten) || exists())
}

/// Opens the records to change something that has to be kept.
pub(super) fn open_to_keep(global: &Global) -> Result<Open, Failure> {
    let (open, mut degraded) = open_quietly(global, Access::Write)?;
    if open.records.is_kept() {
        tell(global, &degraded);
        return Ok(open);
    }
    match degraded.pop() {
        Some(why) => Err(unchanged(&why)),
        None => Err(Failure::BadArgument {
            message: format!("{}: nothing can be kept there", open.place.dir.display()),
            hint: "name another state directory with --state-dir DIR".into(),
        }),
    }
}

/// What somebody asked to change is not kept for later.
fn unchanged(why: &Degraded) -> Failure {
    Failure::NotThere {
        message: format!("nothing was changed: {why}"),
        hint: "try again when that is mended".into(),
    }
}

/// One line and its remedy each.
fn tell(global: &Global, degraded: &[Degraded]) {
    if global.quiet {
        return;
    }
    let mut stderr = std::io::stderr().lock();
    for why in degraded {
        // A stderr that is gone cannot be told so.
        let _ = writeln!(stderr, "warning: {}", safe(&why.to_string()));
        let _ = writeln!(stderr, "hint: {}", safe(&why.remedy()));
    }
}

/// As a warning of the documents.
fn finding(place: &Place, message: String) -> Finding {
    Finding { path: place.dir.join(DATABASE), message, incomplete: false }
}

/// The same with its remedy.
fn remedied(place: &Place, why: &Degraded) -> Finding {
    finding(place, format!("{why}; {}", why.remedy()))
}

/// What a scan says of something whose deletion was begun; `None`: nothing.
fn fate(inventory: &Inventory, complete: bool, begun: &Deletion) -> Option<Confirmed> {
    let stores = inventory.stores.iter().enumerate();
    let stores: Vec<_> = stores.filter(|(_, store)| store.root.as_os_str() == begun.store.as_str()).collect();
    let in_store = |store: StoreIx| stores.iter().any(|(at, _)| StoreIx::from(*at) == store);
    let there = match begun.kind {
        Kind::Log => match std::fs::symlink_metadata(&begun.id) {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(Confirmed::Gone),
            Err(_) => return None,
        },
        Kind::Name => {
            let named = |one: &Image| one.names.iter().any(|name| begun.names.contains(name));
            inventory.images.iter().any(|one| one.id == begun.id && in_store(one.store) && named(one))
        }
        Kind::Image => inventory.images.iter().any(|one| one.id == begun.id && in_store(one.store)),
        Kind::Container | Kind::Sandbox => {
            inventory.containers.iter().any(|one| one.id == begun.id && in_store(one.store))
        }
        Kind::Leak => inventory.leaks.iter().any(|one| one.id == begun.id && in_store(one.store)),
    };
    // What was not read proves nothing by what it lacks.
    let read = stores.iter().all(|(_, store)| store.consistency == Consistency::Consistent);
    match there {
        true => Some(Confirmed::There),
        false if !stores.is_empty() && read && (complete || begun.kind != Kind::Leak) => {
            Some(Confirmed::Gone)
        }
        false => None,
    }
}

fn moment(known: &Known, clock: &Reading) -> Moment {
    let record_time = clock::advance(known.clock(), clock).state.record_time;
    Moment { record_time, wall: clock.wall }
}

/// Our own keep-list as it stands now; `None` where it cannot be read.
pub(super) fn pins_now(global: &Global) -> Option<Pins> {
    let (open, _) = open_quietly(global, Access::Read).ok()?;
    let pins = open.read(pins::list).ok().filter(|_| !open.blind)?;
    Some(Pins::new(&pins))
}

/// What is known before a survey, and about what it finds.
#[derive(Debug)]
pub(super) struct Memory {
    open: Open,
    known: Known,
    pins: Pins,
    sizes: Arc<Remembered>,
    /// When the survey began, by the wall clock.
    began: Timestamp,
    /// The same in record time.
    scanned: Timestamp,
    /// The clocks when it had ended; before, those when it began.
    clock: Reading,
    /// What is wrong with the records, as far as it is not told yet.
    degraded: Vec<Degraded>,
    /// There were some that could not be read when this was opened.
    blind: bool,
    /// There were none at all.
    new: bool,
    /// Nothing is decided by them: what they may pin is no reason to call an image pinned.
    tells_only: bool,
}

impl Memory {
    /// Opens the records for reading. What is wrong with what waits goes to `findings`; what is
    /// wrong with the records themselves, see [`Self::tell`].
    pub(super) fn open(global: &Global, findings: &mut Vec<Finding>) -> Result<Self, Failure> {
        let (open, degraded) = open_quietly(global, Access::Read)?;
        Self::of(open, degraded, findings)
    }

    /// The same for who only tells of them, and decides nothing: of a disk whose records cannot be
    /// read there is still a lot to tell.
    pub(super) fn open_to_tell(global: &Global, findings: &mut Vec<Finding>) -> Result<Self, Failure> {
        let (open, degraded, newer) = open_anyway(global)?;
        findings.extend(newer.map(|why| {
            finding(&open.place, format!("{why}; there is no history, and ages are from the disk"))
        }));
        Ok(Self { tells_only: true, ..Self::of(open, degraded, findings)? })
    }

    fn of(mut open: Open, degraded: Vec<Degraded>, findings: &mut Vec<Finding>) -> Result<Self, Failure> {
        let clock = read_clocks()?;
        let (_, notes) = apply_waiting(&mut open)?;
        findings.extend(notes.iter().map(|note| finding(&open.place, note.to_string())));
        // Which sizes are put to the proof: others in each process.
        let seed = RandomState::new().build_hasher().finish();
        let (known, pins, mut sizes) = open.read(|connection| {
            Ok((known::images(connection)?, pins::list(connection)?, sizes::load(connection, seed)?))
        })?;
        let advanced = clock::advance(known.clock(), &clock).state;
        let scanned = advanced.record_time;
        sizes.leaps = advanced.leaps;
        if open.blind && !clock.synchronised {
            // It may have leapt, and nobody knows: all that has a date may be of this moment.
            tracing::info!("records cannot be read and the clock is not synchronised: nothing counts as old");
            sizes.leaps = vec![Leap { from: Timestamp::MIN, to: clock.wall, by: 0 }];
        }
        let (open_found, blind) = (open.found, open.blind);
        Ok(Self {
            open,
            known,
            pins: Pins::new(&pins),
            sizes: Arc::new(sizes),
            began: clock.wall,
            scanned,
            clock,
            degraded,
            blind,
            new: !open_found && !blind,
            tells_only: false,
        })
    }

    /// Adds what is wrong with the records to the survey's findings, each once.
    pub(super) fn tell(&mut self, survey: &mut Survey) {
        let place = &self.open.place;
        survey.inventory.findings.extend(self.degraded.drain(..).map(|why| remedied(place, &why)));
    }

    /// Sizes of layers that earlier scans have measured.
    pub(super) fn sizes(&self) -> Arc<Remembered> {
        Arc::clone(&self.sizes)
    }

    /// Adds our own keep-list to what keeps the images.
    pub(super) fn pin(&self, survey: &mut Survey) {
        for image in &mut survey.inventory.images {
            if self.open.blind && !self.tells_only {
                image.pinned_by.push("our keep-list may name it, but cannot be read".into());
            }
            let pins = self.pins.of(&image.names, &image.digests, &image.id);
            image.pinned_by.extend(pins);
        }
    }

    /// Whether there are records that cannot be read: then what they pin is unknown.
    pub(super) fn is_blind(&self) -> bool {
        self.open.blind
    }

    /// Whether there were records that could not be read, maybe set aside since: then what lies
    /// beside them is not believed either.
    pub(super) fn was_blind(&self) -> bool {
        self.blind
    }

    /// Our own keep-list as it stood when the records were opened.
    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Whether there were no records before this run.
    pub(super) fn is_new(&self) -> bool {
        self.new
    }

    /// Where the records lie.
    pub(super) fn place(&self) -> &Place {
        &self.open.place
    }

    /// Images that earlier runs could not remove.
    pub(super) fn attempts(&self) -> Result<HashMap<(StoreId, String), Attempt>, Failure> {
        self.open.read(attempts::load)
    }

    /// Whether the last run of a command that deletes failed. Unknown is no.
    pub(super) fn last_failed(&self, command: Command) -> bool {
        self.open.read(|connection| runs::last_failed(connection, command)).unwrap_or(false)
    }

    /// The present in record time.
    pub(super) fn now(&self) -> Timestamp {
        self.present().record_time
    }

    /// When the survey began, in record time. What it saw in use is recorded as used later than that.
    pub(super) fn scanned(&self) -> Timestamp {
        self.scanned
    }

    /// The ages of all images of an inventory of this machine, at present.
    pub(super) fn ages_now(&self, inventory: &Inventory) -> Ages {
        self.known.ages(inventory, &self.present())
    }

    fn present(&self) -> Moment {
        // Clocks that could be read a moment ago can be read; if not, time has stood still.
        let clock = read_clocks().unwrap_or_else(|_| self.clock.clone());
        moment(&self.known, &clock)
    }

    /// The survey has ended.
    pub(super) fn ended(&mut self) -> Result<(), Failure> {
        self.clock = read_clocks()?;
        Ok(())
    }

    fn moment(&self) -> Moment {
        moment(&self.known, &self.clock)
    }

    /// The ages of all images of a survey: from the records where they know the image, else
    /// from the disk.
    pub(super) fn ages(&self, survey: &Survey) -> Ages {
        let foreign = survey.sysroot.is_foreign().then(|| own_paths(survey));
        self.known.ages(foreign.as_ref().unwrap_or(&survey.inventory), &self.moment())
    }

    /// The lives of one image, the present one among them if it is recorded.
    pub(super) fn lives(&self, survey: &Survey, at: ImageIx) -> Result<Vec<Life>, Failure> {
        let image = &survey.inventory.images[at.get()];
        let mut store = survey.inventory.stores[image.store.get()].clone();
        store.root = own_path(survey, &store.root);
        let store = StoreId::of(&store);
        self.open.read(|connection| known::lives(connection, &store, &image.id))
    }

    /// Records that a survey of all stores has found none where there were some: what is remembered of
    /// them is no figure of this node any more. That it cannot is told, and changes nothing else.
    pub(super) fn save_none(&self, global: &Global) {
        let remembered = self.open.read(figures::all);
        let remembered = remembered.is_ok_and(|all| !all.stores.is_empty() || all.unreadable > 0);
        if self.open.place.foreign || self.open.blind || !remembered {
            return;
        }
        let nothing = Inventory::default();
        let scan = Scan {
            run_id: runs::new_id(self.scanned),
            record: ScanRecord::new(
                &nothing,
                &Refs::new(&nothing),
                self.began,
                self.clock.clone(),
                self.known.clock(),
            ),
            seconds: 0.0,
            complete: true,
            figures: Vec::new(),
            all_stores: true,
        };
        let saved = open_quietly(global, Access::Write).and_then(|(mut open, degraded)| {
            let queue = Queue::of(&open.place);
            let saved = history::save(&mut open.records, &queue, &Pending::Scan(Box::new(scan)));
            let saved = saved.map_err(|source| failed(&open.place, source))?;
            Ok([degraded, saved.degraded].concat())
        });
        match saved {
            Ok(degraded) => tell(global, &degraded),
            Err(failure) => tracing::warn!("that there is no store was not recorded: {failure}"),
        }
    }

    /// Records what a survey saw. What hinders that is added to the survey's findings; what
    /// could not be saved waits for the next run.
    ///
    /// `false`: some of it is lost.
    pub(super) fn save(&mut self, global: &Global, survey: &mut Survey) -> Result<bool, Failure> {
        if self.open.place.foreign {
            return Ok(true);
        }
        let scan = Scan {
            run_id: runs::new_id(self.scanned),
            record: ScanRecord::new(
                &survey.inventory,
                &survey.refs,
                self.began,
                self.clock.clone(),
                self.known.clock(),
            ),
            seconds: survey.effort.seconds,
            complete: survey.is_complete(),
            figures: figures::of(&survey.inventory, &survey.refs),
            all_stores: !global.named.stores,
        };
        let damaged = self.degraded.iter().any(|why| matches!(why, Degraded::Corrupt { .. }));
        let access = if damaged { Access::Mend } else { Access::Write };
        let (mut open, mut degraded) = open_quietly(global, access)?;
        let (complete, all_stores, taken_at) = (scan.complete, scan.all_stores, scan.record.taken_at);
        let saved = history::save(&mut open.records, &Queue::of(&open.place), &Pending::Scan(Box::new(scan)))
            .map_err(|source| failed(&open.place, source))?;
        degraded.extend(saved.degraded);
        // What was wrong when they were read is most likely still wrong, and now more is known.
        degraded.append(&mut self.degraded);
        for why in degraded {
            if self.degraded.iter().all(|known| known.code() != why.code()) {
                self.degraded.push(why);
            }
        }
        self.tell(survey);
        if saved.kept {
            let seen = self.scanned;
            let (dir, inventory) = (&open.place.dir, &survey.inventory);
            let (idle, fate) = (|| RunLock::is_free(dir), |begun: &_| fate(inventory, complete, begun));
            match open.records.write(|tx| runs::confirm(tx, seen, idle, fate)) {
                Ok(0) => {}
                Ok(some) => {
                    tracing::info!("what came of {some} deletions of runs that were ended is known now")
                }
                Err(error) => tracing::warn!("what came of earlier deletions was not recorded: {error}"),
            }
        }
        let picture = Picture::of(&survey.inventory, &survey.refs, complete);
        let findings = &mut survey.inventory.findings;
        if let Some(recorded) = saved.recorded.as_ref().filter(|_| saved.kept) {
            let kept = picturing::keep(&mut open, recorded, all_stores, &picture);
            findings.extend(kept.map(|message| finding(&open.place, message)));
        }
        findings.extend(saved.notes.iter().map(|note| match note {
            // What it saw is too much to wait with it.
            Note::Kept { .. } => finding(&open.place, format!("{note}; `diff` will not know this scan")),
            note => finding(&open.place, note.to_string()),
        }));
        if saved.caught_up > 0 {
            tracing::info!("saved {} earlier scans and runs that had to wait", saved.caught_up);
        }
        if let Some(to_keep) = survey.to_keep.take().filter(|_| saved.kept) {
            // Only a cache: what is not kept is measured again.
            let kept = open.records.write(|tx| sizes::store(tx, &to_keep, taken_at));
            if let Err(error) = kept {
                findings.push(finding(&open.place, format!("sizes of layers were not kept: {error}")));
            }
        }
        let lost = saved.notes.iter().any(|note| matches!(note, Note::Lost(_) | Note::Dropped(_)));
        self.known = open.read(known::images)?;
        // Others wait for the right to write; what is left to do here may take as long as a pager.
        self.open = if open.records.is_kept() {
            drop(open);
            open_quietly(global, Access::Read)?.0
        } else {
            open
        };
        Ok(!lost)
    }
}
