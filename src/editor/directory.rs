//! An open directory of the store, and its entries by name.
//!
//! Only entries of open directories are changed: no path is resolved twice, and no symlink is followed, so that
//! another user who replaces a directory by a symlink cannot redirect a deletion.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use super::error::Fault;
use crate::sys::beneath::{AS_IT_IS, DIRECTORY, HANDLE, Opener, entries, without_atime};
use crate::sys::removal::{self, Removal};
use crate::sys::root::{Root, into_mounts};

/// Maximum length of a symlink's target or a `lower` file: the library writes at most 500 parts of 28 bytes.
const MOST_SMALL_BYTES: u64 = 1 << 20;

/// An open directory and its path for messages.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// Turns the error for a missing name into `None`.
fn if_exists<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Directory {
    /// The top directory of a store, as it was opened when the store was discovered.
    pub(super) fn top(root: &Root) -> Result<Self, Fault> {
        let fd = root.directory().map_err(|error| {
            Fault::new("opening", root.path(), Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        Ok(Self { fd, path: root.to_path_buf() })
    }

    /// Opens a directory below, without following symlinks; `None` if it does not exist. It may be a mount point
    /// (podman mounts the driver's directory on itself), but not of a filesystem that may never answer.
    pub(super) fn below(&self, path: impl AsRef<Path>) -> Result<Option<Self>, Fault> {
        let shown = self.path.join(path.as_ref());
        let opened = into_mounts(Opener::detect(self.fd.as_fd()), self.fd.as_fd(), path.as_ref(), DIRECTORY);
        let fd = if_exists(opened).map_err(|error| Fault::new("opening", &shown, error))?;
        Ok(fd.map(|fd| Self { fd, path: shown }))
    }

    pub(super) fn again(&self) -> Result<Self, Fault> {
        let fd = self.fd.try_clone().map_err(|error| {
            Fault::new("opening", &self.path, Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
        })?;
        Ok(Self { fd, path: self.path.clone() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn fault(&self, doing: &'static str, name: impl AsRef<OsStr>) -> impl FnOnce(Errno) -> Fault {
        let path = self.path.join(name.as_ref());
        move |error| Fault { doing, path, error }
    }

    pub(super) fn names(&self) -> Result<Vec<OsString>, Fault> {
        list(self.fd()).map_err(self.fault("listing", ""))
    }

    /// Metadata of an entry; a symlink is not followed.
    pub(super) fn stat(&self, name: impl AsRef<OsStr>) -> Result<Option<Stat>, Fault> {
        let name = name.as_ref();
        if_exists(rustix::fs::statat(&self.fd, name, AS_IT_IS)).map_err(self.fault("examining", name))
    }

    pub(super) fn has(&self, name: impl AsRef<OsStr>) -> Result<bool, Fault> {
        Ok(self.stat(name)?.is_some())
    }

    /// Opens a regular file below the directory; `None` if it does not exist. Never waits, even if it is a fifo, and
    /// opens no device.
    pub(super) fn open(&self, path: impl AsRef<Path>, flags: OFlags) -> Result<Option<File>, Fault> {
        let path = path.as_ref();
        open_regular(self.fd(), path, flags).map_err(self.fault("opening", path))
    }

    /// The content of a regular file of at most `limit` bytes; `None` if it does not exist.
    pub(super) fn read(&self, path: impl AsRef<Path>, limit: u64) -> Result<Option<Vec<u8>>, Fault> {
        let path = path.as_ref();
        let Some(file) = self.open(path, OFlags::RDONLY)? else { return Ok(None) };
        let mut content = Vec::new();
        let read = file
            .take(limit + 1)
            .read_to_end(&mut content)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        match read {
            Ok(length) if length as u64 > limit => Err(self.fault("reading", path)(Errno::FBIG)),
            Ok(_) => Ok(Some(content)),
            Err(error) => Err(self.fault("reading", path)(error)),
        }
    }

    /// The content of a small file as text, without surrounding white space.
    pub(super) fn read_small(&self, path: impl AsRef<Path>) -> Result<Option<String>, Fault> {
        let content = self.read(path, MOST_SMALL_BYTES)?;
        Ok(content.map(|content| String::from_utf8_lossy(&content).trim().to_owned()))
    }

    /// Target of a symlink; `None` if the name does not exist, or is not a symlink.
    pub(super) fn link_target(&self, name: &OsStr) -> Result<Option<PathBuf>, Fault> {
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes())))),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.fault("reading the symlink", name)(error)),
        }
    }

    /// Sets the modification time of an entry, if it exists. Needs no room.
    pub(super) fn set_modified(&self, name: impl AsRef<OsStr>, time: Timespec) -> Result<(), Fault> {
        let name = name.as_ref();
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: time,
        };
        let set = if_exists(rustix::fs::utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW));
        set.map(drop).map_err(self.fault("setting the time of", name))
    }

    pub(super) fn make_symlink(&self, target: &Path, name: impl AsRef<OsStr>) -> Result<(), Fault> {
        let name = name.as_ref();
        rustix::fs::symlinkat(target, &self.fd, name).map_err(self.fault("making the symlink", name))
    }

    /// Creates a directory for the store's owner alone, and opens it.
    pub(super) fn make(&self, name: impl AsRef<OsStr>) -> Result<Self, Fault> {
        let name = name.as_ref();
        rustix::fs::mkdirat(&self.fd, name, Mode::RWXU).map_err(self.fault("making", name))?;
        let made = self.below(name)?.ok_or(Errno::NOENT).map_err(self.fault("making", name))?;
        made.give_to_owner_of(self);
        Ok(made)
    }

    /// Gives a new directory the owner of `other`, so that a user can still use a rootless store that root edits. Best
    /// effort: a process that may not change the owner is that user already.
    fn give_to_owner_of(&self, other: &Self) {
        give_to_owner(self.fd.as_fd(), other.fd.as_fd());
    }

    pub(super) fn create(&self, name: impl AsRef<OsStr>, mode: Mode) -> Result<File, Fault> {
        let name = name.as_ref();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, mode).map_err(self.fault("making", name))?;
        Ok(File::from(fd))
    }

    /// Removes a name that is not a directory. Returns false if it did not exist.
    pub(super) fn unlink(&self, name: impl AsRef<OsStr>) -> Result<bool, Fault> {
        let name = name.as_ref();
        let gone = if_exists(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()));
        Ok(gone.map_err(self.fault("removing", name))?.is_some())
    }

    /// Removes an empty directory. Returns true if that succeeded.
    pub(super) fn remove_empty(&self, name: impl AsRef<OsStr>) -> bool {
        rustix::fs::unlinkat(&self.fd, name.as_ref(), AtFlags::REMOVEDIR).is_ok()
    }

    /// Moves an entry; fails if the new name exists.
    pub(super) fn rename(
        &self,
        name: impl AsRef<OsStr>,
        to: &Self,
        new: impl AsRef<OsStr>,
    ) -> Result<(), Fault> {
        let (name, new) = (name.as_ref(), new.as_ref());
        rustix::fs::renameat_with(&self.fd, name, &to.fd, new, RenameFlags::NOREPLACE)
            .map_err(self.fault("moving", name))
    }

    /// Renames an entry over another, as the last step of an atomic write.
    pub(super) fn replace(&self, name: &OsStr, new: &OsStr) -> Result<(), Fault> {
        rustix::fs::renameat(&self.fd, name, &self.fd, new).map_err(self.fault("renaming", name))
    }

    pub(super) fn remove_tree(&self, name: impl AsRef<OsStr>) -> Removal {
        removal::remove(self.fd.as_fd(), &self.path, name.as_ref())
    }
}

