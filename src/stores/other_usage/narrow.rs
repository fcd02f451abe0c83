//! Names what fills a directory: `/var/lib` is no answer where one file in it holds nearly all.

use std::path::{Path, PathBuf};

use super::sizes::{bytes_by_unit, tree};
use super::types::{OtherUser, OtherUserKind, OtherUsers};
use crate::disk::{TreeScope, WalkOptions, measure as walk};
use crate::model::FilesystemIx;
use crate::sys::quiet::Within;

/// So many of the largest directories are looked into: more are not named in a sentence, and each is read again.
const MOST: usize = 3;

/// What holds less helps nobody.
const LEAST: u64 = 1 << 20;

/// A directory is left for what is in it so many times at most.
const DEEPEST: usize = 8;

/// Moves the bytes of the largest directories to the one file or directory in each that holds nearly all of
/// it, as deep as there is one; the rest stays with the directory.
pub(super) fn narrow(
    at: FilesystemIx,
    within: &Within,
    roots: &[PathBuf],
    options: &WalkOptions<'_>,
    all: &mut OtherUsers,
) {
    let is_directory = |user: &OtherUser| {
        user.kind == OtherUserKind::Directory
            && user.filesystem == at
            && user.bytes >= LEAST
            && roots.first().is_some_and(|mount| *mount != user.path)
    };
    let mut largest: Vec<usize> = (0..all.other_users.len()).collect();
    largest.retain(|user| is_directory(&all.other_users[*user]));
    largest.sort_by_key(|user| std::cmp::Reverse(all.other_users[*user].bytes));
    for position in largest.into_iter().take(MOST) {
        let user = &mut all.other_users[position];
        let (mut path, mut bytes) = (user.path.clone(), user.bytes);
        for _ in 0..DEEPEST {
            let Some((most, held)) = most_of(&path, within, roots, options) else { break };
            if held < bytes / 5 * 4 {
                break;
            }
            (path, bytes) = (most, held);
        }
        if path != user.path {
            user.bytes = user.bytes.saturating_sub(bytes);
            let most = OtherUser { path, bytes, ..user.clone() };
            all.other_users.push(most);
        }
    }
}

/// What holds the most in a directory below the first root; `None` where it is none.
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
