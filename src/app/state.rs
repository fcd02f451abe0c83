//! What the database knows before a scan, and recording a scan in it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use jiff::Timestamp;
use rusqlite::Connection;

use super::database::{Database, failed, finding, warn};
use super::error::Error;
use super::kept_scans;
use super::observer::Observer;
use super::paths::{own_path, own_paths};
use super::request::Request;
use crate::disk::size_cache::SizeCache;
use crate::history::ages::{InventoryAges, Moment};
use crate::history::back_offs::{self, BackOff};
use crate::history::kept_scans::{Packed, Scanned};
use crate::history::known::{self, KnownImages, Life};
use crate::history::pins::{self, Pins};
use crate::history::runs::{self, Command, Confirmation, DeletionRow, TargetKind};
use crate::history::scan_record::{ScanRecord, ScanRun};
use crate::history::{
    self, Access, Degraded, Pending, Queue, RunLock, SaveWarning, StateDirectory, clock, figures, sizes,
};
use crate::model::refs::Refs;
use crate::model::scan_summary::ScanSummary;
use crate::model::{Consistency, Finding, Image, ImageIx, Inventory, LeakClass, PinReason, StoreId, StoreIx};
use crate::stores::Scan;
use crate::sys::clock::{ClockReading, Leap};

/// Our own keep-list as it stands now; `None` where it cannot be read.
pub fn pins_now(request: &Request) -> Option<Pins> {
    let database = Database::open(request, Access::Read).ok()?;
    let pins = database.read(pins::list).ok().filter(|_| !database.unreadable)?;
    Some(Pins::new(&pins))
}

/// What the records are read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Look,
    /// Nothing is decided by them: what they may pin is no reason to call an image pinned, and a disk whose
    /// database cannot be read still has much to show.
    Report,
    /// The run deletes next, and saves again when it has made room: that the disk is full is only reported then.
    Delete,
}

impl Purpose {
    fn reports_later(self, why: &Degraded) -> bool {
        self == Self::Delete && matches!(why, Degraded::DiskFull { .. })
    }
}

/// What is known before a scan, and about what it finds.
#[derive(Debug)]
pub struct State {
    /// Where the records lie.
    pub directory: StateDirectory,
    /// There are records that cannot be read: then what they pin is unknown.
    pub(super) is_unreadable: bool,
    /// The copy that has what could not be saved.
    unsaved: Option<Database>,
    known: KnownImages,
    /// Direct deletions of images that killed runs had begun.
    pub(super) begun: Vec<DeletionRow>,
    /// Images that earlier runs could not remove.
    pub(super) back_offs: HashMap<(StoreId, String), BackOff>,
    /// The last `gc` before this run failed. Unknown is no.
    pub(super) last_gc_failed: bool,
    /// Our own keep-list as it stood when the records were opened.
    pub(super) pins: Pins,
    /// Sizes of layers that earlier scans have measured; taken once.
    pub(super) sizes: SizeCache,
    /// Of the wall clock, by which dates on the disk are corrected.
    pub(super) leaps: Vec<Leap>,
    /// When the scan began, by the wall clock.
    began: Timestamp,
    /// The same in record time. What the scan saw in use is recorded as used later than that.
    pub(super) scanned: Timestamp,
    /// The clocks when it had ended; before, those when it began.
    clock: ClockReading,
    /// What is wrong with the records, as far as it is not reported yet.
    degraded: Vec<Degraded>,
    /// There were some that could not be read when this was opened, maybe set aside since: then what lies
    /// beside them is not believed either.
    pub(super) was_unreadable: bool,
    /// There were none at all.
    pub(super) is_new: bool,
    purpose: Purpose,
}

impl State {
    /// Opens the records for reading. `began`: the clocks when the scan began, before anything was seen.
    /// What is wrong with what waits goes to the findings; what is wrong with the records themselves, see
    /// [`Self::add_findings`].
    ///
    /// # Errors
    /// When SQLite refuses, or the clocks cannot be read.
    pub fn open(
        request: &Request,
        purpose: Purpose,
        began: ClockReading,
    ) -> Result<(Self, Vec<Finding>), Error> {
        let database = match purpose {
            Purpose::Report => Database::open_for_report(request)?,
            Purpose::Look | Purpose::Delete => Database::open(request, Access::Read)?,
        };
        let newer = database.newer.as_ref().map(|why| {
            let message = format!("{why}; there is no history, and image ages come from the disk alone");
            finding(&database.directory, message)
        });
        let (state, findings) = Self::of(database, purpose, began)?;
        Ok((state, newer.into_iter().chain(findings).collect()))
    }

