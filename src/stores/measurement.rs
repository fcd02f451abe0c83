//! Measures all units of all stores together, and rereads what changed meanwhile.
//!
//! A walk takes seconds, and the node keeps working. After each walk the records are
//! compared with the earlier ones; if they changed they are read again, and only new units are walked.
//! Layers never change once committed, so what was measured stays valid, in this scan and in later ones
//! ([`cached`]). Only what several units share must be measured in one walk: where that matters
//! everything is walked again.

mod cached;
mod shares;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;
use rayon::prelude::*;

use super::request::{Measure, ScanRequest};
use super::store::{Store, UnitView};
use crate::disk::filesystem::CostModel;
use crate::disk::inode_chunks::{self, InodeChunks};
use crate::disk::size_cache::{SizeCache, StoreSizes};
use crate::disk::{
    self, Extents, Fingerprint, Fingerprinter, Progress, Tally, Tree, WalkError, WalkOptions, stamp,
};
use crate::model::{FilesystemIx, Finding, Inventory, NodeIx, StoreId};
use crate::sys::quiet::Within;
pub(super) use cached::MeasurementNeeds;
use cached::{Cached, Subject};
pub(super) use shares::Shares;

/// How often records that keep moving are read again.
const ROUNDS: usize = 4;

/// Errors listed one by one for a whole scan; the rest is counted.
const MOST_ERRORS: usize = 20;

/// The sizes of all units of all stores. A unit keeps its *slot* when its records are read again.
pub(super) struct Measurement {
    readings: Vec<Box<dyn Store>>,
    stores: Vec<StoreId>,
    /// Of the units of each reading, their names.
    units: Vec<Vec<Fingerprint>>,
    /// By name.
    slots: HashMap<Fingerprint, usize>,
    /// Of each unit of each reading.
    of_units: Vec<Vec<usize>>,
    /// The name of each slot, which tells the unit from all others of the node.
    names: Vec<Fingerprint>,
    tallies: Vec<Tally>,
    shares: Shares,
    chunks: InodeChunks,
    errors: Vec<WalkError>,
    /// Where each walk since all was forgotten looked at files for shared extents.
    looked: Vec<Extents>,
    cached: Cached,
    /// Readings that could not be read again, by position, and why.
    stale: HashMap<usize, String>,
}

impl Measurement {
    pub(super) fn new(readings: Vec<Box<dyn Store>>, sizes: Option<SizeCache>) -> Self {
        let stores = readings.iter().map(|reading| StoreId::of(&reading.entry(FilesystemIx::from(0))));
        let stores: Vec<_> = stores.collect();
        Self {
            units: Vec::new(),
            cached: Cached::new(sizes, stores.clone()),
            stores,
            readings,
            slots: HashMap::new(),
            of_units: Vec::new(),
            names: Vec::new(),
            tallies: Vec::new(),
            shares: Shares::default(),
            chunks: InodeChunks::default(),
            errors: Vec::new(),
            looked: Vec::new(),
            stale: HashMap::new(),
        }
    }

    /// Adds what several units share as nodes of their own.
    pub(super) fn share(
        &self,
        inventory: &mut Inventory,
        nodes: &HashMap<usize, NodeIx>,
        costs: &[CostModel],
    ) {
        self.shares.share(inventory, nodes, costs);
        shares::share_chunks(&self.chunks, inventory, nodes);
    }

    /// The stores as they were when they were measured.
    pub(super) fn take_readings(&mut self) -> Vec<Box<dyn Store>> {
        std::mem::take(&mut self.readings)
    }

    /// Tallies of a reading's units, one by one.
    pub(super) fn tallies(&self, reading: usize) -> Vec<Tally> {
        self.of_units[reading].iter().map(|slot| self.tallies[*slot]).collect()
    }

    /// Slots of a reading's units, one by one.
    pub(super) fn slots(&self, reading: usize) -> &[usize] {
        &self.of_units[reading]
    }

