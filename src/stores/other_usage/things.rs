//! Divides a directory into the things in it, each at the depth at which it is one thing.
//!
//! `/var/lib 90 GiB` is too coarse if a file in it has 80 of them, and the names of 200,000 mails are too fine. A thing
//! is an entry with at least a given number of bytes, or of inodes, that are not in a deeper thing. Example, with 10
//! GiB as the minimum: `/var` has 100 GiB, `/var/lib` 90 of them and `/var/lib/app` 80 of those, in files of 1 GiB.
//! The files are too small, so `/var/lib/app` is a thing of 80 GiB; `/var/lib` has 10 GiB without it and is the next.
//! The rest of `/var` belongs to the directory that was read. Since each thing has the minimum for itself, a
//! minimum of 1/200 of all bytes gives at most 200 things, whatever a user creates.
//!
//! Some directories are one thing at any size: a store that was not read, a volume, the files of the distribution.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::large::store_at;
use super::places::Apart;
use super::types::{OtherUser, OtherUserKind, OtherUsers};
use crate::model::space::BytesAndInodes;
use crate::model::text::volume::NerdctlVolume;
use crate::model::{Filesystem, FilesystemIx, StoreKind};
use crate::stores::Scan;
use crate::sys::quiet::{self, Step};

/// Minimum bytes of a thing.
pub(super) const LEAST: u64 = 1 << 20;

/// Minimum inodes of a thing with fewer bytes.
const LEAST_INODES: u64 = 1000;

/// Inverse of the minimum share of the bytes: a directory with less than 1/100 of the used bytes is not divided.
const SMALL: u64 = 100;

/// Inverse of the minimum share of a thing in a divided directory: 1/20 of the used bytes, or of the inodes. A smaller
/// one is named if it has four fifths of its directory.
const LARGE: u64 = 20;

/// A file or directory with at least [`LEAST`] bytes or [`LEAST_INODES`] inodes.
#[derive(Debug)]
pub(super) struct Entry {
    path: PathBuf,
    /// Number of directories of the same reading around it.
    depth: usize,
    /// Bytes and inodes that are in no deeper entry.
    own: BytesAndInodes,
}

/// A file or directory that is one thing, with its bytes and inodes that are not in other things.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Thing {
    pub(super) path: PathBuf,
    pub(super) size: BytesAndInodes,
    /// Kind of the store that it is, and that was not read.
    pub(super) store: Option<StoreKind>,
}

