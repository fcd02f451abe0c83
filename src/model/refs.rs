//! Reference counts, exclusive bytes, and the bytes that deleting a set would free. Pure.
//!
//! A root (image, container, leak) *reaches* its own nodes and all nodes that those need. A node is freed when the
//! last root that reaches it is deleted. The exclusive bytes of a set are therefore those of the nodes that no root
//! outside the set reaches.

use rayon::prelude::*;

use super::ids::{ContainerIx, ImageIx, LeakIx, NodeIx, StoreIx};
use super::inventory::{Inventory, Use};
use super::node::{NodeKind, Size};

mod column;
mod fair;
mod groups;
mod summary;

pub use column::{Column, Line, LineKind, column, fit, has_bytes_on, kind_of, size_on_disk};
pub use fair::{Fair, bytes_on_disk, fair, fair_of};
pub use groups::{Group, GroupBy, GroupKeys, GroupKind, groups};
pub use summary::{
    Breakdown, RowKind, Snapshotter, Standing, SummaryRow, breakdown, is_deletable, keep_reached_leaks,
    reclaimable, rows, second_snapshotter, snapshotters, standing,
};

/// Object that keeps nodes on the disk and can itself be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    Image(ImageIx),
    Container(ContainerIx),
    Leak(LeakIx),
}

#[derive(Clone, Debug)]
pub struct Refs {
    reach: Vec<Box<[NodeIx]>>,
    images: usize,
    containers: usize,
    /// By node: number of roots and unlisted uses that reach it, plus one if it is anchored.
    holders: Vec<u32>,
    /// By node: position of the first use that needs it.
    uses: Vec<Option<u32>>,
    /// By image: a container or a use from elsewhere names it.
    named: Vec<bool>,
    /// By node: number of images and containers of its own store that reach it.
    store_refcounts: Vec<u32>,
    /// By node: number of images and containers that reach it.
    refcounts: Vec<u32>,
    /// By node: a build cache reaches it.
    cached: Vec<bool>,
    /// By node: start of its slice of `reached_by`, which contains the roots that reach it, ascending.
    starts: Vec<u32>,
    reached_by: Vec<u32>,
    /// By store: its nodes, and its images, containers and leaks in this order. A host may have thousands of stores, so
    /// no store searches the tables of all.
    by_store: Vec<StoreObjects>,
}

/// Nodes of a store, and its images, containers and leaks in this order.
type StoreObjects = (Vec<NodeIx>, Vec<Root>);

/// Size of one root. `total = shared + exclusive`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootSizes {
    pub total: Size,
    /// Part that something else reaches too.
    pub shared: Size,
    /// Part that only it reaches. `exclusive.frees_bytes` is what the filesystem is expected to free if only this
    /// root is deleted now.
    pub exclusive: Size,
}

impl RootSizes {
    /// Adds a node with `others` holders outside the set. A read-only store counts as a holder of its own nodes:
    /// nothing frees them, but a node that only one image reaches is still exclusive to that image.
    fn add(&mut self, inventory: &Inventory, node: NodeIx, others: u32) {
        let node = &inventory[node];
        let read_only = inventory[node.store].read_only;
        self.total += node.size;
        match others {
            0 => self.exclusive += node.size,
            1 if read_only => self.exclusive += Size { frees_bytes: 0, ..node.size },
            _ => self.shared += node.size,
        }
    }
}

