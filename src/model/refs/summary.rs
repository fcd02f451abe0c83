//! Sums over a store: bytes by user, and how much could be freed. Pure.

use std::collections::{BTreeMap, HashSet};

use super::{Refs, Root, RootSizes, roots_of};
use crate::model::LeakClass;
use crate::model::names::names;
use crate::model::{
    Consistency, Image, ImageIx, Inventory, Leak, LeakIx, Node, NodeKind, Size, StoreIx, Verdict,
};

names! {
    /// Why an image stays, the strongest reason first.
    Standing {
        /// A container was made from it or has it mounted as a volume, or something elsewhere needs it.
        InUse = "in_use",
        /// Configuration keeps it.
        Pinned = "pinned",
        /// It lies in an additional image store, which is not ours to delete from.
        ReadOnly = "read_only",
        /// Nothing keeps it.
        Unused = "unused",
    }
}

/// Works out why an image stays.
#[must_use]
pub fn standing(inventory: &Inventory, refs: &Refs, at: ImageIx) -> Standing {
    let image: &Image = &inventory[at];
    if refs.is_named(at) || refs.needed_elsewhere(inventory, at).is_some() {
        Standing::InUse
    } else if !image.pinned_by.is_empty() || inventory.protected.contains_key(&at) {
        Standing::Pinned
    } else if inventory[image.store].read_only {
        Standing::ReadOnly
    } else {
        Standing::Unused
    }
}

/// Returns whether layersweep can delete an image or leak: nothing keeps it, and it is in reach. Policy and age are not
/// asked. A container is the runtime's.
#[must_use]
pub fn is_deletable(inventory: &Inventory, refs: &Refs, root: Root) -> bool {
    match root {
        Root::Image(at) => {
            standing(inventory, refs, at) == Standing::Unused && inventory.obstacle(at).is_none()
        }
        Root::Container(_) => false,
        Root::Leak(at) => {
            let Leak { verdict, store, .. } = inventory[at];
            verdict == Verdict::Reclaim
                && inventory[store].consistency != Consistency::Damaged
                && !inventory.closed_stores.contains(&store)
        }
    }
}

/// A store's bytes, each counted once, without temporary files outside of the store: a node counts as
/// the images' if any image reaches it, else as the containers', else as the build cache's, else as the leaks'. The sum is what
/// `du` says of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// What images reach: layers and metadata.
    pub images: Size,
    /// What only containers reach (besides leaks).
    pub containers: Size,
    /// Of the rest, what build caches hold.
    pub build_cache: Size,
    /// What only leaks reach.
    pub leaks: Size,
    /// The store's own bookkeeping.
    pub metadata: Size,
    /// Everything else below the store's root.
    pub other: Size,
}

