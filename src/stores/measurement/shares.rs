//! Shared inodes and extents, as nodes of their own in the inventory.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::disk::SharedInodes;
use crate::disk::filesystem::CostModel;
use crate::disk::inode_chunks::{ChunkGroup, InodeChunks};
use crate::disk::sharing::SharedExtents;
use crate::model::{Inventory, Node, NodeIx, NodeKind, Size};

/// Shared inodes and extents of all walks of a scan. Units are slots.
#[derive(Debug, Default)]
pub(in crate::stores) struct Shares {
    pub(in crate::stores) inodes: Vec<SharedInodes>,
    pub(in crate::stores) extents: Vec<SharedExtents>,
}

impl Shares {
    /// Returns true if an inode is also used outside the trees that were walked together.
    pub(super) fn has_links_outside(&self) -> bool {
        self.inodes.iter().any(|group| group.outside)
    }

    /// Adds shared inodes and extents as nodes of their own.
    pub(in crate::stores) fn share(
        &self,
        inventory: &mut Inventory,
        nodes: &HashMap<usize, NodeIx>,
        costs: &[CostModel],
    ) {
        // Sorted by their holders, so that the same store results in the same inventory, whatever part of it was
        // measured by this scan.
        let mut inodes: Vec<_> = Vec::new();
        for group in &self.inodes {
            inodes.push((distinct(group.units.iter().filter_map(|slot| nodes.get(slot).copied())), group));
        }
        inodes.sort_by(|(a, group_a), (b, group_b)| (a, group_a.outside).cmp(&(b, group_b.outside)));
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
            let counted = group.counted.iter().fold(0, |sum: u64, (_, counted)| sum.saturating_add(*counted));
            let saved = inventory.saved_bytes.entry(inventory.nodes[first.get()].filesystem).or_default();
            *saved = saved.saturating_add(counted.saturating_sub(group.physical_bytes));
            let size = Size { frees_bytes: group.physical_bytes, ..Size::default() };
            if holders.len() == 1 && !group.outside {
                inventory.nodes[first.get()].size += size;
            } else {
                add_shared(inventory, NodeKind::SharedExtents, &holders, size, group.outside);
            }
        }
    }
}

/// Adds XFS's inode chunks. Chunks of a single node are freed with it; other chunks are freed after the last of their
/// holders.
pub(super) fn share_chunks(chunks: &InodeChunks, inventory: &mut Inventory, nodes: &HashMap<usize, NodeIx>) {
    // Two groups may have the same holders after the record files are removed from them.
    let mut groups: BTreeMap<(Vec<NodeIx>, bool), u64> = BTreeMap::new();
    for ChunkGroup { mut holders, outside, bytes } in chunks.groups(&|slot| nodes.get(&slot).copied()) {
        // A deletion rewrites the record files, in another chunk or in this one, so they do not prevent a chunk from
        // being freed.
        let is_rewritten = |node: &NodeIx| inventory.nodes[node.get()].kind == NodeKind::StoreRecords;
        if !holders.iter().all(is_rewritten) {
            holders.retain(|node| !is_rewritten(node));
        }
        *groups.entry((holders, outside)).or_default() += bytes;
    }
    for ((holders, outside), frees_bytes) in groups {
        let size = Size { frees_bytes, ..Size::default() };
        match holders.as_slice() {
            [only] if !outside => inventory.nodes[only.get()].size += size,
            _ => add_shared(inventory, NodeKind::SharedInodeChunks, &holders, size, outside),
        }
    }
}

fn distinct(nodes: impl Iterator<Item = NodeIx>) -> Vec<NodeIx> {
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

fn add_shared(inventory: &mut Inventory, kind: NodeKind, holders: &[NodeIx], size: Size, outside: bool) {
    let Some(first) = holders.first() else { return };
    let shared = NodeIx::from(inventory.nodes.len());
    let first = &inventory.nodes[first.get()];
    let (store, filesystem, path) = (first.store, first.filesystem, first.path.clone());
    let id = format!("{} nodes share", holders.len());
    inventory.nodes.push(Node { kind, id, store, filesystem, path, size, needs: Vec::new(), layer: None });
    for holder in holders {
        inventory.nodes[holder.get()].needs.push(shared);
    }
    if outside {
        inventory.anchored.push(shared);
    }
}