fn list(directory: BorrowedFd<'_>) -> Result<Vec<OsString>, Errno> {
    entries(directory)?.map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec()))).collect()
}

/// Opens `path` below `directory` if it is a regular file, and checks again after opening: the file may have been
/// replaced in between.
fn open_regular(directory: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<Option<File>, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opener = Opener::detect(directory);
    let handle = opener.beneath(directory, path, HANDLE, false);
    let Some(handle) = if_exists(handle)? else { return Ok(None) };
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode);
    if !kind.is_file() {
        return Err(if kind.is_symlink() { Errno::LOOP } else { Errno::INVAL });
    }
    let is_reading = !flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    let flags = if is_reading { flags | OFlags::NOATIME } else { flags };
    let file = without_atime(flags, |flags| opener.beneath(directory, path, flags, false));
    match if_exists(file)?.map(File::from) {
        Some(file) if !is_regular(&file)? => Err(Errno::INVAL),
        other => Ok(other),
    }
}

/// Filesystem (`st_dev`) of an open file.
pub(super) fn device(file: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(file).ok().map(|facts| facts.st_dev)
}

fn is_regular(file: &File) -> Result<bool, Errno> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_file())
}

/// Gives `created` the owner of `like`, if they differ.
pub(super) fn give_to_owner(created: BorrowedFd<'_>, like: BorrowedFd<'_>) {
    let (Ok(stat), Ok(like)) = (rustix::fs::fstat(created), rustix::fs::fstat(like)) else { return };
    if (stat.st_uid, stat.st_gid) != (like.st_uid, like.st_gid) {
        let uid = rustix::fs::Uid::from_raw(like.st_uid);
        let gid = rustix::fs::Gid::from_raw(like.st_gid);
        if let Err(error) = rustix::fs::fchown(created, Some(uid), Some(gid)) {
            tracing::debug!(%error, "a new file keeps the owner of this process");
        }
    }
}

/// The name as text if it is an id: 64 lower-case hex digits.
pub(super) fn id_of(name: &OsStr) -> Option<&str> {
    std::str::from_utf8(name.as_bytes())
        .ok()
        .filter(|name| crate::stores::containers_storage::records::is_id(name))
}
