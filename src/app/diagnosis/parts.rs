//! A filesystem's used bytes, divided among those who hold them: the sum is exact.

use std::path::{Path, PathBuf};

use crate::app::diagnosis::{Part, PartKind};
use crate::model::refs::{self, Refs, Root, Standing, is_deletable, size_on_disk, standing};
use crate::model::{FilesystemIx, Image, Inventory, NodeKind};
use crate::stores::Scan;
use crate::stores::other_usage::{LargeDirectory, OtherUser, OtherUserKind, OtherUsers};

/// Directories that hold less than this share of what is used count as `other`.
const SMALL: u64 = 100;

/// A filesystem's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided {
    /// In the order of [`PartKind`], the largest first; `other` last. Their bytes add up to
    /// what is used.
    pub parts: Vec<Part>,
    /// By how much the parts as measured exceed what is used: they were made smaller in
    /// proportion. 0 as a rule.
    pub excess_bytes: u64,
}

/// Divides what is used on one filesystem.
pub fn divide(scan: &Scan, other_users: &OtherUsers, at: FilesystemIx) -> Divided {
    let (inventory, inside) = (&scan.inventory, |path: &Path| scan.sysroot.shown(path));
    let used = inventory.filesystems[at.get()].used_bytes;
    let mut parts = of_stores(inventory, &scan.refs, at, &inside);
    let large = large(scan, other_users, at);
    for directory in &large {
        let other =
            parts.iter_mut().find(|part| part.kind == directory.kind && part.store == directory.store);
        other.into_iter().for_each(|part| part.bytes = part.bytes.saturating_sub(directory.bytes));
    }
    parts.iter_mut().for_each(|part| part.measured_bytes = part.bytes);
    parts.extend(large);
    parts.extend(outside(scan, other_users, at));
    parts.retain(|part| part.bytes > 0);
    fit(parts, used)
}

/// Large directories in the stores that belong to no image or container, the largest first.
pub fn large(scan: &Scan, other_users: &OtherUsers, at: FilesystemIx) -> Vec<Part> {
    let sizes = size_on_disk(&scan.inventory, at);
    let is_counted = |directory: &&LargeDirectory| {
        let mut nodes = scan.inventory.nodes.iter().zip(&sizes);
        directory.filesystem == at
            && nodes.any(|(node, size)| node.path == directory.path && *size >= directory.bytes)
    };
    let here = other_users.large.iter().filter(is_counted);
    let parts = here.map(|directory| {
        let root = &scan.inventory[directory.store].root;
        Part {
            label: kind_of_large(directory).to_owned(),
            path: Some(scan.sysroot.shown(&directory.path)),
            store: Some(root.to_string_lossy().into_owned()),
            ..Part::new(PartKind::StoreOther, directory.bytes)
        }
    });
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    parts
}

/// For people.
pub(super) fn kind_of_large(directory: &LargeDirectory) -> &'static str {
    match directory.path.file_name().is_some_and(|name| name == "volumes") {
        _ if directory.is_store => "another store",
        true => "volumes",
        false => "other directory in a store",
    }
}

/// What is in no store, without the directories that are too small for a name.
pub fn outside(scan: &Scan, other_users: &OtherUsers, at: FilesystemIx) -> Vec<Part> {
    let (used, inside) = (scan.inventory[at].used_bytes, |path: &Path| scan.sysroot.shown(path));
    let here = other_users.other_users.iter().filter(|user| user.filesystem == at);
    let part = |user: &OtherUser| of_use(user.kind, &user.path, user.holder.as_deref(), user.bytes, &inside);
    here.filter(|user| is_named(user, used)).map(part).collect()
}

fn is_named(user: &OtherUser, used: u64) -> bool {
    match user.kind {
        OtherUserKind::Directory | OtherUserKind::DeletedOpen => user.bytes >= (used / SMALL).max(1),
        _ => true,
    }
}