    /// Walks until the records and what was walked belong together.
    pub(super) fn run(
        &mut self,
        request: &ScanRequest,
        wanted: MeasurementNeeds,
        progress: &Progress,
        findings: &mut Vec<Finding>,
    ) {
        if request.measure != Measure::Everything {
            // Nothing is looked up by its name.
            let mut next = 0..;
            let slots =
                self.readings.iter().map(|reading| next.by_ref().take(reading.units().len()).collect());
            self.of_units = slots.collect();
            self.tallies = vec![Tally::default(); next.start];
            return;
        }
        let readings = self.readings.iter().zip(&self.stores);
        self.units = readings.map(|(reading, store)| names(reading.as_ref(), store)).collect();
        if request.full {
            self.cached.distrust_all();
        }
        if wanted.inode_chunks {
            self.chunks = InodeChunks::on(&self.roots(), &self.within());
        }
        let mut moved = Vec::new();
        for _ in 0..ROUNDS {
            self.walk_in_doubt(request, wanted, progress);
            moved = self.read_again(request);
            if moved.is_empty() {
                break;
            }
        }
        if self.misses_a_share() {
            // A walk takes what it shares with another walk's trees for somebody else's, and
            // each of the two counts it. Once more, in one walk.
            self.cached.distrust_all();
            self.forget();
            self.walk(request, wanted, progress);
            moved = self.read_again(request);
        }
        self.report_modified(request, findings);
        // What merely went is no longer in the records either.
        if !self.assign().is_empty() {
            self.report_movers(&moved, findings);
        }
        if wanted.inode_chunks {
            for (reading, slots) in self.readings.iter().zip(&self.of_units) {
                let reassigned = reading.reassigned().into_iter();
                let known = reassigned.filter_map(|one| Some((one.device, one.inode, *slots.get(one.unit)?)));
                self.chunks.hand_over(known);
            }
        }
        self.report_errors(findings);
        // Nothing is read again: what a large store is filled with takes the place of its names.
        self.slots = HashMap::new();
        self.units = Vec::new();
    }

    /// Measures the units that have not been measured. Where a sample shows that a store's
    /// layers changed though nothing else showed it, nothing is taken of that store.
    fn walk_in_doubt(&mut self, request: &ScanRequest, wanted: MeasurementNeeds, progress: &Progress) {
        self.walk(request, wanted, progress);
        while self.cached.distrust_differing() {
            self.forget();
            self.walk(request, wanted, progress);
        }
    }

    /// Measures the units that have not been measured and that no earlier scan measured.
    fn walk(&mut self, request: &ScanRequest, wanted: MeasurementNeeds, progress: &Progress) {
        let mut fresh = self.assign();
        let (roots, within) = (self.roots(), self.within());
        let started = Timestamp::now();
        if self.cached.is_on() {
            let subjects = self.subjects(&fresh, &roots);
            // A stamp from before is as good: what has changed since has another one in the next scan.
            let missing = subjects.iter().filter(|subject| subject.stamp.is_none());
            let slots: HashSet<usize> = missing.map(|subject| subject.slot).collect();
            let stamps = stamp::gather(
                &roots,
                &within,
                &trees(&self.readings, &self.of_units, &slots),
                request.threads,
            );
            let mut inodes = Vec::new();
            for (slot, size) in self.cached.take(&subjects, &stamps, wanted) {
                fresh.remove(&slot);
                self.tallies[slot] = size.tally;
                inodes.extend(inode_chunks::decode(&size.inodes, slot));
            }
            self.chunks.add(inodes);
        }
        let trees = trees(&self.readings, &self.of_units, &fresh);
        if trees.is_empty() {
            return;
        }
        let options = WalkOptions {
            threads: request.threads,
            extents: wanted.extents,
            inode_chunks: wanted.inode_chunks.then_some(&self.chunks),
            apart: &self.roots_with_trees(),
            within,
            progress: Some(progress),
        };
        let measured = disk::measure(&roots, &trees, &options);
        self.cached.absorb(&measured, wanted, started);
        self.absorb(measured, &fresh);
    }

    /// The finished layers among `fresh` that no root is in: what a root in it takes away
    /// from a layer depends on what else is scanned.
    fn subjects(&self, fresh: &HashSet<usize>, roots: &[PathBuf]) -> Vec<Subject> {
        let inside = |outer: &PathBuf| -> Vec<PathBuf> {
            let below = roots.iter().filter_map(|root| root.strip_prefix(outer).ok());
            below.filter(|path| !path.as_os_str().is_empty()).map(Path::to_path_buf).collect()
        };
        let roots_inside: Vec<Vec<PathBuf>> = roots.iter().map(inside).collect();
        let mut finished = Vec::new();
        let mut first_root = 0;
        for (store, (reading, slots)) in self.readings.iter().zip(&self.of_units).enumerate() {
            let stamps = reading.stamps().into_iter().chain(std::iter::repeat(None));
            let units = reading.units().into_iter().zip(slots).zip(reading.fingerprints()).zip(stamps);
            for (((view, slot), record), stamp) in units {
                let Some(record) = record.filter(|_| fresh.contains(slot)) else { continue };
                let has_root = view.parts.iter().any(|(root, path, _)| {
                    roots_inside.get(first_root + root).into_iter().flatten().any(|one| one.starts_with(path))
                });
                if !has_root {
                    finished.push((*slot, store, record, stamp));
                }
            }
            first_root += reading.roots().len();
        }
        let names = &self.names;
        let subject = |(slot, store, record, stamp): (usize, usize, Fingerprint, Option<Fingerprint>)| {
            let mut key = Fingerprinter::new("layer and record, 1");
            key.bytes(&names[slot].0).bytes(&record.0);
            Subject { slot, store, key: key.finish(), stamp }
        };
        finished.into_par_iter().map(subject).collect()
    }

