//! Effects of the store's own record files on the inode chunks of XFS.
//!
//! The library writes its record files anew at every deletion, and the filesystem puts the
//! new inode where it likes. A chunk (64 inodes, 32 KiB) in which nothing but an old record
//! file was left goes with it, and a new one may come: that is the library's doing, not
//! something that the deleted image held.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const CHUNK_BYTES: i64 = 64 * 512;

/// Inode number of every entry below a mount point.
pub type Inodes = BTreeMap<PathBuf, u64>;

/// Lists a filesystem that nobody writes to.
pub fn inodes(mount: &Path) -> Inodes {
    let mut all = Inodes::new();
    let mut left = vec![mount.to_path_buf()];
    while let Some(path) = left.pop() {
        let facts = std::fs::symlink_metadata(&path).expect("nobody else writes here");
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

/// Bytes that came free because record files moved to other chunks; negative where they
/// kept or took a chunk that would else be free.
pub fn freed_by_records(before: &Inodes, after: &Inodes) -> i64 {
    let records = |(path, _): &(&PathBuf, &u64)| is_record(path);
    let others = |entry: &(&PathBuf, &u64)| !records(entry);
    let without_before = chunks(before.iter().filter(others));
    let without_after = chunks(after.iter().filter(others));
    let all_before = chunks(before.iter());
    let all_after = chunks(after.iter());
    // What would have come and gone if record files took no room.
    let real = all_before.len() as i64 - all_after.len() as i64;
    let alone = without_before.len() as i64 - without_after.len() as i64;
    (real - alone) * CHUNK_BYTES
}
