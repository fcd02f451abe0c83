//! Sums over a store: bytes by kind of holder, and the bytes that could be freed. Pure.

use std::collections::{BTreeMap, HashSet};

use super::{Refs, Root, RootSizes};
use crate::model::ids::{ImageIx, LeakIx, StoreIx};
use crate::model::image::Image;
use crate::model::inventory::Inventory;
use crate::model::leak::Leak;
use crate::model::leak_class::LeakClass;
use crate::model::leak_class::Verdict;
use crate::model::node::{Node, NodeKind, Size};
use crate::model::store::Consistency;
use crate::model::text::names::names;

names! {
    /// Reason for which an image is kept, the strongest first.
    Standing {
        /// A container was made from it or has it mounted as a volume, or a use from elsewhere needs it.
        InUse = "in_use",
        /// Configuration keeps it.
        Pinned = "pinned",
        /// It is in an additional image store, from which layersweep does not delete.
        ReadOnly = "read_only",
        /// Nothing keeps it.
        Unused = "unused",
    }
}

/// Returns the reason for which an image is kept.
#[must_use]
pub fn standing(inventory: &Inventory, refs: &Refs, image_ix: ImageIx) -> Standing {
    let image: &Image = &inventory[image_ix];
    if refs.is_named(image_ix) || refs.needed_elsewhere(inventory, image_ix).is_some() {
        Standing::InUse
    } else if !image.pinned_by.is_empty() || inventory.protected.contains_key(&image_ix) {
        Standing::Pinned
    } else if inventory[image.store].read_only {
        Standing::ReadOnly
    } else {
        Standing::Unused
    }
}

/// Returns whether layersweep can delete an image or leak: nothing keeps it, and it is in reach. Policy and age are
/// not considered. Containers belong to their runtime.
#[must_use]
pub fn is_deletable(inventory: &Inventory, refs: &Refs, root: Root) -> bool {
    match root {
        Root::Image(ix) => {
            standing(inventory, refs, ix) == Standing::Unused && inventory.obstacle(ix).is_none()
        }
        Root::Container(_) => false,
        Root::Leak(ix) => {
            let Leak { verdict, store, .. } = inventory[ix];
            verdict == Verdict::Reclaim
                && inventory[store].consistency != Consistency::Damaged
                && !inventory.closed_stores.contains(&store)
        }
    }
}

/// Bytes of a store without temporary files outside the store, each counted once. A node counts for the images if
/// any image reaches it, else for the containers, else for the build cache, else for the leaks. The sum is what
/// `du` reports for the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Everything that images reach: layers and metadata.
    pub images: Size,
    /// Remaining bytes that containers reach.
    pub containers: Size,
    /// Remaining bytes that build caches contain.
    pub build_cache: Size,
    /// Remaining bytes that leaks reach.
    pub leaks: Size,
    pub metadata: Size,
    /// Everything else below the store's root.
    pub other: Size,
}

