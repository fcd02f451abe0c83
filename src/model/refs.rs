//! Reference counts, exclusive bytes, and what deleting a set would free. Pure.
//!
//! A root (image, container, leak) *reaches* the nodes that it holds and all that those
//! need. A node is freed when the last root that reaches it is deleted; so the exclusive
//! bytes of a set are those of the nodes that no root outside the set reaches.

use rayon::prelude::*;

use super::{ContainerIx, ImageIx, Inventory, LeakIx, NodeIx, NodeKind, Size, StoreIx, Use};

mod column;
mod fair;
mod groups;
mod summary;

pub use column::{Column, Line, LineKind, column, fit, has_bytes_on, size_on_disk};
pub use fair::{Fair, fair, size_in_store};
pub use groups::{Group, GroupBy, GroupKind, groups};
pub use summary::{
    Breakdown, RowKind, Snapshotter, Standing, SummaryRow, breakdown, is_deletable, keep_reached_leaks,
    reclaimable, rows, second_snapshotter, snapshotters, standing,
};

/// Something that keeps nodes on the disk and can itself be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    Image(ImageIx),
    Container(ContainerIx),
    Leak(LeakIx),
}

/// Reference counts of one inventory.
#[derive(Clone, Debug)]
pub struct Refs {
    reach: Vec<Box<[NodeIx]>>,
    images: usize,
    containers: usize,
    /// Roots and unlisted uses that reach a node, and one more where it is anchored.
    holders: Vec<u32>,
    /// The first use that needs a node.
    uses: Vec<Option<u32>>,
    /// Images that a container or something elsewhere names.
    named: Vec<bool>,
    /// Images and containers of a node's own store that reach it.
    own: Vec<u32>,
    /// Images and containers that reach a node.
    refcounts: Vec<u32>,
    /// Returns whether a build cache reaches a node.
    cached: Vec<bool>,
    /// The roots that reach a node, ascending: a slice of `reached_by` a node.
    starts: Vec<u32>,
    reached_by: Vec<u32>,
}

/// Size of one root. `total = shared + exclusive`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootSizes {
    /// All that it reaches.
    pub total: Size,
    /// Of that, what something else reaches too.
    pub shared: Size,
    /// Of that, what only it reaches. `exclusive.frees_bytes` is what the filesystem is
    /// expected to free if it alone is deleted now.
    pub exclusive: Size,
}

impl RootSizes {
    /// Adds a node with `others` holders outside of the set. A read-only store itself is one of its nodes' holders:
    /// nothing frees them, and what only one image reaches is still exclusive to that image.
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
    /// Computes the reference counts. Takes time in proportion to the sum of all chains;
    /// cyclic chains are walked once.
    #[must_use]
    pub fn new(inventory: &Inventory) -> Self {
        let nodes = inventory.nodes.len();
        let holds = inventory.images.iter().map(|image| &image.holds);
        let holds = holds.chain(inventory.containers.iter().map(|container| &container.holds));
        let holds: Vec<_> = holds.chain(inventory.leaks.iter().map(|leak| &leak.holds)).collect();
        let walker = || Walker { inventory, seen: vec![0; nodes], stamp: 0 };
        let reach: Vec<_> = holds.par_iter().map_init(walker, |walker, holds| walker.reach(holds)).collect();
        let mut walker = walker();

        let stores = inventory.images.iter().map(|image| image.store);
        let stores: Vec<_> =
            stores.chain(inventory.containers.iter().map(|container| container.store)).collect();
        let mut holders = vec![0_u32; nodes];
        let mut refcounts = vec![0_u32; nodes];
        let mut own = vec![0_u32; nodes];
        // Apart from the nodes, whose other facts would push each other out of the processor's cache.
        let store_of: Vec<_> = inventory.nodes.iter().map(|node| node.store).collect();
        for (root, reached) in reach.iter().enumerate() {
            let store = stores.get(root).copied();
            for node in reached {
                holders[node.get()] += 1;
                refcounts[node.get()] += u32::from(store.is_some());
                own[node.get()] += u32::from(store == Some(store_of[node.get()]));
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
        for (at, one) in (0_u32..).zip(&inventory.uses) {
            for node in walker.reach(&one.holds) {
                holders[node.get()] += u32::from(!one.is_listed);
                if inventory.is_lendable(node) {
                    uses[node.get()].get_or_insert(at);
                }
            }
        }
        let mut named = vec![false; inventory.images.len()];
        let by_containers = inventory.containers.iter().flat_map(|container| container.images());
        by_containers
            .chain(inventory.uses.iter().flat_map(|one| one.images.iter().copied()))
            .for_each(|image| named[image.get()] = true);
        Self {
            reach,
            named,
            images: inventory.images.len(),
            containers: inventory.containers.len(),
            holders,
            uses,
            own,
            refcounts,
            cached,
            starts,
            reached_by,
        }
    }

    /// Who needs a node from elsewhere.
    #[must_use]
    pub fn use_of<'b>(&self, inventory: &'b Inventory, node: NodeIx) -> Option<&'b Use> {
        let at = self.uses[node.get()]?;
        inventory.uses.get(at as usize)
    }

