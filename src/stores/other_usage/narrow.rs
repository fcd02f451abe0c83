//! Finds the entry that fills a directory: `/var/lib` is not helpful if one file in it contains nearly all bytes, and
//! `/var` is not if one spool directory in it has nearly all inodes.
//!
//! Each directory is read once more, however deep its largest entry is. Example: `/var` has 100 GiB, `/var/lib` 90 of
//! them and `/var/lib/app` 80 of those. At the end of each directory its size is known, and the chain of entries that
//! contain at least four fifths of it: `lib/app`. The chain ends at a store that was not read: its parts mean nothing
//! alone.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::large::store_at;
use super::places::Apart;
use super::types::{OtherUser, OtherUserKind, OtherUsers};
use crate::model::space::BytesAndInodes;
use crate::model::{Filesystem, FilesystemIx};
use crate::stores::Scan;
use crate::sys::quiet::{self, Step};

/// Number of the largest directories that are examined: one sentence cannot name more, and each is read again.
const MOST: usize = 3;

/// Minimum bytes of a directory that is examined.
const LEAST: u64 = 1 << 20;

/// Inverse of the minimum share of the inodes of the filesystem: a directory with fewer than 1/20 of them is not
/// examined.
const FEW_INODES: u64 = 20;

/// Maximum depth of the entry that replaces a directory.
const DEEPEST: usize = 8;

/// Numbers by which the largest entry is chosen.
const COUNTS: [fn(&BytesAndInodes) -> u64; 2] = [|size| size.bytes, |size| size.inodes];

/// Entries of a directory that contain nearly all of it, the deepest first; by bytes and by inodes.
type LargestChains = [Vec<(PathBuf, BytesAndInodes)>; 2];

/// Moves the bytes of the largest directories to the file or directory in each that contains at least four fifths of
/// them, as deep as there is one. The remaining bytes stay with the directory. Then does the same for inodes.
/// `tops`: directories whose entries are users of their own.
pub(super) fn narrow(
    scan: &Scan,
    (filesystem, facts): (FilesystemIx, &Filesystem),
    tops: &[PathBuf],
    apart: &Apart,
    all: &mut OtherUsers,
) {
    let mut read: HashMap<PathBuf, LargestChains> = HashMap::new();
    for (number, least) in [LEAST, facts.inodes / FEW_INODES].into_iter().enumerate() {
        if least == 0 {
            continue;
        }
        let count = COUNTS[number];
        let mut largest: Vec<usize> = (0..all.other_users.len()).collect();
        largest.retain(|position| {
            let user = &all.other_users[*position];
            user.kind == OtherUserKind::Directory
                && user.filesystem == filesystem
                && count(&user.size()) >= least
                && !tops.contains(&user.path)
        });
        largest.sort_by_key(|user| Reverse(count(&all.other_users[*user].size())));
        for position in largest.into_iter().take(MOST) {
            let path = all.other_users[position].path.clone();
            if let Some(store_kind) = store_at(scan, &path) {
                all.other_users[position].kind = OtherUserKind::Store(store_kind);
                continue;
            }
            let chains = read.entry(path).or_insert_with_key(|path| measure(scan, path, apart).1);
            let mut narrowest = None;
            for (entry, size) in chains[number].iter().rev().take(DEEPEST) {
                let store_kind = store_at(scan, entry);
                narrowest =
                    Some((entry, *size, store_kind.map_or(OtherUserKind::Directory, OtherUserKind::Store)));
                if store_kind.is_some() {
                    break;
                }
            }
            if let Some((entry, size, kind)) = narrowest {
                divide(position, entry.clone(), size, kind, all);
            }
        }
    }
}

/// Moves the size of the entry `path` from the user at `position` to a user of its own.
pub(super) fn divide(
    position: usize,
    path: PathBuf,
    size: BytesAndInodes,
    kind: OtherUserKind,
    all: &mut OtherUsers,
) {
    let user = &all.other_users[position];
    if path == user.path || all.other_users.iter().any(|other| other.path == path) {
        return;
    }
    // Entries of it that have become users of their own before.
    let filesystem = user.filesystem;
    let apart = all
        .other_users
        .iter()
        .filter(|other| {
            other.filesystem == filesystem
                && matches!(other.kind, OtherUserKind::Directory | OtherUserKind::Store(_))
                && other.path.starts_with(&path)
        })
        .fold(BytesAndInodes::default(), |sum, other| BytesAndInodes {
            bytes: sum.bytes + other.bytes,
            inodes: sum.inodes + other.inodes,
        });
    // The entry may contain bytes that count with a store: reflinked copies.
    let bytes = size.bytes.saturating_sub(apart.bytes).min(user.bytes);
    let inodes = size.inodes.saturating_sub(apart.inodes).min(user.inodes);
    let most = OtherUser { kind, path, bytes, inodes, ..user.clone() };
    let user = &mut all.other_users[position];
    user.bytes -= bytes;
    user.inodes -= inodes;
    all.other_users.push(most);
}

#[derive(Default)]
struct OpenDirectory {
    path: PathBuf,
    size: BytesAndInodes,
    /// Largest entry by each count.
    largest: [Option<LargestEntry>; 2],
}

