//! Knowledge from the database before a scan: the keep-list, the known images and their ages, cached sizes.
//!
//! A database that cannot be read must not make a deletion possible: all images count as pinned then, and dates on
//! the disk are not trusted unless the clock is synchronised. Times are in record time, which is the wall clock
//! without its leaps ([`clock`]): a clock that is set ahead must not make images old.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use jiff::Timestamp;
use rusqlite::Connection;

use crate::disk::size_cache::SizeCache;
use crate::history::ages::{InventoryAges, Moment};
use crate::history::back_offs::{self, BackOff};
use crate::history::known::{self, EndedLives, KnownImages};
use crate::history::pins::{self, Pins};
use crate::history::runs::{self, Command, DeletionRow};
use crate::history::story::{self, Story};
use crate::history::{Access, Degraded, StateDirectory, clock, sizes};
use crate::model::{Finding, ImageIx, Inventory, PinReason, StoreId, StoreIx};
use crate::services::database::{Database, finding};
use crate::services::error::Error;
use crate::services::paths::{node_path, with_node_paths};
use crate::services::request::Request;
use crate::stores::Scan;
use crate::sys::clock::{ClockReading, Leap};

/// Returns the present keep-list, or `None` if it cannot be read.
pub fn pins_now(request: &Request) -> Option<Pins> {
    let database = Database::open(request, Access::Read).ok()?;
    let pins = database.read(pins::list).ok().filter(|_| !database.unreadable)?;
    Some(Pins::new(&pins))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A command that only shows data.
    Look,
    /// A report, which decides nothing. An unreadable database does not make all images pinned, because the rest of
    /// the report is still useful.
    Report,
    /// A run that deletes next. It saves again when it has made room, so a full disk is not reported before that.
    Delete,
}

impl Purpose {
    pub(crate) fn reports_later(self, why: &Degraded) -> bool {
        self == Self::Delete && matches!(why, Degraded::DiskFull { .. })
    }
}

#[derive(Debug)]
pub struct State {
    pub directory: StateDirectory,
    /// Records exist and cannot be read: the keep-list is unknown.
    pub(crate) is_unreadable: bool,
    pub(crate) known: KnownImages,
    /// Direct deletions of images that killed runs had begun.
    pub(crate) begun: Vec<DeletionRow>,
    pub(crate) back_offs: HashMap<(StoreId, String), BackOff>,
    /// The last `gc` before this run failed; false if unknown.
    pub(crate) last_gc_failed: bool,
    /// The keep-list when the records were opened.
    pub(crate) pins: Pins,
    /// Cached sizes of layers from earlier scans; empty once the scan has started to measure.
    pub(crate) sizes: SizeCache,
    /// Leaps of the wall clock, which correct the dates on the disk.
    pub(crate) leaps: Vec<Leap>,
    /// Start of the scan by the wall clock.
    pub(crate) began: Timestamp,
    /// Start of the scan in record time. An object that the scan saw in use is recorded as used after this time.
    pub(crate) scanned: Timestamp,
    /// The clocks at the end of the scan; at its start until it has ended.
    pub(crate) clock: ClockReading,
    /// Problems of the records that were not reported yet.
    pub(crate) degraded: Vec<Degraded>,
    /// The scan could not be recorded.
    pub(crate) is_unrecorded: bool,
    /// Records could not be read when they were opened, and may have been set aside since. Files beside them are
    /// not trusted then.
    pub(crate) was_unreadable: bool,
    pub(crate) is_new: bool,
    pub(crate) purpose: Purpose,
}

