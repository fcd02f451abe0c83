//! `FS_IOC_FIEMAP`: positions of a file's extents, and which of them are shared with other files. The structures
//! are those of `linux/fiemap.h`.

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const DATA_INLINE: u32 = 0x200;
const SHARED: u32 = 0x2000;

/// Number of extents in one request; 56 bytes each.
const BATCH: usize = 72;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct FiemapRequest {
    header: FiemapHeader,
    extents: [RawExtent; BATCH],
}

/// `_IOWR('f', 11, struct fiemap)`. The size in the number is that of the header only.
const FS_IOC_FIEMAP: Opcode = opcode::read_write::<FiemapHeader>(b'f', 11);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Byte position on the filesystem (on btrfs in its logical address space).
    pub physical: u64,
    /// Number of bytes of the file.
    pub length: u64,
    /// Another file refers to it too, or the same file again.
    pub shared: bool,
    /// It is compressed or encrypted, and takes less than `length` bytes at `physical`.
    pub encoded: bool,
}

/// Extents of a file, and true if its content is in the metadata of the filesystem.
pub type FileExtents = (Vec<FileExtent>, bool);

/// Returns the extents of the regular file that is open for reading as `fd`.
///
/// `FIEMAP_FLAG_SYNC` is not set, since it would write dirty pages to the disk, and a scan must not write. Blocks
/// without a position (delayed allocation) are therefore unknown and left out; no other file shares them yet.
///
/// # Errors
/// `OPNOTSUPP` or `NOTTY` if the filesystem does not support the request.
pub fn extents(fd: BorrowedFd<'_>) -> Result<FileExtents> {
    let mut found: Vec<FileExtent> = Vec::new();
    let mut is_inline = false;
    let mut start = 0;
    loop {
        let request = request_extents(fd, start)?;
        let count = usize::try_from(request.header.mapped_extents).unwrap_or(0).min(BATCH);
        let Some(last) = count.checked_sub(1).map(|position| request.extents[position]) else {
            return Ok((found, is_inline));
        };
        for extent in &request.extents[..count] {
            is_inline |= extent.flags & DATA_INLINE != 0;
            push(&mut found, extent);
        }
        let end = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || end <= start {
            return Ok((found, is_inline));
        }
        start = end;
    }
}

fn push(found: &mut Vec<FileExtent>, raw: &RawExtent) {
    if raw.flags & (UNKNOWN | DELALLOC | DATA_INLINE) != 0 {
        return;
    }
    let (shared, encoded) = (raw.flags & SHARED != 0, raw.flags & ENCODED != 0);
    match found.last_mut() {
        // Merges adjacent extents to save memory; they stay adjacent.
        Some(before)
            if !encoded
                && !before.encoded
                && before.shared == shared
                && before.physical.checked_add(before.length) == Some(raw.physical) =>
        {
            before.length = before.length.saturating_add(raw.length);
        }
        _ => found.push(FileExtent { physical: raw.physical, length: raw.length, shared, encoded }),
    }
}

#[allow(unsafe_code)]
fn request_extents(fd: BorrowedFd<'_>, start: u64) -> Result<Box<FiemapRequest>> {
    let mut request = Box::new(FiemapRequest {
        header: FiemapHeader {
            start,
            length: u64::MAX - start,
            extent_count: BATCH as u32,
            ..FiemapHeader::default()
        },
        extents: [RawExtent::default(); BATCH],
    });
    // SAFETY: `FiemapRequest` is `repr(C)` and is a `struct fiemap` followed by `extent_count`
    // `struct fiemap_extent`, all fields plain integers; the kernel writes the header and
    // at most `extent_count` extents, which are inside `request` and outlive the call.
    unsafe {
        ioctl(fd, Updater::<FS_IOC_FIEMAP, FiemapRequest>::new(&mut request))?;
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(physical: u64, length: u64, flags: u32) -> RawExtent {
        RawExtent { physical, length, flags, ..RawExtent::default() }
    }

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<FiemapHeader>(), 32);
        assert_eq!(size_of::<RawExtent>(), 56);
        assert_eq!(size_of::<FiemapRequest>(), 32 + 56 * BATCH);
        assert_eq!(FS_IOC_FIEMAP, 0xC020_660B);
    }

    #[test]
    fn only_extents_with_a_position_count() {
        let mut found = Vec::new();
        for extent in [
            raw(0, 10, 0),
            raw(10, 10, 0),
            raw(20, 80, SHARED | DELALLOC),
            raw(100, 10, SHARED),
            raw(110, 5, SHARED | LAST),
            raw(200, 10, SHARED | DELALLOC | UNKNOWN),
            raw(300, 10, SHARED | DATA_INLINE),
            raw(400, 10, SHARED | ENCODED),
            raw(410, 10, SHARED | ENCODED),
        ] {
            push(&mut found, &extent);
        }
        fn shared(physical: u64, length: u64, encoded: bool) -> FileExtent {
            FileExtent { physical, length, shared: true, encoded }
        }
        let alone = FileExtent { shared: false, ..shared(0, 20, false) };
        assert_eq!(found, [alone, shared(100, 15, false), shared(400, 10, true), shared(410, 10, true)]);
    }

    #[test]
    fn file_without_reflinks_shares_nothing() {
        use std::os::fd::AsFd;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 10_000]).unwrap();
        match extents(file.as_file().as_fd()) {
            Ok((found, _)) => assert!(found.iter().all(|extent| !extent.shared), "{found:?}"),
            Err(error) => assert!(matches!(error, rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOTTY)),
        }
    }
}
