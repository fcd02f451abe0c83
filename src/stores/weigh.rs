//! Measures all units of all stores together, and again what changed meanwhile.
//!
//! A walk takes seconds, and a node goes on working. After each walk the records are
//! compared with what they were; if they moved they are read again, and only what is new
//! is walked. Layers never change once committed, so what was measured stays valid, in this
//! survey and in later ones ([`super::memory`]). Only what several units share must be seen
//! in one walk: where that matters all is walked once more.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::memory::{Memory, Subject};
use super::reading::{Part, Reading};
use super::shares::Shares;
use super::{Request, Weigh, chunks, incomplete};
use crate::disk::filesystem::CostModel;
use crate::disk::inode_chunks::{Filesystems, InodeHoldings};
use crate::disk::kept::{ToKeep, UnitKey, tell_apart};
use crate::disk::{
    self, Extents, Fingerprint, Fingerprinter, Progress, Tally, Tree, WalkError, WalkOptions, evidence,
};
use crate::model::{Finding, Inventory, NodeIx};
use crate::sys::quiet::Within;

/// How often records that keep moving are read again.
const ROUNDS: usize = 4;

/// Errors listed one by one for a whole survey; the rest is counted.
const MOST_ERRORS: usize = 20;

/// A unit by what it is, so that it is recognised after the records moved.
type Key = (usize, &'static str, String, Vec<Part>);

/// What the filesystems of a survey make necessary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) extents: Extents,
    pub(super) inode_chunks: bool,
}

pub(super) struct Weighing {
    readings: Vec<Box<dyn Reading>>,
    slots: HashMap<Key, usize>,
    /// Slot of each unit of each reading.
    of_units: Vec<Vec<usize>>,
    tallies: Vec<Tally>,
    shares: Shares,
    inodes: InodeHoldings,
    errors: Vec<WalkError>,
    /// Where each walk since all was forgotten looked at files for shared extents.
    looked: Vec<Extents>,
    memory: Memory,
    /// Readings that could not be read again, by position, and why.
    stale: HashMap<usize, String>,
}

impl Weighing {
    pub(super) fn new(readings: Vec<Box<dyn Reading>>) -> Self {
        Self {
            readings,
            slots: HashMap::new(),
            of_units: Vec::new(),
            tallies: Vec::new(),
            shares: Shares::default(),
            inodes: InodeHoldings::default(),
            errors: Vec::new(),
            looked: Vec::new(),
            memory: Memory::default(),
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
        chunks::share(&self.inodes, inventory, nodes);
    }

    pub(super) fn readings(&self) -> &[Box<dyn Reading>] {
        &self.readings
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
        request: &Request,
        wanted: Wanted,
        progress: &Progress,
        findings: &mut Vec<Finding>,
    ) {
        if request.weigh == Weigh::Nothing {
            self.assign();
            return;
        }
        self.memory = Memory::new(request, &self.readings);
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
            self.memory.distrust_all();
            self.forget();
            self.walk(request, wanted, progress);
            moved = self.read_again(request);
        }
        self.report_contradictions(request, findings);
        // What merely went is no longer in the records either.
        if !self.assign().is_empty() {
            self.report_movers(&moved, findings);
        }
        if wanted.inode_chunks {
            for (reading, slots) in self.readings.iter().zip(&self.of_units) {
                let guests = reading.guests().into_iter();
                let known = guests.filter_map(|one| Some((one.device, one.inode, *slots.get(one.unit)?)));
                self.inodes.hand_over(known);
            }
        }
        self.report_errors(findings);
    }

    /// Measures the units that have not been measured. Where a sample shows that a store's
    /// layers changed though nothing else showed it, nothing is taken of that store.
    fn walk_in_doubt(&mut self, request: &Request, wanted: Wanted, progress: &Progress) {
        self.walk(request, wanted, progress);
        loop {
            let doubted: HashSet<usize> = self.memory.doubted().collect();
            if doubted.is_empty() {
                return;
            }
            doubted.into_iter().for_each(|reading| self.memory.distrust(reading));
            self.forget();
            self.walk(request, wanted, progress);
        }
    }

