//! Effects of the store's own record files on the inode chunks of XFS.
//!
//! The library writes its record files anew at every deletion, and the filesystem chooses a place for the new
//! inode. If an old record file was the last file in a chunk (64 inodes, 32 KiB), the filesystem frees the chunk,
//! and the new file may need another. These bytes belong to the record files, not to the deleted image.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const CHUNK_BYTES: i64 = 64 * 512;

/// Inode number of every entry below a mount point.
pub type Inodes = BTreeMap<PathBuf, u64>;

/// Lists a filesystem that no process writes to.
pub fn inodes(mount: &Path) -> Inodes {
    let mut all = Inodes::new();
    let mut left = vec![mount.to_path_buf()];
    while let Some(path) = left.pop() {
        let facts = std::fs::symlink_metadata(&path).expect("no other process writes here");
        if facts.is_dir() {
            left.extend(
                std::fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()),
            );
        }
        all.insert(path, facts.ino());
    }
    all
}

fn is_record(path: &Path) -> bool {
    let of_store = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let of_store = of_store.is_some_and(|name| {
        ["-layers", "-images", "-containers"].iter().any(|records| name.ends_with(records))
    });
    of_store && path.extension().is_some_and(|end| end == "json") || path.ends_with("backingFsBlockDev")
}

fn chunks<'a>(inodes: impl Iterator<Item = (&'a PathBuf, &'a u64)>) -> BTreeSet<u64> {
    inodes.map(|(_, inode)| inode >> 6).collect()
}

/// Returns the bytes that were freed because record files moved to other chunks; negative if they kept or took a
/// chunk that would be free without them.
pub fn freed_by_records(before: &Inodes, after: &Inodes) -> i64 {
    let without_before = chunks(before.iter().filter(|(path, _)| !is_record(path)));
    let without_after = chunks(after.iter().filter(|(path, _)| !is_record(path)));
    let all_before = chunks(before.iter());
    let all_after = chunks(after.iter());
    // Chunks that would have been freed if record files took no space.
    let real = all_before.len() as i64 - all_after.len() as i64;
    let alone = without_before.len() as i64 - without_after.len() as i64;
    (real - alone) * CHUNK_BYTES
}
