//! `FS_IOC_FIEMAP`: where a file's blocks are, and which of them other files share.
//! The structures are those of `linux/fiemap.h`.

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const DATA_INLINE: u32 = 0x200;
const SHARED: u32 = 0x2000;

/// Extents asked for at once: 56 bytes each.
const BATCH: usize = 72;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Header {
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
    header: Header,
    extents: [RawExtent; BATCH],
}

/// `_IOWR('f', 11, struct fiemap)`: the size in the number is the header's alone.
const FS_IOC_FIEMAP: Opcode = opcode::read_write::<Header>(b'f', 11);

/// A stretch of a file that the filesystem says is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExtent {
    /// Byte position on the filesystem (on btrfs in its logical address space).
    pub physical: u64,
    /// Bytes of the file that it holds.
    pub length: u64,
    /// Compressed or encrypted: it takes less room at `physical` than `length` says.
    pub encoded: bool,
}

/// The shared extents of the regular file open for reading as `fd`.
///
/// `FIEMAP_FLAG_SYNC` is not set, since it would write dirty pages to the disk and a scan
/// writes nothing. So blocks that are still waiting for their place (delayed allocation)
/// are unknown and left out; nothing shares them yet.
///
/// # Errors
/// `OPNOTSUPP` or `NOTTY` where the filesystem does not know the request.
pub fn shared_extents(fd: BorrowedFd<'_>) -> Result<Vec<SharedExtent>> {
    let mut found: Vec<SharedExtent> = Vec::new();
    let mut start = 0;
    loop {
        let request = ask(fd, start)?;
        let count = usize::try_from(request.header.mapped_extents).unwrap_or(0).min(BATCH);
        let Some(last) = count.checked_sub(1).map(|at| request.extents[at]) else {
            return Ok(found);
        };
        for extent in &request.extents[..count] {
            push(&mut found, extent);
        }
        let end = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || end <= start {
            return Ok(found);
        }
        start = end;
    }
}

fn push(found: &mut Vec<SharedExtent>, raw: &RawExtent) {
    if raw.flags & SHARED == 0 || raw.flags & (UNKNOWN | DELALLOC | DATA_INLINE) != 0 {
        return;
    }
    let encoded = raw.flags & ENCODED != 0;
    match found.last_mut() {
        // Fewer pieces to remember; where they lie one after the other they stay so.
        Some(before)
            if !encoded
                && !before.encoded
                && before.physical.checked_add(before.length) == Some(raw.physical) =>
        {
            before.length = before.length.saturating_add(raw.length);
        }
        _ => found.push(SharedExtent { physical: raw.physical, length: raw.length, encoded }),
    }
}

#[allow(unsafe_code)]
fn ask(fd: BorrowedFd<'_>, start: u64) -> Result<Box<FiemapRequest>> {
    let mut request = Box::new(FiemapRequest {
        header: Header { start, length: u64::MAX - start, extent_count: BATCH as u32, ..Header::default() },
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
        assert_eq!(size_of::<Header>(), 32);
        assert_eq!(size_of::<RawExtent>(), 56);
        assert_eq!(size_of::<FiemapRequest>(), 32 + 56 * BATCH);
        assert_eq!(FS_IOC_FIEMAP, 0xC020_660B);
    }

    #[test]
    fn only_shared_and_placed_extents_count() {
        let mut found = Vec::new();
        for extent in [
            raw(0, 10, 0),
            raw(100, 10, SHARED),
            raw(110, 5, SHARED | LAST),
            raw(200, 10, SHARED | DELALLOC | UNKNOWN),
            raw(300, 10, SHARED | DATA_INLINE),
            raw(400, 10, SHARED | ENCODED),
            raw(410, 10, SHARED | ENCODED),
        ] {
            push(&mut found, &extent);
        }
        let shared = |physical, length, encoded| SharedExtent { physical, length, encoded };
        assert_eq!(found, [shared(100, 15, false), shared(400, 10, true), shared(410, 10, true)]);
    }

    #[test]
    fn a_file_without_reflinks_shares_nothing() {
        use std::os::fd::AsFd;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 10_000]).unwrap();
        match shared_extents(file.as_file().as_fd()) {
            Ok(found) => assert_eq!(found, []),
            Err(error) => assert!(matches!(error, rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOTTY)),
        }
    }
}