impl Breakdown {
    /// By the name of who holds it, as documents and records have it.
    #[must_use]
    pub fn by_holder(&self) -> [(&'static str, Size); 6] {
        [
            ("images", self.images),
            ("containers", self.containers),
            ("build_cache", self.build_cache),
            ("leaks", self.leaks),
            ("metadata", self.metadata),
            ("other", self.other),
        ]
    }

    #[must_use]
    pub fn total(&self) -> Size {
        self.by_holder().into_iter().map(|(_, size)| size).sum()
    }
}

/// Breaks a store's bytes down by who holds them.
#[must_use]
pub fn breakdown(inventory: &Inventory, refs: &Refs, store: StoreIx) -> Breakdown {
    let mut sums = Breakdown::default();
    let inside = |node: &Node| node.store == store && node.kind != NodeKind::TemporaryFile;
    for (at, node) in inventory.nodes.iter().enumerate().filter(|(_, node)| inside(node)) {
        // Roots come in the order images, containers, leaks.
        let holder = refs.reached_by(at.into()).next();
        let sum = match (node.kind, holder) {
            (NodeKind::StoreMetadata | NodeKind::StoreRecords, _) => &mut sums.metadata,
            (_, Some(Root::Image(_))) => &mut sums.images,
            (_, Some(Root::Container(_))) => &mut sums.containers,
            _ if refs.is_cached(at.into()) => &mut sums.build_cache,
            (_, Some(Root::Leak(_))) => &mut sums.leaks,
            (_, None) => &mut sums.other,
        };
        *sum += node.size;
    }
    sums
}

names! {
    /// What a [`SummaryRow`] counts.
    RowKind {
        /// Images that a container was made from.
        ImagesInUse = "images_in_use",
        /// Images that nothing uses but configuration (or a read-only store) keeps.
        ImagesPinned = "images_pinned",
        /// Images that nothing uses, but layersweep cannot delete here.
        ImagesOutOfReach = "images_out_of_reach",
        /// Images that nothing keeps.
        ImagesUnused = "images_unused",
        /// What images have in a snapshotter beside the store's usual one.
        Snapshotter = "snapshotter",
        Containers = "containers",
        /// Caches of builders.
        BuildCache = "build_cache",
        /// Leaks that can be deleted.
        LeaksReclaimable = "leaks",
        /// Leaks that stay until a person or a repair has dealt with them.
        LeaksKept = "leaks_kept",
        /// The store's bookkeeping.
        Metadata = "metadata",
        /// Everything else below the store's root.
        Other = "other",
    }
}

/// A line of the summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryRow {
    pub kind: RowKind,
    /// Name of the snapshotter, of [`RowKind::Snapshotter`].
    pub name: Option<String>,
    /// How many objects.
    pub count: usize,
    /// Their size as a set; `exclusive.frees_bytes` is what would be freed if the whole row were deleted
    /// and nothing else. Containers are counted without what images reach, leaks without what images or
    /// containers reach; images without what they have in a second snapshotter, but what would be freed
    /// includes it, since it is deleted with them.
    pub sizes: RootSizes,
}

#[must_use]
pub fn rows(inventory: &Inventory, refs: &Refs, store: StoreIx) -> Vec<SummaryRow> {
    let mut sets: Vec<(RowKind, Vec<Root>)> = [
        RowKind::ImagesInUse,
        RowKind::ImagesPinned,
        RowKind::ImagesOutOfReach,
        RowKind::ImagesUnused,
        RowKind::Containers,
        RowKind::LeaksReclaimable,
        RowKind::LeaksKept,
    ]
    .map(|kind| (kind, Vec::new()))
    .into();
    for root in roots_of(inventory, store) {
        let kind = kind_of(inventory, refs, root);
        let set = sets.iter_mut().find(|(of, _)| *of == kind);
        set.into_iter().for_each(|(_, set)| set.push(root));
    }
    let mut rows: Vec<SummaryRow> = sets
        .into_iter()
        .map(|(kind, set)| {
            let mut sizes = refs.sizes_of_set(inventory, &set);
            match kind {
                RowKind::Containers => {
                    let image = |root: Root| matches!(root, Root::Image(_));
                    sizes = without(inventory, refs, &set, sizes, image);
                }
                RowKind::LeaksReclaimable | RowKind::LeaksKept => {
                    let used = |root: Root| !matches!(root, Root::Leak(_));
                    sizes = without(inventory, refs, &set, sizes, used);
                }
                _ => sizes = without_second(inventory, refs, &set, sizes),
            }
            SummaryRow { kind, name: None, count: set.len(), sizes }
        })
        .collect();
    let after_images = rows.iter().position(|row| row.kind == RowKind::Containers).unwrap_or(rows.len());
    rows.splice(after_images..after_images, second_snapshotters(inventory, refs, store));
    let sums = breakdown(inventory, refs, store);
    let caches = inventory.build_caches.iter().filter(|cache| cache.store == store);
    for (kind, count, size) in [
        (RowKind::BuildCache, caches.map(|cache| cache.records).sum(), sums.build_cache),
        (RowKind::Metadata, 0, sums.metadata),
        (RowKind::Other, 0, sums.other),
    ] {
        let sizes = RootSizes { total: size, shared: size, exclusive: Size::default() };
        rows.push(SummaryRow { kind, name: None, count, sizes });
    }
    rows
}