impl Refs {
    /// Computes the reference counts, in time proportional to the sum of all chains. Cyclic chains are walked once.
    #[must_use]
    pub fn new(inventory: &Inventory) -> Self {
        let nodes = inventory.nodes.len();
        let holds: Vec<_> = inventory
            .images
            .iter()
            .map(|image| &image.holds)
            .chain(inventory.containers.iter().map(|container| &container.holds))
            .chain(inventory.leaks.iter().map(|leak| &leak.holds))
            .collect();
        let reach: Vec<_> = holds
            .par_iter()
            .map_init(|| Walker::new(inventory), |walker, holds| walker.reach(holds))
            .collect();
        let mut walker = Walker::new(inventory);

        let stores: Vec<_> = inventory
            .images
            .iter()
            .map(|image| image.store)
            .chain(inventory.containers.iter().map(|container| container.store))
            .collect();
        let mut holders = vec![0_u32; nodes];
        let mut refcounts = vec![0_u32; nodes];
        let mut store_refcounts = vec![0_u32; nodes];
        // In a separate table: the other facts of the nodes would displace it from the processor's cache.
        let store_of: Vec<_> = inventory.nodes.iter().map(|node| node.store).collect();
        for (root, reached) in reach.iter().enumerate() {
            let store = stores.get(root).copied();
            for node in reached {
                holders[node.get()] += 1;
                refcounts[node.get()] += u32::from(store.is_some());
                store_refcounts[node.get()] += u32::from(store == Some(store_of[node.get()]));
            }
        }
        let (starts, reached_by) = invert(&reach, &holders);
        for node in walker.reach(&inventory.anchored) {
            holders[node.get()] += 1;
        }
        let mut cached = vec![false; nodes];
        for node in inventory.build_caches.iter().flat_map(|cache| walker.reach(&cache.holds)) {
            cached[node.get()] = true;
        }
        let mut uses: Vec<Option<u32>> = vec![None; nodes];
        for (position, user) in (0_u32..).zip(&inventory.uses) {
            for node in walker.reach(&user.holds) {
                holders[node.get()] += u32::from(!user.is_listed);
                if inventory.is_lendable(node) {
                    uses[node.get()].get_or_insert(position);
                }
            }
        }
        let mut named = vec![false; inventory.images.len()];
        let by_containers = inventory.containers.iter().flat_map(|container| container.images());
        by_containers
            .chain(inventory.uses.iter().flat_map(|user| user.images.iter().copied()))
            .for_each(|image| named[image.get()] = true);
        let mut by_store: Vec<StoreObjects> = Vec::new();
        for (position, node) in inventory.nodes.iter().enumerate() {
            of_store(&mut by_store, node.store).0.push(position.into());
        }
        let images = inventory
            .images
            .iter()
            .enumerate()
            .map(|(position, image)| (image.store, Root::Image(position.into())));
        let containers = inventory
            .containers
            .iter()
            .enumerate()
            .map(|(position, container)| (container.store, Root::Container(position.into())));
        let leaks = inventory
            .leaks
            .iter()
            .enumerate()
            .map(|(position, leak)| (leak.store, Root::Leak(position.into())));
        for (store, root) in images.chain(containers).chain(leaks) {
            of_store(&mut by_store, store).1.push(root);
        }
        Self {
            reach,
            by_store,
            named,
            images: inventory.images.len(),
            containers: inventory.containers.len(),
            holders,
            uses,
            store_refcounts,
            refcounts,
            cached,
            starts,
            reached_by,
        }
    }