    /// Some inode or extent is held by more than the trees that were walked together, and it
    /// may be a tree that was walked at another time.
    fn misses_a_share(&self) -> bool {
        if self.looked.len() <= 1 && self.cached.taken().next().is_none() {
            return false;
        }
        let most = self.looked.iter().copied().max().unwrap_or(Extents::Off);
        self.looked.iter().any(|looked| *looked < most)
            || self.cached.looked_less_than(most)
            || self.shares.has_outside()
    }

    /// What to leave for later scans, by store; `None` where nothing is wanted, and for a store as
    /// it was. Of a large store what this frees takes much memory.
    pub(super) fn leave(&mut self) -> Option<Vec<(StoreId, Option<StoreSizes>)>> {
        let alive: HashSet<usize> = self.of_units.iter().flatten().copied().collect();
        std::mem::take(&mut self.cached).leave(&alive)
    }

    /// Slots of layers whose size an earlier scan measured.
    pub(super) fn taken(&self) -> HashSet<usize> {
        self.cached.taken().collect()
    }

    /// Drops all that was measured.
    fn forget(&mut self) {
        self.slots.clear();
        self.names.clear();
        self.tallies.clear();
        self.shares = Shares::default();
        self.chunks.clear();
        self.errors.clear();
        self.looked.clear();
        self.cached.forget();
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.readings.iter().flat_map(|reading| reading.roots()).collect()
    }

    /// Gives each unit its slot; returns the slots that have not been measured.
    fn assign(&mut self) -> HashSet<usize> {
        let mut fresh = HashSet::with_capacity(self.units.iter().map(Vec::len).sum());
        self.of_units.clear();
        for units in &self.units {
            let mut slots = Vec::with_capacity(units.len());
            for name in units {
                let next = self.slots.len();
                let slot = *self.slots.entry(*name).or_insert(next);
                if slot == self.tallies.len() {
                    self.tallies.push(Tally::default());
                    self.names.push(*name);
                    fresh.insert(slot);
                }
                slots.push(slot);
            }
            self.of_units.push(slots);
        }
        fresh
    }

    /// The open directories of all stores.
    fn within(&self) -> Within {
        let mut all = Within::default();
        for places in self.readings.iter().filter_map(|reading| reading.places()) {
            all.extend(places.within());
        }
        all
    }

    /// Roots that are counted from the top by a unit of their own; one may be inside another
    /// (an imagestore in the graphroot, say).
    fn roots_with_trees(&self) -> Vec<usize> {
        let mut found = Vec::new();
        let mut first_root = 0;
        for reading in &self.readings {
            let units = reading.units();
            let tops = units.iter().flat_map(|view| view.parts).filter(|part| part.1.as_os_str().is_empty());
            found.extend(tops.map(|(root, ..)| first_root + root));
            first_root += reading.roots().len();
        }
        found
    }

    fn absorb(&mut self, measured: disk::Measured, fresh: &HashSet<usize>) {
        for slot in fresh {
            if let Some(tally) = measured.units.get(*slot) {
                self.tallies[*slot] = *tally;
            }
        }
        self.shares.inodes.extend(measured.shared_inodes);
        self.shares.extents.extend(measured.shared_extents);
        self.looked.push(measured.extents);
        self.chunks.add(measured.inodes);
        self.errors.extend(measured.errors);
    }

    /// Reads the records of those stores again where another process wrote meanwhile; returns those
    /// that hold something else now.
    fn read_again(&mut self, request: &ScanRequest) -> Vec<PathBuf> {
        let mut moved = Vec::new();
        for (position, (reading, store)) in self.readings.iter_mut().zip(&self.stores).enumerate() {
            if !reading.moved() {
                continue;
            }
            if let Err(error) = reading.read_again(request) {
                self.stale.insert(position, error.to_string());
                continue;
            }
            self.stale.remove(&position);
            // A token that moved without a record moving (every podman command does that)
            // changes nothing.
            let now = names(reading.as_ref(), store);
            if std::mem::replace(&mut self.units[position], now.clone()) != now {
                moved.extend(reading.roots().into_iter().next());
            }
        }
        moved
    }

