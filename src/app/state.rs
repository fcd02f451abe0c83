//! Knowledge from the database before a scan.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use jiff::Timestamp;
use rusqlite::Connection;

use super::database::{Database, finding};
use super::error::Error;
use super::paths::{own_path, own_paths};
use super::request::Request;
use crate::disk::size_cache::SizeCache;
use crate::history::ages::{InventoryAges, Moment};
use crate::history::back_offs::{self, BackOff};
use crate::history::known::{self, KnownImages, Life};
use crate::history::pins::{self, Pins};
use crate::history::runs::{self, Command, DeletionRow};
use crate::history::{Access, Degraded, StateDirectory, clock, sizes};
use crate::model::{Finding, ImageIx, Inventory, PinReason, StoreId};
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
    pub(super) fn reports_later(self, why: &Degraded) -> bool {
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
    pub(super) known: KnownImages,
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
    pub(super) began: Timestamp,
    /// The same in record time. What the scan saw in use is recorded as used later than that.
    pub(super) scanned: Timestamp,
    /// The clocks when it had ended; before, those when it began.
    pub(super) clock: ClockReading,
    /// What is wrong with the records, as far as it is not reported yet.
    pub(super) degraded: Vec<Degraded>,
    /// The scan could not be recorded.
    pub(super) is_unrecorded: bool,
    /// There were some that could not be read when this was opened, maybe set aside since: then what lies
    /// beside them is not believed either.
    pub(super) was_unreadable: bool,
    /// There were none at all.
    pub(super) is_new: bool,
    pub(super) purpose: Purpose,
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

    /// Adds what is wrong with the records to the scan's findings, each once.
    pub fn add_findings(&mut self, scan: &mut Scan) {
        let lead = if self.is_unrecorded { "this scan was not recorded: " } else { "" };
        let finding = |why: Degraded| finding(&self.directory, format!("{lead}{why}; {}", why.remedy()));
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
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        // Problems of the database were reported at the first opening.
        let mut database = Database::open_at(self.directory.clone(), Access::Read)?;
        database.apply_waiting()?;
        database.read(work)
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
}

pub(super) fn last_gc_failed(database: &Database) -> bool {
    database.read(|connection| runs::last_failed(connection, Command::Gc)).unwrap_or(false)
}

/// The clocks at this moment.
pub(super) fn read_clocks() -> Result<ClockReading, Error> {
    crate::sys::clock::read().map_err(|error| Error::usage(format!("reading the clocks: {error}")))
}

fn moment(known: &KnownImages, clock: &ClockReading) -> Moment {
    let record_time = clock::advance(known.clock(), clock).state.record_time;
    Moment { record_time, wall: clock.wall }
}