impl State {
    /// Opens the records for reading. `began`: the clocks before the scan read anything. Returns findings about the
    /// runs that wait to be saved; problems of the records themselves are reported by [`Self::add_findings`].
    ///
    /// # Errors
    /// When SQLite fails, or the clocks cannot be read.
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
        // Selects the cached sizes that are measured again: others in each process.
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
            // The clock may have leapt without a record of it: any date may be as recent as now.
            tracing::info!(
                "records cannot be read and the clock is not synchronised: no image counts as old"
            );
            leaps = vec![Leap { from: Timestamp::MIN, to: clock.wall, by: 0 }];
        }
        let Database { directory, found, unreadable, degraded, .. } = database;
        let state = Self {
            directory,
            is_unreadable: unreadable,
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
            is_unrecorded: false,
            was_unreadable: unreadable,
            is_new: !found && !unreadable,
            purpose,
        };
        Ok((state, findings))
    }

    /// Adds the problems of the records to the findings of the scan, each once.
    pub fn add_findings(&mut self, scan: &mut Scan) {
        let lead = if self.is_unrecorded { "this scan was not recorded: " } else { "" };
        let reported = self.degraded.drain(..).filter(|why| !self.purpose.reports_later(why));
        scan.inventory
            .findings
            .extend(reported.map(|why| finding(&self.directory, format!("{lead}{why}; {}", why.remedy()))));
    }

    /// Adds a finding for each store that the records of another node's disk name, and that is not on this disk: a disk
    /// of its own may not be mounted.
    pub(crate) fn add_missing_stores(&self, scan: &mut Scan) {
        if !scan.sysroot.is_foreign() || scan.request.names_stores() {
            return;
        }
        let stores = with_node_paths(scan).stores;
        let newest = self.known.newest_stores();
        let mut missing: Vec<_> =
            newest.filter(|id| stores.iter().all(|store| store.root != id.root())).collect();
        missing.sort();
        for store in missing {
            let path = scan.sysroot.root().join(store.root().strip_prefix("/").unwrap_or(store.root()));
            if scan.inventory.findings.iter().all(|finding| finding.path != path) {
                let message = format!(
                    "the node's records name a store of {} here, and it is missing: if it is on a disk of its own, \
                     mount that disk too",
                    store.kind().as_str()
                );
                scan.inventory.findings.push(Finding::incomplete(path, message));
            }
        }
    }

    /// Adds the pins of the keep-list to the images. If the keep-list cannot be read, all images count as pinned,
    /// except in a report.
    pub fn pin(&self, scan: &mut Scan) {
        for image in &mut scan.inventory.images {
            if self.is_unreadable && self.purpose != Purpose::Report {
                image.pinned_by.push("the keep-list may name it, but cannot be read".into());
            }
            let pins = self.pins.of(&image.names, &image.digests, &image.id);
            image.pinned_by.extend(pins);
        }
        // A manifest list is useless without its members: they inherit its pins.
        let inventory = &mut scan.inventory;
        for list in inventory.lists.clone() {
            let title = inventory[list.image].title().to_owned();
            let pins: Vec<_> = inventory[list.image]
                .pinned_by
                .clone()
                .into_iter()
                .map(|pin| {
                    let text = format!("{}, as a member of the manifest list {title}", pin.text);
                    PinReason { text, is_of_list: true, ..pin }
                })
                .collect();
            list.members.iter().for_each(|member| inventory[*member].pinned_by.extend(pins.clone()));
        }
    }

    /// Returns true if the scan may be recorded. Recording sets an unreadable database aside, and with it the
    /// keep-list: before a deletion it is left unchanged, so that the next run still knows that pins may exist.
    pub fn may_record(&self) -> bool {
        !(self.purpose == Purpose::Delete && self.is_unreadable)
    }

    /// Reads from the present records. They are opened again, because a copy of them is large and rarely needed
    /// after the scan.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        // Problems of the database were reported when the state was opened.
        let mut database = Database::open_at(self.directory.clone(), Access::Read)?;
        database.apply_waiting()?;
        database.read(work)
    }

    pub fn now(&self) -> Timestamp {
        self.present().record_time
    }

    /// Returns the present ages of all images in an inventory of this machine.
    pub fn ages_now(&self, inventory: &Inventory) -> InventoryAges {
        self.known.ages(inventory, &self.present(), &EndedLives::new())
    }

    fn present(&self) -> Moment {
        // Falls back to the previous reading if the clocks cannot be read.
        let clock = read_clocks().unwrap_or_else(|_| self.clock.clone());
        moment(&self.known, &clock)
    }

    /// Reads the clocks at the end of the scan.
    pub fn scan_ended(&mut self) -> Result<(), Error> {
        self.clock = read_clocks()?;
        Ok(())
    }

    fn moment(&self) -> Moment {
        moment(&self.known, &self.clock)
    }

    /// Returns the ages of all images of a scan, from the records if they know the image and else from the disk.
    pub fn ages(&self, scan: &Scan) -> InventoryAges {
        let foreign = scan.sysroot.is_foreign().then(|| with_node_paths(scan));
        let inventory = foreign.as_ref().unwrap_or(&scan.inventory);
        let missing = self.known.missing(inventory);
        let ended = if missing.is_empty() {
            EndedLives::new()
        } else {
            self.read(|from| known::ended_lives(from, &missing)).unwrap_or_default()
        };
        if foreign.is_some() {
            self.known.ages_elsewhere(inventory, &self.moment(), &ended)
        } else {
            self.known.ages(inventory, &self.moment(), &ended)
        }
    }

    /// Returns the story of an image; its present life is in it if that is recorded.
    pub fn story(&self, scan: &Scan, image_ix: ImageIx) -> Result<Story, Error> {
        let image = &scan.inventory[image_ix];
        let store = recorded_store(scan, image.store);
        self.read(|connection| story::of_image(connection, &store, &image.id))
    }

    /// Returns the stories of the images of the records that a reference names or named.
    pub fn stories(&self, reference: &str) -> Result<Vec<Story>, Error> {
        self.read(|connection| story::find(connection, reference))
    }
}

/// Returns the id of a store in the records, which have the paths of the node itself.
pub(crate) fn recorded_store(scan: &Scan, store_ix: StoreIx) -> StoreId {
    let mut store = scan.inventory[store_ix].clone();
    store.root = node_path(scan, &store.root);
    StoreId::of(&store)
}

pub(crate) fn last_gc_failed(database: &Database) -> bool {
    database.read(|connection| runs::last_failed(connection, Command::Gc)).unwrap_or(false)
}

pub(crate) fn read_clocks() -> Result<ClockReading, Error> {
    crate::sys::clock::read().map_err(|error| Error::usage(format!("reading the clocks: {error}")))
}

fn moment(known: &KnownImages, clock: &ClockReading) -> Moment {
    let record_time = clock::advance(known.clock(), clock).state.record_time;
    Moment { record_time, wall: clock.wall }
}
