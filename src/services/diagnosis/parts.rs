//! Division of the used bytes of a filesystem into parts. The sum of the parts is exact.
//!
//! In the stores each byte counts once. If several objects reach it, it counts for the kind that is most difficult to
//! delete. For example, a layer that a used and an unused image share counts for the used image. Outside the stores the
//! measured directories are parts. The difference to the used bytes is `other`; if the parts exceed the used bytes,
//! all are reduced in proportion.

use std::path::Path;

use crate::model::refs::{self, Refs, Root, Standing, is_deletable, size_on_disk, standing};
use crate::model::space::BytesAndInodes;
use crate::model::text::volume;
use crate::model::{Filesystem, FilesystemIx, Inventory, NodeKind};
use crate::services::diagnosis::{Part, PartKind};
use crate::stores::Scan;
use crate::stores::other_usage::{LargeDirectory, OtherUser, OtherUserKind, OtherUsers};

/// Inverse of the minimum share of the used bytes: a directory below 1/100 of them counts as `other`.
const SMALL: u64 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided {
    /// Parts in the order of [`PartKind`], the largest first within a kind; `other` is last. Their bytes add up to
    /// the used bytes.
    pub parts: Vec<Part>,
    /// Bytes by which the measured parts exceed the used bytes, usually 0. The parts were reduced in proportion.
    pub excess_bytes: u64,
}

pub fn divide(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Divided {
    let inventory = &scan.inventory;
    let used = inventory.filesystems[ix.get()].used_bytes;
    let mut parts = of_stores(inventory, &scan.refs, ix, &|path| scan.sysroot.shown(path));
    let large = large(scan, other_users, ix);
    for directory in &large {
        let other =
            parts.iter_mut().find(|part| part.kind == PartKind::StoreOther && part.store == directory.store);
        if let Some(part) = other {
            part.bytes = part.bytes.saturating_sub(directory.bytes);
            part.inodes = part.inodes.saturating_sub(directory.inodes);
        }
    }
    parts.iter_mut().for_each(|part| part.measured_bytes = part.bytes);
    parts.extend(large);
    parts.extend(outside(scan, other_users, ix));
    parts.retain(|part| part.bytes > 0);
    fit(parts, used)
}

/// Returns the large directories in the stores that do not belong to an image or container, the largest first.
pub fn large(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Vec<Part> {
    let sizes = size_on_disk(&scan.inventory, ix);
    let counted = other_users.large.iter().filter(|directory| {
        let mut nodes = scan.refs.nodes_of(directory.store).iter();
        directory.filesystem == ix
            && nodes.any(|node| {
                scan.inventory[*node].path == directory.path && sizes[node.get()] >= directory.bytes
            })
    });
    let parts = counted.map(|directory| {
        let root = &scan.inventory[directory.store].root;
        Part {
            label: kind_of_large(directory).to_owned(),
            path: Some(scan.sysroot.shown(&directory.path)),
            store: Some(root.to_string_lossy().into_owned()),
            tool: scan.inventory[directory.store].kind.facts().tool,
            inodes: directory.inodes,
            ..Part::new(part_kind(directory), directory.bytes)
        }
    });
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    parts
}

fn part_kind(directory: &LargeDirectory) -> PartKind {
    if directory.unread_store.is_some() {
        PartKind::OtherStore
    } else if directory.path.file_name().is_some_and(|name| name == "volumes") {
        PartKind::Volumes
    } else {
        PartKind::StoreOther
    }
}

pub(super) fn kind_of_large(directory: &LargeDirectory) -> &'static str {
    match part_kind(directory) {
        PartKind::StoreOther => "other files in a store",
        kind => kind.words()[1],
    }
}

/// Returns the parts outside the stores, without directories that are too small to be named.
pub fn outside(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Vec<Part> {
    let filesystem = &scan.inventory[ix];
    let users = other_users.other_users.iter();
    let parts = users.filter(|user| user.filesystem == ix && is_named(user, filesystem)).map(|user| {
        let holder = user.holder.as_deref();
        let part = of_use(user.kind, &user.path, holder, user.bytes, &|path| scan.sysroot.shown(path));
        Part { inodes: user.inodes, ..part }
    });
    parts.collect()
}

fn is_named(user: &OtherUser, filesystem: &Filesystem) -> bool {
    let Filesystem { used_bytes, inodes, .. } = filesystem;
    let has_many_inodes = *inodes > 0 && user.inodes >= (inodes / SMALL).max(1);
    match user.kind {
        OtherUserKind::Directory | OtherUserKind::DeletedOpen => {
            user.bytes >= (used_bytes / SMALL).max(1) || has_many_inodes
        }
        _ => true,
    }
}

/// Returns the part for a path outside the stores. `inside` converts a path to the name that the node itself uses.
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
        OtherUserKind::Store(kind) => {
            let label = holder
                .map_or_else(|| format!("another store, read with {}", kind.facts().flag), str::to_owned);
            (PartKind::OtherStore, Some(label))
        }
        OtherUserKind::Directory | OtherUserKind::Volume => {
            (PartKind::Directory, Some(volume::title(&inside(path))))
        }
    };
    let part = Part { path: Some(inside(path)), ..Part::new(kind, bytes) };
    Part { label: label.unwrap_or(part.label), ..part }
}

