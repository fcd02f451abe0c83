//! Finds the entry that fills a directory: `/var/lib` is not helpful if one file in it contains nearly all bytes, and
//! `/var` is not if one spool directory in it has nearly all inodes.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use super::sizes::{by_unit, tree};
use super::types::{OtherUser, OtherUserKind, OtherUsers};
use crate::disk::{TreeScope, WalkOptions, measure as walk};
use crate::model::space::BytesAndInodes;
use crate::model::{Filesystem, FilesystemIx};
use crate::sys::quiet::Within;

/// Number of the largest directories that are examined: one sentence cannot name more, and each is read again.
const MOST: usize = 3;

/// Minimum bytes of a directory that is examined.
const LEAST: u64 = 1 << 20;

/// Inverse of the minimum share of the inodes of the filesystem: a directory with fewer than 1/20 of them is not
/// examined.
const FEW_INODES: u64 = 20;

/// Maximum depth of the entry that replaces a directory.
const DEEPEST: usize = 8;

/// Number by which the largest directory is chosen.
type Count = fn(&BytesAndInodes) -> u64;

/// Moves the bytes of the largest directories to the file or directory in each that contains at least four fifths of
/// them, as deep as there is one. The remaining bytes stay with the directory. Then does the same for inodes.
pub(super) fn narrow(
    (filesystem, facts): (FilesystemIx, &Filesystem),
    within: &Within,
    roots: &[PathBuf],
    options: &WalkOptions<'_>,
    all: &mut OtherUsers,
) {
    let by_bytes: Count = |size| size.bytes;
    let by_inodes: Count = |size| size.inodes;
    for (count, least) in [(by_bytes, LEAST), (by_inodes, facts.inodes / FEW_INODES)] {
        if least == 0 {
            continue;
        }
        let mut largest: Vec<usize> = (0..all.other_users.len()).collect();
        largest.retain(|position| {
            let user = &all.other_users[*position];
            user.kind == OtherUserKind::Directory
                && user.filesystem == filesystem
                && count(&user.size()) >= least
                && roots.first().is_some_and(|mount| *mount != user.path)
        });
        largest.sort_by_key(|user| Reverse(count(&all.other_users[*user].size())));
        for position in largest.into_iter().take(MOST) {
            let (mut path, mut size) = {
                let user = &all.other_users[position];
                (user.path.clone(), user.size())
            };
            for _ in 0..DEEPEST {
                let Some((most, contained)) = most_of(&path, within, roots, options, count) else { break };
                if count(&contained) < count(&size) / 5 * 4 {
                    break;
                }
                (path, size) = (most, contained);
            }
            divide(position, path, size, all);
        }
    }
}

/// Moves the size of the entry `path` from the user at `position` to a user of its own.
fn divide(position: usize, path: PathBuf, size: BytesAndInodes, all: &mut OtherUsers) {
    let user = &all.other_users[position];
    if path == user.path || all.other_users.iter().any(|other| other.path == path) {
        return;
    }
    // Entries of it that have become users of their own before.
    let filesystem = user.filesystem;
    let apart = all.other_users.iter().filter(|other| {
        other.filesystem == filesystem
            && other.kind == OtherUserKind::Directory
            && other.path.starts_with(&path)
    });
    let apart = apart.fold(BytesAndInodes::default(), |sum, other| BytesAndInodes {
        bytes: sum.bytes + other.bytes,
        inodes: sum.inodes + other.inodes,
    });
    let bytes = size.bytes.saturating_sub(apart.bytes);
    let inodes = size.inodes.saturating_sub(apart.inodes);
    let most = OtherUser { path, bytes, inodes, ..user.clone() };
    let user = &mut all.other_users[position];
    user.bytes = user.bytes.saturating_sub(bytes);
    user.inodes = user.inodes.saturating_sub(inodes);
    all.other_users.push(most);
}

/// Returns the entry of a directory below the first root with the largest `count`, and its size.
fn most_of(
    directory: &Path,
    within: &Within,
    roots: &[PathBuf],
    options: &WalkOptions<'_>,
    count: Count,
) -> Option<(PathBuf, BytesAndInodes)> {
    let entries = within.list(directory).ok()?;
    let below = directory.strip_prefix(roots.first()?).ok()?;
    let trees = entries
        .iter()
        .enumerate()
        .map(|(unit, entry)| tree(0, below.join(&entry.name), unit, TreeScope::Whole));
    let measured = walk(roots, &trees.collect::<Vec<_>>(), options);
    let paths = entries.iter().map(|entry| directory.join(&entry.name));
    paths.zip(by_unit(&measured, entries.len())).max_by_key(|(_, size)| count(size))
}
