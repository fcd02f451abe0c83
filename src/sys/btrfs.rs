//! `BTRFS_IOC_SPACE_INFO`: number of copies that a btrfs keeps of its data and metadata. The structures and flags
//! are those of `linux/btrfs.h` and `linux/btrfs_tree.h`.

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Number of kinds of space: data, metadata, system and the reserve; some of them twice while a filesystem is
/// converted to another profile.
const SLOTS: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SpaceHeader {
    slots: u64,
    total: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SpaceInfo {
    flags: u64,
    total_bytes: u64,
    used_bytes: u64,
}

#[repr(C)]
struct TreeSearchRequest {
    header: SpaceHeader,
    spaces: [SpaceInfo; SLOTS],
}

/// `_IOWR(0x94, 20, struct btrfs_ioctl_space_args)`. The size in the number is that of the header only.
const BTRFS_IOC_SPACE_INFO: Opcode = opcode::read_write::<SpaceHeader>(0x94, 20);

const DATA: u64 = 1;
const METADATA: u64 = 1 << 2;
const RAID1: u64 = 1 << 4;
const DUP: u64 = 1 << 5;
const RAID10: u64 = 1 << 6;
const RAID1C3: u64 = 1 << 9;
const RAID1C4: u64 = 1 << 10;

/// Number of copies of each byte that a btrfs keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    pub data: u32,
    /// Copies of metadata; 2 by default.
    pub metadata: u32,
}

pub fn is_btrfs(fd: BorrowedFd<'_>) -> Result<bool> {
    const MAGIC: u64 = 0x9123_683e;
    #[allow(clippy::unnecessary_cast)] // a signed or narrower type on other architectures
    let magic = rustix::fs::fstatfs(fd)?.f_type as u64;
    Ok(magic & 0xffff_ffff == MAGIC)
}

/// Returns the number of copies on the btrfs of `fd` (open for reading). Parity is not counted.
#[allow(unsafe_code)]
pub fn copies(fd: BorrowedFd<'_>) -> Result<Copies> {
    let mut request = TreeSearchRequest {
        header: SpaceHeader { slots: SLOTS as u64, total: 0 },
        spaces: [SpaceInfo::default(); SLOTS],
    };
    // SAFETY: `TreeSearchRequest` is `repr(C)` and is a `struct btrfs_ioctl_space_args`, a header
    // followed by `slots` `struct btrfs_ioctl_space_info`, all fields plain integers; the
    // kernel writes the header and at most `slots` spaces, which are inside `request` and
    // outlive the call.
    unsafe {
        ioctl(fd, Updater::<BTRFS_IOC_SPACE_INFO, TreeSearchRequest>::new(&mut request))?;
    }
    let count = usize::try_from(request.header.total).unwrap_or(0).min(SLOTS);
    Ok(of_spaces(&request.spaces[..count]))
}

fn of_spaces(spaces: &[SpaceInfo]) -> Copies {
    fn copies_of(spaces: &[SpaceInfo], kind: u64) -> u32 {
        let spaces = spaces.iter().filter(|space| space.flags & kind != 0);
        spaces.map(|space| copies_of_profile(space.flags)).max().unwrap_or(1)
    }
    Copies { data: copies_of(spaces, DATA), metadata: copies_of(spaces, METADATA) }
}

fn copies_of_profile(flags: u64) -> u32 {
    match flags {
        _ if flags & RAID1C4 != 0 => 4,
        _ if flags & RAID1C3 != 0 => 3,
        _ if flags & (RAID1 | RAID10 | DUP) != 0 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<SpaceInfo>(), 24);
        assert_eq!(size_of::<TreeSearchRequest>(), 16 + 24 * SLOTS);
        assert_eq!(BTRFS_IOC_SPACE_INFO, 0xC010_9414);
    }

    #[test]
    fn copies_by_profile() {
        fn space(flags: u64) -> SpaceInfo {
            SpaceInfo { flags, ..SpaceInfo::default() }
        }
        for (spaces, data, metadata) in [
            (vec![], 1, 1),
            (vec![space(DATA), space(METADATA | DUP)], 1, 2),
            (vec![space(DATA | RAID1), space(METADATA | RAID1C3)], 2, 3),
            (vec![space(DATA | METADATA | DUP)], 2, 2),
            (vec![space(DATA), space(DATA | RAID10), space(METADATA | RAID1C4)], 2, 4),
        ] {
            assert_eq!(of_spaces(&spaces), Copies { data, metadata });
        }
    }

    #[test]
    fn other_filesystems_return_an_error() {
        use std::os::fd::AsFd;
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(copies(proc.as_fd()), Err(rustix::io::Errno::NOTTY));
    }
}