/// What is at a path that is in no store. `inside` is how the node itself names a path.
pub fn of_use(
    kind: OtherUserKind,
    path: &Path,
    holder: Option<&str>,
    bytes: u64,
    inside: &dyn Fn(&Path) -> String,
) -> Part {
    let (kind, label) = match kind {
        OtherUserKind::PodLogs => (PartKind::PodLogs, None),
        OtherUserKind::Logs => (PartKind::Logs, None),
        OtherUserKind::Journal => (PartKind::Journal, None),
        OtherUserKind::KubeletVolumes => (PartKind::KubeletVolumes, None),
        OtherUserKind::VarTmp => (PartKind::VarTmp, None),
        OtherUserKind::Layersweep => (PartKind::Layersweep, None),
        OtherUserKind::CoreDumps => (PartKind::CoreDumps, None),
        OtherUserKind::Swap => (PartKind::Swap, None),
        OtherUserKind::DeletedOpen => {
            let holder = holder.unwrap_or("a process");
            (PartKind::DeletedOpen, Some(format!("deleted, but held open by {holder}")))
        }
        OtherUserKind::Snapshotter => {
            (PartKind::Directory, Some(format!("snapshotter {}", holder.unwrap_or("?"))))
        }
        OtherUserKind::Directory => (PartKind::Directory, Some(path.display().to_string())),
    };
    let part = Part { path: Some(inside(path)), ..Part::new(kind, bytes) };
    Part { label: label.unwrap_or(part.label), ..part }
}

impl Part {
    pub(super) fn new(kind: PartKind, bytes: u64) -> Self {
        let label = kind.words()[1].to_owned();
        Self { kind, label, path: None, bytes, measured_bytes: bytes, store: None }
    }
}

/// What the stores hold on a filesystem, each byte once: with the strongest of those who reach it.
fn of_stores(
    inventory: &Inventory,
    refs: &Refs,
    at: FilesystemIx,
    inside: &dyn Fn(&Path) -> String,
) -> Vec<Part> {
    let of_image = |(image, facts): (usize, &Image)| match standing(inventory, refs, image.into()) {
        _ if inventory.stores[facts.store.get()].read_only => PartKind::Images,
        Standing::InUse | Standing::ReadOnly => PartKind::Images,
        Standing::Pinned => PartKind::ImagesPinned,
        Standing::Unused if is_deletable(inventory, refs, Root::Image(image.into())) => {
            PartKind::ImagesUnused
        }
        Standing::Unused => PartKind::ImagesOutOfReach,
    };
    let of_images: Vec<_> = inventory.images.iter().enumerate().map(of_image).collect();
    let of_root = |root: Root| match root {
        Root::Image(image) => of_images[image.get()],
        Root::Container(_) => PartKind::Containers,
        Root::Leak(_) => PartKind::Leaks,
    };
    let sizes = size_on_disk(inventory, at);
    let mut parts = Vec::new();
    for (store, facts) in inventory.stores.iter().enumerate() {
        let mut sums = PartKind::OF_STORES.map(|_| 0_u64);
        let nodes = inventory.nodes.iter().enumerate();
        for (position, node) in nodes.filter(|(_, node)| node.store.get() == store) {
            let kind = match node.kind {
                NodeKind::StoreMetadata | NodeKind::StoreRecords => PartKind::Metadata,
                // Several images hold it, so that each of them may go, but not all.
                _ if refs.use_of(inventory, position.into()).is_some() => PartKind::Images,
                // The order of kinds is that of strength.
                _ => {
                    let cached = refs.is_cached(position.into()).then_some(PartKind::BuildCache);
                    let held = refs.reached_by(position.into()).map(of_root).chain(cached).min();
                    held.unwrap_or(PartKind::StoreOther)
                }
            };
            sums[kind as usize] += sizes[position];
        }
        parts.extend(PartKind::OF_STORES.into_iter().zip(sums).map(|(kind, bytes)| Part {
            path: Some(inside(&facts.root)),
            store: Some(facts.root.to_string_lossy().into_owned()),
            ..Part::new(kind, bytes)
        }));
    }
    parts
}

