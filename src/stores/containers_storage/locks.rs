//! The store's lock files, read without disturbing other processes.
//!
//! containers/storage locks with POSIX record locks (`fcntl(F_SETLKW)` over the whole
//! file; container-libs, `storage/internal/rawfilelock`) and writes a token of 64 bytes
//! into the lock file at every change. Open-file-description locks see those locks and,
//! unlike POSIX locks, do not vanish when another descriptor of the file is closed.
//! `flock(2)` would see nothing at all.

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
    /// Opens the lock file at `path`; `None` where there is none. Never creates one.
    pub(super) fn open(within: &Within, path: &Path) -> io::Result<Option<Self>> {
        let file = if_present(within.open_file(path))?;
        Ok(file.map(|file| Self { path: path.to_path_buf(), file }))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Somebody holds a write lock.
    pub(super) fn has_writer(&self) -> io::Result<bool> {
        self.conflicts_with(libc::F_RDLCK)
    }

    /// Somebody holds any lock.
    pub(super) fn is_held(&self) -> io::Result<bool> {
        self.conflicts_with(libc::F_WRLCK)
    }

    fn conflicts_with(&self, kind: libc::c_int) -> io::Result<bool> {
        let mut lock = whole_file(kind);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
    }

    /// Takes a shared lock if no process writes; it is released when `self` is dropped.
    pub(super) fn try_shared(&self) -> io::Result<bool> {
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK))) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Releases the shared lock.
    pub(super) fn unlock(&self) {
        // The only way to fail is a closed descriptor, which `self` rules out.
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK)));
    }

    /// The change token: any change of it means that another process wrote.
    pub(super) fn token(&self) -> io::Result<Vec<u8>> {
        let mut token = vec![0; 128];
        let length = self.file.read_at(&mut token, 0)?;
        token.truncate(length);
        Ok(token)
    }
}