    fn of(
        mut database: Database,
        purpose: Purpose,
        clock: ClockReading,
    ) -> Result<(Self, Vec<Finding>), Error> {
        let (_, warnings) = database.apply_waiting()?;
        let findings =
            warnings.iter().map(|warning| finding(&database.directory, warning.to_string())).collect();
        // Which size is measured again: another one in each process.
        let seed = RandomState::new().build_hasher().finish();
        let (known, pins, sizes) = database.read(|connection| {
            Ok((known::images(connection)?, pins::list(connection)?, sizes::load(connection, seed)?))
        })?;
        let back_offs = database.read(back_offs::load)?;
        let begun = database.read(runs::begun)?;
        let last_gc_failed = last_gc_failed(&database);
        let advanced = clock::advance(known.clock(), &clock).state;
        let scanned = advanced.record_time;
        let mut leaps = advanced.leaps;
        if database.unreadable && !clock.synchronised {
            // It may have leapt, and nobody knows: all that has a date may be of this moment.
            tracing::info!(
                "records cannot be read and the clock is not synchronised: no image counts as old"
            );
            leaps = vec![Leap { from: Timestamp::MIN, to: clock.wall, by: 0 }];
        }
        let Database { directory, found, unreadable, degraded, .. } = database;
        let state = Self {
            directory,
            is_unreadable: unreadable,
            unsaved: None,
            known,
            begun,
            back_offs,
            last_gc_failed,
            pins: Pins::new(&pins),
            sizes,
            leaps,
            began: clock.wall,
            scanned,
            clock,
            degraded,
            was_unreadable: unreadable,
            is_new: !found && !unreadable,
            purpose,
        };
        Ok((state, findings))
    }

    /// Adds what is wrong with the records to the scan's findings, each once.
    pub fn add_findings(&mut self, scan: &mut Scan) {
        let finding = |why: Degraded| finding(&self.directory, format!("{why}; {}", why.remedy()));
        let reported = self.degraded.drain(..).filter(|why| !self.purpose.reports_later(why));
        scan.inventory.findings.extend(reported.map(finding));
    }

    /// Adds our own keep-list to what keeps the images.
    pub fn pin(&self, scan: &mut Scan) {
        for image in &mut scan.inventory.images {
            if self.is_unreadable && self.purpose != Purpose::Report {
                image.pinned_by.push("the keep-list may name it, but cannot be read".into());
            }
            let pins = self.pins.of(&image.names, &image.digests, &image.id);
            image.pinned_by.extend(pins);
        }
        // A manifest list is of no use without its members.
        let inventory = &mut scan.inventory;
        for list in inventory.lists.clone() {
            let title = inventory[list.image].title().to_owned();
            let pins = inventory[list.image].pinned_by.clone().into_iter();
            let text = |pin: &PinReason| format!("{}, as a member of the manifest list {title}", pin.text);
            let pins: Vec<_> =
                pins.map(|pin| PinReason { text: text(&pin), is_of_list: true, ..pin }).collect();
            list.members.iter().for_each(|member| inventory[*member].pinned_by.extend(pins.clone()));
        }
    }

    /// Whether the scan may be recorded. Before a deletion a database that cannot be read stays as it is:
    /// setting it aside loses what it pins, and the next run would not know of it.
    pub fn may_record(&self) -> bool {
        !(self.purpose == Purpose::Delete && self.is_unreadable)
    }