/// Makes the sum exact: the rest is `other`; where there is less than nothing, all parts shrink in
/// proportion.
fn fit(mut parts: Vec<Part>, used: u64) -> Divided {
    let (rest, excess_bytes) = refs::fit(parts.iter_mut().map(|part| &mut part.bytes).collect(), used);
    let place = |part: &Part| part.path.as_ref().map(PathBuf::from);
    parts.sort_by(|a, b| {
        a.kind.cmp(&b.kind).then(b.bytes.cmp(&a.bytes)).then_with(|| place(a).cmp(&place(b)))
    });
    parts.push(Part::new(PartKind::Other, rest));
    Divided { parts, excess_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Consistency, Labels, Node, Size, Store, StoreKind, Use};
    use proptest::prelude::*;

    fn part(kind: PartKind, bytes: u64) -> Part {
        Part::new(kind, bytes)
    }

    /// Two images share a layer that another store needs, and one is used there by its name.
    #[test]
    fn what_another_store_uses_is_in_use() {
        let node = |bytes| Node {
            kind: NodeKind::Layer,
            id: String::new(),
            store: 0.into(),
            filesystem: 0.into(),
            path: "/store/x".into(),
            size: Size { bytes, apparent_bytes: bytes, inodes: 1, frees_bytes: bytes },
            needs: Vec::new(),
            layer: None,
        };
        let image = |holds: &[usize]| Image {
            id: "".into(),
            store: 0.into(),
            names: Vec::new(),
            digests: Vec::new(),
            created: None,
            evidence: Vec::new(),
            is_list: false,
            pinned_by: Vec::new(),
            labels: Labels::default(),
            layers: Vec::new(),
            listed_bytes: None,
            holds: holds.iter().map(|at| (*at).into()).collect(),
        };
        let store = Store {
            kind: StoreKind::ContainersStorage,
            root: "/store".into(),
            driver: "overlay".into(),
            filesystem: 0.into(),
            read_only: false,
            origin: String::new(),
            consistency: Consistency::Consistent,
        };
        let mut inventory = Inventory {
            stores: vec![store],
            nodes: [1, 20, 300, 4000].map(node).into(),
            images: vec![image(&[0, 1]), image(&[0, 2]), image(&[3])],
            ..Inventory::default()
        };
        let bytes = |inventory: &Inventory| {
            let parts =
                of_stores(inventory, &Refs::new(inventory), 0.into(), &|path| path.display().to_string());
            [PartKind::Images, PartKind::ImagesUnused]
                .map(|kind| parts.iter().find(|part| part.kind == kind).map_or(0, |part| part.bytes))
        };
        assert_eq!(bytes(&inventory), [0, 4321]);
        let shared = Use { holds: vec![0.into()], ..Use::default() };
        let named = Use { images: vec![2.into()], ..Use::default() };
        inventory.uses = vec![shared, named];
        assert_eq!(bytes(&inventory), [4001, 320]);
    }

    #[test]
    fn the_rest_is_other_and_never_negative() {
        let divided = fit(vec![part(PartKind::Logs, 30), part(PartKind::Images, 50)], 100);
        let bytes: Vec<_> = divided.parts.iter().map(|part| (part.kind, part.bytes)).collect();
        assert_eq!(bytes, [(PartKind::Images, 50), (PartKind::Logs, 30), (PartKind::Other, 20)]);
        assert_eq!(divided.excess_bytes, 0);
        let divided = fit(vec![part(PartKind::Logs, 100), part(PartKind::Images, 100)], 101);
        let bytes: Vec<_> = divided.parts.iter().map(|part| (part.bytes, part.measured_bytes)).collect();
        assert_eq!(bytes, [(50, 100), (50, 100), (1, 1)]);
        assert_eq!(divided.excess_bytes, 99);
        assert_eq!(fit(Vec::new(), 0).parts.len(), 1);
    }

    proptest! {
        #[test]
        fn the_sum_is_exact(bytes in proptest::collection::vec(any::<u64>(), 0..20), used: u64) {
            let parts = bytes.iter().map(|bytes| part(PartKind::Directory, *bytes)).collect();
            let divided = fit(parts, used);
            let sum: u128 = divided.parts.iter().map(|part| u128::from(part.bytes)).sum();
            prop_assert_eq!(sum, u128::from(used));
        }
    }
}
