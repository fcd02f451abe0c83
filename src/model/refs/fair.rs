//! A column of bytes that adds up: every node divided among the images and containers that reach it. Pure.

use std::cmp::Reverse;

use super::{Refs, Root};
use crate::model::{ContainerIx, ImageIx, Inventory, NodeIx, NodeKind};

/// Bytes divided among images and containers: each node's equally among those that reach it, which is the
/// Shapley value of a cost that its users share. All of it together is the sum of the nodes, to the byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fair {
    /// By image, then by container.
    shares: Vec<u64>,
    images: usize,
    /// What build caches hold, and no image or container reaches.
    pub build_cache: u64,
    /// Of the rest, what leaks reach.
    pub leaks: u64,
    /// Of the rest, the stores' own bookkeeping.
    pub metadata: u64,
    /// Of the rest, everything else below the stores' roots.
    pub other: u64,
}

impl Fair {
    pub fn of_image(&self, at: ImageIx) -> u64 {
        self.shares[at.get()]
    }

    pub fn of_container(&self, at: ContainerIx) -> u64 {
        self.shares[self.images + at.get()]
    }

    /// Of all images.
    pub fn images(&self) -> u64 {
        sum(self.shares[..self.images].iter().copied())
    }

    /// Of all containers.
    pub fn containers(&self) -> u64 {
        sum(self.shares[self.images..].iter().copied())
    }

    /// The whole column.
    pub fn total(&self) -> u64 {
        sum([self.images(), self.containers(), self.build_cache, self.leaks, self.metadata, self.other])
    }
}

fn sum(all: impl IntoIterator<Item = u64>) -> u64 {
    all.into_iter().fold(0, u64::saturating_add)
}

/// What nodes count in a store's size as `du` says it: temporary files lie outside of the store.
pub fn size_in_store(inventory: &Inventory, at: NodeIx) -> u64 {
    let node = &inventory[at];
    if node.kind == NodeKind::TemporaryFile { 0 } else { node.size.bytes }
}

/// Divides what `bytes` says of each node. Takes time in proportion to the sum of all chains.
pub fn fair(inventory: &Inventory, refs: &Refs, bytes: impl Fn(NodeIx) -> u64) -> Fair {
    let mut fair = Fair { images: refs.images, ..Fair::default() };
    let mut divided: u128 = 0;
    // A node's part for each that reaches it: whole bytes, and the rest in units of 2^-64.
    let mut parts: Vec<(u64, u64)> = Vec::with_capacity(inventory.nodes.len());
    for (at, node) in inventory.nodes.iter().enumerate() {
        let bytes = bytes(at.into());
        let Some(count) = std::num::NonZeroU64::new(refs.refcount(at.into()).into()) else {
            let sum = match node.kind {
                NodeKind::StoreMetadata | NodeKind::StoreRecords => &mut fair.metadata,
                _ if refs.is_cached(at.into()) => &mut fair.build_cache,
                _ if refs.reached_by(at.into()).next().is_some() => &mut fair.leaks,
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
        #[allow(clippy::cast_possible_truncation)] // its lower half
        rests.push((rest as u64, root));
        fair.shares.push(u64::try_from(whole + (rest >> 64)).unwrap_or(u64::MAX));
    }
    // What rounding down left, at most a byte a root, goes to the largest remainders. Equal ones are told
    // apart by id, so that the column is the same in the next scan.
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
        Root::Image(at) => inventory[at].id.as_str(),
        Root::Container(at) => inventory[at].id.as_str(),
        Root::Leak(_) => "",
    }
}

#[cfg(test)]
mod tests;