    /// Measures the units that have not been measured and that no earlier survey measured.
    fn walk(&mut self, request: &Request, wanted: Wanted, progress: &Progress) {
        let mut fresh = self.assign();
        let roots: Vec<PathBuf> = self.readings.iter().flat_map(|reading| reading.roots()).collect();
        let started = Timestamp::now();
        if self.memory.is_on() {
            self.recall(&mut fresh, &roots, request.threads, wanted, started);
        }
        let trees = self.trees(&fresh);
        if trees.is_empty() {
            return;
        }
        let options = WalkOptions {
            threads: request.threads,
            extents: wanted.extents,
            inode_chunks: wanted.inode_chunks,
            apart: &self.roots_with_trees(),
            within: self.within(),
            progress: Some(progress),
        };
        let measured = disk::measure(&roots, &trees, &options);
        self.memory.absorb(&measured, wanted, started, Timestamp::now());
        self.absorb(measured, &fresh);
    }

    /// Gives layers the sizes that an earlier survey measured, and takes them from `fresh`.
    fn recall(
        &mut self,
        fresh: &mut HashSet<usize>,
        roots: &[PathBuf],
        threads: usize,
        wanted: Wanted,
        now: Timestamp,
    ) {
        let subjects = self.subjects(fresh, roots);
        let slots: HashSet<usize> = subjects.iter().map(|subject| subject.slot).collect();
        let within = self.within();
        let evidence = evidence::gather(roots, &within, &self.trees(&slots), threads);
        let filesystems =
            if wanted.inode_chunks { Filesystems::of(roots, &within) } else { Filesystems::default() };
        let can_recall = |device| filesystems.known(device).is_some();
        let recalled = self.memory.recall(subjects, &evidence, wanted, now, &can_recall);
        self.shares.inodes.extend(recalled.shared);
        let recalled = recalled.sizes;
        for (slot, kept) in &recalled {
            self.tallies[*slot] = kept.tally;
            fresh.remove(slot);
        }
        if wanted.inode_chunks && !recalled.is_empty() {
            let inodes = recalled.iter().map(|(slot, kept)| (*slot, &kept.inodes));
            self.inodes.append(InodeHoldings::recalled(filesystems, inodes));
        }
    }

    /// The finished layers among `fresh` that no root lies in: what a root in it takes away
    /// from a layer depends on what else is surveyed.
    fn subjects(&self, fresh: &HashSet<usize>, roots: &[PathBuf]) -> Vec<Subject> {
        let inside = |outer: &PathBuf| -> Vec<PathBuf> {
            let below = roots.iter().filter_map(|root| root.strip_prefix(outer).ok());
            below.filter(|path| !path.as_os_str().is_empty()).map(Path::to_path_buf).collect()
        };
        let roots_inside: Vec<Vec<PathBuf>> = roots.iter().map(inside).collect();
        let mut subjects = Vec::new();
        let mut first_root = 0;
        for (position, (reading, slots)) in self.readings.iter().zip(&self.of_units).enumerate() {
            let units = reading.units().into_iter().zip(slots).zip(reading.fingerprints());
            for ((view, slot), record) in units {
                let Some(record) = record.filter(|_| fresh.contains(slot)) else { continue };
                let has_root = view.parts.iter().any(|(root, path, _)| {
                    roots_inside.get(first_root + root).into_iter().flatten().any(|one| one.starts_with(path))
                });
                if !has_root {
                    let key = UnitKey { tag: view.tag.to_owned(), id: view.id.to_owned() };
                    subjects.push(Subject { slot: *slot, reading: position, key, record });
                }
            }
            first_root += reading.roots().len();
        }
        subjects
    }

