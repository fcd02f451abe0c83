//! Recording a scan in the database.

use std::collections::BTreeMap;

use crate::history::figures::Figures;
use crate::history::kept_scans::{Packed, Scanned};
use crate::history::scan_run::{Recorded, ScanRun};
use crate::history::{self, Access, Degraded, Queue, Saved, back_offs, figures, known, runs, sizes};
use crate::model::refs::{self, Refs};
use crate::model::{FilesystemIx, Finding, Inventory, StoreId, StoreIx};
use crate::services::database::{Database, failed, finding, warn};
use crate::services::error::Error;
use crate::services::interrupted::Interrupted;
use crate::services::kept_scans::{self, Places};
use crate::services::observer::Observer;
use crate::services::outside;
use crate::services::request::Request;
use crate::services::reserve;
use crate::services::state::{State, last_gc_failed};
use crate::stores::other_usage::{self, OtherUsageRequest, OtherUser, OtherUserKind};
use crate::stores::{Measure, Scan};
use crate::sys::deleted;

/// Returns the figures of the stores, with the data outside the stores on their filesystems.
fn figures(request: &Request, scan: &Scan, state: &State, places: &Places) -> Vec<Figures> {
    let known = OtherUsageRequest { most_inodes: Some(0), ..outside::known_to_scan(request, scan) };
    let users = other_usage::logs_and_dumps(scan, &known);
    // The unit that scans may not see the open files of other processes: it keeps what the last gc has seen.
    let earlier = if deleted::sees_all_processes() {
        Vec::new()
    } else {
        state.read(figures::all).map(|all| all.stores).unwrap_or_default()
    };
    let mut all = figures::of(&scan.inventory, &scan.refs);
    for (position, figures) in all.iter_mut().enumerate() {
        let store_ix = StoreIx::from(position);
        let store = &scan.inventory[store_ix];
        figures.places = places.figures(scan, store.filesystem);
        // The data of stores that were not read would count as outside.
        if !request.names_stores {
            let earlier = earlier.iter().find(|earlier| earlier.key == StoreId::of(store));
            let deleted_open = earlier.and_then(|earlier| earlier.figures.outside.get(DELETED_OPEN));
            figures.outside = outside(scan, &users, store.filesystem, deleted_open.copied());
        }
        let reserve_files = reserve::of_store(scan, store_ix, &state.directory);
        figures.reserve_files = reserve_files.iter().map(|file| file.path().to_path_buf()).collect();
    }
    all
}

/// Kind of deleted files that a process holds open.
const DELETED_OPEN: &str = "deleted_open";

/// Divides the used bytes of a filesystem outside the stores by kind. `deleted_open`: an earlier figure, if deleted
/// files cannot be seen now. The sum is exact unless the measured files are larger than the usage that the filesystem
/// reports.
fn outside(
    scan: &Scan,
    users: &[OtherUser],
    ix: FilesystemIx,
    deleted_open: Option<u64>,
) -> BTreeMap<String, u64> {
    let mut by_kind: BTreeMap<_, u64> =
        ["journal", "logs", "core_dumps", DELETED_OPEN].map(|kind| (kind.to_owned(), 0)).into();
    for user in users.iter().filter(|user| user.filesystem == ix) {
        let kind = match user.kind {
            OtherUserKind::Journal => "journal",
            OtherUserKind::Logs | OtherUserKind::PodLogs => "logs",
            OtherUserKind::CoreDumps => "core_dumps",
            OtherUserKind::DeletedOpen => DELETED_OPEN,
            _ => continue,
        };
        let sum = by_kind.entry(kind.to_owned()).or_default();
        *sum = sum.saturating_add(user.bytes);
    }
    if let Some(bytes) = deleted_open {
        by_kind.insert(DELETED_OPEN.to_owned(), bytes);
    }
    let in_stores = refs::size_on_disk(&scan.inventory, ix);
    let known =
        in_stores.iter().chain(by_kind.values()).fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    by_kind.insert("other".to_owned(), scan.inventory[ix].used_bytes.saturating_sub(known));
    by_kind
}

pub(crate) struct ScanRecording<'a> {
    pub request: &'a Request,
    pub state: &'a mut State,
}

