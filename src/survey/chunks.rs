//! Inode chunks of XFS between the walk and the inventory: what no walk can attribute, and
//! what becomes of chunks that several nodes hold.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::find::Candidate;
use super::weigh::{add_shared, distinct};
use crate::graphroot::units::What;
use crate::inventory::{Inventory, NodeIx, NodeKind, Size};
use crate::sys::quiet::{self, Facts};
use crate::usage::inode_chunks::InodeHoldings;

/// The symlinks in the overlay driver's directory `l` are bookkeeping, but each goes with
/// its layer, and it was made with the layer, among the layer's inodes. So its inode is
/// the layer's where chunks are counted. `slots` belong to the candidate's units.
pub(super) fn hand_over_short_names(candidate: &Candidate, slots: &[usize], holdings: &mut InodeHoldings) {
    if candidate.snapshot.places.driver != "overlay" {
        return;
    }
    let layers = candidate.units.iter().zip(slots).filter(|(unit, _)| matches!(unit.what, What::Layer(_)));
    holdings.hand_over(layers.filter_map(|(unit, slot)| {
        let facts = short_name(&unit.path)?;
        Some((facts.device, facts.inode, *slot))
    }));
}

/// The symlink `l/NAME` of a layer's directory, whose file `link` has the name.
fn short_name(layer: &Path) -> Option<Facts> {
    let name = quiet::read(&layer.join("link"), 64).ok()?;
    let name = name.trim_ascii();
    // 26 letters and digits (container-libs, `storage/drivers/overlay`, `generateID`).
    if name.is_empty() || !name.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    quiet::facts(&layer.parent()?.join("l").join(OsStr::from_bytes(name))).ok()
}

/// Chunks that one node holds go with it; others wait for all their holders.
pub(super) fn share(holdings: &InodeHoldings, inventory: &mut Inventory, nodes: &HashMap<usize, NodeIx>) {
    // Several units may be one node, so several groups may have the same holders.
    let mut groups: BTreeMap<(Vec<NodeIx>, bool), u64> = BTreeMap::new();
    for group in holdings.chunks(&|slot| nodes.contains_key(&slot)) {
        let holders = distinct(group.units.iter().filter_map(|slot| nodes.get(slot).copied()));
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