/// An entry of a directory, with the entries that contain nearly all of it.
struct LargestEntry {
    path: PathBuf,
    size: BytesAndInodes,
    chain: Vec<(PathBuf, BytesAndInodes)>,
}

impl OpenDirectory {
    fn add(&mut self, path: &Path, size: BytesAndInodes, mut chains: LargestChains) {
        self.size.bytes = self.size.bytes.saturating_add(size.bytes);
        self.size.inodes += size.inodes;
        for (number, count) in COUNTS.iter().enumerate() {
            let known = self.largest[number].as_ref().map_or(0, |largest| count(&largest.size));
            if count(&size) > known {
                let chain = std::mem::take(&mut chains[number]);
                self.largest[number] = Some(LargestEntry { path: path.to_path_buf(), size, chain });
            }
        }
    }

    fn chains(&mut self) -> LargestChains {
        let mut chains = LargestChains::default();
        for (number, count) in COUNTS.iter().enumerate() {
            if let Some(LargestEntry { path, size, mut chain }) = self.largest[number].take()
                && count(&size) >= count(&self.size) / 5 * 4
            {
                chain.push((path, size));
                chains[number] = chain;
            }
        }
        chains
    }
}

/// Returns the size of everything below `top`, except directories in `apart`, and the entries that contain nearly all
/// of it. Hard links count once, and not at all if further ones are elsewhere; reflinked bytes count with each copy.
pub(super) fn measure(scan: &Scan, top: &Path, apart: &Apart) -> (BytesAndInodes, LargestChains) {
    // Opened with care: a user may have replaced a directory on the path by a symlink into a mount of his own.
    let opened = scan.sysroot.open(&scan.sysroot.display(top)).and_then(|root| root.directory());
    match opened {
        Ok(directory) => measure_open(&directory, top, apart),
        Err(error) => {
            tracing::debug!("looking for the largest entry of {}: {error}", top.display());
            Default::default()
        }
    }
}

fn measure_open(directory: &OwnedFd, top: &Path, apart: &Apart) -> (BytesAndInodes, LargestChains) {
    let mut links: HashMap<(u64, u64), u64> = HashMap::new();
    let mut open: Vec<OpenDirectory> = Vec::new();
    let mut whole = (BytesAndInodes::default(), LargestChains::default());
    quiet::walk_below(directory, &|facts| apart.contains(&facts.identity()), &mut |step| match step {
        Step::Directory(below, bytes) => {
            let size = BytesAndInodes { bytes, inodes: 1 };
            open.push(OpenDirectory { path: top.join(below), size, ..OpenDirectory::default() });
        }
        Step::Entry(below, facts, bytes) => {
            if facts.links > 1 {
                let seen = links.entry(facts.identity()).or_default();
                *seen += 1;
                if *seen != facts.links {
                    return;
                }
            }
            if let Some(directory) = open.last_mut() {
                directory.add(
                    &top.join(below),
                    BytesAndInodes { bytes, inodes: 1 },
                    LargestChains::default(),
                );
            }
        }
        Step::End => {
            let Some(mut ended) = open.pop() else { return };
            let (chains, size) = (ended.chains(), ended.size);
            match open.last_mut() {
                Some(above) => above.add(&ended.path, size, chains),
                None => whole = (size, chains),
            }
        }
    });
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::root::Root;

    fn file(path: &Path, bytes: usize) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![1; bytes]).unwrap();
    }

    #[test]
    fn chain_ends_where_no_entry_has_nearly_all() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        file(&top.join("a/b/c/one"), 400 << 10);
        file(&top.join("a/b/c/two"), 500 << 10);
        file(&top.join("a/small"), 10 << 10);
        file(&top.join("apart/big"), 9 << 20);
        for number in 0..200 {
            file(&top.join(format!("many/{number}")), 1);
        }
        // A link elsewhere: the file is not counted.
        let elsewhere = tempfile::tempdir().unwrap();
        file(&elsewhere.path().join("linked"), 5 << 20);
        std::fs::hard_link(elsewhere.path().join("linked"), top.join("a/linked")).unwrap();
        let apart = [quiet::facts(&top.join("apart")).unwrap().identity()].into();
        let measure = || measure_open(&Root::open(top).unwrap().directory().unwrap(), top, &apart);
        let (size, [by_bytes, by_inodes]) = measure();
        assert!((900 << 10..2 << 20).contains(&size.bytes), "{size:?}");
        fn paths(chain: &[(PathBuf, BytesAndInodes)]) -> Vec<&PathBuf> {
            chain.iter().map(|(path, _)| path).collect()
        }
        assert_eq!(paths(&by_inodes), [&top.join("many")]);
        // The 200 small files use a block each: no entry has nearly all bytes.
        assert_eq!(paths(&by_bytes), Vec::<&PathBuf>::new());
        #[allow(clippy::disallowed_methods)] // files of this test
        std::fs::remove_dir_all(top.join("many")).unwrap();
        let (_, [by_bytes, _]) = measure();
        let chain = ["a/b/c", "a/b", "a"].map(|path| top.join(path));
        assert_eq!(paths(&by_bytes), chain.iter().collect::<Vec<_>>());
    }
}
