//! Requests of btrfs: the number of copies that it keeps of its data and metadata (`BTRFS_IOC_SPACE_INFO`), and the
//! extents of a file as they are on the disk (`BTRFS_IOC_TREE_SEARCH`). The structures and flags are those of
//! `linux/btrfs.h` and `linux/btrfs_tree.h`.

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
struct SpaceRequest {
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
    let mut request = SpaceRequest {
        header: SpaceHeader { slots: SLOTS as u64, total: 0 },
        spaces: [SpaceInfo::default(); SLOTS],
    };
    // SAFETY: `SpaceRequest` is `repr(C)` and is a `struct btrfs_ioctl_space_args`, a header
    // followed by `slots` `struct btrfs_ioctl_space_info`, all fields plain integers; the
    // kernel writes the header and at most `slots` spaces, which are inside `request` and
    // outlive the call.
    unsafe {
        ioctl(fd, Updater::<BTRFS_IOC_SPACE_INFO, SpaceRequest>::new(&mut request))?;
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

/// Bytes of a `struct btrfs_ioctl_search_args`.
const SEARCH_BYTES: usize = 4096;

/// `struct btrfs_ioctl_search_key`, without the three unused words at its end.
#[repr(C)]
#[derive(Clone, Copy)]
struct SearchKey {
    tree_id: u64,
    min_objectid: u64,
    max_objectid: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_type: u32,
    max_type: u32,
    nr_items: u32,
    unused: u32,
    unused_words: [u64; 4],
}

#[repr(C)]
struct SearchRequest {
    key: SearchKey,
    items: [u8; SEARCH_BYTES - size_of::<SearchKey>()],
}

/// `_IOWR(0x94, 17, struct btrfs_ioctl_search_args)`.
const BTRFS_IOC_TREE_SEARCH: Opcode = opcode::read_write::<SearchRequest>(0x94, 17);

const EXTENT_DATA: u32 = 108;
const INLINE: u8 = 0;
/// Bytes of a `struct btrfs_ioctl_search_header`: generation, object, offset, type and length of an item.
const ITEM_HEADER: usize = 32;

/// Extent that a file refers to, which btrfs frees as a whole after its last reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskExtent {
    /// Byte position in the logical address space of the filesystem.
    pub start: u64,
    /// Bytes on the disk: less than in the file if it is compressed, more if the file uses only a part of it.
    pub length: u64,
    pub in_file: u64,
}

/// Returns the extents of the file with inode number `inode` in the subvolume of `fd`; holes and inline data have none.
/// An extent is returned again for each part of it that the file uses.
///
/// # Errors
/// `PERM` without `CAP_SYS_ADMIN`.
pub fn disk_extents(fd: BorrowedFd<'_>, inode: u64) -> Result<Vec<DiskExtent>> {
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        let request = search(fd, inode, from)?;
        let mut items = &request.items[..];
        for _ in 0..request.key.nr_items {
            let Some((header, rest)) = items.split_at_checked(ITEM_HEADER) else { return Ok(found) };
            let length = usize::try_from(word32(header, 28)).unwrap_or(usize::MAX);
            let Some((item, rest)) = rest.split_at_checked(length) else { return Ok(found) };
            items = rest;
            found.extend(of_item(item));
            let Some(next) = word(header, 16).checked_add(1) else { return Ok(found) };
            from = next;
        }
        if request.key.nr_items == 0 {
            return Ok(found);
        }
    }
}

fn of_item(item: &[u8]) -> Option<DiskExtent> {
    let start =
        (item.len() >= 53 && item[20] != INLINE).then(|| word(item, 21)).filter(|start| *start != 0)?;
    Some(DiskExtent { start, length: word(item, 29), in_file: word(item, 45) })
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn word32(bytes: &[u8], offset: usize) -> u32 {
    // The header is in the byte order of the machine, the items are little-endian.
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

#[allow(unsafe_code)]
fn search(fd: BorrowedFd<'_>, inode: u64, from: u64) -> Result<Box<SearchRequest>> {
    let key = SearchKey {
        // The subvolume of `fd`.
        tree_id: 0,
        min_objectid: inode,
        max_objectid: inode,
        min_offset: from,
        max_offset: u64::MAX,
        min_transid: 0,
        max_transid: u64::MAX,
        min_type: EXTENT_DATA,
        max_type: EXTENT_DATA,
        nr_items: u32::MAX,
        unused: 0,
        unused_words: [0; 4],
    };
    let mut request = Box::new(SearchRequest { key, items: [0; SEARCH_BYTES - size_of::<SearchKey>()] });
    // SAFETY: `SearchRequest` is `repr(C)` and is a `struct btrfs_ioctl_search_args`, all fields plain integers and
    // bytes; the kernel writes the key and at most the 4096 bytes of the structure, which outlives the call.
    unsafe {
        ioctl(fd, Updater::<BTRFS_IOC_TREE_SEARCH, SearchRequest>::new(&mut request))?;
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<SearchKey>(), 104);
        assert_eq!(size_of::<SearchRequest>(), SEARCH_BYTES);
        assert_eq!(BTRFS_IOC_TREE_SEARCH, 0xD000_9411);
        assert_eq!(size_of::<SpaceInfo>(), 24);
        assert_eq!(size_of::<SpaceRequest>(), 16 + 24 * SLOTS);
        assert_eq!(BTRFS_IOC_SPACE_INFO, 0xC010_9414);
    }

    #[test]
    fn table_of_extent_items() {
        fn item(kind: u8, start: u64) -> Vec<u8> {
            let mut item = vec![7; 20];
            item.push(kind);
            item.extend([start, 4096, 0, 131_072].iter().flat_map(|word| word.to_le_bytes()));
            item
        }
        let extent = DiskExtent { start: 8192, length: 4096, in_file: 131_072 };
        for (name, item, expected) in [
            ("regular", item(1, 8192), Some(extent)),
            ("preallocated", item(2, 8192), Some(extent)),
            ("hole", item(1, 0), None),
            ("inline", item(0, 8192), None),
            ("cut", item(1, 8192)[..52].to_vec(), None),
            ("empty", vec![], None),
        ] {
            assert_eq!(of_item(&item), expected, "{name}");
        }
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
        assert_eq!(disk_extents(proc.as_fd(), 1), Err(rustix::io::Errno::NOTTY));
    }
}