    /// Reads from the records as they are now. A copy of them is large, and few need it after the scan.
    fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        match &self.unsaved {
            Some(database) => database.read(work),
            None => {
                // What is wrong with it was said the first time.
                let mut database = Database::open_at(self.directory.clone(), Access::Read)?;
                database.apply_waiting()?;
                database.read(work)
            }
        }
    }

    /// The present in record time.
    pub fn now(&self) -> Timestamp {
        self.present().record_time
    }

    /// The ages of all images of an inventory of this machine, at present.
    pub fn ages_now(&self, inventory: &Inventory) -> InventoryAges {
        self.known.ages(inventory, &self.present())
    }

    fn present(&self) -> Moment {
        // Clocks that could be read a moment ago can be read; if not, time has stood still.
        let clock = read_clocks().unwrap_or_else(|_| self.clock.clone());
        moment(&self.known, &clock)
    }

    /// The scan has ended.
    pub fn scan_ended(&mut self) -> Result<(), Error> {
        self.clock = read_clocks()?;
        Ok(())
    }

    fn moment(&self) -> Moment {
        moment(&self.known, &self.clock)
    }

    /// The ages of all images of a scan: from the records where they know the image, else
    /// from the disk.
    pub fn ages(&self, scan: &Scan) -> InventoryAges {
        let foreign = scan.sysroot.is_foreign().then(|| own_paths(scan));
        self.known.ages(foreign.as_ref().unwrap_or(&scan.inventory), &self.moment())
    }

    /// The lives of one image, the present one among them if it is recorded.
    pub fn lives(&self, scan: &Scan, at: ImageIx) -> Result<Vec<Life>, Error> {
        let image = &scan.inventory[at];
        let mut store = scan.inventory[image.store].clone();
        store.root = own_path(scan, &store.root);
        let store = StoreId::of(&store);
        self.read(|connection| known::lives(connection, &store, &image.id))
    }

    /// Records that a scan of all stores has found none where there were some: what is remembered of
    /// them is no figure of this node any more. That it cannot is reported, and changes nothing else.
    pub fn save_none(&self, request: &Request, observer: &dyn Observer) {
        let remembered = self.read(figures::all);
        let remembered = remembered.is_ok_and(|all| !all.stores.is_empty() || all.unreadable > 0);
        if self.directory.foreign || self.is_unreadable || !remembered {
            return;
        }
        let nothing = Inventory::default();
        let scan = ScanRun {
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
        let saved = Database::open(request, Access::Write).and_then(|mut database| {
            let queue = Queue::of(&database.directory);
            let saved = history::save(&mut database.records, &queue, &Pending::Scan(Box::new(scan)));
            let saved = saved.map_err(|source| failed(&database.directory, source))?;
            Ok([database.degraded, saved.degraded].concat())
        });
        match saved {
            Ok(degraded) => warn(observer, &degraded),
            Err(failure) => tracing::warn!("the absence of stores was not recorded: {failure}"),
        }
    }

    /// Records what a scan saw. What hinders that is added to the scan's findings; what
    /// could not be saved waits for the next run.
    ///
    /// `false`: some of it is lost.
    pub fn save(&mut self, request: &Request, scan: &mut Scan) -> Result<bool, Error> {
        if self.directory.foreign {
            return Ok(true);
        }
        let (complete, all_stores) = (scan.is_complete(), !request.names_stores);
        let damaged = self.degraded.iter().any(|why| matches!(why, Degraded::Corrupt { .. }));
        let access = if damaged { Access::Mend } else { Access::Write };
        let save = || {
            let run = ScanRun {
                run_id: runs::new_id(self.scanned),
                record: ScanRecord::new(
                    &scan.inventory,
                    &scan.refs,
                    self.began,
                    self.clock.clone(),
                    self.known.clock(),
                ),
                seconds: scan.effort.seconds,
                complete,
                figures: figures::of(&scan.inventory, &scan.refs),
                all_stores,
            };
            let mut database = Database::open(request, access)?;
            let (taken_at, queue) = (run.record.taken_at, Queue::of(&database.directory));
            let run = Pending::Scan(Box::new(run));
            let saved = history::save(&mut database.records, &queue, &run);
            let saved = saved.map_err(|source| failed(&database.directory, source))?;
            // Nothing that is written below changes what is known of the images.
            let known = database.read(known::images)?;
            Ok::<_, Error>((database, saved, known, taken_at, run))
        };
        // What is kept to compare needs no database, and of a large store takes as long as all the rest.
        let summary = || Packed::new(ScanSummary::of(&scan.inventory, &scan.refs, complete));
        let (saved, packed) = rayon::join(save, summary);
        let (mut database, saved, known, taken_at, run) = saved?;
        let mut degraded = std::mem::take(&mut database.degraded);
        degraded.extend(saved.degraded);
        // What was wrong when they were read is most likely still wrong, and now more is known.
        degraded.append(&mut self.degraded);
        for why in degraded {
            if self.degraded.iter().all(|known| known.code() != why.code()) {
                self.degraded.push(why);
            }
        }
        let reported_later = self.degraded.iter().any(|why| self.purpose.reports_later(why));
        self.add_findings(scan);
        if saved.kept {
            let seen = self.scanned;
            let (dir, inventory) = (&database.directory.dir, &scan.inventory);
            let (idle, fate) = (|| RunLock::is_free(dir), |begun: &_| fate(inventory, complete, begun));
            match database.records.write(|tx| runs::confirm(tx, seen, idle, fate)) {
                Ok(0) => {}
                Ok(some) => {
                    tracing::info!("determined the outcome of {some} deletions of interrupted runs")
                }
                Err(error) => tracing::warn!("the outcome of earlier deletions was not recorded: {error}"),
            }
        }
        let findings = &mut scan.inventory.findings;
        if let Some(at) = saved.recorded.filter(|_| saved.kept) {
            let seen = Scanned { run_id: run.run_id(), at, all_stores };
            let kept = kept_scans::keep(&mut database, &seen, packed);
            findings.extend(kept.map(|message| finding(&database.directory, message)));
        }
        let reported = saved
            .warnings
            .iter()
            .filter(|warning| !(reported_later && matches!(warning, SaveWarning::Kept { .. })));
        findings.extend(reported.map(|warning| match warning {
            // What it saw is too much to wait with it.
            SaveWarning::Kept { .. } => {
                finding(&database.directory, format!("{warning}; `diff` will not know this scan"))
            }
            warning => finding(&database.directory, warning.to_string()),
        }));
        if saved.caught_up > 0 {
            tracing::info!("saved {} earlier scans and runs that were waiting", saved.caught_up);
        }
        if let Some(changes) = scan.sizes.take().filter(|_| saved.kept) {
            // Only a cache: what is not kept is measured again.
            let kept = database.records.write(|tx| sizes::store(tx, &changes, taken_at));
            if let Err(error) = kept {
                findings.push(finding(&database.directory, format!("layer sizes were not cached: {error}")));
            }
        }
        let lost = saved
            .warnings
            .iter()
            .any(|warning| matches!(warning, SaveWarning::Lost(_) | SaveWarning::Dropped(_)));
        self.known = known;
        self.back_offs = database.read(back_offs::load)?;
        self.last_gc_failed = last_gc_failed(&database);
        self.is_unreadable = database.unreadable;
        // Others wait for the right to write; what is left to do here may take as long as a pager.
        self.unsaved = Some(database).filter(|database| !database.records.is_kept());
        Ok(!lost)
    }
}

