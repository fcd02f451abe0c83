//! An open directory of the store, and its entries by name.
//!
//! Only entries of open directories are changed: no path is resolved twice, and no
//! symlink is followed.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::error::Fault;
use crate::sys::beneath::{AS_IT_IS, DIRECTORY, HANDLE, Opener, without_atime};
use crate::sys::removal::{self, Removal};
use crate::sys::root::{Root, into_mounts};

/// Longest path of a symlink or content of a `lower` file that is read: the library writes
/// 500 parts of 28 bytes at most.
const MOST_SMALL_BYTES: u64 = 1 << 20;

/// An open directory and its path for messages.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// `None` where there is nothing of that name.
fn there<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Directory {
    /// The top of a store, as it was opened when the store was found.
    pub(super) fn top(root: &Root) -> Result<Self, Fault> {
        let fd = root.directory().map_err(|error| {
            Fault::new("opening", root.path(), Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        Ok(Self { fd, path: root.to_path_buf() })
    }

    /// Opens a directory below, through no symlink; `None` where it does not exist. One of the
    /// store's own directories may be a mount (podman mounts the driver's on itself), but none that need
    /// never answer.
    pub(super) fn below(&self, path: impl AsRef<Path>) -> Result<Option<Self>, Fault> {
        let shown = self.path.join(path.as_ref());
        let opened = into_mounts(Opener::detect(self.fd.as_fd()), self.fd.as_fd(), path.as_ref(), DIRECTORY);
        let fd = there(opened).map_err(|error| Fault::new("opening", &shown, error))?;
        Ok(fd.map(|fd| Self { fd, path: shown }))
    }

    /// Another descriptor of the same directory.
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

    /// All names but `.` and `..`.
    pub(super) fn names(&self) -> Result<Vec<OsString>, Fault> {
        let read = || -> Result<Vec<OsString>, Errno> {
            let mut names = Vec::new();
            for entry in Dir::read_from(&self.fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    names.push(OsString::from_vec(name.to_vec()));
                }
            }
            Ok(names)
        };
        read().map_err(self.fault("listing", ""))
    }

    /// What an entry is; a symlink is examined itself.
    pub(super) fn stat(&self, name: impl AsRef<OsStr>) -> Result<Option<Stat>, Fault> {
        let name = name.as_ref();
        there(rustix::fs::statat(&self.fd, name, AS_IT_IS)).map_err(self.fault("examining", name))
    }

    pub(super) fn has(&self, name: impl AsRef<OsStr>) -> Result<bool, Fault> {
        Ok(self.stat(name)?.is_some())
    }

    /// Opens a regular file below the directory; `None` where there is none. Nothing is waited
    /// for, should it be a fifo, and no device is opened.
    pub(super) fn open(&self, path: impl AsRef<Path>, flags: OFlags) -> Result<Option<File>, Fault> {
        let path = path.as_ref();
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opener = Opener::detect(self.fd.as_fd());
        let open = || -> Result<Option<File>, Errno> {
            let handle = opener.beneath(self.fd.as_fd(), path, HANDLE, false);
            let Some(handle) = there(handle)? else { return Ok(None) };
            let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode);
            if !kind.is_file() {
                return Err(if kind.is_symlink() { Errno::LOOP } else { Errno::INVAL });
            }
            let is_reading = !flags.intersects(OFlags::WRONLY | OFlags::RDWR);
            let flags = if is_reading { flags | OFlags::NOATIME } else { flags };
            let file = without_atime(flags, |flags| opener.beneath(self.fd.as_fd(), path, flags, false));
            let file = there(file)?.map(File::from);
            match file {
                Some(file) if !is_regular(&file)? => Err(Errno::INVAL),
                other => Ok(other),
            }
        };
        open().map_err(self.fault("opening", path))
    }

    /// The content of a regular file of at most `limit` bytes; `None` where there is none.
    pub(super) fn read(&self, path: impl AsRef<Path>, limit: u64) -> Result<Option<Vec<u8>>, Fault> {
        let path = path.as_ref();
        let Some(file) = self.open(path, OFlags::RDONLY)? else { return Ok(None) };
        let mut content = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut content);
        let read = read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        match read {
            Ok(length) if length as u64 > limit => Err(self.fault("reading", path)(Errno::FBIG)),
            Ok(_) => Ok(Some(content)),
            Err(error) => Err(self.fault("reading", path)(error)),
        }
    }

    /// The content of a small file as text, without white space around it.
    pub(super) fn read_small(&self, path: impl AsRef<Path>) -> Result<Option<String>, Fault> {
        let content = self.read(path, MOST_SMALL_BYTES)?;
        Ok(content.map(|content| String::from_utf8_lossy(&content).trim().to_owned()))
    }

    /// Where a symlink leads; `None` where there is nothing, or something else.
    pub(super) fn link_target(&self, name: &OsStr) -> Result<Option<PathBuf>, Fault> {
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Ok(target) => Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes())))),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(self.fault("reading the symlink", name)(error)),
        }
    }

    pub(super) fn make_symlink(&self, target: &Path, name: impl AsRef<OsStr>) -> Result<(), Fault> {
        let name = name.as_ref();
        rustix::fs::symlinkat(target, &self.fd, name).map_err(self.fault("making the symlink", name))
    }

    /// Makes a directory for the store's owner alone, and opens it.
    pub(super) fn make(&self, name: impl AsRef<OsStr>) -> Result<Self, Fault> {
        let name = name.as_ref();
        rustix::fs::mkdirat(&self.fd, name, Mode::RWXU).map_err(self.fault("making", name))?;
        let made = self.below(name)?.ok_or(Errno::NOENT).map_err(self.fault("making", name))?;
        made.give_to_owner_of(self);
        Ok(made)
    }

    /// A rootless store that root edits stays its user's. Best effort: who cannot give a file
    /// away has made it as the user already.
    fn give_to_owner_of(&self, other: &Self) {
        give_to_owner(self.fd.as_fd(), other.fd.as_fd());
    }

    /// Makes a new file and opens it for writing.
    pub(super) fn create(&self, name: impl AsRef<OsStr>, mode: Mode) -> Result<File, Fault> {
        let name = name.as_ref();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, mode).map_err(self.fault("making", name))?;
        Ok(File::from(fd))
    }

    /// Removes a name that is not a directory; whether it was there.
    pub(super) fn unlink(&self, name: impl AsRef<OsStr>) -> Result<bool, Fault> {
        let name = name.as_ref();
        let gone = there(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()));
        Ok(gone.map_err(self.fault("removing", name))?.is_some())
    }

    /// Removes an empty directory; whether it is gone.
    pub(super) fn remove_empty(&self, name: impl AsRef<OsStr>) -> bool {
        rustix::fs::unlinkat(&self.fd, name.as_ref(), AtFlags::REMOVEDIR).is_ok()
    }

    /// Moves an entry; nothing is replaced.
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

    /// Moves an entry over another, as the last step of an atomic write.
    pub(super) fn replace(&self, name: &OsStr, new: &OsStr) -> Result<(), Fault> {
        rustix::fs::renameat(&self.fd, name, &self.fd, new).map_err(self.fault("renaming", name))
    }

    /// Removes an entry and all below it.
    pub(super) fn remove_tree(&self, name: impl AsRef<OsStr>) -> Removal {
        removal::remove(self.fd.as_fd(), &self.path, name.as_ref())
    }
}

/// `st_dev`
pub(super) fn device(of: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(of).ok().map(|facts| facts.st_dev)
}

fn is_regular(file: &File) -> Result<bool, Errno> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_file())
}

/// Gives `made` the owner of `like`, if they differ.
pub(super) fn give_to_owner(made: BorrowedFd<'_>, like: BorrowedFd<'_>) {
    let (Ok(made_stat), Ok(like)) = (rustix::fs::fstat(made), rustix::fs::fstat(like)) else { return };
    if (made_stat.st_uid, made_stat.st_gid) != (like.st_uid, like.st_gid) {
        let uid = rustix::fs::Uid::from_raw(like.st_uid);
        let gid = rustix::fs::Gid::from_raw(like.st_gid);
        if let Err(error) = rustix::fs::fchown(made, Some(uid), Some(gid)) {
            tracing::debug!(%error, "a new file keeps our owner");
        }
    }
}

/// The name as text, if it is one of 64 lower-case hex digits.
pub(super) fn id_of(name: &OsStr) -> Option<&str> {
    std::str::from_utf8(name.as_bytes())
        .ok()
        .filter(|name| crate::stores::containers_storage::records::is_id(name))
}
