//! Fair shares: the bytes of each node, divided among the images and containers that reach it. The shares add up.
//! Pure.

use std::cmp::Reverse;

use super::{Refs, Root};
use crate::model::{ContainerIx, ImageIx, Inventory, NodeIx, NodeKind};

/// Bytes divided among images and containers. The bytes of a node are divided equally among the images and
/// containers that reach it, which is the Shapley value of a cost that its users share. The sum of all shares and
/// fields is exactly the sum of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fair {
    /// Shares of the images, then of the containers.
    shares: Vec<u64>,
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
        self.shares[ix.get()]
    }

    pub fn of_container(&self, ix: ContainerIx) -> u64 {
        self.shares[self.images + ix.get()]
    }

    /// Returns the shares of all images together.
    pub fn images(&self) -> u64 {
        sum(self.shares[..self.images].iter().copied())
    }

    /// Returns the shares of all containers together.
    pub fn containers(&self) -> u64 {
        sum(self.shares[self.images..].iter().copied())
    }

    /// Returns the sum of all shares and fields.
    pub fn total(&self) -> u64 {
        sum([self.images(), self.containers(), self.build_cache, self.leaks, self.metadata, self.other])
    }
}

fn sum(all: impl IntoIterator<Item = u64>) -> u64 {
    all.into_iter().fold(0, u64::saturating_add)
}

/// Returns the bytes of a node in its store's size according to `du`: temporary files are outside the store.
pub fn size_in_store(inventory: &Inventory, ix: NodeIx) -> u64 {
    let node = &inventory[ix];
    if node.kind == NodeKind::TemporaryFile { 0 } else { node.size.bytes }
}

/// Divides the bytes of each node, as `bytes` returns them. Takes time in proportion to the sum of all chains.
pub fn fair(inventory: &Inventory, refs: &Refs, bytes: impl Fn(NodeIx) -> u64) -> Fair {
    let mut fair = Fair { images: refs.images, ..Fair::default() };
    let mut divided: u128 = 0;
    // Part of a node for each root that reaches it: whole bytes, and the fraction in units of 2^-64.
    let mut parts: Vec<(u64, u64)> = Vec::with_capacity(inventory.nodes.len());
    for (position, node) in inventory.nodes.iter().enumerate() {
        let bytes = bytes(position.into());
        let Some(count) = std::num::NonZeroU64::new(refs.refcount(position.into()).into()) else {
            let sum = match node.kind {
                NodeKind::StoreMetadata | NodeKind::StoreRecords => &mut fair.metadata,
                _ if refs.is_cached(position.into()) => &mut fair.build_cache,
                _ if refs.reached_by(position.into()).next().is_some() => &mut fair.leaks,
                _ => &mut fair.other,
            };
            *sum = sum.saturating_add(bytes);
            parts.push((0, 0));
            continue;
        };
        divided += u128::from(bytes);
        let rest = (u128::from(bytes % count) << 64) / u128::from(count.get());
        #[allow(clippy::cast_possible_truncation)] // less than a whole byte
        parts.push((bytes / count, rest as u64));
    }
    let roots = refs.images + refs.containers;
    let mut rests: Vec<(u64, usize)> = Vec::with_capacity(roots);
    for (root, reached) in refs.reach[..roots].iter().enumerate() {
        let (mut whole, mut rest) = (0_u128, 0_u128);
        for (bytes, part) in reached.iter().map(|node| parts[node.get()]) {
            whole += u128::from(bytes);
            rest += u128::from(part);
        }
        #[allow(clippy::cast_possible_truncation)] // the lower half
        rests.push((rest as u64, root));
        fair.shares.push(u64::try_from(whole + (rest >> 64)).unwrap_or(u64::MAX));
    }
    // Rounding down left at most one byte for each root. The roots with the largest remainders get them. Equal
    // remainders are ordered by id, so that the next scan gives the same result.
    let left = divided.saturating_sub(fair.shares.iter().map(|share| u128::from(*share)).sum());
    let left = usize::try_from(left).map_or(roots, |left| left.min(roots));
    rests.sort_unstable_by_key(|(rest, root)| (Reverse(*rest), id(inventory, refs.root(*root)), *root));
    for (_, root) in &rests[..left] {
        fair.shares[*root] += 1;
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