    /// Whether a container, or something elsewhere, names an image.
    #[must_use]
    pub fn is_named(&self, image: ImageIx) -> bool {
        self.named[image.get()]
    }

    /// The use from elsewhere that would lose its layers with an image, because the image is the last
    /// one of its store that holds them. A store's own tools do not check this.
    #[must_use]
    pub fn needed_elsewhere<'b>(&self, inventory: &'b Inventory, image: ImageIx) -> Option<&'b Use> {
        self.needed_with(inventory, image, &self.own)
    }

    fn needed_with<'b>(&self, inventory: &'b Inventory, image: ImageIx, own: &[u32]) -> Option<&'b Use> {
        let facts = &inventory[image];
        let reached = self.reach(Root::Image(image)).iter().copied();
        let mut last = reached.filter(|node| own[node.get()] == 1 && inventory.is_own(facts, *node));
        last.find_map(|node| self.use_of(inventory, node))
    }

    fn position(&self, root: Root) -> usize {
        match root {
            Root::Image(at) => at.get(),
            Root::Container(at) => self.images + at.get(),
            Root::Leak(at) => self.images + self.containers + at.get(),
        }
    }

    fn root(&self, position: usize) -> Root {
        match position.checked_sub(self.images) {
            None => Root::Image(position.into()),
            Some(at) => match at.checked_sub(self.containers) {
                None => Root::Container(at.into()),
                Some(at) => Root::Leak(at.into()),
            },
        }
    }

    /// All nodes that a root reaches, those it holds first.
    #[must_use]
    pub fn reach(&self, root: Root) -> &[NodeIx] {
        &self.reach[self.position(root)]
    }

    /// The roots that reach a node: images, then containers, then leaks.
    pub fn reached_by(&self, node: NodeIx) -> impl Iterator<Item = Root> + '_ {
        let range = self.starts[node.get()] as usize..self.starts[node.get() + 1] as usize;
        self.reached_by[range].iter().map(|root| self.root(*root as usize))
    }

    /// Returns whether a build cache contains a node. Layers that images or containers reach count with those.
    #[must_use]
    pub fn is_cached(&self, node: NodeIx) -> bool {
        self.cached[node.get()]
    }

    /// How many images and containers reach a node.
    #[must_use]
    pub fn refcount(&self, node: NodeIx) -> u32 {
        self.refcounts[node.get()]
    }

    /// Whether any root, or the store itself, holds a node.
    #[must_use]
    pub fn is_held(&self, node: NodeIx) -> bool {
        self.holders[node.get()] > 0
    }

    /// Size of one root.
    #[must_use]
    pub fn sizes(&self, inventory: &Inventory, root: Root) -> RootSizes {
        let mut sizes = RootSizes::default();
        for node in self.reach(root) {
            sizes.add(inventory, *node, self.holders[node.get()] - 1);
        }
        sizes
    }

    /// Size of all `roots` together: nodes that several of them reach count once,
    /// and are exclusive if nothing outside of the set reaches them.
    #[must_use]
    pub fn sizes_of_set(&self, inventory: &Inventory, roots: &[Root]) -> RootSizes {
        let mut inside = vec![0_u32; self.holders.len()];
        let mut roots = roots.to_vec();
        roots.sort_unstable();
        roots.dedup();
        for root in &roots {
            for node in self.reach(*root) {
                inside[node.get()] += 1;
            }
        }
        let mut sizes = RootSizes::default();
        for (at, inside) in inside.iter().enumerate().filter(|(_, inside)| **inside > 0) {
            sizes.add(inventory, at.into(), self.holders[at] - inside);
        }
        sizes
    }

    /// Starts a plan of consecutive deletions.
    #[must_use]
    pub fn live(&self) -> Live<'_> {
        let gone = vec![false; self.reach.len()];
        Live { refs: self, holders: self.holders.clone(), own: self.own.clone(), gone }
    }

    /// Bytes of a layer as if it were alone: its own and those of inodes that it shares
    /// with other layers by hard links.
    #[must_use]
    pub fn alone(inventory: &Inventory, node: NodeIx) -> Size {
        let node = &inventory[node];
        let shared = node.needs.iter().map(|needed| &inventory[*needed]);
        let shared = shared.filter(|needed| needed.kind == NodeKind::SharedInodes);
        std::iter::once(node.size).chain(shared.map(|needed| needed.size)).sum()
    }

    /// Bytes of an object's own nodes, each as if it were alone.
    #[must_use]
    pub fn held_bytes(inventory: &Inventory, holds: &[NodeIx]) -> u64 {
        holds.iter().map(|node| Self::alone(inventory, *node).bytes).sum()
    }
}

