//! Size and mount of a filesystem, and the space that it frees beyond `st_blocks`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfs, StatVfsMountFlags};

use crate::disk::inode_chunks::ChunkRule;
use crate::disk::walk::Tally;
use crate::model::Filesystem;
use crate::sys::beneath::mount_id;
use crate::sys::mounts::{self, Mount};
use crate::sys::new_file::directory_of;
use crate::sys::{btrfs, xfs};

/// Bytes of an XFS inode (mkfs's default) if the geometry cannot be read.
const XFS_INODE: u64 = 512;

/// Space that a filesystem frees with inodes: see `docs/how-it-measures.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CostModel {
    /// Bytes per inode that the filesystem uses outside `st_blocks`. XFS: the inode size if its chunks are unknown,
    /// else 0. ext4: 0, its inode tables never shrink.
    pub bytes_per_inode: u64,
    /// True if inodes are freed by chunk; chunks are counted separately ([`crate::disk::inode_chunks`]).
    pub inode_chunks: bool,
    /// Percentage of [`Tally::metadata_bytes`] that is freed: 100 for one copy of metadata per copy of data, 200 for
    /// btrfs's default `DUP`, 0 if there is no such metadata.
    pub metadata_percent: u32,
    /// True if files may share extents.
    pub reflinks: bool,
    /// True if the freed space cannot be predicted, so that none is promised: on an overlay, deleting a file of a lower
    /// layer only adds a whiteout, and `stat` does not show in which layer a file is.
    pub is_unknown: bool,
}

impl CostModel {
    /// Returns the bytes by which `statvfs` is expected to grow when the files in `tally` are deleted.
    #[must_use]
    pub fn frees(&self, tally: &Tally) -> u64 {
        if self.is_unknown {
            return 0;
        }
        let per_inode = tally.inodes.saturating_mul(self.bytes_per_inode);
        if self.metadata_percent == 0 {
            return tally.bytes.saturating_add(per_inode);
        }
        let metadata = tally.metadata_bytes.saturating_mul(u64::from(self.metadata_percent)) / 100;
        let data = tally.bytes.saturating_sub(tally.inline_bytes);
        data.saturating_add(metadata).saturating_add(per_inode)
    }

    /// Returns the model of filesystem type `fstype`. For XFS and btrfs it is read through `path`, which is on it.
    fn of(fstype: &str, path: &Path) -> Self {
        match fstype {
            "xfs" => {
                let geometry = open_directory(path).and_then(|fd| {
                    let geometry = xfs::geometry(fd.as_fd())?;
                    Ok((geometry, ChunkRule::of(fd.as_fd(), &geometry).is_some()))
                });
                geometry.map_or_else(
                    |error| {
                        tracing::debug!(%error, path = %path.display(), "no XFS geometry");
                        // Looking for reflinks without need only costs time.
                        Self { bytes_per_inode: XFS_INODE, reflinks: true, ..Self::default() }
                    },
                    |(geometry, inode_chunks)| Self {
                        bytes_per_inode: if inode_chunks { 0 } else { u64::from(geometry.inode_bytes) },
                        inode_chunks,
                        reflinks: geometry.reflink,
                        ..Self::default()
                    },
                )
            }
            "btrfs" => {
                Self { metadata_percent: btrfs_metadata_percent(path), reflinks: true, ..Self::default() }
            }
            "overlay" => Self { is_unknown: true, ..Self::default() },
            // ext2, ext3, ext4: fixed inode tables, no reflinks. For other types nothing better than st_blocks
            // is known.
            _ => Self::default(),
        }
    }
}

/// Returns the copies of metadata per copy of data, in percent. `statvfs` counts in copies of data.
fn btrfs_metadata_percent(path: &Path) -> u32 {
    let copies = open_directory(path).and_then(|fd| Ok(btrfs::copies(fd.as_fd())?));
    copies.map_or_else(
        |error| {
            tracing::debug!(%error, path = %path.display(), "no BTRFS_IOC_SPACE_INFO");
            200
        },
        |copies| copies.metadata * 100 / copies.data.max(1),
    )
}

/// Returns the filesystem that contains `path`, and its cost model. Symlinks in `path` are followed.
///
/// # Errors
/// If `path` cannot be examined.
pub fn of(path: &Path) -> io::Result<(Filesystem, CostModel)> {
    let filesystem = facts(path)?;
    let cost = CostModel::of(&filesystem.fstype, path);
    Ok((filesystem, cost))
}

/// Returns the filesystem that contains `path` with its current space. Symlinks in `path` are followed.
///
/// # Errors
/// If `path` cannot be examined.
pub fn facts(path: &Path) -> io::Result<Filesystem> {
    // O_PATH does not wake a device or an automount.
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let space = rustix::fs::fstatvfs(&fd)?;
    describe(path, fd.as_fd(), &space)
}