fn last_gc_failed(database: &Database) -> bool {
    database.read(|connection| runs::last_failed(connection, Command::Gc)).unwrap_or(false)
}

/// The clocks at this moment.
pub(super) fn read_clocks() -> Result<ClockReading, Error> {
    crate::sys::clock::read().map_err(|error| Error::usage(format!("reading the clocks: {error}")))
}

/// What a scan says of something whose deletion was begun; `None`: nothing.
fn fate(inventory: &Inventory, complete: bool, begun: &DeletionRow) -> Option<Confirmation> {
    // One root can hold the stores of several drivers, with images of the same id.
    let own = begun.store.as_ref().and_then(|key| inventory.find_store(key));
    let in_store = |store: StoreIx| own == Some(store);
    let there = match begun.kind {
        TargetKind::Log => match std::fs::symlink_metadata(&begun.id) {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(Confirmation::Gone),
            Err(_) => return None,
        },
        TargetKind::Image | TargetKind::Artifact => {
            let found = inventory.images.iter().find(|one| one.id == begun.id && in_store(one.store));
            // Emptied for the first room on a full disk, or without its record, it waits for the next run, which
            // finishes it.
            let is_unfinished = match found {
                Some(image) => lacks_a_layer(inventory, image),
                None => own.is_some_and(|own| has_layers_left(inventory, own, begun)),
            };
            if is_unfinished {
                return None;
            }
            found.is_some()
        }
        TargetKind::Container | TargetKind::Sandbox => {
            inventory.containers.iter().any(|one| one.id == begun.id && in_store(one.store))
        }
        TargetKind::Leak => inventory.leaks.iter().any(|one| one.id == begun.id && in_store(one.store)),
    };
    // What was not read proves nothing by what it lacks.
    let read = own.is_some_and(|own| inventory[own].consistency == Consistency::Consistent);
    match there {
        true => Some(Confirmation::There),
        false if read && (complete || begun.kind != TargetKind::Leak) => Some(Confirmation::Gone),
        false => None,
    }
}