/// Divides the large directories among the users of a filesystem. Their remaining bytes stay with them. `tops`:
/// directories whose entries are users of their own.
pub(super) fn divide_users(
    scan: &Scan,
    (filesystem, facts): (FilesystemIx, &Filesystem),
    tops: &[PathBuf],
    apart: &Apart,
    all: &mut OtherUsers,
) {
    let Filesystem { used_bytes, inodes, .. } = facts;
    let inodes = if *inodes == 0 { u64::MAX } else { (inodes / LARGE).max(1) };
    for position in 0..all.other_users.len() {
        let user = &all.other_users[position];
        if user.kind != OtherUserKind::Directory
            || user.filesystem != filesystem
            || tops.contains(&user.path)
            || !is_enough(user.size(), BytesAndInodes { bytes: (used_bytes / SMALL).max(LEAST), inodes })
        {
            continue;
        }
        let bytes = (used_bytes / LARGE).min(user.bytes / 5 * 4).max(LEAST);
        let path = user.path.clone();
        if let Some(store) = store_at(scan, &path) {
            all.other_users[position].kind = OtherUserKind::Store(store);
            continue;
        }
        let entries = read(scan, &path, apart);
        let least = BytesAndInodes { bytes, inodes };
        let volume = |path: &Path| NerdctlVolume::around(path).map(|volume| volume.directory);
        for thing in things(scan, &path, &entries, least, &volume).0 {
            let is_volume = NerdctlVolume::at(&thing.path).is_some();
            let other = if is_volume { OtherUserKind::Volume } else { OtherUserKind::Directory };
            let kind = thing.store.map_or(other, OtherUserKind::Store);
            divide(position, thing.path, thing.size, kind, all);
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
    // The entry may contain bytes that count with a store: reflinked copies.
    let bytes = size.bytes.min(user.bytes);
    let inodes = size.inodes.min(user.inodes);
    let part = OtherUser { kind, path, bytes, inodes, ..user.clone() };
    let user = &mut all.other_users[position];
    user.bytes -= bytes;
    user.inodes -= inodes;
    all.other_users.push(part);
}

fn is_enough(size: BytesAndInodes, least: BytesAndInodes) -> bool {
    size.bytes >= least.bytes || size.inodes >= least.inodes
}

/// Returns the things among the entries of a directory, and what is left for the directory itself. `within`: returns
/// for a path the directory around it, or the path itself, that is one thing whatever is in it.
pub(super) fn things(
    scan: &Scan,
    top: &Path,
    entries: &[Entry],
    least: BytesAndInodes,
    within: &dyn Fn(&Path) -> Option<PathBuf>,
) -> (Vec<Thing>, BytesAndInodes) {
    let (found, rest) = divided(top, entries, least, within);
    let mut stores: HashMap<PathBuf, Option<StoreKind>> = HashMap::new();
    for (path, _) in &found {
        for directory in path.ancestors().take_while(|directory| *directory != top) {
            stores.entry(directory.to_path_buf()).or_insert_with(|| store_at(scan, directory));
        }
    }
    stores.retain(|_, kind| kind.is_some());
    // The parts of a store mean nothing alone.
    let (found, rest) = if stores.is_empty() {
        (found, rest)
    } else {
        divided(top, entries, least, &|path| {
            let outermost = path.ancestors().filter(|path| stores.contains_key(*path)).last();
            outermost.map(Path::to_path_buf).or_else(|| within(path))
        })
    };
    let things = found.into_iter().map(|(path, size)| Thing {
        store: stores.get(&path).copied().flatten(),
        path,
        size,
    });
    (things.collect(), rest)
}

/// Returns the number of things among the entries of a directory.
pub(super) fn count(
    top: &Path,
    entries: &[Entry],
    least: BytesAndInodes,
    within: &dyn Fn(&Path) -> Option<PathBuf>,
) -> usize {
    divided(top, entries, least, within).0.len()
}

type Sizes = Vec<(PathBuf, BytesAndInodes)>;

fn divided(
    top: &Path,
    entries: &[Entry],
    least: BytesAndInodes,
    within: &dyn Fn(&Path) -> Option<PathBuf>,
) -> (Sizes, BytesAndInodes) {
    let mut found = Vec::new();
    // Bytes and inodes that entries at each depth leave for the directory around them.
    let mut left: Vec<BytesAndInodes> = Vec::new();
    for Entry { path, depth, own } in entries {
        let below = left.get(depth + 1).copied().unwrap_or_default();
        left.truncate(depth + 1);
        let size = sum(*own, below);
        left.resize(left.len().max(depth + 1), BytesAndInodes::default());
        let is_inside = within(path).is_some_and(|around| around != *path && around.starts_with(top));
        if *depth > 0 && !is_inside && is_enough(size, least) {
            found.push((path.clone(), size));
        } else {
            left[*depth] = sum(left[*depth], size);
        }
    }
    (found, left.first().copied().unwrap_or_default())
}

fn sum(a: BytesAndInodes, b: BytesAndInodes) -> BytesAndInodes {
    BytesAndInodes { bytes: a.bytes.saturating_add(b.bytes), inodes: a.inodes.saturating_add(b.inodes) }
}

/// Returns the size of everything below `top`, except directories in `apart`.
pub(super) fn measure(scan: &Scan, top: &Path, apart: &Apart) -> BytesAndInodes {
    let entries = read(scan, top, apart);
    entries.iter().fold(BytesAndInodes::default(), |size, entry| sum(size, entry.own))
}

/// Returns the entries below `top` that are large enough, each after those in it, and `top` itself as the last.
/// Directories in `apart` are left out. Hard links count once, and not at all if further ones are elsewhere; reflinked
/// bytes count with each copy.
pub(super) fn read(scan: &Scan, top: &Path, apart: &Apart) -> Vec<Entry> {
    // Opened with care: a user may have replaced a directory on the path by a symlink into a mount of his own.
    let opened = scan.sysroot.open(&scan.sysroot.display(top)).and_then(|root| root.directory());
    match opened {
        Ok(directory) => read_open(&directory, top, apart),
        Err(error) => {
            tracing::debug!("looking for the largest entries of {}: {error}", top.display());
            Vec::new()
        }
    }
}

#[derive(Default)]
struct OpenDirectory {
    path: PathBuf,
    size: BytesAndInodes,
    own: BytesAndInodes,
}

/// Adds an entry of the innermost open directory, or the top: its size, and the part of it that is in no other entry.
fn add(
    open: &mut [OpenDirectory],
    entries: &mut Vec<Entry>,
    path: PathBuf,
    (size, own): (BytesAndInodes, BytesAndInodes),
) {
    let depth = open.len();
    let Some(around) = open.last_mut() else {
        return entries.push(Entry { path, depth, own });
    };
    around.size = sum(around.size, size);
    if is_enough(size, BytesAndInodes { bytes: LEAST, inodes: LEAST_INODES }) {
        entries.push(Entry { path, depth, own });
    } else {
        around.own = sum(around.own, own);
    }
}

fn read_open(directory: &OwnedFd, top: &Path, apart: &Apart) -> Vec<Entry> {
    let mut links: HashMap<(u64, u64), u64> = HashMap::new();
    let mut open: Vec<OpenDirectory> = Vec::new();
    let mut entries = Vec::new();
    quiet::walk_below(directory, &|facts| apart.contains(&facts.identity()), &mut |step| match step {
        Step::Directory(below, bytes) => {
            let own = BytesAndInodes { bytes, inodes: 1 };
            open.push(OpenDirectory { path: top.join(below), size: own, own });
        }
        Step::Entry(below, facts, bytes) => {
            if facts.links > 1 {
                let seen = links.entry(facts.identity()).or_default();
                *seen += 1;
                if *seen != facts.links {
                    return;
                }
            }
            let size = BytesAndInodes { bytes, inodes: 1 };
            add(&mut open, &mut entries, top.join(below), (size, size));
        }
        Step::Unread(_) | Step::Mount(_) => {}
        Step::End => {
            let Some(OpenDirectory { path, size, own }) = open.pop() else { return };
            add(&mut open, &mut entries, path, (size, own));
        }
    });
    entries
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
    fn each_thing_has_the_minimum_itself() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        file(&top.join("a/b/c/one"), 4 << 20);
        file(&top.join("a/b/c/two"), 5 << 20);
        file(&top.join("a/small"), 10 << 10);
        file(&top.join("app/log"), 3 << 20);
        file(&top.join("apart/big"), 9 << 20);
        for number in 0..1500 {
            file(&top.join(format!("many/{number}")), 0);
        }
        // A link elsewhere: the file is not counted.
        let elsewhere = tempfile::tempdir().unwrap();
        file(&elsewhere.path().join("linked"), 5 << 20);
        std::fs::hard_link(elsewhere.path().join("linked"), top.join("a/linked")).unwrap();
        let apart = [quiet::facts(&top.join("apart")).unwrap().identity()].into();
        let entries = read_open(&Root::open(top).unwrap().directory().unwrap(), top, &apart);
        let all = entries.iter().fold(BytesAndInodes::default(), |size, entry| sum(size, entry.own));
        let names = |mib: u64, inodes, within: &dyn Fn(&Path) -> Option<PathBuf>| {
            let (found, rest) = divided(top, &entries, BytesAndInodes { bytes: mib << 20, inodes }, within);
            let sizes = found.iter().fold(rest, |size, (_, own)| sum(size, *own));
            assert_eq!(sizes, all, "nothing is lost: {found:?}");
            let mut names: Vec<_> = found
                .iter()
                .map(|(path, _)| path.strip_prefix(top).unwrap().to_str().unwrap().to_owned())
                .collect();
            names.sort();
            names
        };
        let never = |_: &Path| None;
        assert_eq!(names(1, 1000, &never), ["a/b/c/one", "a/b/c/two", "app/log", "many"]);
        assert_eq!(names(5, u64::MAX, &never), ["a/b/c/two"]);
        // Neither file is enough, but their directory is.
        assert_eq!(names(6, 1000, &never), ["a/b/c", "many"]);
        assert_eq!(names(13, u64::MAX, &never), [""; 0]);
        let one = |path: &Path| path.starts_with(top.join("a/b")).then(|| top.join("a/b"));
        assert_eq!(names(1, u64::MAX, &one), ["a/b", "app/log"]);
    }
}
