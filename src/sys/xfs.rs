//! `XFS_IOC_FSGEOMETRY`: geometry of an XFS. The structure is that of `xfs/libxfs/xfs_fs.h`.

pub mod inumbers;

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

/// `struct xfs_fsop_geom_v4`. Version 5 only appends fields, and every kernel since 4.20 supports both.
#[repr(C)]
#[derive(Clone, Copy)]
struct Geometry {
    blocksize: u32,
    rtextsize: u32,
    agblocks: u32,
    agcount: u32,
    logblocks: u32,
    sectsize: u32,
    inodesize: u32,
    imaxpct: u32,
    blocks_and_extents: [u64; 4],
    uuid: [u8; 16],
    sunit: u32,
    swidth: u32,
    version: i32,
    flags: u32,
    logsectsize: u32,
    rtsectsize: u32,
    dirblocksize: u32,
    logsunit: u32,
}

const XFS_IOC_FSGEOMETRY_V4: Opcode = opcode::read::<Geometry>(b'X', 124);
const SPARSE_INODES: u32 = 1 << 18;
const REFLINK: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XfsGeometry {
    pub inode_bytes: u32,
    pub block_bytes: u32,
    pub reflink: bool,
    /// Created with sparse inodes (mkfs's default since 2018): every chunk of 64 inodes starts at a multiple of 64.
    pub sparse_inodes: bool,
}

pub fn is_xfs(fd: BorrowedFd<'_>) -> Result<bool> {
    const MAGIC: u64 = 0x5846_5342;
    #[allow(clippy::unnecessary_cast)] // a signed or narrower type on other architectures
    let magic = rustix::fs::fstatfs(fd)?.f_type as u64;
    Ok(magic & 0xffff_ffff == MAGIC)
}

/// Returns the geometry of the XFS of `fd` (opened for reading).
#[allow(unsafe_code)]
pub fn geometry(fd: BorrowedFd<'_>) -> Result<XfsGeometry> {
    // SAFETY: the number contains the size of `Geometry`, which is `repr(C)` with only plain integers, and the
    // kernel fills exactly that.
    let raw = unsafe { ioctl(fd, Getter::<XFS_IOC_FSGEOMETRY_V4, Geometry>::new())? };
    Ok(XfsGeometry {
        inode_bytes: raw.inodesize,
        block_bytes: raw.blocksize,
        reflink: raw.flags & REFLINK != 0,
        sparse_inodes: raw.flags & SPARSE_INODES != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<Geometry>(), 112);
        assert_eq!(XFS_IOC_FSGEOMETRY_V4, 0x8070_587C);
    }

    #[test]
    fn other_filesystems_return_an_error() {
        use std::os::fd::AsFd;
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(geometry(proc.as_fd()), Err(rustix::io::Errno::NOTTY));
    }
}