/// Whether the directory of one of its layers is missing.
fn lacks_a_layer(inventory: &Inventory, image: &Image) -> bool {
    let leaks = inventory.leaks.iter().filter(|leak| leak.store == image.store);
    let mut missing = leaks.filter(|leak| leak.class == LeakClass::LayerNoDir);
    missing.any(|leak| image.layers.iter().any(|layer| layer.as_str() == leak.id))
}

/// Whether layers of a deleted image are still there, and nothing has them.
fn has_layers_left(inventory: &Inventory, store: StoreIx, begun: &DeletionRow) -> bool {
    let mut leaks = inventory.leaks.iter().filter(|leak| leak.store == store);
    leaks.any(|leak| begun.layers.contains(&leak.id))
}

fn moment(known: &KnownImages, clock: &ClockReading) -> Moment {
    let record_time = clock::advance(known.clock(), clock).state.record_time;
    Moment { record_time, wall: clock.wall }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::runs::{Certainty, Reason};
    use crate::model::{Leak, Verdict};
    use crate::policy::scenario::Scenario;

    /// One root can hold the stores of two drivers, with images of the same id: the one that is left says
    /// nothing of the deletion of the other.
    #[test]
    fn fate_of_an_image_is_that_of_its_own_store() {
        let mut inventory = Scenario::article().inventory();
        inventory.images.truncate(1);
        inventory.images[0].layers = vec!["top".into()];
        let overlay = StoreId::of(&inventory.stores[0]);
        let vfs = StoreId::new(overlay.kind(), overlay.root().into(), "vfs".into());
        let mut second = inventory.stores[0].clone();
        second.driver = "vfs".into();
        inventory.stores.push(second);
        let begun = |store: Option<StoreId>| DeletionRow {
            at: Timestamp::UNIX_EPOCH,
            kind: TargetKind::Image,
            store,
            id: inventory.images[0].id.to_string(),
            names: vec![],
            layers: Vec::new(),
            reason: Reason::Space,
            predicted_bytes: 0,
            measured_bytes: None,
            byproduct_bytes: 0,
            usage_after_percent: None,
            error: None,
            certainty: Certainty::Unknown,
        };
        let fate = |store| fate(&inventory, true, &begun(store));
        assert_eq!(fate(Some(overlay.clone())), Some(Confirmation::There));
        assert_eq!(fate(Some(vfs)), Some(Confirmation::Gone));
        let other = StoreId::new(overlay.kind(), "/other".into(), "overlay".into());
        assert_eq!((fate(Some(other)), fate(None)), (None, None), "a store that was not read");
        let lost = |class| Leak {
            class,
            store: StoreIx::from(0),
            path: "/store/overlay/layer".into(),
            id: "top".into(),
            since: None,
            verdict: Verdict::Report,
            evidence: String::new(),
            holds: vec![],
        };
        for (class, expected) in
            [(LeakClass::LayerNoDir, None), (LeakClass::MissingLink, Some(Confirmation::There))]
        {
            let inventory = Inventory { leaks: vec![lost(class)], ..inventory.clone() };
            let fate = super::fate(&inventory, true, &begun(Some(overlay.clone())));
            assert_eq!(fate, expected, "{class}");
        }
    }
}