    /// Returns the first use from elsewhere that needs a node.
    #[must_use]
    pub fn use_of<'b>(&self, inventory: &'b Inventory, node: NodeIx) -> Option<&'b Use> {
        let position = self.uses[node.get()]?;
        inventory.uses.get(position as usize)
    }

    /// Returns whether a container, or a use from elsewhere, names an image.
    #[must_use]
    pub fn is_named(&self, image: ImageIx) -> bool {
        self.named[image.get()]
    }

    /// Returns the use from elsewhere that would lose layers if an image were deleted, because the image is the
    /// last one of its store that reaches them. The store's own tools do not check this.
    #[must_use]
    pub fn needed_elsewhere<'b>(&self, inventory: &'b Inventory, image: ImageIx) -> Option<&'b Use> {
        self.needed_with(inventory, image, &self.store_refcounts)
    }

    fn needed_with<'b>(
        &self,
        inventory: &'b Inventory,
        image_ix: ImageIx,
        store_refcounts: &[u32],
    ) -> Option<&'b Use> {
        let image = &inventory[image_ix];
        let reached = self.reach(Root::Image(image_ix)).iter().copied();
        let mut last =
            reached.filter(|node| store_refcounts[node.get()] == 1 && inventory.is_own(image, *node));
        last.find_map(|node| self.use_of(inventory, node))
    }

    #[must_use]
    pub fn nodes_of(&self, store: StoreIx) -> &[NodeIx] {
        self.by_store.get(store.get()).map_or(&[], |(nodes, _)| nodes)
    }

    /// Returns the images, containers and leaks of a store, in this order.
    #[must_use]
    pub fn roots_of(&self, store: StoreIx) -> &[Root] {
        self.by_store.get(store.get()).map_or(&[], |(_, roots)| roots)
    }

    fn position(&self, root: Root) -> usize {
        match root {
            Root::Image(ix) => ix.get(),
            Root::Container(ix) => self.images + ix.get(),
            Root::Leak(ix) => self.images + self.containers + ix.get(),
        }
    }

    fn root(&self, position: usize) -> Root {
        match position.checked_sub(self.images) {
            None => Root::Image(position.into()),
            Some(rest) => match rest.checked_sub(self.containers) {
                None => Root::Container(rest.into()),
                Some(rest) => Root::Leak(rest.into()),
            },
        }
    }

    /// Returns all nodes that a root reaches, its own nodes first.
    #[must_use]
    pub fn reach(&self, root: Root) -> &[NodeIx] {
        &self.reach[self.position(root)]
    }

    /// Returns whether the sizes of everything that a root reaches are known.
    #[must_use]
    pub fn is_measured(&self, inventory: &Inventory, root: Root) -> bool {
        let mut layers = self.reach(root).iter().filter_map(|node| inventory[*node].layer.as_ref());
        !layers.any(|layer| layer.is_unmeasured)
    }

    /// Returns the roots that reach a node: images, then containers, then leaks.
    pub fn reached_by(&self, node: NodeIx) -> impl Iterator<Item = Root> + '_ {
        let range = self.starts[node.get()] as usize..self.starts[node.get() + 1] as usize;
        self.reached_by[range].iter().map(|root| self.root(*root as usize))
    }

    /// Returns whether a build cache contains a node. Layers that images or containers reach are attributed to
    /// those.
    #[must_use]
    pub fn is_cached(&self, node: NodeIx) -> bool {
        self.cached[node.get()]
    }

    #[must_use]
    pub fn refcount(&self, node: NodeIx) -> u32 {
        self.refcounts[node.get()]
    }

    #[must_use]
    pub fn is_held(&self, node: NodeIx) -> bool {
        self.holders[node.get()] > 0
    }

    #[must_use]
    pub fn sizes(&self, inventory: &Inventory, root: Root) -> RootSizes {
        let mut sizes = RootSizes::default();
        for node in self.reach(root) {
            sizes.add(inventory, *node, self.holders[node.get()] - 1);
        }
        sizes
    }

    /// Returns the sizes of `roots` as a set. A node that several of them reach counts once, and is exclusive if no
    /// root outside the set reaches it.
    #[must_use]
    pub fn sizes_of_set(&self, inventory: &Inventory, roots: &[Root]) -> RootSizes {
        let mut roots = roots.to_vec();
        roots.sort_unstable();
        roots.dedup();
        // Not a table of all nodes: a set is often a small part of them.
        let mut reached: Vec<_> = roots.iter().flat_map(|root| self.reach(*root)).copied().collect();
        reached.par_sort_unstable();
        let mut sizes = RootSizes::default();
        #[allow(clippy::cast_possible_truncation)] // a table has fewer than 2^32 entries
        for same in reached.chunk_by(|a, b| a == b) {
            sizes.add(inventory, same[0], self.holders[same[0].get()] - same.len() as u32);
        }
        sizes
    }

    #[must_use]
    pub fn live(&self) -> Live<'_> {
        let deleted = vec![false; self.reach.len()];
        let (holders, store_refcounts) = (self.holders.clone(), self.store_refcounts.clone());
        Live { refs: self, holders, store_refcounts, deleted }
    }

    /// Returns the size of a layer as if it were the only one: its own bytes and those of the inodes that it shares
    /// with other layers by hard links.
    #[must_use]
    pub fn alone(inventory: &Inventory, node: NodeIx) -> Size {
        let node = &inventory[node];
        let shared = node
            .needs
            .iter()
            .map(|needed| &inventory[*needed])
            .filter(|needed| needed.kind == NodeKind::SharedInodes);
        std::iter::once(node.size).chain(shared.map(|needed| needed.size)).sum()
    }

    /// Returns the size of an object's own nodes, each as if it were the only one.
    #[must_use]
    pub fn held(inventory: &Inventory, holds: &[NodeIx]) -> Size {
        holds.iter().map(|node| Self::alone(inventory, *node)).sum()
    }

    /// Returns the bytes of [`Self::held`].
    #[must_use]
    pub fn held_bytes(inventory: &Inventory, holds: &[NodeIx]) -> u64 {
        Self::held(inventory, holds).bytes
    }
}

/// Reference counts after a sequence of planned deletions, to calculate what the next deletion frees.
#[derive(Clone, Debug)]
pub struct Live<'a> {
    refs: &'a Refs,
    holders: Vec<u32>,
    store_refcounts: Vec<u32>,
    deleted: Vec<bool>,
}

