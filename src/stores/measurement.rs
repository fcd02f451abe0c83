//! Measures all units of all stores together, and measures again what changed meanwhile.
//!
//! A walk takes seconds, and the node keeps working. After each walk the records are compared with the earlier ones;
//! if they changed, they are read again and only new units are walked. Committed layers never change, so their sizes
//! remain valid, in this scan and in later ones ([`cached`]).
//!
//! Only shared inodes must be measured in one walk. Example: a file of layer A is walked first, then the
//! store adds layer B with a hard link to it. A second walk of B alone sees one of two links and takes the other for
//! a link outside the stores. In such a case everything is walked again.

mod cached;
mod shares;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;
use rayon::prelude::*;

use super::request::{Measure, ScanRequest};
use super::store::Store;
use crate::disk::filesystem::CostModel;
use crate::disk::inode_chunks::{self, InodeChunks};
use crate::disk::runs::EncodedRuns;
use crate::disk::sharing::{self, Sharing, UnitRuns};
use crate::disk::size_cache::{SizeCache, StoreSizes};
use crate::disk::{
    self, ExtentOptions, Fingerprint, Fingerprinter, Progress, Tally, Tree, UnitExtents, WalkError,
    WalkOptions, probing, stamp,
};
use crate::model::{FilesystemIx, Finding, Inventory, NodeIx, StoreId};
use crate::sys::quiet::Within;
pub(super) use cached::MeasurementNeeds;
use cached::{CachedSizes, CachedUnit};
pub(super) use shares::Shares;

/// Maximum number of walks while the records keep changing.
const ROUNDS: usize = 4;

/// Maximum number of errors of a scan that are listed; the rest are counted.
const MOST_ERRORS: usize = 20;

/// Sizes of all units of all stores. A unit keeps its *slot* when its records are read again.
pub(super) struct Measurement {
    readings: Vec<Box<dyn Store>>,
    stores: Vec<StoreId>,
    /// Names of the units of each reading.
    units: Vec<Vec<Fingerprint>>,
    slots: HashMap<Fingerprint, usize>,
    /// Slots of the units of each reading.
    of_units: Vec<Vec<usize>>,
    /// Name of each slot, which identifies the unit among all units of the node.
    names: Vec<Fingerprint>,
    tallies: Vec<Tally>,
    shares: Shares,
    chunks: InodeChunks,
    extents: HashMap<usize, Arc<UnitExtents>>,
    /// Extents of inodes that belong to several units.
    extents_of_several: Vec<EncodedRuns>,
    errors: Vec<WalkError>,
    walks: usize,
    has_estimates: bool,
    cached: CachedSizes,
    /// Reasons why readings could not be read again, by position.
    stale: HashMap<usize, String>,
}

impl Measurement {
    pub(super) fn new(readings: Vec<Box<dyn Store>>, sizes: Option<SizeCache>) -> Self {
        let stores: Vec<_> =
            readings.iter().map(|reading| StoreId::of(&reading.entry(FilesystemIx::from(0)))).collect();
        Self {
            units: Vec::new(),
            cached: CachedSizes::new(sizes, stores.clone()),
            stores,
            readings,
            slots: HashMap::new(),
            of_units: Vec::new(),
            names: Vec::new(),
            tallies: Vec::new(),
            shares: Shares::default(),
            chunks: InodeChunks::default(),
            extents: HashMap::new(),
            extents_of_several: Vec::new(),
            errors: Vec::new(),
            walks: 0,
            has_estimates: false,
            stale: HashMap::new(),
        }
    }

    /// Adds inodes, extents and inode chunks that several units share as nodes of their own.
    pub(super) fn share(
        &self,
        inventory: &mut Inventory,
        nodes: &HashMap<usize, NodeIx>,
        costs: &[CostModel],
    ) {
        self.shares.share(inventory, nodes, costs);
        shares::share_chunks(&self.chunks, inventory, nodes);
    }