/// Returns true if the filesystem at the mount point `mount` cannot be written to through this mount.
#[must_use]
pub fn is_mounted_read_only(mount: &Path) -> bool {
    rustix::fs::statvfs(mount).is_ok_and(|space| space.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Returns the id of the mount that `path` is on, if the kernel supports this. Symlinks in `path` are followed.
///
/// # Errors
/// If `path` cannot be examined.
pub fn mount_of(path: &Path) -> io::Result<Option<u64>> {
    let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(mount_id(fd.as_fd()).ok())
}

fn describe(path: &Path, fd: BorrowedFd<'_>, space: &StatVfs) -> io::Result<Filesystem> {
    // The longest mount point that `path` starts with would be wrong: of several mounts on the same directory only
    // one is visible, and `path` may be relative or contain symlinks.
    let mount = match (mount_id(fd), mounts::read()) {
        (Ok(id), Ok(mounts)) => mounts::underlying(&mounts, id).cloned(),
        (id, mounts) => {
            tracing::debug!(?id, mounts = ?mounts.err(), "the mount table cannot be used");
            None
        }
    };
    let mount = match mount {
        Some(mount) => mount,
        None => without_mount_table(path, fd)?,
    };
    Ok(filesystem(mount, space))
}

/// Describes a mount that is missing from this process's mount table, because it belongs to another mount namespace
/// or is outside the root directory.
fn without_mount_table(path: &Path, fd: BorrowedFd<'_>) -> io::Result<Mount> {
    let fstype = type_of(fd)?;
    Ok(Mount {
        id: 0,
        parent: 0,
        device: (0, 0),
        root: "/".into(),
        mount_point: std::path::absolute(path)?,
        fstype: fstype.to_owned(),
        source: "unknown".to_owned(),
    })
}

/// Returns the type of an open file's filesystem by its magic number; `unknown` for all but the usual ones.
///
/// # Errors
/// When `fstatfs` fails.
pub fn type_of(fd: BorrowedFd<'_>) -> rustix::io::Result<&'static str> {
    let magic = rustix::fs::fstatfs(fd)?.f_type;
    #[allow(clippy::unnecessary_cast)] // a signed or narrower type on other architectures
    Ok(match magic as u64 & 0xffff_ffff {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x2FC1_2FC1 => "zfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlay",
        _ => "unknown",
    })
}

fn filesystem(mount: Mount, space: &StatVfs) -> Filesystem {
    // `f_blocks`, `f_bfree` and `f_bavail` count fragments (`f_frsize`), not blocks of `f_bsize`.
    let fragment = space.f_frsize;
    Filesystem {
        mount: mount.mount_point,
        device: mount.source,
        fstype: mount.fstype,
        capacity_bytes: space.f_blocks.saturating_mul(fragment),
        used_bytes: space.f_blocks.saturating_sub(space.f_bfree).saturating_mul(fragment),
        available_bytes: space.f_bavail.saturating_mul(fragment),
        inodes: space.f_files,
        inodes_free: space.f_ffree,
    }
}

/// Opens a directory on the filesystem of `path` for reading, as ioctls require.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    match open_for_reading(path) {
        Ok(fd) => Ok(fd),
        // A file: open the directory that contains it, unless the file is itself a mount point.
        Err(error) => {
            let fd = open_for_reading(directory_of(path)).map_err(|_| error)?;
            let file = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
            let device = rustix::fs::fstat(&fd)?.st_dev;
            if device == rustix::fs::fstat(&file)?.st_dev { Ok(fd) } else { Err(error.into()) }
        }
    }
}

/// Opens a directory, without changing its access time if that is permitted.
/// Opens a directory without a new access time, where that is permitted.
pub(crate) fn open_for_reading(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let quiet = rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty());
    quiet.or_else(|_| rustix::fs::open(path, flags, Mode::empty()))
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_filesystem_is_described() {
        let (filesystem, _) = of(Path::new("/")).unwrap();
        assert_eq!(filesystem.mount, Path::new("/"));
        assert!(filesystem.capacity_bytes > 0);
        assert!(filesystem.used_bytes <= filesystem.capacity_bytes);
        assert!(filesystem.available_bytes <= filesystem.capacity_bytes);
    }

    #[test]
    fn symlinks_and_files_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc/self/status", &link).unwrap();
        let (filesystem, cost) = of(&link).unwrap();
        assert_eq!(filesystem.mount, Path::new("/proc"));
        assert_eq!(filesystem.fstype, "proc");
        assert_eq!(cost, CostModel::default());
    }

    #[test]
    fn missing_path_is_an_error() {
        let error = of(Path::new("/nonexistent/path")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn magic_number_replaces_a_missing_mount_entry() {
        let root = File::open("/").unwrap();
        let known = of(Path::new("/")).unwrap().0.fstype;
        let mount = without_mount_table(Path::new("/"), root.as_fd()).unwrap();
        assert!(mount.fstype == known || mount.fstype == "unknown", "{}", mount.fstype);
        assert_eq!(mount.mount_point, Path::new("/"));
    }

    #[test]
    fn sums_do_not_overflow() {
        let model = CostModel { bytes_per_inode: 512, ..CostModel::default() };
        fn tally(bytes: u64, inodes: u64) -> Tally {
            Tally { bytes, inodes, metadata_bytes: inodes, ..Tally::default() }
        }
        assert_eq!(model.frees(&tally(4096, 3)), 4096 + 3 * 512);
        assert_eq!(model.frees(&tally(u64::MAX, u64::MAX)), u64::MAX);
        assert_eq!(CostModel::default().frees(&tally(4096, 3)), 4096);
        let btrfs = CostModel { metadata_percent: 200, ..CostModel::default() };
        let inline = Tally { inline_bytes: 4096, metadata_bytes: 700, ..tally(8192, 2) };
        assert_eq!(btrfs.frees(&inline), 4096 + 1400);
        assert_eq!(btrfs.frees(&tally(u64::MAX, u64::MAX)), u64::MAX);
    }
}
