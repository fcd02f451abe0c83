//! Measures all units of all stores together, and again what changed meanwhile.
//!
//! A walk takes seconds, and a node goes on working. After each walk the records are
//! compared with what they were; if they moved they are read again, and only what is new
//! is walked. Layers never change once committed, so what was measured stays valid.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::find::Candidate;
use super::{Request, chunks, incomplete};
use crate::graphroot::snapshot;
use crate::graphroot::units::{self, Part, Unit, What};
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
    candidates: Vec<Candidate>,
    slots: HashMap<Key, usize>,
    /// Slot of each unit of each candidate.
    of_units: Vec<Vec<usize>>,
    tallies: Vec<Tally>,
    shared_inodes: Vec<SharedInodes>,
    shared_extents: Vec<SharedExtents>,
    inodes: InodeHoldings,
    errors: Vec<WalkError>,
}

fn tag(what: &What) -> &'static str {
    match what {
        What::Layer(_) => "layer",
        What::LayerContent(_) => "content",
        What::Image(_) => "image",
        What::Container(_) => "container",
        What::Debris(debris) => debris.class(),
        What::Metadata => "metadata",
        What::Other(_) => "other",
    }
}

impl Weighing {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        Self {
            candidates,
            slots: HashMap::new(),
            of_units: Vec::new(),
            tallies: Vec::new(),
            shared_inodes: Vec::new(),
            shared_extents: Vec::new(),
            inodes: InodeHoldings::default(),
            errors: Vec::new(),
        }
    }

    pub(super) fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter()
    }

    /// Tallies of a candidate's units, one by one.
    pub(super) fn tallies(&self, candidate: usize) -> Vec<Tally> {
        self.of_units[candidate].iter().map(|slot| self.tallies[*slot]).collect()
    }

    /// Slots of a candidate's units, one by one.
    pub(super) fn slots(&self, candidate: usize) -> &[usize] {
        &self.of_units[candidate]
    }

    /// Walks until the records and what was walked belong together.
    pub(super) fn run(
        &mut self,
        request: &Request,
        wanted: Wanted,
        progress: &Progress,
        findings: &mut Vec<Finding>,
    ) {
        let roots: Vec<PathBuf> = self.candidates.iter().flat_map(roots).collect();
        for round in 1.. {
            let fresh = self.assign();
            let trees = self.trees(&fresh);
            if !trees.is_empty() {
                let options = WalkOptions {
                    threads: request.threads,
                    extents: wanted.extents,
                    inode_chunks: wanted.inode_chunks,
                    progress: Some(progress),
                };
                self.absorb(usage::measure(&roots, &trees, &options), &fresh);
            }
            let moved = self.read_again(request);
            if moved.is_empty() {
                break;
            }
            if round == ROUNDS {
                self.assign();
                self.report_movers(&moved, findings);
                break;
            }
        }
        if wanted.inode_chunks {
            for (candidate, slots) in self.candidates.iter().zip(&self.of_units) {
                chunks::hand_over_short_names(candidate, slots, &mut self.inodes);
            }
        }
        self.report_errors(findings);
    }

    /// Gives each unit its slot; returns the slots that have not been measured.
    fn assign(&mut self) -> HashSet<usize> {
        let mut fresh = HashSet::new();
        self.of_units.clear();
        for (position, candidate) in self.candidates.iter().enumerate() {
            let mut slots = Vec::with_capacity(candidate.units.len());
            for unit in &candidate.units {
                let key = (position, tag(&unit.what), unit.id.clone(), unit.parts.clone());
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
        for (candidate, slots) in self.candidates.iter().zip(&self.of_units) {
            for (unit, slot) in candidate.units.iter().zip(slots).filter(|(_, slot)| fresh.contains(slot)) {
                trees.extend(unit.parts.iter().map(|part| tree(candidate, first_root, *slot, part)));
            }
            first_root += roots(candidate).len();
        }
        trees
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

    /// Reads the records of those candidates again where somebody wrote meanwhile.
    fn read_again(&mut self, request: &Request) -> Vec<PathBuf> {
        let mut moved = Vec::new();
        for candidate in &mut self.candidates {
            if !snapshot::moved(&candidate.snapshot).unwrap_or(true) {
                continue;
            }
            let Ok(again) = snapshot::read(&candidate.snapshot.places, request.patience) else { continue };
            let sorted = units::sort(&again);
            // A token that moved without a record moving (every podman command does that)
            // changes nothing.
            let same = same_units(&sorted, &candidate.units);
            candidate.snapshot = again;
            candidate.units = sorted;
            if !same {
                moved.push(candidate.snapshot.places.graphroot.clone());
            }
        }
        moved
    }

    fn report_movers(&self, moved: &[PathBuf], findings: &mut Vec<Finding>) {
        for path in moved {
            let message =
                format!("changed {ROUNDS} times while it was measured; what came last is not in the figures");
            findings.push(incomplete(path, message));
        }
    }

    fn report_errors(&self, findings: &mut Vec<Finding>) {
        let alive: HashSet<_> = self.of_units.iter().flatten().copied().collect();
        // What vanished under the walk was deleted by its owner: that is no fault.
        let faults = self.errors.iter().filter(|error| alive.contains(&error.unit) && !error.vanished);
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

fn same_units(a: &[Unit], b: &[Unit]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| tag(&a.what) == tag(&b.what) && a.id == b.id && a.parts == b.parts)
}

/// The directories that trees of a candidate are given below. The driver's directory is a
/// root of its own: podman and CRI-O mount it onto itself, and no other mount is crossed.
fn roots(candidate: &Candidate) -> Vec<PathBuf> {
    let places = &candidate.snapshot.places;
    places.areas().flat_map(|area| [area.to_path_buf(), area.join(&places.driver)]).collect()
}

fn tree(candidate: &Candidate, first_root: usize, unit: usize, part: &Part) -> Tree {
    let (area, path, scope) = part;
    let below = path.strip_prefix(&candidate.snapshot.places.driver);
    let (root, path) = match below {
        Ok(below) => (1, below.to_path_buf()),
        Err(_) => (0, path.clone()),
    };
    Tree { root: first_root + 2 * area + root, path, unit, scope: *scope }
}