/// A plan in progress: what the next deletion frees after those before it.
#[derive(Clone, Debug)]
pub struct Live<'a> {
    refs: &'a Refs,
    holders: Vec<u32>,
    own: Vec<u32>,
    gone: Vec<bool>,
}

impl Live<'_> {
    /// What deleting `root` next frees; nothing if it is already deleted.
    #[must_use]
    pub fn next(&self, inventory: &Inventory, root: Root) -> Size {
        self.last_held(root).map(|node| inventory[node].size).sum()
    }

    /// As [`Refs::reach`].
    #[must_use]
    pub fn reach(&self, root: Root) -> &[NodeIx] {
        self.refs.reach(root)
    }

    /// The nodes that are freed if `root` is deleted next.
    pub fn last_held(&self, root: Root) -> impl Iterator<Item = NodeIx> + '_ {
        let gone = self.gone[self.refs.position(root)];
        let reached = self.refs.reach(root).iter().copied();
        reached.filter(move |node| !gone && self.holders[node.get()] == 1)
    }

    /// How many roots still reach a node; one more where it is anchored.
    #[must_use]
    pub fn holders(&self, node: NodeIx) -> u32 {
        self.holders[node.get()]
    }

    /// As [`Refs::needed_elsewhere`], after the deletions so far.
    #[must_use]
    pub fn needed_elsewhere<'b>(&self, inventory: &'b Inventory, image: ImageIx) -> Option<&'b Use> {
        self.refs.needed_with(inventory, image, &self.own)
    }

    /// Deletes `root` in the plan, and returns what that frees.
    pub fn remove(&mut self, inventory: &Inventory, root: Root) -> Size {
        let freed = self.next(inventory, root);
        if !std::mem::replace(&mut self.gone[self.refs.position(root)], true) {
            let store = store_of(inventory, root);
            for node in self.refs.reach(root) {
                self.holders[node.get()] -= 1;
                self.own[node.get()] -= u32::from(store == Some(inventory[*node].store));
            }
        }
        freed
    }
}

/// The store of an image or container.
fn store_of(inventory: &Inventory, root: Root) -> Option<StoreIx> {
    match root {
        Root::Image(at) => Some(inventory[at].store),
        Root::Container(at) => Some(inventory[at].store),
        Root::Leak(_) => None,
    }
}

struct Walker<'a> {
    inventory: &'a Inventory,
    seen: Vec<u32>,
    stamp: u32,
}

impl Walker<'_> {
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

/// From "what each root reaches" to "who reaches each node".
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

pub fn roots_of(inventory: &Inventory, store: StoreIx) -> impl Iterator<Item = Root> + '_ {
    let images = inventory.images.iter().enumerate();
    let images = images.filter(move |(_, image)| image.store == store).map(|(at, _)| Root::Image(at.into()));
    let containers = inventory.containers.iter().enumerate();
    let containers = containers
        .filter(move |(_, container)| container.store == store)
        .map(|(at, _)| Root::Container(at.into()));
    let leaks = inventory.leaks.iter().enumerate();
    let leaks = leaks.filter(move |(_, leak)| leak.store == store).map(|(at, _)| Root::Leak(at.into()));
    images.chain(containers).chain(leaks)
}

#[cfg(test)]
mod tests;