    pub(super) fn take_readings(&mut self) -> Vec<Box<dyn Store>> {
        std::mem::take(&mut self.readings)
    }

    /// Returns the tallies of a reading's units, in their order.
    pub(super) fn tallies(&self, reading: usize) -> Vec<Tally> {
        self.of_units[reading].iter().map(|slot| self.tallies[*slot]).collect()
    }

    /// Returns the slots of a reading's units, in their order.
    pub(super) fn slots(&self, reading: usize) -> &[usize] {
        &self.of_units[reading]
    }

    /// Walks until the sizes belong to the current records.
    pub(super) fn run(
        &mut self,
        request: &ScanRequest,
        wanted: MeasurementNeeds,
        progress: &Progress,
        findings: &mut Vec<Finding>,
    ) {
        if request.measure != Measure::Everything {
            // Names are not needed.
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
        let mut sharing = self.sharing(request);
        if self.misses_a_link() || !sharing.differing.is_empty() {
            // A walk takes a link in another walk's trees for a link outside the stores, and each of the two walks
            // counts the inode; or the extents of files have moved. Measure everything again, in one walk.
            self.cached.distrust_all();
            self.forget();
            self.walk(request, wanted, progress);
            moved = self.read_again(request);
            sharing = self.sharing(request);
        }
        self.cached.settle(sharing.settled);
        self.shares.extents = sharing.groups;
        (self.extents, self.extents_of_several) = Default::default();
        self.report_modified(request, findings);
        // Units that were deleted meanwhile are not in the records either.
        if !self.assign().is_empty() {
            self.report_movers(&moved, findings);
        }
        if wanted.inode_chunks {
            for (reading, slots) in self.readings.iter().zip(&self.of_units) {
                let reassigned = reading.reassigned().into_iter();
                let known =
                    reassigned.filter_map(|inode| Some((inode.device, inode.inode, *slots.get(inode.unit)?)));
                self.chunks.hand_over(known);
            }
        }
        self.report_errors(findings);
        if self.has_estimates {
            let message = "files are compressed, and only root may read what they take on the disk: the bytes that \
                           deletions free are estimates";
            findings.push(Finding::new("", message));
        }
        // Nothing is read again: free the names before the inventory of a large store is filled.
        self.slots = HashMap::new();
        self.units = Vec::new();
    }

    /// Measures the units that have not been measured. If a sample shows that a store's layers changed although their
    /// stamps did not, no cached size of that store is used.
    fn walk_in_doubt(&mut self, request: &ScanRequest, wanted: MeasurementNeeds, progress: &Progress) {
        self.walk(request, wanted, progress);
        while self.cached.distrust_differing() {
            self.forget();
            self.walk(request, wanted, progress);
        }
    }

    /// Measures the units that neither this scan nor an earlier one measured.
    fn walk(&mut self, request: &ScanRequest, wanted: MeasurementNeeds, progress: &Progress) {
        let mut fresh = self.assign();
        let (roots, within) = (self.roots(), self.within());
        let started = Timestamp::now();
        if self.cached.is_on() {
            let subjects = self.subjects(&fresh, &roots);
            // Older stamps are valid too: a layer that has changed since will have another stamp in the next scan.
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
                self.extents.extend(size.extents.clone().map(|extents| (slot, extents)));
            }
            self.chunks.add(inodes);
        }
        let trees = trees(&self.readings, &self.of_units, &fresh);
        if trees.is_empty() {
            return;
        }
        let options = WalkOptions {
            threads: request.threads,
            extents: wanted.extents.then(|| ExtentOptions { from_bytes: 1, seed: self.cached.seed() }),
            inode_chunks: wanted.inode_chunks.then_some(&self.chunks),
            apart: &self.roots_with_trees(),
            within,
            progress: Some(progress),
        };
        let measured = disk::measure(&roots, &trees, &options);
        self.cached.absorb(&measured, wanted, started);
        self.absorb(measured, &fresh);
    }

