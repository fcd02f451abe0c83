//! Division of the stores' bytes on a filesystem into lines, each byte in one line. Pure.

use std::collections::BTreeMap;

use super::fair::bytes_on_disk;
use super::summary::{Standing, is_deletable, second_snapshotter, standing};
use super::{Refs, Root};
use crate::model::container::ContainerState;
use crate::model::ids::{FilesystemIx, NodeIx, StoreIx};
use crate::model::inventory::Inventory;
use crate::model::node::NodeKind;
use crate::model::space::BytesAndInodes;
use crate::model::store::Consistency;
use crate::model::text::names::names;

names! {
    /// Kind of the objects that a line counts. If roots of several kinds reach a byte, the first kind contains it.
    LineKind {
        /// Images that a container or a use from elsewhere uses.
        ImagesInUse = "images_in_use",
        /// Unused images that configuration or a read-only store keeps.
        ImagesPinned = "images_pinned",
        /// Unused images that layersweep cannot delete here.
        ImagesOutOfReach = "images_out_of_reach",
        /// Images that nothing keeps.
        ImagesUnused = "images_unused",
        Artifacts = "artifacts",
        /// Snapshots of images in a snapshotter other than the store's usual one.
        Snapshotter = "snapshotter",
        ContainersRunning = "containers_running",
        ContainersExited = "containers_exited",
        /// Containers that were never started, or whose state the disk does not show.
        ContainersOther = "containers_other",
        BuildCache = "build_cache",
        Leaks = "leaks",
        /// Files whose owner is unknown, because records or a layout cannot be read.
        Unknown = "unknown",
        /// The stores' own bookkeeping.
        Metadata = "metadata",
        /// Everything else below the roots of the stores.
        Other = "store_other",
    }
}