    /// Some inode or extent is held by more than the trees that were walked together, and it
    /// may be a tree that was walked at another time.
    fn misses_a_share(&self) -> bool {
        let recalled = self.memory.recalled().next().is_some();
        if self.looked.len() <= 1 && !recalled {
            return false;
        }
        let known = self.memory.outside();
        let known = |group: &Fingerprint| known.is_some_and(|known| known.contains(group));
        let most = self.looked.iter().copied().max().unwrap_or(Extents::Off);
        self.looked.iter().any(|looked| *looked < most)
            || self.memory.looked_less_than(most)
            || !self.outside().iter().all(known)
    }

    /// Who shares with somebody outside the trees that were walked together.
    fn outside(&self) -> HashSet<Fingerprint> {
        let mut keys: Vec<Option<&Key>> = vec![None; self.tallies.len()];
        for (key, slot) in &self.slots {
            keys[*slot] = Some(key);
        }
        self.shares.outside(&|slot| {
            let mut name = Fingerprinter::new("unit, 1");
            if let Some(Some((reading, tag, id, _))) = keys.get(slot) {
                if let Some(store) = self.memory.store(*reading) {
                    tell_apart(store, &mut name);
                }
                name.bytes(tag.as_bytes()).bytes(id.as_bytes());
            }
            name.maybe(self.memory.evidence(slot).as_ref().map(|evidence| evidence.0.as_slice()));
            name.finish()
        })
    }

    /// What to leave for later surveys; `None` where nothing is wanted.
    pub(super) fn leave(&mut self) -> Option<ToKeep> {
        let in_one_walk = self.looked.len() == 1 && self.memory.recalled().next().is_none();
        let outside = in_one_walk.then(|| self.outside());
        let alive: HashSet<usize> = self.of_units.iter().flatten().copied().collect();
        std::mem::take(&mut self.memory).leave(&alive, outside)
    }

    /// Slots of layers whose size an earlier survey measured.
    pub(super) fn recalled(&self) -> HashSet<usize> {
        self.memory.recalled().collect()
    }

    /// Drops all that was measured.
    fn forget(&mut self) {
        self.slots.clear();
        self.tallies.clear();
        self.shares = Shares::default();
        self.inodes = InodeHoldings::default();
        self.errors.clear();
        self.looked.clear();
        self.memory.forget();
    }

    /// Gives each unit its slot; returns the slots that have not been measured.
    fn assign(&mut self) -> HashSet<usize> {
        let mut fresh = HashSet::new();
        self.of_units.clear();
        for (position, reading) in self.readings.iter().enumerate() {
            let mut slots = Vec::new();
            for unit in reading.units() {
                let key = (position, unit.tag, unit.id.to_owned(), unit.parts.to_vec());
                let next = self.slots.len();
                let slot = *self.slots.entry(key).or_insert(next);
                if slot == self.tallies.len() {
                    self.tallies.push(Tally::default());
                    fresh.insert(slot);
                }
                slots.push(slot);
            }
            self.of_units.push(slots);
        }
        fresh
    }

    fn trees(&self, fresh: &HashSet<usize>) -> Vec<Tree> {
        let mut trees = Vec::new();
        let mut first_root = 0;
        for (reading, slots) in self.readings.iter().zip(&self.of_units) {
            let units = reading.units();
            for (view, slot) in units.iter().zip(slots).filter(|(_, slot)| fresh.contains(slot)) {
                trees.extend(view.parts.iter().map(|(root, path, scope)| Tree {
                    root: first_root + root,
                    path: path.clone(),
                    unit: *slot,
                    scope: *scope,
                }));
            }
            first_root += reading.roots().len();
        }
        trees
    }

    /// The open directories of all stores.
    fn within(&self) -> Within {
        let mut all = Within::default();
        for places in self.readings.iter().filter_map(|reading| reading.places()) {
            all.extend(places.within());
        }
        all
    }

