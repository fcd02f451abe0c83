//! Reserve of root on ext4. `statvfs` only shows it while other space is left.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{fstat, major, minor};

/// Position of the superblock on the device, and of the fields that are read (`struct ext4_super_block` in the
/// kernel's `fs/ext4/ext4.h`, little-endian).
const SUPERBLOCK: u64 = 1024;
const RESERVED_BLOCKS: usize = 0x08;
const LOG_BLOCK: usize = 0x18;
const LOG_CLUSTER: usize = 0x1c;
const MAGIC: usize = 0x38;
const INCOMPATIBLE: usize = 0x60;
const RESERVED_BLOCKS_HIGH: usize = 0x154;

const IS_64_BIT: u32 = 0x80;

/// Returns the bytes that other users cannot write: root's reserve (5 % by default, changed by `tune2fs -m`) and
/// the filesystem's own reserve. `fd` is any file on the filesystem.
///
/// # Errors
/// If the device cannot be read, as in a unit with `PrivateDevices=`, or does not contain an ext4.
pub fn reserved_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let device = fstat(fd)?.st_dev;
    let numbers = format!("{}:{}", major(device), minor(device));
    let uevent = std::fs::read_to_string(format!("/sys/dev/block/{numbers}/uevent"))?;
    let name = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVNAME="))
        .ok_or_else(|| io::Error::other("the device has no name"))?;
    let mut superblock = [0; 1024];
    // The superblock of a mounted filesystem is in memory: this does not read the disk.
    File::open(Path::new("/dev").join(name))?.read_exact_at(&mut superblock, SUPERBLOCK)?;
    let clusters =
        std::fs::read_to_string(format!("/sys/fs/ext4/{}/reserved_clusters", name.replace('/', "!")))?;
    let clusters = clusters.trim().parse().map_err(io::Error::other)?;
    reserved(&superblock, clusters).ok_or_else(|| io::Error::other("no superblock of ext4"))
}

fn reserved(superblock: &[u8; 1024], clusters: u64) -> Option<u64> {
    let number = |offset: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| superblock[offset + byte]));
    if superblock[MAGIC..MAGIC + 2] != [0x53, 0xef] {
        return None;
    }
    let high = if number(INCOMPATIBLE) & IS_64_BIT == 0 { 0 } else { number(RESERVED_BLOCKS_HIGH) };
    let blocks = u64::from(high) << 32 | u64::from(number(RESERVED_BLOCKS));
    let of_root = blocks.checked_mul(unit(number(LOG_BLOCK))?)?;
    of_root.checked_add(clusters.checked_mul(unit(number(LOG_CLUSTER))?)?)
}

/// Returns the size of a block or cluster in bytes, from its binary logarithm minus 10.
fn unit(log: u32) -> Option<u64> {
    1024_u64.checked_shl(log).filter(|_| log <= 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_read_from_the_superblock() {
        let mut block = [0; 1024];
        assert_eq!(reserved(&block, 0), None, "no magic number");
        block[MAGIC..MAGIC + 2].copy_from_slice(&[0x53, 0xef]);
        block[RESERVED_BLOCKS..RESERVED_BLOCKS + 4].copy_from_slice(&819_u32.to_le_bytes());
        (block[LOG_BLOCK], block[LOG_CLUSTER], block[RESERVED_BLOCKS_HIGH]) = (2, 6, 1);
        assert_eq!(reserved(&block, 3), Some(819 * 4096 + 3 * 65_536));
        block[INCOMPATIBLE] = 0x80;
        assert_eq!(reserved(&block, 0), Some(((1 << 32) + 819) * 4096));
        block[LOG_BLOCK] = 200;
        assert_eq!(reserved(&block, 0), None);
    }
}
