//! Metadata that btrfs uses for an inode and frees with it. Pure.
//!
//! Fitted to removals of 6,000 identical objects each from loop-mounted filesystems (Linux 6.18, nodes of 16 KiB,
//! names of about nine bytes), per object with single metadata: empty files and directories 380 bytes, symlinks of 20
//! bytes 470, files of 100, 1,000 and 2,000 bytes 610, 1,640 and 2,590, files of 3 kB and 30 kB 630 besides their
//! blocks, further hard links 190. With DUP metadata: 1.9 to 2.04 times as much. The formula below is within 7 % of
//! each of these. What a store really frees depends on what else is in the same nodes: see `docs/how-it-measures.md`.

use rustix::fs::FileType;

use super::runs::DiskRun;

/// Bytes of an empty file or directory: the inode, its name in the directory (twice), the back reference, and the
/// share of unused room in the nodes.
const INODE: u64 = 380;

/// Bytes of a file's extent: in the file, in the extent tree, and in the free space.
const EXTENT: u64 = 250;

/// Bytes of each further extent of a file: compressed files have one for each 128 KiB.
const FURTHER_EXTENT: u64 = 170;

/// Bytes of the item that contains a short file or a symlink's target, without the content.
const INLINE: u64 = 100;

/// Bytes of each further hard link.
pub const FURTHER_LINK: u64 = 190;

/// Maximum size of a file that is stored in the metadata (mount option `max_inline`).
const MAX_INLINE: u64 = 2048;

/// Maximum `st_blocks`, in bytes, of an inode that is stored in the metadata.
const BLOCK: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeMetadata {
    /// Bytes of one copy of the metadata.
    pub bytes: u64,
    /// Bytes of the inode's `st_blocks` that are part of the metadata and use no other blocks.
    pub inline_bytes: u64,
}

/// Estimates the metadata of an inode of `size` bytes whose `st_blocks` is `allocated` bytes.
#[must_use]
pub fn metadata(kind: FileType, size: u64, allocated: u64) -> InodeMetadata {
    let short = (size <= MAX_INLINE && kind.is_file()) || kind.is_symlink();
    if allocated == 0 || !(kind.is_file() || kind.is_symlink()) {
        InodeMetadata { bytes: INODE, inline_bytes: 0 }
    } else if short && allocated <= BLOCK {
        InodeMetadata { bytes: INODE + INLINE + size.min(BLOCK) * 17 / 16, inline_bytes: allocated }
    } else {
        // A checksum of 4 bytes for each block of 4 KiB.
        InodeMetadata { bytes: INODE + EXTENT + allocated / 1024, inline_bytes: 0 }
    }
}

/// Returns the correction of [`metadata`] for a file whose extents are known, as metadata and inline bytes: each extent has
/// items, and checksums of what it holds on the disk. `becomes_inline`: the content of `allocated` bytes is in the metadata
/// although its size is larger, since it is compressed.
#[must_use]
pub fn correction(allocated: u64, runs: &[DiskRun], becomes_inline: bool) -> (i64, u64) {
    if becomes_inline && allocated <= BLOCK {
        // Its length is unknown: half of the maximum.
        (i64::try_from(MAX_INLINE / 2).unwrap_or(0), allocated)
    } else {
        (more_metadata(runs), 0)
    }
}

fn more_metadata(runs: &[DiskRun]) -> i64 {
    let items = FURTHER_EXTENT.saturating_mul((runs.len() as u64).saturating_sub(1));
    let packed = runs.iter().map(|run| run.counted.saturating_sub(run.length) / 1024).sum::<u64>();
    i64::try_from(items).unwrap_or(i64::MAX).saturating_sub_unsigned(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_within_seven_per_cent_of_measurements() {
        use FileType::{Directory, RegularFile, Symlink};
        for (kind, size, allocated, inline, measured) in [
            (RegularFile, 0, 0, 0, 380),
            (Directory, 40, 0, 0, 388),
            (Symlink, 20, 4096, 4096, 470),
            (RegularFile, 100, 4096, 4096, 609),
            (RegularFile, 1000, 4096, 4096, 1636),
            (RegularFile, 2000, 4096, 4096, 2586),
            (RegularFile, 3000, 4096, 0, 631),
            (RegularFile, 30_000, 32_768, 0, 636),
        ] {
            let InodeMetadata { bytes, inline_bytes } = metadata(kind, size, allocated);
            assert_eq!(inline_bytes, inline, "{kind:?} {size}");
            assert!(
                bytes.abs_diff(measured) * 100 <= measured * 7,
                "{kind:?} {size}: {bytes} for {measured}"
            );
        }
        // A sparse file, and a file in preallocated blocks.
        assert_eq!(metadata(RegularFile, 1 << 30, 0).bytes, INODE);
        assert_eq!(metadata(RegularFile, 10, 1 << 20).inline_bytes, 0);
        assert_eq!(metadata(RegularFile, u64::MAX, u64::MAX).inline_bytes, 0);
    }
}
