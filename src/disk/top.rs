//! The directories that the paths of trees are relative to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::sys::beneath::{HANDLE, Opener, mount_id_of_handle};
use crate::sys::mounts;
use crate::sys::quiet::Within;
use crate::sys::root::into_mounts;

/// An open directory.
#[derive(Debug)]
pub(super) struct Top {
    fd: OwnedFd,
    /// Whether a mount below it may be on the way to a tree.
    into_mounts: bool,
}

impl Top {
    /// Opens each: through the stores' own descriptors where it is in one of them, else by its
    /// path, in which symlinks are followed.
    pub(super) fn all(paths: &[PathBuf], within: &Within) -> Vec<Result<Self>> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let open = |path: &PathBuf| match within.covers(path) {
            true => {
                let fd = within.handle(path);
                let fd = fd.map_err(|error| errno(&error))?;
                Ok(Self { fd, into_mounts: within.enters_mounts(path) })
            }
            false => Ok(Self { fd: rustix::fs::open(path, flags, Mode::empty())?, into_mounts: true }),
        };
        paths.iter().map(open).collect()
    }

    /// What the kernel lets us use.
    pub(super) fn opener(all: &[Result<Self>]) -> Opener {
        let any = all.iter().find_map(|top| top.as_ref().ok());
        any.map_or(Opener::Openat2, |top| Opener::usual(top.fd.as_fd()))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens what is below it; `XDEV` where that, or a directory on the way, is a mount that shows
    /// something else than it covers. A running container's `merged` shows the whole image, which is
    /// counted elsewhere; but storage drivers and systemd units mount directories on themselves.
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
        let mount = |fd: BorrowedFd<'_>| Some(mounts::underlying(&mounts, mount_id_of_handle(fd).ok()?)?.id);
        match mount(self.fd.as_fd()).is_some_and(|own| Some(own) == mount(handle.as_fd())) {
            true => into_mounts(opener, self.fd.as_fd(), path, flags),
            false => Err(Errno::XDEV),
        }
    }
}

/// What a store's descriptors refuse by themselves has no number of the kernel's.
fn errno(error: &io::Error) -> Errno {
    let refused = if error.kind() == io::ErrorKind::CrossesDevices { Errno::XDEV } else { Errno::LOOP };
    Errno::from_io_error(error).unwrap_or(refused)
}
