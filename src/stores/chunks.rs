//! What becomes of inode chunks of XFS in the inventory.

use std::collections::{BTreeMap, HashMap};

use super::shares::{add_shared, distinct};
use crate::disk::inode_chunks::InodeHoldings;
use crate::model::{Inventory, NodeIx, NodeKind, Size};

/// Chunks that one node holds go with it; others wait for all their holders.
pub(super) fn share(holdings: &InodeHoldings, inventory: &mut Inventory, nodes: &HashMap<usize, NodeIx>) {
    // Several units may be one node, so several groups may have the same holders.
    let mut groups: BTreeMap<(Vec<NodeIx>, bool), u64> = BTreeMap::new();
    for group in holdings.chunks(&|slot| nodes.contains_key(&slot)) {
        let mut holders = distinct(group.units.iter().filter_map(|slot| nodes.get(slot).copied()));
        // A deletion writes the record files anew, in another chunk or in this one: they do
        // not keep it.
        let rewritten = |node: &NodeIx| inventory.nodes[node.get()].kind == NodeKind::StoreRecords;
        if !holders.iter().all(rewritten) {
            holders.retain(|node| !rewritten(node));
        }
        *groups.entry((holders, group.outside)).or_default() += group.bytes;
    }
    for ((holders, outside), frees_bytes) in groups {
        let size = Size { frees_bytes, ..Size::default() };
        match holders.as_slice() {
            [only] if !outside => inventory.nodes[only.get()].size += size,
            _ => add_shared(inventory, NodeKind::SharedInodeChunks, &holders, size, outside),
        }
    }
}
