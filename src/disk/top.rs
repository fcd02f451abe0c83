//! Directories that the paths of trees are relative to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::sys::beneath::{HANDLE, Opener, mount_id_of_handle};
use crate::sys::mounts::{self, Mount};
use crate::sys::quiet::Within;
use crate::sys::root::into_mounts;

/// An open directory.
#[derive(Debug)]
pub(super) struct Top {
    fd: OwnedFd,
    /// True if a mount may be on the path from this directory to a tree.
    into_mounts: bool,
}

impl Top {
    /// Opens each path, see [`Self::open_root`].
    pub(super) fn all(paths: &[PathBuf], within: &Within) -> Vec<Result<Self>> {
        paths.iter().map(|path| Self::open_root(path, within)).collect()
    }

    /// Opens a directory: through the stores' own descriptors if it is inside one of them, otherwise by its path, in
    /// which symlinks are followed.
    fn open_root(path: &Path, within: &Within) -> Result<Self> {
        if within.covers(path) {
            let fd = within.handle(path).map_err(|error| errno(&error))?;
            Ok(Self { fd, into_mounts: within.enters_mounts(path) })
        } else {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            Ok(Self { fd: rustix::fs::open(path, flags, Mode::empty())?, into_mounts: true })
        }
    }

    /// Returns the way to open files that the kernel permits.
    pub(super) fn opener(all: &[Result<Self>]) -> Opener {
        let first = all.iter().find_map(|top| top.as_ref().ok());
        first.map_or(Opener::Openat2, |top| Opener::usual(top.fd.as_fd()))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens `path` below this directory.
    ///
    /// Fails with `XDEV` if `path`, or a directory on it, is a mount that shows another directory than the one it
    /// covers. A running container's `merged` shows the whole image, which is counted elsewhere. Directories that are
    /// mounted over themselves, as storage drivers and systemd units do, are opened.
    pub(super) fn open(&self, opener: Opener, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        match opener.beneath(self.fd.as_fd(), path, flags, false) {
            Err(Errno::XDEV) if path.components().any(|part| part == Component::ParentDir) => {
                return Err(Errno::INVAL);
            }
            Err(Errno::XDEV) if self.into_mounts => {}
            other => return other,
        }
        let handle = into_mounts(opener, self.fd.as_fd(), path, HANDLE)?;
        let mounts = mounts::read().map_err(|_| Errno::XDEV)?;
        let root_mount = underlying_mount(&mounts, self.fd.as_fd());
        if root_mount.is_some() && root_mount == underlying_mount(&mounts, handle.as_fd()) {
            into_mounts(opener, self.fd.as_fd(), path, flags)
        } else {
            Err(Errno::XDEV)
        }
    }
}

/// Default number of threads of [`in_pool`]. As for a walk, most of the time is spent waiting for a cold disk.
const DEFAULT_THREADS: usize = 32;

/// Runs parallel `work` on `items` things in a pool of its own with `threads` threads, 0 for the default; on the
/// common pool if the system refuses the threads.
pub(super) fn in_pool<T: Send>(threads: usize, items: usize, work: impl FnOnce() -> T + Send) -> T {
    let threads = if threads == 0 { DEFAULT_THREADS } else { threads };
    // A thread with fewer than four things is not worth starting.
    let threads = threads.clamp(1, 128).min(items.div_ceil(4));
    match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(work),
        Err(error) => {
            tracing::debug!(%error, threads, "cannot start that many threads");
            work()
        }
    }
}

/// Returns the id of the mount that `fd` is on, without mounts of a directory over itself.
fn underlying_mount(mounts: &[Mount], fd: BorrowedFd<'_>) -> Option<u64> {
    Some(mounts::underlying(mounts, mount_id_of_handle(fd).ok()?)?.id)
}

/// Converts an error; errors of the stores' own descriptors have no error number of the kernel.
fn errno(error: &io::Error) -> Errno {
    let refused = if error.kind() == io::ErrorKind::CrossesDevices { Errno::XDEV } else { Errno::LOOP };
    Errno::from_io_error(error).unwrap_or(refused)
}
