//! Fair shares: the bytes of each node, divided among the images and containers that reach it. The shares add up.
//! Pure.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::{Refs, Root};
use crate::model::ids::{ContainerIx, ImageIx, NodeIx};
use crate::model::inventory::Inventory;
use crate::model::node::NodeKind;

/// Bytes divided among images and containers. The bytes of a node are divided equally among the images and
/// containers that reach it, which is the Shapley value of a cost that its users share. The sum of all shares and
/// fields is exactly the sum of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fair {
    /// Shares by position: images, then containers. Those that reach none of the divided nodes are missing.
    shares: HashMap<usize, u64>,
    images: usize,
    /// Bytes that build caches contain, and no image or container reaches.
    pub build_cache: u64,
    /// Remaining bytes that leaks reach.
    pub leaks: u64,
    /// Remaining bytes of the stores' own bookkeeping.
    pub metadata: u64,
    /// Remaining bytes below the stores' roots.
    pub other: u64,
}

impl Fair {
    pub fn of_image(&self, ix: ImageIx) -> u64 {
        self.share(ix.get())
    }

    pub fn of_container(&self, ix: ContainerIx) -> u64 {
        self.share(self.images + ix.get())
    }

    fn share(&self, position: usize) -> u64 {
        self.shares.get(&position).copied().unwrap_or(0)
    }

    pub fn images(&self) -> u64 {
        sum(self.shares.iter().filter(|(position, _)| **position < self.images).map(|(_, share)| *share))
    }

    pub fn containers(&self) -> u64 {
        sum(self.shares.iter().filter(|(position, _)| **position >= self.images).map(|(_, share)| *share))
    }

    pub fn total(&self) -> u64 {
        sum([self.images(), self.containers(), self.build_cache, self.leaks, self.metadata, self.other])
    }
}

fn sum(all: impl IntoIterator<Item = u64>) -> u64 {
    all.into_iter().fold(0, u64::saturating_add)
}

/// Returns the bytes that a node occupies on its disk; 0 for temporary files, which are outside the store. `st_blocks`
/// counts extents that several files share with each of them, and compressed files with the length of their content; the
/// disk holds less.
pub fn bytes_on_disk(inventory: &Inventory, ix: NodeIx) -> u64 {
    let node = &inventory[ix];
    let shares = || node.needs.iter().any(|needed| inventory[*needed].kind == NodeKind::SharedExtents);
    match node.kind {
        NodeKind::TemporaryFile => 0,
        NodeKind::SharedExtents => node.size.frees_bytes,
        // Unknown, as on an overlay.
        _ if node.size.frees_bytes == 0 && !shares() => node.size.bytes,
        _ => node.size.bytes.min(node.size.frees_bytes),
    }
}

/// Divides the bytes of each node, as `bytes` returns them. Takes time in proportion to the sum of all chains.
pub fn fair(inventory: &Inventory, refs: &Refs, bytes: impl Fn(NodeIx) -> u64) -> Fair {
    fair_of(inventory, refs, (0..inventory.nodes.len()).map(NodeIx::from), bytes)
}

/// Divides the bytes of each of these nodes as [`fair`]. Takes time in proportion to the number of roots that reach
/// them.
pub fn fair_of(
    inventory: &Inventory,
    refs: &Refs,
    nodes: impl Iterator<Item = NodeIx>,
    bytes: impl Fn(NodeIx) -> u64,
) -> Fair {
    let mut fair = Fair { images: refs.images, ..Fair::default() };
    let mut divided: u128 = 0;
    // Parts of each root: whole bytes, and the fraction in units of 2^-64.
    let mut parts: HashMap<usize, (u128, u128)> = HashMap::new();
    for ix in nodes {
        let bytes = bytes(ix);
        let Some(count) = std::num::NonZeroU64::new(refs.refcount(ix).into()) else {
            let sum = match inventory[ix].kind {
                NodeKind::StoreMetadata | NodeKind::StoreRecords => &mut fair.metadata,
                _ if refs.is_cached(ix) => &mut fair.build_cache,
                _ if refs.reached_by(ix).next().is_some() => &mut fair.leaks,
                _ => &mut fair.other,
            };
            *sum = sum.saturating_add(bytes);
            continue;
        };
        divided += u128::from(bytes);
        let rest = (u128::from(bytes % count) << 64) / u128::from(count.get());
        for root in refs.reached_by(ix).filter(|root| !matches!(root, Root::Leak(_))) {
            let part = parts.entry(refs.position(root)).or_default();
            part.0 += u128::from(bytes / count);
            part.1 += rest;
        }
    }
    let mut rests: Vec<(u64, usize)> = Vec::with_capacity(parts.len());
    for (root, (whole, rest)) in parts {
        #[allow(clippy::cast_possible_truncation)] // the lower half
        rests.push((rest as u64, root));
        fair.shares.insert(root, u64::try_from(whole + (rest >> 64)).unwrap_or(u64::MAX));
    }
    // Rounding down left at most one byte for each root. The roots with the largest remainders get them. Equal
    // remainders are ordered by id, so that the next scan gives the same result.
    let left = divided.saturating_sub(fair.shares.values().map(|share| u128::from(*share)).sum());
    let left = usize::try_from(left).map_or(rests.len(), |left| left.min(rests.len()));
    rests.sort_unstable_by_key(|(rest, root)| (Reverse(*rest), id(inventory, refs.root(*root)), *root));
    for (_, root) in &rests[..left] {
        *fair.shares.entry(*root).or_default() += 1;
    }
    fair
}

fn id(inventory: &Inventory, root: Root) -> &str {
    match root {
        Root::Image(ix) => inventory[ix].id.as_str(),
        Root::Container(ix) => inventory[ix].id.as_str(),
        Root::Leak(_) => "",
    }
}

#[cfg(test)]
mod tests;
