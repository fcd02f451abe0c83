//! Directories in stores that belong to no image, container or leak: those of volumes, and others that are large.

use std::path::{Path, PathBuf};

use super::sizes::{BIG, by_unit, tree};
use super::types::{LargeDirectory, VolumeUse};
use crate::disk::{ExtentOptions, TreeScope, WalkOptions, measure as walk};
use crate::model::space::BytesAndInodes;
use crate::model::{Filesystem, NodeKind, StoreKind};
use crate::stores::Scan;
use crate::stores::containerd::places::is_root;
use crate::stores::containers_storage::places::drivers_in;
use crate::stores::docker::places::is_data_root;
use crate::sys::allowance::{self, Allowance};
use crate::sys::quiet::Within;
use crate::sys::root::Root;

/// Minimum allocated bytes of a directory that is named.
const LEAST: u64 = 1 << 20;

/// Inverse of the minimum share of the inodes of the filesystem in a directory that is named for them.
const MANY_INODES: u64 = 10;

pub(super) fn directories(scan: &Scan, threads: usize) -> Vec<LargeDirectory> {
    let large = scan.inventory.nodes.iter().filter(|node| {
        let Filesystem { used_bytes, inodes, .. } = scan.inventory[node.filesystem];
        let has_many_inodes = inodes > 0 && node.size.inodes >= (inodes / MANY_INODES).max(1);
        let is_large = node.size.bytes >= (used_bytes / 100).max(LEAST);
        let has_volumes = node.path.file_name().is_some_and(|name| name == "volumes")
            && scan.inventory.volumes.get(&node.store).is_some_and(|volumes| !volumes.is_empty());
        node.kind == NodeKind::Other && (is_large || has_many_inodes || has_volumes)
    });
    let directories = large.map(|node| {
        let root = scan.sysroot.open(&scan.sysroot.display(&node.path)).ok();
        LargeDirectory {
            store: node.store,
            filesystem: node.filesystem,
            path: node.path.clone(),
            bytes: node.size.bytes,
            inodes: node.size.inodes,
            largest: root.as_ref().and_then(|root| largest(root, threads)),
            unread_store: root.as_ref().and_then(store_kind),
        }
    });
    directories.collect()
}

/// Returns the store that contains a file outside the stores that were read.
pub(super) fn unread_store(scan: &Scan, file: &Path) -> Option<(PathBuf, StoreKind)> {
    file.ancestors().skip(1).find_map(|path| Some((path.to_path_buf(), store_at(scan, path)?)))
}

pub(super) fn store_at(scan: &Scan, path: &Path) -> Option<StoreKind> {
    scan.sysroot.open(&scan.sysroot.display(path)).ok().as_ref().and_then(store_kind)
}

fn store_kind(directory: &Root) -> Option<StoreKind> {
    let allowance = Allowance::limited(allowance::OF_OTHER_USERS);
    if drivers_in(directory, &allowance).is_ok_and(|drivers| !drivers.is_empty()) {
        return Some(StoreKind::ContainersStorage);
    }
    let is_containerds = is_root(directory).unwrap_or(false);
    let is_dockers = !is_containerds && is_data_root(directory);
    is_containerds.then_some(StoreKind::Containerd).or_else(|| is_dockers.then_some(StoreKind::Docker))
}

/// Returns the volumes of podman, and those that CRI makes for the volumes that an image declares. Only those of
/// directories that are large enough to be named are measured.
pub(super) fn volumes(scan: &Scan, large: &[LargeDirectory], threads: usize) -> Vec<VolumeUse> {
    let inventory = &scan.inventory;
    let mut volumes = of_podman(scan, |path| large.iter().any(|directory| directory.path == path), threads);
    for (position, container) in inventory.containers.iter().enumerate() {
        let nodes = container.holds.iter().map(|node| &inventory[*node]);
        let own = nodes.filter(|node| {
            let of_cri = inventory[container.store].kind == StoreKind::Containerd;
            of_cri && node.kind == NodeKind::ContainerMetadata && node.size.bytes >= LEAST
        });
        for node in own {
            for (path, size) in measured(scan, &node.path.join("volumes"), threads) {
                volumes.push(VolumeUse {
                    store: container.store,
                    filesystem: node.filesystem,
                    // Its own name is a random number.
                    name: format!("of container {}", container.name),
                    path,
                    bytes: size.bytes,
                    inodes: size.inodes,
                    containers: Some(vec![container.name.clone()]),
                    of: Some(position.into()),
                });
            }
        }
    }
    volumes.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    volumes
}

/// Returns the volumes of podman with at least `LEAST` bytes, the largest first.
#[must_use]
pub fn podman_volumes(scan: &Scan, threads: usize) -> Vec<VolumeUse> {
    let mut volumes = of_podman(scan, |_| true, threads);
    volumes.retain(|volume| volume.bytes >= LEAST);
    volumes.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    volumes
}

fn of_podman(scan: &Scan, wanted: impl Fn(&Path) -> bool, threads: usize) -> Vec<VolumeUse> {
    let inventory = &scan.inventory;
    let directories = inventory.nodes.iter().filter(|node| {
        node.kind == NodeKind::Other
            && node.path.file_name().is_some_and(|name| name == "volumes")
            && wanted(&node.path)
    });
    let mut volumes = Vec::new();
    for directory in directories {
        let known = inventory.volumes.get(&directory.store);
        for (path, size) in measured(scan, &directory.path, threads) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let of_name = known.and_then(|known| known.iter().find(|volume| volume.name == name));
            volumes.push(VolumeUse {
                store: directory.store,
                filesystem: directory.filesystem,
                containers: of_name.map(|volume| volume.containers.clone()),
                name,
                path,
                bytes: size.bytes,
                inodes: size.inodes,
                of: None,
            });
        }
    }
    volumes
}

/// Returns the entries of a directory with their sizes.
fn measured(scan: &Scan, directory: &Path, threads: usize) -> Vec<(PathBuf, BytesAndInodes)> {
    let root = scan.sysroot.open(&scan.sysroot.display(directory)).ok();
    root.as_ref().map(|root| entries(root, threads)).unwrap_or_default()
}

fn largest(directory: &Root, threads: usize) -> Option<(PathBuf, u64)> {
    let sizes = entries(directory, threads).into_iter().map(|(path, size)| (path, size.bytes));
    sizes.max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > 0)
}

fn entries(directory: &Root, threads: usize) -> Vec<(PathBuf, BytesAndInodes)> {
    let within = Within::new([directory]);
    let Ok(entries) = within.list(directory) else { return Vec::new() };
    let trees = entries
        .iter()
        .enumerate()
        .map(|(unit, entry)| tree(0, Path::new(&entry.name).into(), unit, TreeScope::Whole));
    let extents = Some(ExtentOptions { from_bytes: BIG, seed: 0 });
    let options = WalkOptions { threads, extents, within, ..WalkOptions::default() };
    let measured = walk(&[directory.to_path_buf()], &trees.collect::<Vec<_>>(), &options);
    let sizes = by_unit(&measured, &measured.shared_extents(), entries.len());
    entries.iter().map(|entry| directory.join(&entry.name)).zip(sizes).collect()
}
