//! Large directories in stores that belong to no image, container or leak: volumes, or another store.

use std::path::{Path, PathBuf};

use super::sizes::{by_unit, tree};
use crate::disk::{Extents, TreeScope, WalkOptions, measure as walk};
use crate::model::{FilesystemIx, NodeKind, StoreIx};
use crate::stores::Scan;
use crate::stores::containerd::places::is_root;
use crate::stores::containers_storage::places::drivers_in;
use crate::sys::allowance::{self, Allowance};
use crate::sys::quiet::Within;
use crate::sys::root::Root;

/// Minimum allocated bytes of a directory that is named.
const LEAST: u64 = 1 << 20;

/// A directory at the top of a store that contains at least 1 % of the used bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeDirectory {
    pub store: StoreIx,
    pub filesystem: FilesystemIx,
    pub path: PathBuf,
    /// Allocated bytes.
    pub bytes: u64,
    /// Number of files and directories.
    pub inodes: u64,
    /// Largest entry, with its allocated bytes.
    pub largest: Option<(PathBuf, u64)>,
    /// True if the directory is itself a store, which was not read.
    pub is_store: bool,
}

/// Returns the large directories of all stores.
pub(super) fn directories(scan: &Scan, threads: usize) -> Vec<LargeDirectory> {
    let large = scan.inventory.nodes.iter().filter(|node| {
        let used = scan.inventory[node.filesystem].used_bytes;
        node.kind == NodeKind::Other && node.size.bytes >= (used / 100).max(LEAST)
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
            is_store: root.as_ref().is_some_and(is_store),
        }
    });
    directories.collect()
}

/// Returns the store that contains a file outside the stores that were read.
pub(super) fn unread_store(scan: &Scan, file: &Path) -> Option<PathBuf> {
    let above = file.ancestors().skip(1);
    let mut opened =
        above.filter_map(|path| Some((path, scan.sysroot.open(&scan.sysroot.display(path)).ok()?)));
    opened.find(|(_, root)| is_store(root)).map(|(path, _)| path.to_path_buf())
}

fn is_store(directory: &Root) -> bool {
    let allowance = Allowance::limited(allowance::OF_OTHER_USERS);
    drivers_in(directory, &allowance).is_ok_and(|drivers| !drivers.is_empty())
        || is_root(directory).unwrap_or(false)
}

fn largest(directory: &Root, threads: usize) -> Option<(PathBuf, u64)> {
    let within = Within::new([directory]);
    let entries = within.list(directory).ok()?;
    let trees = entries.iter().enumerate();
    let trees = trees.map(|(unit, entry)| tree(0, Path::new(&entry.name).into(), unit, TreeScope::Whole));
    let options = WalkOptions { threads, extents: Extents::Off, within, ..WalkOptions::default() };
    let measured = walk(&[directory.to_path_buf()], &trees.collect::<Vec<_>>(), &options);
    let bytes = by_unit(&measured, entries.len()).into_iter().map(|size| size.bytes);
    let sizes = entries.iter().map(|entry| directory.join(&entry.name)).zip(bytes);
    sizes.max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > 0)
}