    /// Returns the finished layers among `fresh` that contain no root: the size of a layer without the root in it
    /// depends on the stores that are scanned.
    fn subjects(&self, fresh: &HashSet<usize>, roots: &[PathBuf]) -> Vec<CachedUnit> {
        let roots_inside: Vec<Vec<PathBuf>> = roots
            .iter()
            .map(|outer| {
                let below = roots.iter().filter_map(|root| root.strip_prefix(outer).ok());
                below.filter(|path| !path.as_os_str().is_empty()).map(Path::to_path_buf).collect()
            })
            .collect();
        let mut finished = Vec::new();
        let mut first_root = 0;
        for (store, (reading, slots)) in self.readings.iter().zip(&self.of_units).enumerate() {
            let stamps = reading.stamps().into_iter().chain(std::iter::repeat(None));
            let units = reading.units().into_iter().zip(slots).zip(reading.fingerprints()).zip(stamps);
            for (((view, slot), record), stamp) in units {
                let Some(record) = record.filter(|_| fresh.contains(slot)) else { continue };
                let has_root = view.parts.iter().any(|(root, path, _)| {
                    let mut inside = roots_inside.get(first_root + root).into_iter().flatten();
                    inside.any(|inside| inside.starts_with(path))
                });
                if !has_root {
                    finished.push((*slot, store, record, stamp));
                }
            }
            first_root += reading.roots().len();
        }
        let names = &self.names;
        let subjects = finished.into_par_iter().map(|(slot, store, record, stamp)| {
            let mut key = Fingerprinter::new("layer and record, 1");
            key.bytes(&names[slot].0).bytes(&record.0);
            CachedUnit { slot, store, key: key.finish(), stamp }
        });
        subjects.collect()
    }

    /// Returns true if an inode is also used outside the trees that were walked together, perhaps by a tree of another
    /// walk.
    fn misses_a_link(&self) -> bool {
        let is_one_walk = self.walks <= 1 && self.cached.taken().next().is_none();
        !is_one_walk && self.shares.has_links_outside()
    }

    /// Finds the extents that units share, and the units whose kept extents no longer hold according to samples.
    fn sharing(&self, request: &ScanRequest) -> Sharing {
        let kept: HashSet<usize> =
            self.cached.taken().filter(|slot| self.extents.contains_key(slot)).collect();
        let samples = self.extents.iter().filter(|(slot, _)| kept.contains(*slot));
        let drawn =
            probing::draw(samples.map(|(slot, extents)| (*slot, &*extents.samples)), self.cached.seed());
        let asked = probing::ask(
            &self.roots(),
            &self.within(),
            &trees(&self.readings, &self.of_units, &kept),
            &drawn,
            request.threads,
        );
        let mut units = Vec::new();
        for (slot, extents) in &self.extents {
            let is_fresh = !kept.contains(slot);
            units.extend(extents.runs.iter().map(|runs| UnitRuns { unit: Some(*slot), runs, is_fresh }));
        }
        let of_several = self.extents_of_several.iter();
        units.extend(of_several.map(|runs| UnitRuns { unit: None, runs, is_fresh: true }));
        let mut sharing = sharing::find(&units, asked.probes);
        // Units that were deleted meanwhile do not matter.
        let alive: HashSet<usize> = self.of_units.iter().flatten().copied().collect();
        sharing.differing.extend(asked.lost);
        sharing.differing.retain(|slot| alive.contains(slot));
        if let Some(slot) = sharing.differing.first() {
            let units = sharing.differing.len();
            tracing::info!(
                units,
                slot,
                "files of finished layers have other extents than before: measuring again"
            );
        }
        sharing
    }

    /// Returns the sizes to store for later scans, by store; `None` if none are wanted, and for an unchanged store.
    /// Frees the cache, which uses much memory for a large store.
    pub(super) fn leave(&mut self) -> Option<Vec<(StoreId, Option<StoreSizes>)>> {
        let alive: HashSet<usize> = self.of_units.iter().flatten().copied().collect();
        std::mem::take(&mut self.cached).leave(&alive)
    }