impl Live<'_> {
    /// Returns the size that deleting `root` next frees; nothing if it is already deleted.
    #[must_use]
    pub fn next(&self, inventory: &Inventory, root: Root) -> Size {
        self.last_held(root).map(|node| inventory[node].size).sum()
    }

    /// See [`Refs::reach`].
    #[must_use]
    pub fn reach(&self, root: Root) -> &[NodeIx] {
        self.refs.reach(root)
    }

    /// Returns the nodes that are freed if `root` is deleted next.
    pub fn last_held(&self, root: Root) -> impl Iterator<Item = NodeIx> + '_ {
        let is_deleted = self.deleted[self.refs.position(root)];
        let reached = self.refs.reach(root).iter().copied();
        reached.filter(move |node| !is_deleted && self.holders[node.get()] == 1)
    }

    /// Returns the nodes that are freed if all of `roots`, each named once, are deleted next.
    #[must_use]
    pub fn last_held_by(&self, roots: &[Root]) -> Vec<NodeIx> {
        let roots = roots.iter().filter(|root| !self.deleted[self.refs.position(**root)]);
        let mut reached: Vec<_> = roots.flat_map(|root| self.refs.reach(*root)).copied().collect();
        // For a small set, a table of all nodes would take longer.
        if reached.len() > self.holders.len() {
            let mut left = self.holders.clone();
            reached.iter().for_each(|node| left[node.get()] -= 1);
            let nodes = left.iter().zip(&self.holders).enumerate();
            let freed = nodes.filter(|(_, (left, holders))| **left == 0 && **holders > 0);
            return freed.map(|(position, _)| position.into()).collect();
        }
        reached.par_sort_unstable();
        let by_node = reached.chunk_by(|a, b| a == b);
        let freed = by_node.filter(|same| self.holders[same[0].get()] as usize == same.len());
        freed.map(|same| same[0]).collect()
    }

    /// Returns the number of roots that still reach a node, plus one if it is anchored.
    #[must_use]
    pub fn holders(&self, node: NodeIx) -> u32 {
        self.holders[node.get()]
    }

    /// See [`Refs::needed_elsewhere`]; takes the planned deletions into account.
    #[must_use]
    pub fn needed_elsewhere<'b>(&self, inventory: &'b Inventory, image: ImageIx) -> Option<&'b Use> {
        self.refs.needed_with(inventory, image, &self.store_refcounts)
    }

    /// Plans the deletion of `root`, and returns the size that it frees.
    pub fn remove(&mut self, inventory: &Inventory, root: Root) -> Size {
        let freed = self.next(inventory, root);
        if !std::mem::replace(&mut self.deleted[self.refs.position(root)], true) {
            let store = store_of(inventory, root);
            for node in self.refs.reach(root) {
                self.holders[node.get()] -= 1;
                self.store_refcounts[node.get()] -= u32::from(store == Some(inventory[*node].store));
            }
        }
        freed
    }
}

fn store_of(inventory: &Inventory, root: Root) -> Option<StoreIx> {
    match root {
        Root::Image(ix) => Some(inventory[ix].store),
        Root::Container(ix) => Some(inventory[ix].store),
        Root::Leak(_) => None,
    }
}

struct Walker<'a> {
    inventory: &'a Inventory,
    seen: Vec<u32>,
    stamp: u32,
}

impl<'a> Walker<'a> {
    fn new(inventory: &'a Inventory) -> Self {
        Self { inventory, seen: vec![0; inventory.nodes.len()], stamp: 0 }
    }

    fn reach(&mut self, holds: &[NodeIx]) -> Box<[NodeIx]> {
        self.stamp += 1;
        let mut found = Vec::new();
        for node in holds {
            self.visit(*node, &mut found);
        }
        let mut next = 0;
        while let Some(node) = found.get(next).copied() {
            next += 1;
            for needed in &self.inventory[node].needs {
                self.visit(*needed, &mut found);
            }
        }
        found.into_boxed_slice()
    }

    fn visit(&mut self, node: NodeIx, found: &mut Vec<NodeIx>) {
        if self.seen[node.get()] != self.stamp {
            self.seen[node.get()] = self.stamp;
            found.push(node);
        }
    }
}

/// Inverts the table of reached nodes by root into a table of roots by reached node. `counts` is the number of
/// roots that reach each node.
fn invert(reach: &[Box<[NodeIx]>], counts: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut starts = Vec::with_capacity(counts.len() + 1);
    let mut sum = 0;
    for count in counts {
        starts.push(sum);
        sum += count;
    }
    starts.push(sum);
    let mut next = starts.clone();
    let mut reached_by = vec![0; sum as usize];
    for (root, reached) in reach.iter().enumerate() {
        for node in reached {
            let place = &mut next[node.get()];
            #[allow(clippy::cast_possible_truncation)] // a table has fewer than 2^32 entries
            let root = root as u32;
            reached_by[*place as usize] = root;
            *place += 1;
        }
    }
    (starts, reached_by)
}

fn of_store(by_store: &mut Vec<StoreObjects>, store: StoreIx) -> &mut StoreObjects {
    if by_store.len() <= store.get() {
        by_store.resize_with(store.get() + 1, Default::default);
    }
    &mut by_store[store.get()]
}

#[cfg(test)]
mod tests;