/// A snapshotter of a containerd root, with all its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshotter {
    pub name: String,
    /// How many snapshots it has, those of containers included.
    pub snapshots: usize,
    /// What they cost.
    pub size: Size,
}

/// The snapshotters that have snapshots in a store, by name.
#[must_use]
pub fn snapshotters(inventory: &Inventory, store: StoreIx) -> Vec<Snapshotter> {
    let mut found: BTreeMap<&str, (usize, Size)> = BTreeMap::new();
    for node in inventory.nodes.iter().filter(|node| node.store == store) {
        let Some(name) = snapshotter(node) else { continue };
        let sum = found.entry(name).or_default();
        sum.0 += 1;
        sum.1 += node.size;
    }
    let found = found.into_iter();
    found.map(|(name, (snapshots, size))| Snapshotter { name: name.into(), snapshots, size }).collect()
}

fn snapshotter(node: &Node) -> Option<&str> {
    node.layer.as_ref()?.snapshotter.as_deref()
}

/// The snapshotter that has a snapshot, where that is not the store's usual one.
#[must_use]
pub fn second_snapshotter<'a>(inventory: &'a Inventory, node: &'a Node) -> Option<&'a str> {
    let usual = inventory[node.store].driver.as_str();
    snapshotter(node).filter(|name| *name != usual)
}

/// One row for each snapshotter beside the usual one: what images have there.
fn second_snapshotters(inventory: &Inventory, refs: &Refs, store: StoreIx) -> Vec<SummaryRow> {
    let mut found: BTreeMap<&str, (usize, Size)> = BTreeMap::new();
    for (at, node) in inventory.nodes.iter().enumerate().filter(|(_, node)| node.store == store) {
        let of_images = refs.reached_by(at.into()).any(|root| matches!(root, Root::Image(_)));
        if let Some(name) = second_snapshotter(inventory, node).filter(|_| of_images) {
            let sum = found.entry(name).or_default();
            sum.0 += 1;
            sum.1 += node.size;
        }
    }
    let row = |(name, (count, size)): (&str, (usize, Size))| SummaryRow {
        kind: RowKind::Snapshotter,
        name: Some(name.to_owned()),
        count,
        sizes: RootSizes { total: size, shared: size, exclusive: Size::default() },
    };
    found.into_iter().map(row).collect()
}

/// What images have in a second snapshotter counts in that one's row. It is still deleted with them:
/// `frees_bytes` includes it.
fn without_second(inventory: &Inventory, refs: &Refs, set: &[Root], mut sizes: RootSizes) -> RootSizes {
    let mut nodes: Vec<_> = set.iter().flat_map(|root| refs.reach(*root)).copied().collect();
    nodes.sort_unstable();
    nodes.dedup();
    let set: HashSet<_> = set.iter().copied().collect();
    let less = |from: &mut Size, size: Size| {
        from.bytes = from.bytes.saturating_sub(size.bytes);
        from.apparent_bytes = from.apparent_bytes.saturating_sub(size.apparent_bytes);
        from.inodes = from.inodes.saturating_sub(size.inodes);
    };
    for at in nodes {
        let node = &inventory[at];
        if second_snapshotter(inventory, node).is_some() {
            less(&mut sizes.total, node.size);
            let inside = refs.reached_by(at).filter(|root| set.contains(root)).count();
            let all = refs.holders[at.get()] as usize == inside;
            let part = if all { &mut sizes.exclusive } else { &mut sizes.shared };
            less(part, node.size);
        }
    }
    sizes
}

fn kind_of(inventory: &Inventory, refs: &Refs, root: Root) -> RowKind {
    match root {
        Root::Image(at) => match standing(inventory, refs, at) {
            Standing::InUse => RowKind::ImagesInUse,
            Standing::Pinned | Standing::ReadOnly => RowKind::ImagesPinned,
            Standing::Unused if is_deletable(inventory, refs, root) => RowKind::ImagesUnused,
            Standing::Unused => RowKind::ImagesOutOfReach,
        },
        Root::Container(_) => RowKind::Containers,
        Root::Leak(at) => match inventory[at].verdict {
            Verdict::Reclaim => RowKind::LeaksReclaimable,
            Verdict::Repair | Verdict::Keep | Verdict::Report => RowKind::LeaksKept,
        },
    }
}