impl Part {
    /// Returns its path, with the pod that it belongs to, or else its label.
    pub fn title(&self) -> String {
        match (&self.path, self.kind) {
            (Some(path), PartKind::PodLogs | PartKind::KubeletVolumes) => format!("{} ({path})", self.label),
            (path, _) => path.as_ref().unwrap_or(&self.label).clone(),
        }
    }

    pub(super) fn new(kind: PartKind, bytes: u64) -> Self {
        let label = kind.words()[1].to_owned();
        Self { kind, label, path: None, bytes, measured_bytes: bytes, inodes: 0, store: None, tool: None }
    }
}

fn of_stores(
    inventory: &Inventory,
    refs: &Refs,
    ix: FilesystemIx,
    inside: &dyn Fn(&Path) -> String,
) -> Vec<Part> {
    let image_kinds: Vec<_> = (0..inventory.images.len())
        .map(|position| match standing(inventory, refs, position.into()) {
            Standing::InUse => PartKind::Images,
            Standing::Pinned | Standing::ReadOnly => PartKind::ImagesPinned,
            Standing::Unused if is_deletable(inventory, refs, Root::Image(position.into())) => {
                PartKind::ImagesUnused
            }
            Standing::Unused => PartKind::ImagesOutOfReach,
        })
        .collect();
    let sizes = size_on_disk(inventory, ix);
    let mut parts = Vec::new();
    for (store, facts) in inventory.stores.iter().enumerate() {
        let mut sums = PartKind::OF_STORES.map(|_| BytesAndInodes::default());
        for node_ix in refs.nodes_of(store.into()).iter().copied() {
            let (position, node) = (node_ix.get(), &inventory[node_ix]);
            let kind = match node.kind {
                NodeKind::StoreMetadata | NodeKind::StoreRecords => PartKind::Metadata,
                NodeKind::Unknown => PartKind::Unknown,
                // Another store needs the node: one of the images that contain it has to be kept.
                _ if refs.use_of(inventory, position.into()).is_some() => PartKind::Images,
                // The first kind is the most difficult to delete.
                _ => {
                    let kinds = refs.reached_by(position.into()).map(|root| match root {
                        Root::Image(image) => image_kinds[image.get()],
                        Root::Container(_) => PartKind::Containers,
                        Root::Leak(_) => PartKind::Leaks,
                    });
                    let cached = refs.is_cached(position.into()).then_some(PartKind::BuildCache);
                    kinds.chain(cached).min().unwrap_or(PartKind::StoreOther)
                }
            };
            let sum = &mut sums[kind as usize];
            sum.bytes += sizes[position];
            if node.filesystem == ix && node.kind != NodeKind::TemporaryFile {
                sum.inodes += node.size.inodes;
            }
        }
        parts.extend(PartKind::OF_STORES.into_iter().zip(sums).map(|(kind, size)| Part {
            path: Some(inside(&facts.root)),
            store: Some(facts.root.to_string_lossy().into_owned()),
            inodes: size.inodes,
            ..Part::new(kind, size.bytes)
        }));
    }
    parts
}

/// Makes the sum of the parts exact by adding `other` or by reducing the parts.
fn fit(mut parts: Vec<Part>, used: u64) -> Divided {
    let (rest, excess_bytes) = refs::fit(parts.iter_mut().map(|part| &mut part.bytes).collect(), used);
    parts.sort_by(|a, b| {
        a.kind
            .cmp(&b.kind)
            .then(b.bytes.cmp(&a.bytes))
            .then_with(|| a.path.as_deref().map(Path::new).cmp(&b.path.as_deref().map(Path::new)))
    });
    parts.push(Part::new(PartKind::Other, rest));
    Divided { parts, excess_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Use, samples};
    use proptest::prelude::*;

    fn part(kind: PartKind, bytes: u64) -> Part {
        Part::new(kind, bytes)
    }

    /// Bytes of images in use, and of unused images.
    fn image_bytes(inventory: &Inventory) -> [u64; 2] {
        let parts = of_stores(inventory, &Refs::new(inventory), 0.into(), &|path| path.display().to_string());
        [PartKind::Images, PartKind::ImagesUnused]
            .map(|kind| parts.iter().find(|part| part.kind == kind).map_or(0, |part| part.bytes))
    }

    /// Another store uses a layer that two images share, and a third image by its name.
    #[test]
    fn image_that_another_store_uses_is_in_use() {
        let mut inventory = Inventory {
            stores: vec![samples::store()],
            nodes: [1, 20, 300, 4000].map(|bytes| samples::layer(bytes, &[])).into(),
            images: [&[0, 1][..], &[0, 2], &[3]].map(|holds| samples::image("a", holds)).into(),
            ..Inventory::default()
        };
        assert_eq!(image_bytes(&inventory), [0, 4321]);
        let shared = Use { holds: vec![0.into()], ..Use::default() };
        let named = Use { images: vec![2.into()], ..Use::default() };
        inventory.uses = vec![shared, named];
        assert_eq!(image_bytes(&inventory), [4001, 320]);
    }

    #[test]
    fn parts_are_reduced_if_they_exceed_the_usage() {
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
        fn sum_of_parts_is_exact(bytes in proptest::collection::vec(any::<u64>(), 0..20), used: u64) {
            let parts = bytes.iter().map(|bytes| part(PartKind::Directory, *bytes)).collect();
            let divided = fit(parts, used);
            let sum: u128 = divided.parts.iter().map(|part| u128::from(part.bytes)).sum();
            prop_assert_eq!(sum, u128::from(used));
        }
    }
}
