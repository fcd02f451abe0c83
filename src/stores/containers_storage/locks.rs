//! Lock files of a store.
//!
//! containers/storage uses POSIX record locks (`fcntl(F_SETLKW)` over the whole file; container-libs,
//! `storage/internal/rawfilelock`), and writes a token of 64 bytes into the lock file at every change.
//!
//! This module uses open-file-description locks. They conflict with POSIX record locks, but are not released when the
//! process closes another descriptor of the file. `flock(2)` would not conflict with the library's locks at all.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::sys::quiet::{Within, if_present};

/// An existing lock file, opened read-only.
#[derive(Debug)]
pub(super) struct LockFile {
    path: PathBuf,
    file: File,
}

pub(crate) fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock {
        // The constants are small; the field is narrower than their type.
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

impl LockFile {
    /// Opens the lock file at `path`. Returns `None` if it does not exist; never creates it.
    pub(super) fn open(within: &Within, path: &Path) -> io::Result<Option<Self>> {
        let file = if_present(within.open_file(path))?;
        Ok(file.map(|file| Self { path: path.to_path_buf(), file }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn has_writer(&self) -> io::Result<bool> {
        self.conflicts_with(libc::F_RDLCK)
    }

    pub(super) fn is_held(&self) -> io::Result<bool> {
        self.conflicts_with(libc::F_WRLCK)
    }

    fn conflicts_with(&self, kind: libc::c_int) -> io::Result<bool> {
        let mut lock = whole_file(kind);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
    }

    /// Takes a shared lock unless a process holds a write lock. Dropping `self` releases it.
    pub(super) fn try_shared(&self) -> io::Result<bool> {
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK))) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn unlock(&self) {
        // This can only fail with a closed descriptor, and `self` owns an open one.
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK)));
    }

    /// Returns the change token. A different token means that a process has written to the store.
    pub(super) fn token(&self) -> io::Result<Vec<u8>> {
        let mut token = vec![0; 128];
        let length = self.file.read_at(&mut token, 0)?;
        token.truncate(length);
        Ok(token)
    }
}
