//! Finds the entry that fills a directory: `/var/lib` is not helpful if one file in it contains nearly all bytes.

use std::path::{Path, PathBuf};

use super::sizes::{bytes_by_unit, tree};
use super::types::{OtherUser, OtherUserKind, OtherUsers};
use crate::disk::{TreeScope, WalkOptions, measure as walk};
use crate::model::FilesystemIx;
use crate::sys::quiet::Within;

/// Number of the largest directories that are examined: one sentence cannot name more, and each is read again.
const MOST: usize = 3;

/// Minimum bytes of a directory that is examined.
const LEAST: u64 = 1 << 20;

/// Maximum depth of the entry that replaces a directory.
const DEEPEST: usize = 8;

/// Moves the bytes of the largest directories to the file or directory in each that contains at least four fifths of
/// them, as deep as there is one. The remaining bytes stay with the directory.
pub(super) fn narrow(
    filesystem: FilesystemIx,
    within: &Within,
    roots: &[PathBuf],
    options: &WalkOptions<'_>,
    all: &mut OtherUsers,
) {
    let mut largest: Vec<usize> = (0..all.other_users.len()).collect();
    largest.retain(|position| {
        let user = &all.other_users[*position];
        user.kind == OtherUserKind::Directory
            && user.filesystem == filesystem
            && user.bytes >= LEAST
            && roots.first().is_some_and(|mount| *mount != user.path)
    });
    largest.sort_by_key(|user| std::cmp::Reverse(all.other_users[*user].bytes));
    for position in largest.into_iter().take(MOST) {
        let user = &mut all.other_users[position];
        let (mut path, mut bytes) = (user.path.clone(), user.bytes);
        for _ in 0..DEEPEST {
            let Some((most, contained)) = most_of(&path, within, roots, options) else { break };
            if contained < bytes / 5 * 4 {
                break;
            }
            (path, bytes) = (most, contained);
        }
        if path != user.path {
            user.bytes = user.bytes.saturating_sub(bytes);
            let most = OtherUser { path, bytes, ..user.clone() };
            all.other_users.push(most);
        }
    }
}

/// Returns the largest entry of a directory below the first root, and its bytes.
fn most_of(
    directory: &Path,
    within: &Within,
    roots: &[PathBuf],
    options: &WalkOptions<'_>,
) -> Option<(PathBuf, u64)> {
    let entries = within.list(directory).ok()?.into_iter().map(|entry| directory.join(&entry.name));
    let entries: Vec<_> = entries.collect();
    let below = directory.strip_prefix(roots.first()?).ok()?;
    let trees = entries.iter().enumerate().map(|(unit, path)| {
        tree(0, below.join(path.file_name().unwrap_or_default()), unit, TreeScope::Whole)
    });
    let measured = walk(roots, &trees.collect::<Vec<_>>(), options);
    let bytes = bytes_by_unit(&measured, entries.len());
    entries.into_iter().zip(bytes).max_by_key(|(_, bytes)| *bytes)
}