    fn report_movers(&self, moved: &[PathBuf], findings: &mut Vec<Finding>) {
        for path in moved {
            let message = "kept changing while it was measured; the latest changes are not counted";
            findings.push(Finding::incomplete(path, message));
        }
    }

    /// Says which finished layers another process wrote to.
    fn report_modified(&self, request: &ScanRequest, findings: &mut Vec<Finding>) {
        let modified = self.cached.modified();
        if modified.is_empty() {
            return;
        }
        let slots: HashSet<usize> = modified.iter().map(|(slot, _)| *slot).collect();
        let roots = self.roots();
        let trees = trees(&self.readings, &self.of_units, &slots);
        // One that was replaced meanwhile is another layer.
        let stamps = stamp::gather(&roots, &self.within(), &trees, request.threads);
        let is_same = |slot: &usize| stamps.get(slot).copied() == self.cached.stamp(*slot);
        let modified: Vec<_> = modified.into_iter().filter(|(slot, _)| is_same(slot)).collect();
        let more = modified.len().saturating_sub(MOST_ERRORS);
        for (slot, how) in modified.into_iter().take(MOST_ERRORS) {
            let tree = trees.iter().find(|tree| tree.unit == slot);
            let path = tree.and_then(|tree| Some(roots.get(tree.root)?.join(&tree.path))).unwrap_or_default();
            let message = format!("{how}: a finished layer was modified");
            findings.push(Finding::new(path, message));
        }
        if more > 0 {
            let message = format!("{more} more finished layers changed since an earlier scan");
            findings.push(Finding::new("", message));
        }
    }

    fn report_errors(&self, findings: &mut Vec<Finding>) {
        let alive: HashSet<_> = self.of_units.iter().flatten().copied().collect();
        let mut stale: HashSet<usize> = HashSet::new();
        for (position, why) in &self.stale {
            let root = self.readings[*position].roots().into_iter().next().unwrap_or_default();
            let message = format!("changed while it was measured and cannot be reread: {why}");
            findings.push(Finding::incomplete(root, message));
            stale.extend(&self.of_units[*position]);
        }
        // What vanished under the walk was deleted by its owner: that is not a fault, unless the
        // records still have it because they are old.
        let faults = self
            .errors
            .iter()
            .filter(|error| alive.contains(&error.unit) && (!error.vanished || stale.contains(&error.unit)));
        let mut left = 0_usize;
        for (count, error) in faults.enumerate() {
            if count < MOST_ERRORS {
                findings.push(Finding::incomplete(&error.path, &error.message));
            } else {
                left += 1;
            }
        }
        if left > 0 {
            findings.push(Finding::incomplete("", format!("{left} more files could not be read")));
        }
    }
}

/// What to walk for the slots in `fresh`; `of_units` are the slots of the readings' units.
fn trees<'a>(
    readings: &'a [Box<dyn Store>],
    of_units: &[Vec<usize>],
    fresh: &HashSet<usize>,
) -> Vec<Tree<'a>> {
    let mut trees = Vec::new();
    let mut first_root = 0;
    for (reading, slots) in readings.iter().zip(of_units) {
        let units = reading.units();
        for (view, slot) in units.iter().zip(slots).filter(|(_, slot)| fresh.contains(*slot)) {
            trees.extend(view.parts.iter().map(|(root, path, scope)| Tree {
                root: first_root + root,
                path: path.into(),
                unit: *slot,
                scope: *scope,
            }));
        }
        first_root += reading.roots().len();
    }
    trees
}

/// What tells each unit of a reading from all others of the node, as long as it is the same.
fn names(reading: &dyn Store, store: &StoreId) -> Vec<Fingerprint> {
    let mut of_store = Fingerprinter::new("unit, 1");
    of_store.bytes(store.kind().as_str().as_bytes());
    of_store.bytes(store.root().as_os_str().as_bytes()).bytes(store.driver().as_bytes());
    let name = |unit: UnitView<'_>| {
        let mut name = of_store.clone();
        name.bytes(unit.tag.as_bytes()).bytes(unit.id.as_bytes());
        for (root, path, scope) in unit.parts {
            name.number(*root as u64).bytes(path.as_os_str().as_bytes());
            name.number(u64::from(scope.is_whole()));
        }
        name.finish()
    };
    reading.units().into_par_iter().map(name).collect()
}

#[cfg(test)]
mod tests;