impl LineKind {
    pub fn of_container(state: ContainerState) -> Self {
        match state {
            ContainerState::Running => Self::ContainersRunning,
            ContainerState::Exited => Self::ContainersExited,
            ContainerState::Created | ContainerState::Unknown => Self::ContainersOther,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub kind: LineKind,
    /// Name of the snapshotter for [`LineKind::Snapshotter`]; the obstacle to deletion for
    /// [`LineKind::ImagesOutOfReach`].
    pub name: Option<String>,
    pub count: usize,
    pub bytes: u64,
    pub inodes: u64,
    /// Bytes that would be freed if only the deletable part of this line were deleted.
    pub reclaimable_bytes: u64,
    /// Everything in its deletable part is measured. If not, `reclaimable_bytes` is a lower bound.
    pub is_measured: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// One line of each kind, in order; for snapshotters and images out of reach, one line for each name.
    pub lines: Vec<Line>,
    /// Bytes that deleting all unused images and artifacts and all reclaimable leaks would free.
    pub reclaimable_bytes: u64,
}

/// Returns the bytes that each node occupies on a filesystem.
pub fn size_on_disk(inventory: &Inventory, filesystem: FilesystemIx) -> Vec<u64> {
    let nodes = inventory.nodes.iter().enumerate();
    let size =
        nodes.map(
            |(position, node)| {
                if node.filesystem == filesystem { bytes_on_disk(inventory, position.into()) } else { 0 }
            },
        );
    size.collect()
}

/// Divides the stores' bytes on a filesystem into lines.
pub fn column(inventory: &Inventory, refs: &Refs, filesystem: FilesystemIx) -> Column {
    let roots: Vec<Root> =
        (0..inventory.stores.len()).flat_map(|store| refs.roots_of(store.into())).copied().collect();
    let mut counts = [0_usize; LineKind::ALL.len()];
    let mut deletable: BTreeMap<LineKind, Vec<Root>> = BTreeMap::new();
    let mut kinds = vec![LineKind::Other; refs.reach.len()];
    // Lines with a name: second snapshotters, and images out of reach.
    let mut named: BTreeMap<(LineKind, String), (usize, BytesAndInodes)> = BTreeMap::new();
    let mut obstacles: BTreeMap<Root, String> = BTreeMap::new();
    for root in roots {
        let (kind, is_deletable) = kind_of(inventory, refs, root);
        kinds[refs.position(root)] = kind;
        let is_here =
            filesystem_of(inventory, root) == filesystem || has_bytes_on(inventory, refs, root, filesystem);
        if let (LineKind::ImagesOutOfReach, Root::Image(image)) = (kind, root)
            && let Some(obstacle) = inventory.obstacle(image)
        {
            named.entry((kind, obstacle.clone())).or_default().0 += usize::from(is_here);
            obstacles.insert(root, obstacle);
        } else if is_here && is_counted(inventory, root) {
            counts[kind as usize] += 1;
        }
        if is_deletable {
            deletable.entry(kind).or_default().push(root);
        }
    }
    for cache in &inventory.build_caches {
        if filesystem_of_nodes(inventory, &cache.holds, cache.store) == filesystem {
            counts[LineKind::BuildCache as usize] += cache.records;
        }
    }
    let kind_of_node = |node: NodeIx| {
        let cached = refs.is_cached(node).then_some(LineKind::BuildCache);
        let held = refs.reached_by(node).map(|root| kinds[refs.position(root)]).chain(cached).min();
        match inventory[node].kind {
            NodeKind::StoreMetadata | NodeKind::StoreRecords => LineKind::Metadata,
            NodeKind::Unknown => LineKind::Unknown,
            // Each of the images that reach it may be deleted, but not all of them. A read-only store keeps all of
            // its nodes.
            _ if !inventory[inventory[node].store].read_only
                && refs.use_of(inventory, node).is_some()
                && held != Some(LineKind::Artifacts) =>
            {
                LineKind::ImagesInUse
            }
            _ => held.unwrap_or(LineKind::Other),
        }
    };
    let mut sums = [BytesAndInodes::default(); LineKind::ALL.len()];
    for (position, bytes) in size_on_disk(inventory, filesystem).into_iter().enumerate() {
        let kind = kind_of_node(position.into());
        let node = &inventory.nodes[position];
        let copy = second_snapshotter(inventory, node).filter(|_| kind <= LineKind::ImagesUnused);
        let sum = match copy.filter(|_| node.filesystem == filesystem) {
            Some(name) => {
                let line = named.entry((LineKind::Snapshotter, name.to_owned())).or_default();
                line.0 += 1;
                &mut line.1
            }
            None if kind == LineKind::ImagesOutOfReach => {
                let obstacle = refs.reached_by(position.into()).find_map(|root| obstacles.get(&root));
                &mut named.entry((kind, obstacle.cloned().unwrap_or_default())).or_default().1
            }
            None => &mut sums[kind as usize],
        };
        sum.bytes = sum.bytes.saturating_add(bytes);
        if node.filesystem == filesystem && node.kind != NodeKind::TemporaryFile {
            sum.inodes = sum.inodes.saturating_add(node.size.inodes);
        }
    }
    let mut lines = Vec::with_capacity(LineKind::ALL.len() + named.len());
    for kind in LineKind::ALL.iter().copied() {
        if matches!(kind, LineKind::Snapshotter | LineKind::ImagesOutOfReach) {
            let of_kind = named.iter().filter(|((of, _), _)| *of == kind);
            lines.extend(of_kind.map(|((_, name), (count, size))| Line {
                kind,
                name: Some(name.clone()),
                count: *count,
                bytes: size.bytes,
                inodes: size.inodes,
                reclaimable_bytes: 0,
                is_measured: true,
            }));
            continue;
        }
        let roots = deletable.get(&kind).map_or(&[][..], Vec::as_slice);
        let reclaimable_bytes = frees(inventory, refs, roots, filesystem);
        let is_measured = roots.iter().all(|root| refs.is_measured(inventory, *root));
        let (count, BytesAndInodes { bytes, inodes }) = (counts[kind as usize], sums[kind as usize]);
        lines.push(Line { kind, name: None, count, bytes, inodes, reclaimable_bytes, is_measured });
    }
    let unused = [LineKind::ImagesUnused, LineKind::Artifacts, LineKind::Leaks];
    let unused: Vec<_> = unused.iter().filter_map(|kind| deletable.get(kind)).flatten().copied().collect();
    Column { lines, reclaimable_bytes: frees(inventory, refs, &unused, filesystem) }
}

/// Returns the kind of a root's line, and whether the root could be deleted.
pub fn kind_of(inventory: &Inventory, refs: &Refs, root: Root) -> (LineKind, bool) {
    match root {
        Root::Image(ix) => {
            let is_deletable = is_deletable(inventory, refs, root);
            let kind = match standing(inventory, refs, ix) {
                _ if inventory.is_artifact(ix) => LineKind::Artifacts,
                Standing::InUse => LineKind::ImagesInUse,
                Standing::Pinned | Standing::ReadOnly => LineKind::ImagesPinned,
                Standing::Unused if is_deletable => LineKind::ImagesUnused,
                Standing::Unused => LineKind::ImagesOutOfReach,
            };
            (kind, is_deletable)
        }
        Root::Container(ix) => {
            let container = &inventory[ix];
            let kind = LineKind::of_container(container.state);
            let is_sound = inventory[container.store].consistency != Consistency::Damaged;
            (kind, kind == LineKind::ContainersExited && is_sound)
        }
        Root::Leak(_) => (LineKind::Leaks, is_deletable(inventory, refs, root)),
    }
}

/// Returns whether an image has layers on a filesystem, which may differ from its store's.
pub fn has_bytes_on(inventory: &Inventory, refs: &Refs, root: Root, filesystem: FilesystemIx) -> bool {
    let is_image = matches!(root, Root::Image(_));
    let mut reached = refs.reach(root).iter().map(|node| &inventory[*node]);
    is_image && reached.any(|node| node.filesystem == filesystem && node.size.bytes > 0)
}

/// Returns true unless the root is a notice about another program's namespace.
fn is_counted(inventory: &Inventory, root: Root) -> bool {
    match root {
        Root::Leak(leak_ix) => inventory[leak_ix].class.is_counted(),
        Root::Image(_) | Root::Container(_) => true,
    }
}

fn filesystem_of(inventory: &Inventory, root: Root) -> FilesystemIx {
    let (holds, store) = match root {
        Root::Image(ix) => (&inventory[ix].holds, inventory[ix].store),
        Root::Container(ix) => (&inventory[ix].holds, inventory[ix].store),
        Root::Leak(ix) => (&inventory[ix].holds, inventory[ix].store),
    };
    filesystem_of_nodes(inventory, holds, store)
}

fn filesystem_of_nodes(inventory: &Inventory, holds: &[NodeIx], store: StoreIx) -> FilesystemIx {
    holds.first().map_or(inventory[store].filesystem, |node| inventory[*node].filesystem)
}

/// Returns the bytes that deleting all of `roots` would free on a filesystem.
fn frees(inventory: &Inventory, refs: &Refs, roots: &[Root], filesystem: FilesystemIx) -> u64 {
    let mut live = refs.live();
    let mut freed: u64 = 0;
    for root in roots {
        let nodes = live.last_held(*root).filter(|node| inventory[*node].filesystem == filesystem);
        freed = nodes.map(|node| inventory[node].size.frees_bytes).fold(freed, u64::saturating_add);
        live.remove(inventory, *root);
    }
    freed
}

/// Reduces `parts` in proportion if their sum exceeds `used`. Returns the rest (`used` minus the reduced parts, so
/// that the column adds up exactly) and the excess of the original parts.
pub fn fit(mut parts: Vec<&mut u64>, used: u64) -> (u64, u64) {
    let sum: u128 = parts.iter().map(|part| u128::from(**part)).sum();
    let excess = sum.saturating_sub(u128::from(used));
    if excess > 0 {
        for part in &mut parts {
            **part = u64::try_from(u128::from(**part) * u128::from(used) / sum).unwrap_or(u64::MAX);
        }
    }
    let sum: u128 = parts.iter().map(|part| u128::from(**part)).sum();
    let rest = u128::from(used).saturating_sub(sum);
    (u64::try_from(rest).unwrap_or(u64::MAX), u64::try_from(excess).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::refs::tests::{any_inventory, container, tree};
    use crate::model::{Use, refs::breakdown};

    fn lines_of(inventory: &Inventory) -> Vec<(LineKind, usize, u64, u64)> {
        let column = column(inventory, &Refs::new(inventory), 0.into());
        let lines = column.lines.iter().filter(|line| line.count > 0 || line.bytes > 0);
        lines.map(|line| (line.kind, line.count, line.bytes, line.reclaimable_bytes)).collect()
    }

    #[test]
    fn each_byte_is_in_one_line() {
        let mut inventory = tree();
        inventory.images[0].pinned_by = vec!["crio.conf".into()];
        inventory.containers[0].state = ContainerState::Running;
        inventory.containers.push(container(None, &[]));
        inventory.containers[1].state = ContainerState::Exited;
        assert_eq!(
            lines_of(&inventory),
            [
                (LineKind::ImagesInUse, 1, 1830, 0),
                (LineKind::ImagesPinned, 1, 0, 0),
                (LineKind::ImagesUnused, 2, 4, 5),
                (LineKind::ContainersRunning, 1, 50_000, 0),
                (LineKind::ContainersExited, 1, 0, 0),
                (LineKind::Leaks, 1, 7, 8),
                (LineKind::Metadata, 0, 9, 0),
            ]
        );
        // Nodes that another store needs are in use, whatever reaches them here.
        inventory.containers.clear();
        inventory.uses = vec![Use { holds: vec![3.into()], ..Use::default() }];
        let lines = lines_of(&inventory);
        assert!(lines.contains(&(LineKind::ImagesInUse, 1, 1604, 0)), "{lines:?}");
        fn unused_images(lines: &[(LineKind, usize, u64, u64)]) -> (usize, u64) {
            let unused = lines.iter().find(|line| line.0 == LineKind::ImagesUnused);
            unused.map_or((0, 0), |line| (line.1, line.3))
        }
        let before = unused_images(&lines);
        inventory.out_of_reach.insert(2.into(), "in another store".into());
        let out_of_reach = lines_of(&inventory);
        assert_eq!(unused_images(&out_of_reach).0 + 1, before.0, "{out_of_reach:?}");
        assert!(
            out_of_reach.iter().any(|line| (line.0, line.1, line.3) == (LineKind::ImagesOutOfReach, 1, 0))
        );
        inventory.stores[0].consistency = Consistency::Damaged;
        assert!(lines_of(&inventory).iter().all(|line| line.3 == 0), "damaged records prove nothing");
    }

    proptest! {
        #[test]
        fn lines_add_up(inventory in any_inventory()) {
            let refs = Refs::new(&inventory);
            let column = column(&inventory, &refs, 0.into());
            let sum: u64 = column.lines.iter().map(|line| line.bytes).sum();
            let total = breakdown(&inventory, &refs, 0.into()).total();
            prop_assert_eq!(sum, total.bytes);
            let inodes: u64 = column.lines.iter().map(|line| line.inodes).sum();
            prop_assert_eq!(inodes, total.inodes);
            prop_assert_eq!(
                column.reclaimable_bytes,
                crate::model::refs::reclaimable(&inventory, &refs, &[0.into()]).frees_bytes
            );
        }

        #[test]
        fn fitted_parts_and_rest_add_up(
            mut parts in proptest::collection::vec(any::<u64>(), 0..20),
            used: u64,
        ) {
            let before = parts.clone();
            let (rest, excess) = fit(parts.iter_mut().collect(), used);
            let sum = |parts: &[u64]| parts.iter().map(|part| u128::from(*part)).sum::<u128>();
            prop_assert_eq!(sum(&parts) + u128::from(rest), u128::from(used));
            prop_assert!(excess == 0 || sum(&before) > u128::from(used));
        }
    }
}