impl Breakdown {
    /// Returns the sizes with the names of their holders, as documents and records contain them.
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

#[must_use]
pub fn breakdown(inventory: &Inventory, refs: &Refs, store: StoreIx) -> Breakdown {
    let mut sums = Breakdown::default();
    let nodes = refs.nodes_of(store).iter().map(|ix| (*ix, &inventory[*ix]));
    for (ix, node) in nodes.filter(|(_, node)| node.kind != NodeKind::TemporaryFile) {
        // Roots are in the order images, containers, leaks.
        let holder = refs.reached_by(ix).next();
        let sum = match (node.kind, holder) {
            (NodeKind::StoreMetadata | NodeKind::StoreRecords, _) => &mut sums.metadata,
            (_, Some(Root::Image(_))) => &mut sums.images,
            (_, Some(Root::Container(_))) => &mut sums.containers,
            _ if refs.is_cached(ix) => &mut sums.build_cache,
            (_, Some(Root::Leak(_))) => &mut sums.leaks,
            (_, None) => &mut sums.other,
        };
        *sum += node.size;
    }
    sums
}

names! {
    RowKind {
        /// Images with [`Standing::InUse`]: a container or a use from elsewhere needs them.
        ImagesInUse = "images_in_use",
        /// Unused images that configuration or a read-only store keeps.
        ImagesPinned = "images_pinned",
        /// Unused images that layersweep cannot delete here.
        ImagesOutOfReach = "images_out_of_reach",
        /// Images that nothing keeps.
        ImagesUnused = "images_unused",
        /// Snapshots of images in a snapshotter other than the store's usual one.
        Snapshotter = "snapshotter",
        Containers = "containers",
        BuildCache = "build_cache",
        /// Leaks with the verdict "reclaim".
        LeaksReclaimable = "leaks",
        /// Leaks that are kept until a person or a repair has handled them.
        LeaksKept = "leaks_kept",
        Metadata = "metadata",
        /// Everything else below the store's root.
        Other = "other",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryRow {
    pub kind: RowKind,
    pub name: Option<String>,
    pub count: usize,
    /// Size of the objects as a set. `exclusive.frees_bytes` is what would be freed if only the whole row were
    /// deleted. Containers count without the nodes that images reach; leaks count without those that images or
    /// containers reach. Images count without their nodes in a second snapshotter, which are in `frees_bytes` all
    /// the same, since they are deleted with the images.
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
    for root in refs.roots_of(store).iter().copied() {
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
                    sizes = without(inventory, refs, &set, sizes, |root| matches!(root, Root::Image(_)));
                }
                RowKind::LeaksReclaimable | RowKind::LeaksKept => {
                    sizes = without(inventory, refs, &set, sizes, |root| !matches!(root, Root::Leak(_)));
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
    /// Number of snapshots, including those of containers.
    pub snapshots: usize,
    pub size: Size,
}

#[must_use]
pub fn snapshotters(inventory: &Inventory, refs: &Refs, store: StoreIx) -> Vec<Snapshotter> {
    let mut found: BTreeMap<&str, (usize, Size)> = BTreeMap::new();
    for node in refs.nodes_of(store).iter().map(|node| &inventory[*node]) {
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

/// Returns the snapshotter of a snapshot if it is not the store's usual one.
#[must_use]
pub fn second_snapshotter<'a>(inventory: &'a Inventory, node: &'a Node) -> Option<&'a str> {
    let usual = inventory[node.store].driver.as_str();
    snapshotter(node).filter(|name| *name != usual)
}

/// Returns one row for each snapshotter other than the usual one, with the snapshots of images.
fn second_snapshotters(inventory: &Inventory, refs: &Refs, store: StoreIx) -> Vec<SummaryRow> {
    let mut found: BTreeMap<&str, (usize, Size)> = BTreeMap::new();
    for (ix, node) in refs.nodes_of(store).iter().map(|ix| (*ix, &inventory[*ix])) {
        let of_images = refs.reached_by(ix).any(|root| matches!(root, Root::Image(_)));
        if let Some(name) = second_snapshotter(inventory, node).filter(|_| of_images) {
            let sum = found.entry(name).or_default();
            sum.0 += 1;
            sum.1 += node.size;
        }
    }
    let rows = found.into_iter().map(|(name, (count, size))| SummaryRow {
        kind: RowKind::Snapshotter,
        name: Some(name.to_owned()),
        count,
        sizes: RootSizes { total: size, shared: size, exclusive: Size::default() },
    });
    rows.collect()
}

/// Subtracts the nodes in a second snapshotter, which count in the row of that snapshotter. `frees_bytes` keeps
/// them, since they are deleted with the images.
fn without_second(inventory: &Inventory, refs: &Refs, set: &[Root], mut sizes: RootSizes) -> RootSizes {
    fn subtract(from: &mut Size, size: Size) {
        from.bytes = from.bytes.saturating_sub(size.bytes);
        from.apparent_bytes = from.apparent_bytes.saturating_sub(size.apparent_bytes);
        from.inodes = from.inodes.saturating_sub(size.inodes);
    }
    let mut nodes: Vec<_> = set.iter().flat_map(|root| refs.reach(*root)).copied().collect();
    nodes.sort_unstable();
    nodes.dedup();
    let set: HashSet<_> = set.iter().copied().collect();
    for ix in nodes {
        let node = &inventory[ix];
        if second_snapshotter(inventory, node).is_some() {
            subtract(&mut sizes.total, node.size);
            let inside = refs.reached_by(ix).filter(|root| set.contains(root)).count();
            let is_exclusive = refs.holders[ix.get()] as usize == inside;
            let part = if is_exclusive { &mut sizes.exclusive } else { &mut sizes.shared };
            subtract(part, node.size);
        }
    }
    sizes
}

fn kind_of(inventory: &Inventory, refs: &Refs, root: Root) -> RowKind {
    match root {
        Root::Image(ix) => match standing(inventory, refs, ix) {
            Standing::InUse => RowKind::ImagesInUse,
            Standing::Pinned | Standing::ReadOnly => RowKind::ImagesPinned,
            Standing::Unused if is_deletable(inventory, refs, root) => RowKind::ImagesUnused,
            Standing::Unused => RowKind::ImagesOutOfReach,
        },
        Root::Container(_) => RowKind::Containers,
        Root::Leak(ix) => match inventory[ix].verdict {
            Verdict::Reclaim => RowKind::LeaksReclaimable,
            Verdict::Repair | Verdict::Keep | Verdict::Report => RowKind::LeaksKept,
        },
    }
}

/// Subtracts the nodes that count in another row: a container reaches its image's layers, and a leak the layers
/// below it.
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

/// Returns the size of everything in `stores` that could be deleted at once: unused images in reach, and leaks with
/// the verdict "reclaim" in stores that are neither damaged nor closed.
#[must_use]
pub fn reclaimable(inventory: &Inventory, refs: &Refs, stores: &[StoreIx]) -> Size {
    let roots = stores
        .iter()
        .flat_map(|store| refs.roots_of(*store))
        .copied()
        .filter(|root| is_deletable(inventory, refs, *root));
    refs.sizes_of_set(inventory, &roots.collect::<Vec<_>>()).exclusive
}

/// Keeps leaks with the verdict "reclaim" that something else still reaches: an image, a container, or a leak that
/// is kept (a layer of a running pull needs its parents). Also keeps or only reports leaks that another store needs or
/// may need.
pub fn keep_reached_leaks(inventory: &mut Inventory, refs: &Refs) {
    let kept: Vec<_> = (0..inventory.leaks.len())
        .map(LeakIx::from)
        .filter(|ix| inventory[*ix].verdict == Verdict::Reclaim)
        .filter(|ix| {
            let nodes = &inventory[*ix].holds;
            nodes.iter().flat_map(|node| refs.reached_by(*node)).any(|root| match root {
                Root::Image(_) | Root::Container(_) => true,
                Root::Leak(other) => inventory[other].verdict != Verdict::Reclaim,
            })
        })
        .collect();
    for ix in kept {
        let leak = &mut inventory[ix];
        leak.verdict = Verdict::Keep;
        leak.evidence.push_str("; but something that is kept depends on it");
    }
    keep_leaks_used_elsewhere(inventory, refs);
}

/// Changes the verdict of leaks that another store needs or may need.
fn keep_leaks_used_elsewhere(inventory: &mut Inventory, refs: &Refs) {
    let mut changes = Vec::new();
    let leaks = inventory.leaks.iter().enumerate();
    for (ix, leak) in leaks.filter(|(_, leak)| leak.verdict == Verdict::Reclaim) {
        if let Some(user) = leak.holds.iter().find_map(|node| refs.use_of(inventory, *node)) {
            changes.push((ix, Verdict::Keep, format!("; but {} needs it", user.by)));
        } else if let Some(user) = inventory.unread_users.iter().find(|user| user.store == leak.store)
            && leak.holds.iter().any(|node| is_layer(&inventory[*node], leak))
        {
            let path = user.path.display();
            let evidence =
                format!("; but whether another store uses it is unknown: {path} could not be read in full");
            changes.push((ix, Verdict::Report, evidence));
        }
    }
    for (ix, verdict, evidence) in changes {
        let leak = &mut inventory.leaks[ix];
        leak.verdict = verdict;
        leak.evidence.push_str(&evidence);
    }
}

/// Returns whether a node is a layer, or the directory of a layer whose record is lost.
fn is_layer(node: &Node, leak: &Leak) -> bool {
    node.kind == NodeKind::Layer || leak.class == LeakClass::OrphanDir
}