    /// Roots that are counted from the top by a unit of their own; one may lie inside another
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
        self.inodes.append(measured.inode_holdings);
        self.errors.extend(measured.errors);
    }

    /// Reads the records of those stores again where somebody wrote meanwhile; returns those
    /// that hold something else now.
    fn read_again(&mut self, request: &Request) -> Vec<PathBuf> {
        let mut moved = Vec::new();
        for (position, reading) in self.readings.iter_mut().enumerate() {
            if !reading.moved() {
                continue;
            }
            let before = contents(reading.as_ref());
            if let Err(error) = reading.read_again(request) {
                self.stale.insert(position, error.to_string());
                continue;
            }
            self.stale.remove(&position);
            // A token that moved without a record moving (every podman command does that)
            // changes nothing.
            if contents(reading.as_ref()) != before {
                moved.extend(reading.roots().into_iter().next());
            }
        }
        moved
    }

    fn report_movers(&self, moved: &[PathBuf], findings: &mut Vec<Finding>) {
        for path in moved {
            let message =
                "kept changing while it was measured; what came last is not in the figures".to_owned();
            findings.push(incomplete(path, message));
        }
    }

    /// Says which finished layers somebody wrote to.
    fn report_contradictions(&self, request: &Request, findings: &mut Vec<Finding>) {
        let differs: Vec<(usize, String)> = self.memory.contradictions().collect();
        if differs.is_empty() {
            return;
        }
        let slots: HashSet<usize> = differs.iter().map(|(slot, _)| *slot).collect();
        let roots: Vec<PathBuf> = self.readings.iter().flat_map(|reading| reading.roots()).collect();
        let trees = self.trees(&slots);
        // One that was replaced meanwhile is another layer.
        let still = evidence::gather(&roots, &self.within(), &trees, request.threads);
        let still = |slot: &usize| still.get(slot).copied() == self.memory.evidence(*slot);
        let differs: Vec<_> = differs.into_iter().filter(|(slot, _)| still(slot)).collect();
        let more = differs.len().saturating_sub(MOST_ERRORS);
        for (slot, how) in differs.into_iter().take(MOST_ERRORS) {
            let tree = trees.iter().find(|tree| tree.unit == slot);
            let path = tree.and_then(|tree| Some(roots.get(tree.root)?.join(&tree.path))).unwrap_or_default();
            let message = format!("{how}: somebody wrote to a finished layer");
            findings.push(Finding { path, message, incomplete: false });
        }
        if more > 0 {
            let message = format!("{more} more finished layers changed since an earlier scan");
            findings.push(Finding { path: PathBuf::new(), message, incomplete: false });
        }
    }

    fn report_errors(&self, findings: &mut Vec<Finding>) {
        let alive: HashSet<_> = self.of_units.iter().flatten().copied().collect();
        let mut stale: HashSet<usize> = HashSet::new();
        for (position, why) in &self.stale {
            let root = self.readings[*position].roots().into_iter().next().unwrap_or_default();
            let message = format!("changed while it was measured and cannot be read again: {why}");
            findings.push(incomplete(&root, message));
            stale.extend(&self.of_units[*position]);
        }
        // What vanished under the walk was deleted by its owner: that is no fault, unless the
        // records still have it because they are old.
        let faults = self
            .errors
            .iter()
            .filter(|error| alive.contains(&error.unit) && (!error.vanished || stale.contains(&error.unit)));
        let mut left = 0_usize;
        for (count, error) in faults.enumerate() {
            if count < MOST_ERRORS {
                findings.push(incomplete(&error.path, error.message.clone()));
            } else {
                left += 1;
            }
        }
        if left > 0 {
            findings.push(incomplete(Path::new(""), format!("{left} more files could not be read")));
        }
    }
}

/// What a reading holds, to compare it with a later one.
fn contents(reading: &dyn Reading) -> Vec<(&'static str, String, Vec<Part>)> {
    let units = reading.units().into_iter();
    units.map(|unit| (unit.tag, unit.id.to_owned(), unit.parts.to_vec())).collect()
}

#[cfg(test)]
mod tests;