impl ScanRecording<'_> {
    /// Records that a scan of the whole node found no store although earlier scans did, so that figures of removed
    /// stores are not reported any more. A failure is reported and has no other effect.
    pub fn save_none(self, observer: &dyn Observer) {
        let remembered =
            self.state.read(figures::all).is_ok_and(|all| !all.stores.is_empty() || all.unreadable > 0);
        if self.state.directory.foreign || self.state.is_unreadable || !remembered {
            return;
        }
        let nothing = Inventory::default();
        let refs = Refs::new(&nothing);
        let run = ScanRun { complete: true, all_stores: true, ..self.run(&nothing, &refs) };
        match self.write(&run, Access::Write) {
            Ok((database, saved)) => warn(observer, &[database.degraded, saved.degraded].concat()),
            Err(failure) => tracing::warn!("the absence of stores was not recorded: {failure}"),
        }
    }

    /// Records a scan. Problems of recording are added to the findings of the scan.
    pub fn save(self, scan: &mut Scan) -> Result<(), Error> {
        if self.state.directory.foreign {
            return Ok(());
        }
        if scan.request.measure != Measure::Everything {
            return self.save_uses(scan);
        }
        let complete = scan.is_complete();
        let damaged = self.state.degraded.iter().any(|why| matches!(why, Degraded::Corrupt { .. }));
        let access = if damaged { Access::Mend } else { Access::Write };
        let places = Places::measure(self.request, scan);
        let figures = figures(self.request, scan, self.state, &places);
        // The summary for `diff` does not need the database, and for a large store takes as long as the rest.
        let (saved, packed) = rayon::join(
            || {
                let run = ScanRun {
                    seconds: scan.effort.seconds,
                    complete,
                    figures,
                    all_stores: !self.request.names_stores,
                    ..self.run(&scan.inventory, &scan.refs)
                };
                let (database, saved) = self.write(&run, access)?;
                // The writes below do not affect image ages.
                let known = database.read(known::images)?;
                Ok::<_, Error>((database, saved, known, run.run_id, run.taken_at))
            },
            || Packed::new(places.summary(scan, &scan.inventory)),
        );
        let (mut database, saved, known, run_id, taken_at) = saved?;
        let state = self.state;
        let mut degraded = std::mem::take(&mut database.degraded);
        degraded.extend(saved.degraded);
        // A problem of reading most likely persists, and the same problem of writing is more precise.
        degraded.append(&mut state.degraded);
        for why in degraded {
            if state.degraded.iter().all(|known| known.code() != why.code()) {
                state.degraded.push(why);
            }
        }
        state.is_unrecorded = saved.recorded.is_none();
        state.add_findings(scan);
        let warnings = saved.warnings.iter().map(|warning| finding(&state.directory, warning.to_string()));
        scan.inventory.findings.extend(warnings);
        for (store, message) in Recorded::of(&scan.inventory).messages() {
            let root = scan.inventory[store].root.clone();
            scan.inventory.findings.push(Finding::new(root, message));
        }
        if let Some(recorded) = saved.recorded {
            Interrupted { inventory: &scan.inventory, complete }.settle(&mut database, state.scanned);
            let scanned =
                Scanned { run_id: &run_id, started: recorded, all_stores: !self.request.names_stores };
            let not_kept = kept_scans::keep(&mut database, &scanned, packed);
            let findings: &mut Vec<Finding> = &mut scan.inventory.findings;
            findings.extend(not_kept.map(|message| finding(&state.directory, message)));
            if saved.caught_up > 0 {
                tracing::info!("saved {} earlier runs that were waiting", saved.caught_up);
            }
            if let Some(changes) = scan.sizes.take() {
                // The sizes are only a cache: a size that is not stored is measured again.
                let stored = database.records.write(|tx| sizes::store(tx, &changes, taken_at));
                findings.extend(
                    stored.err().map(|error| {
                        finding(&state.directory, format!("layer sizes were not cached: {error}"))
                    }),
                );
            }
        }
        state.known = known;
        state.back_offs = database.read(back_offs::load)?;
        state.last_gc_failed = last_gc_failed(&database);
        state.is_unreadable = database.unreadable;
        Ok(())
    }

    /// Records the images and containers of a scan that measured nothing. If the database cannot be written, the uses
    /// of images are queued. A damaged database is left to the next scan that measures.
    fn save_uses(self, scan: &mut Scan) -> Result<(), Error> {
        let run = ScanRun { is_measured: false, ..self.run(&scan.inventory, &scan.refs) };
        if !self.state.is_unreadable {
            let (database, saved) = self.write(&run, Access::Write)?;
            self.state.degraded = [database.degraded, saved.degraded].concat();
            if saved.recorded.is_some() {
                return Ok(());
            }
        }
        let directory = &self.state.directory;
        let why: Vec<_> = self.state.degraded.drain(..).collect();
        let remedy = why.first().map(Degraded::remedy).unwrap_or_default();
        let why = why.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        match Queue::of(directory).put_uses(&run) {
            Ok(path) => {
                let path = path.display();
                let message = format!("{why}; the images in use wait in {path} until a scan can save them");
                scan.inventory.findings.push(finding(directory, message));
                Ok(())
            }
            Err(error) => {
                let pending = directory.pending.as_deref().unwrap_or(&directory.dir).display();
                let message = format!(
                    "the images in use now were not recorded: {why}, and {pending} cannot be written: {error}"
                );
                Err(Error::failed(message).hint(remedy))
            }
        }
    }

    fn run<'s>(&self, inventory: &'s Inventory, refs: &'s Refs) -> ScanRun<'s> {
        let State { began, clock, known, scanned, .. } = &*self.state;
        ScanRun::new(runs::new_id(*scanned), (inventory, refs), *began, clock.clone(), known.clock())
    }

    fn write(&self, run: &ScanRun<'_>, access: Access) -> Result<(Database, Saved), Error> {
        let mut database = Database::open(self.request, access)?;
        let queue = Queue::of(&database.directory);
        let saved = history::save(&mut database.records, &queue, run)
            .map_err(|source| failed(&database.directory, source))?;
        Ok((database, saved))
    }
}
