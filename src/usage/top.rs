//! The directories that trees are given below.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use crate::sys::beneath::Opener;
use crate::sys::quiet::Within;

/// An open directory.
#[derive(Debug)]
pub(super) struct Top {
    fd: OwnedFd,
    /// Whether a mount below it may be on the way to a tree.
    into_mounts: bool,
}

impl Top {
    /// Opens each: through the stores' own descriptors where it lies in one of them, else by its
    /// path, in which symlinks are followed.
    pub(super) fn all(paths: &[PathBuf], within: &Within) -> Vec<Result<Self>> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let open = |path: &PathBuf| match within.covers(path) {
            true => {
                let fd = within.handle(path);
                let fd = fd.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::LOOP))?;
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

    pub(super) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens what lies below it.
    pub(super) fn open(&self, opener: Opener, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        opener.beneath(self.fd.as_fd(), path, flags, self.into_mounts)
    }
}
