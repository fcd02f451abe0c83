//! Measures all units of all stores together, and again what changed meanwhile.
//!
//! A walk takes seconds, and a node goes on working. After each walk the records are
//! compared with what they were; if they moved they are read again, and only what is new
//! is walked. Layers never change once committed, so what was measured stays valid. Only
//! what several units share must be seen in one walk: where that matters all is walked once
//! more.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::reading::{Part, Reading};
use super::{Request, Weigh, chunks, incomplete};
use crate::inventory::{Finding, Inventory, Node, NodeIx, NodeKind, Size};
use crate::usage::filesystem::CostModel;
use crate::usage::inode_chunks::InodeHoldings;
use crate::usage::{
    self, Extents, Progress, SharedExtents, SharedInodes, Tally, Tree, WalkError, WalkOptions,
};

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
    shared_inodes: Vec<SharedInodes>,
    shared_extents: Vec<SharedExtents>,
    inodes: InodeHoldings,
    errors: Vec<WalkError>,
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
            shared_inodes: Vec::new(),
            shared_extents: Vec::new(),
            inodes: InodeHoldings::default(),
            errors: Vec::new(),
            stale: HashMap::new(),
        }
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
        let mut walks = 0;
        let mut moved = Vec::new();
        for _ in 0..ROUNDS {
            walks += usize::from(self.walk(request, wanted, progress));
            moved = self.read_again(request);
            if moved.is_empty() {
                break;
            }
        }
        if walks > 1 && self.shares_with_outside() {
            // A walk takes what it shares with another walk's trees for somebody else's, and
            // each of the two counts it. Once more, in one walk.
            self.forget();
            self.walk(request, wanted, progress);
            moved = self.read_again(request);
        }
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

    /// Measures the units that have not been measured; `false` if there are none.
    fn walk(&mut self, request: &Request, wanted: Wanted, progress: &Progress) -> bool {
        let fresh = self.assign();
        let trees = self.trees(&fresh);
        if trees.is_empty() {
            return false;
        }
        let roots: Vec<PathBuf> = self.readings.iter().flat_map(|reading| reading.roots()).collect();
        let options = WalkOptions {
            threads: request.threads,
            extents: wanted.extents,
            inode_chunks: wanted.inode_chunks,
            apart: &self.roots_with_trees(),
            progress: Some(progress),
        };
        self.absorb(usage::measure(&roots, &trees, &options), &fresh);
        true
    }

    /// Some inode or extent is held by more than the trees that were walked together.
    fn shares_with_outside(&self) -> bool {
        self.shared_inodes.iter().any(|group| group.outside)
            || self.shared_extents.iter().any(|group| group.outside)
    }

    /// Drops all that was measured.
    fn forget(&mut self) {
        self.slots.clear();
        self.tallies.clear();
        self.shared_inodes.clear();
        self.shared_extents.clear();
        self.inodes = InodeHoldings::default();
        self.errors.clear();
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

    fn absorb(&mut self, measured: usage::Measured, fresh: &HashSet<usize>) {
        for slot in fresh {
            if let Some(tally) = measured.units.get(*slot) {
                self.tallies[*slot] = *tally;
            }
        }
        self.shared_inodes.extend(measured.shared_inodes);
        self.shared_extents.extend(measured.shared_extents);
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

    /// Adds what several units share as nodes of their own.
    pub(super) fn share(
        &self,
        inventory: &mut Inventory,
        nodes: &HashMap<usize, NodeIx>,
        costs: &[CostModel],
    ) {
        for group in &self.shared_inodes {
            let holders = distinct(group.units.iter().filter_map(|slot| nodes.get(slot).copied()));
            let Some(first) = holders.first().copied() else { continue };
            let cost = costs[inventory.nodes[first.get()].filesystem.get()];
            let size = Size {
                bytes: group.tally.bytes,
                apparent_bytes: group.tally.apparent_bytes,
                inodes: group.tally.inodes,
                frees_bytes: cost.frees(&group.tally),
            };
            if holders.len() == 1 && !group.outside {
                inventory.nodes[first.get()].size += size;
            } else {
                add_shared(inventory, NodeKind::SharedInodes, &holders, size, group.outside);
            }
        }
        for group in &self.shared_extents {
            let mut holders = Vec::new();
            for (slot, counted) in &group.counted {
                let Some(node) = nodes.get(slot).copied() else { continue };
                let size = &mut inventory.nodes[node.get()].size;
                size.frees_bytes = size.frees_bytes.saturating_sub(*counted);
                holders.push(node);
            }
            let holders = distinct(holders.into_iter());
            let Some(first) = holders.first().copied() else { continue };
            let size = Size { frees_bytes: group.physical_bytes, ..Size::default() };
            if holders.len() == 1 && !group.outside {
                inventory.nodes[first.get()].size += size;
            } else {
                add_shared(inventory, NodeKind::SharedExtents, &holders, size, group.outside);
            }
        }
        chunks::share(&self.inodes, inventory, nodes);
    }
}

pub(super) fn distinct(nodes: impl Iterator<Item = NodeIx>) -> Vec<NodeIx> {
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

pub(super) fn add_shared(
    inventory: &mut Inventory,
    kind: NodeKind,
    holders: &[NodeIx],
    size: Size,
    outside: bool,
) {
    let Some(first) = holders.first() else { return };
    let at = NodeIx::from(inventory.nodes.len());
    let first = &inventory.nodes[first.get()];
    let (store, filesystem, path) = (first.store, first.filesystem, first.path.clone());
    let id = format!("{} nodes share", holders.len());
    inventory.nodes.push(Node { kind, id, store, filesystem, path, size, needs: Vec::new(), layer: None });
    for holder in holders {
        inventory.nodes[holder.get()].needs.push(at);
    }
    if outside {
        inventory.anchored.push(at);
    }
}

/// What a reading holds, to compare it with a later one.
fn contents(reading: &dyn Reading) -> Vec<(&'static str, String, Vec<Part>)> {
    let units = reading.units().into_iter();
    units.map(|unit| (unit.tag, unit.id.to_owned(), unit.parts.to_vec())).collect()
}

#[cfg(test)]
mod tests;