    pub(super) fn taken(&self) -> HashSet<usize> {
        self.cached.taken().collect()
    }

    fn forget(&mut self) {
        self.slots.clear();
        self.names.clear();
        self.tallies.clear();
        self.shares = Shares::default();
        self.chunks.clear();
        self.errors.clear();
        self.walks = 0;
        self.extents.clear();
        self.extents_of_several.clear();
        self.cached.forget();
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.readings.iter().flat_map(|reading| reading.roots()).collect()
    }

    /// Assigns a slot to each unit; returns the slots that have not been measured.
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

    fn within(&self) -> Within {
        let mut all = Within::default();
        for within in self.readings.iter().filter_map(|reading| reading.within()) {
            all.extend(within);
        }
        all
    }

    /// Returns the roots that a unit of their own counts from the top; one may be inside another (for example an
    /// imagestore in the graphroot).
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
        for (slot, extents) in measured.extents {
            match slot {
                Some(slot) => drop(self.extents.insert(slot, Arc::new(extents))),
                None => self.extents_of_several.extend(extents.runs),
            }
        }
        self.walks += 1;
        self.has_estimates |= measured.has_estimates;
        self.chunks.add(measured.inodes);
        self.errors.extend(measured.errors);
    }

    /// Reads the records of stores to which another process wrote meanwhile again; returns those whose units changed.
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
            // A token that changed without a change of the records (every podman command causes that) is not a
            // change.
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

    fn report_modified(&self, request: &ScanRequest, findings: &mut Vec<Finding>) {
        let modified = self.cached.modified();
        if modified.is_empty() {
            return;
        }
        let slots: HashSet<usize> = modified.iter().map(|(slot, _)| *slot).collect();
        let roots = self.roots();
        let trees = trees(&self.readings, &self.of_units, &slots);
        // A layer that was replaced meanwhile is another layer.
        let stamps = stamp::gather(&roots, &self.within(), &trees, request.threads);
        let modified: Vec<_> = modified
            .into_iter()
            .filter(|(slot, _)| stamps.get(slot).copied() == self.cached.stamp(*slot))
            .collect();
        let more = modified.len().saturating_sub(MOST_ERRORS);
        for (slot, difference) in modified.into_iter().take(MOST_ERRORS) {
            let tree = trees.iter().find(|tree| tree.unit == slot);
            let path = tree.and_then(|tree| Some(roots.get(tree.root)?.join(&tree.path))).unwrap_or_default();
            let message = format!("{difference}: a finished layer was modified");
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
        for (position, reason) in &self.stale {
            let root = self.readings[*position].roots().into_iter().next().unwrap_or_default();
            let message = format!("changed while it was measured and cannot be reread: {reason}");
            findings.push(Finding::incomplete(root, message));
            stale.extend(&self.of_units[*position]);
        }
        // A file that vanished during the walk was deleted by its user. That is an error only if the records are old
        // and still contain it.
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

/// Returns the trees to walk for the slots in `fresh`; `of_units` are the slots of the readings' units.
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

/// Returns the names of a reading's units. A name identifies an unchanged unit among all units of the node.
fn names(reading: &dyn Store, store: &StoreId) -> Vec<Fingerprint> {
    let mut of_store = Fingerprinter::new("unit, 1");
    of_store.bytes(store.kind().as_str().as_bytes());
    of_store.bytes(store.root().as_os_str().as_bytes()).bytes(store.driver().as_bytes());
    let names = reading.units().into_par_iter().map(|unit| {
        let mut name = of_store.clone();
        name.bytes(unit.tag.as_bytes()).bytes(unit.id.as_bytes());
        for (root, path, scope) in unit.parts {
            name.number(*root as u64).bytes(path.as_os_str().as_bytes());
            name.number(u64::from(scope.is_whole()));
        }
        name.finish()
    });
    names.collect()
}

#[cfg(test)]
mod tests;
