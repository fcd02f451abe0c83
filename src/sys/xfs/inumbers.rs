//! `XFS_IOC_INUMBERS` (Linux 5.3): allocated inodes of each chunk. The structures are those of
//! `xfs/libxfs/xfs_fs.h`.

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Number of inodes in a chunk (`XFS_INODES_PER_CHUNK`). XFS allocates and frees them together.
pub const INODES_PER_CHUNK: u64 = 64;

/// Number of chunks in one request; 24 bytes each.
const BATCH: usize = 256;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct InumbersHeader {
    ino: u64,
    flags: u32,
    icount: u32,
    ocount: u32,
    agno: u32,
    reserved: [u64; 5],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawChunk {
    startino: u64,
    allocmask: u64,
    alloccount: u8,
    version: u8,
    padding: [u8; 6],
}

#[repr(C)]
struct InumbersRequest {
    header: InumbersHeader,
    chunks: [RawChunk; BATCH],
}

/// `_IOR('X', 128, struct xfs_inumbers_req)`. The size in the number is that of the header only.
const XFS_IOC_INUMBERS: Opcode = opcode::read::<InumbersHeader>(b'X', 128);

/// Chunk of 64 inodes that XFS allocated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeChunk {
    /// Number of its first inode: a multiple of 64 on filesystems with sparse inodes, otherwise of the number of
    /// inodes in a block.
    pub start: u64,
    /// Bit n: inode `start + n` is in use. It remains in use while a deleted file is still open, or waits to be
    /// freed in the background (`statvfs` speeds that up). The holes of a sparse chunk appear free.
    pub allocated: u64,
}

/// Returns the next chunks in ascending order, from the chunk of the inode `from`; some hundred at once, empty
/// after the last.
///
/// `fd` is any file on the filesystem that is open for reading.
///
/// # Errors
/// `PERM` without `CAP_SYS_ADMIN`, `NOTTY` if it is not an XFS, or Linux is older than 5.3.
#[allow(unsafe_code)]
pub fn chunks(fd: BorrowedFd<'_>, from: u64) -> Result<Vec<InodeChunk>> {
    let mut request = Box::new(InumbersRequest {
        header: InumbersHeader { ino: from, icount: BATCH as u32, ..InumbersHeader::default() },
        chunks: [RawChunk::default(); BATCH],
    });
    // SAFETY: `InumbersRequest` is `repr(C)` and is a `struct xfs_inumbers_req`, a header followed
    // by `icount` `struct xfs_inumbers`, all fields plain integers without padding between
    // them; the kernel writes the header and at most `icount` chunks, which are inside
    // `request` and outlive the call.
    unsafe {
        ioctl(fd, Updater::<XFS_IOC_INUMBERS, InumbersRequest>::new(&mut request))?;
    }
    let count = usize::try_from(request.header.ocount).unwrap_or(0).min(BATCH);
    let chunks = request.chunks[..count].iter();
    Ok(chunks.map(|raw| InodeChunk { start: raw.startino, allocated: raw.allocmask }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<InumbersHeader>(), 64);
        assert_eq!(size_of::<RawChunk>(), 24);
        assert_eq!(size_of::<InumbersRequest>(), 64 + 24 * BATCH);
        assert_eq!(XFS_IOC_INUMBERS, 0x8040_5880);
    }

    #[test]
    fn other_filesystems_return_an_error() {
        use std::os::fd::AsFd;
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(chunks(proc.as_fd(), 0), Err(rustix::io::Errno::NOTTY));
    }
}