/// A container reaches its image's layers, a leak the layers below it: in the summary those
/// count with who else reaches them.
fn without(
    inventory: &Inventory,
    refs: &Refs,
    set: &[Root],
    mut sizes: RootSizes,
    counts_elsewhere: impl Fn(Root) -> bool,
) -> RootSizes {
    let mut nodes: Vec<_> = set.iter().flat_map(|root| refs.reach(*root)).copied().collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.retain(|node| !refs.reached_by(*node).any(&counts_elsewhere));
    sizes.total = nodes.iter().map(|node| inventory[*node].size).sum();
    sizes.shared.bytes = sizes.total.bytes - sizes.exclusive.bytes;
    sizes.shared.apparent_bytes = sizes.total.apparent_bytes - sizes.exclusive.apparent_bytes;
    sizes.shared.inodes = sizes.total.inodes - sizes.exclusive.inodes;
    sizes.shared.frees_bytes = sizes.total.frees_bytes - sizes.exclusive.frees_bytes;
    sizes
}

/// Everything in `stores` that could be deleted at once: unused images in reach, and leaks whose
/// verdict is reclaim.
#[must_use]
pub fn reclaimable(inventory: &Inventory, refs: &Refs, stores: &[StoreIx]) -> Size {
    let roots = stores.iter().flat_map(|store| roots_of(inventory, *store));
    let roots = roots.filter(|root| is_deletable(inventory, refs, *root));
    refs.sizes_of_set(inventory, &roots.collect::<Vec<_>>()).exclusive
}

/// Takes back the verdict "reclaim" of leaks that something else still reaches: an image, a
/// container, or a leak that stays (a layer of a pull under way holds its parents).
pub fn keep_reached_leaks(inventory: &mut Inventory, refs: &Refs) {
    let spared: Vec<_> = (0..inventory.leaks.len())
        .map(LeakIx::from)
        .filter(|at| inventory[*at].verdict == Verdict::Reclaim)
        .filter(|at| {
            let nodes = &inventory[*at].holds;
            nodes.iter().flat_map(|node| refs.reached_by(*node)).any(|root| match root {
                Root::Image(_) | Root::Container(_) => true,
                Root::Leak(other) => inventory[other].verdict != Verdict::Reclaim,
            })
        })
        .collect();
    for at in spared {
        let leak = &mut inventory[at];
        leak.verdict = Verdict::Keep;
        leak.evidence.push_str("; but something that is kept depends on it");
    }
    spare_what_others_use(inventory, refs);
}

/// The same for what is needed elsewhere, or may be.
fn spare_what_others_use(inventory: &mut Inventory, refs: &Refs) {
    let reclaimed = |leak: &&Leak| leak.verdict == Verdict::Reclaim;
    let mut spared = Vec::new();
    for (at, leak) in inventory.leaks.iter().enumerate().filter(|(_, leak)| reclaimed(leak)) {
        if let Some(user) = leak.holds.iter().find_map(|node| refs.use_of(inventory, *node)) {
            spared.push((at, Verdict::Keep, format!("; but {} needs it", user.by)));
        } else if let Some(user) = inventory.unread_users.iter().find(|user| user.store == leak.store)
            && leak.holds.iter().any(|node| is_layer(&inventory[*node], leak))
        {
            let path = user.path.display();
            let evidence =
                format!("; but whether another store uses it is unknown: {path} could not be read in full");
            spared.push((at, Verdict::Report, evidence));
        }
    }
    for (at, verdict, evidence) in spared {
        let leak = &mut inventory.leaks[at];
        leak.verdict = verdict;
        leak.evidence.push_str(&evidence);
    }
}

/// A layer, or the directory of one whose record is lost.
fn is_layer(node: &Node, leak: &Leak) -> bool {
    node.kind == NodeKind::Layer || leak.class == LeakClass::OrphanDir
}
