//! What several units share: nodes of their own in the inventory.

use std::collections::{HashMap, HashSet};

use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Fingerprinter, SharedExtents, SharedInodes};
use crate::model::{Inventory, Node, NodeIx, NodeKind, Size};

/// What all walks of a survey found to be shared. Units are slots.
#[derive(Debug, Default)]
pub(super) struct Shares {
    pub(super) inodes: Vec<SharedInodes>,
    pub(super) extents: Vec<SharedExtents>,
}

impl Shares {
    /// Names those who share with somebody outside the trees that were walked together,
    /// and how much. `name` tells a unit from all others; slots are other ones in each survey.
    pub(super) fn outside(&self, name: &dyn Fn(usize) -> Fingerprint) -> HashSet<Fingerprint> {
        let inodes = self.inodes.iter().filter(|group| group.outside).map(|group| {
            let mut all = Fingerprinter::new("inodes shared with others, 1");
            let mut names: Vec<_> = group.units.iter().map(|slot| name(*slot)).collect();
            names.sort_unstable();
            all.number(names.len() as u64);
            for name in names {
                all.bytes(&name.0);
            }
            let tally = group.tally;
            all.number(tally.bytes).number(tally.apparent_bytes).number(tally.inodes);
            all.finish()
        });
        let extents = self.extents.iter().filter(|group| group.outside).map(|group| {
            let mut all = Fingerprinter::new("extents shared with others, 1");
            let mut names: Vec<_> =
                group.counted.iter().map(|(slot, counted)| (name(*slot), *counted)).collect();
            names.sort_unstable();
            all.number(names.len() as u64);
            for (name, counted) in names {
                all.bytes(&name.0).number(counted);
            }
            all.number(group.physical_bytes);
            all.finish()
        });
        inodes.chain(extents).collect()
    }

    /// Adds what several units share as nodes of their own.
    pub(super) fn share(
        &self,
        inventory: &mut Inventory,
        nodes: &HashMap<usize, NodeIx>,
        costs: &[CostModel],
    ) {
        // By who holds them, so that the same store gives the same inventory however much of it was
        // measured this time.
        let holders =
            |group: &SharedInodes| distinct(group.units.iter().filter_map(|slot| nodes.get(slot).copied()));
        let mut inodes: Vec<_> = self.inodes.iter().map(|group| (holders(group), group)).collect();
        inodes.sort_by(|(a, one), (b, other)| (a, one.outside).cmp(&(b, other.outside)));
        for (holders, group) in inodes {
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
        for group in &self.extents {
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
