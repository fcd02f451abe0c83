//! Removal of a tree through directory descriptors.
//!
//! Every step leads from an open directory to one of its entries: no symlink is followed, no mount is entered, and
//! concurrent renames cannot lead out of the tree. Entries that cannot be removed are reported, and the rest is
//! removed all the same.
//!
//! A mount in another namespace is invisible here, and removing its mount point would silently detach it there. The
//! caller must check [`super::namespaces`] first.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::beneath::{self, AS_IT_IS, Opener};
use super::stop;

/// Maximum number of directories that are open at the same time. Deeper trees are taken apart: directories below
/// this depth are moved to the top of the tree and removed from there.
const MAX_DEPTH: usize = 64;

/// Maximum number of failures that are listed; the rest is only counted.
const MAX_FAILURES: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Number of unlinked names, including directories.
    pub removed: u64,
    /// Entries that could not be removed, with the reason; at most 20.
    pub failures: Vec<RemovalFailure>,
    pub more_failures: u64,
    pub interrupted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovalFailure {
    pub path: PathBuf,
    pub error: Errno,
}

impl std::fmt::Display for RemovalFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, error } = self;
        match *error {
            Errno::XDEV | Errno::BUSY => write!(f, "{}: a filesystem is mounted there", path.display()),
            Errno::PERM => {
                write!(f, "{}: {error} (check with lsattr whether it is immutable)", path.display())
            }
            _ => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl Removal {
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && !self.interrupted
    }

    pub fn absorb(&mut self, other: Self) {
        self.removed += other.removed;
        self.more_failures += other.more_failures;
        self.interrupted |= other.interrupted;
        for failure in other.failures {
            self.fail(failure.path, failure.error);
        }
    }

    /// Updates the paths of failures after the rest of the tree was moved.
    pub fn moved(&mut self, from: &Path, to: &Path) {
        for failure in &mut self.failures {
            if let Ok(below) = failure.path.strip_prefix(from) {
                failure.path = to.components().chain(below.components()).collect();
            }
        }
    }

    fn fail(&mut self, path: PathBuf, error: Errno) {
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(RemovalFailure { path, error });
        } else {
            self.more_failures += 1;
        }
    }
}

/// Removes `name`, an entry of the directory `parent`, and everything below it. `shown` is the path of `parent` for
/// messages. An entry that does not exist is not a failure.
pub fn remove(parent: BorrowedFd<'_>, shown: &Path, name: &OsStr) -> Removal {
    let mut removal = Removal::default();
    let Ok(entry) = CString::new(name.as_bytes()) else {
        removal.fail(shown.join(name), Errno::INVAL);
        return removal;
    };
    if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
        removal.fail(shown.join(name), Errno::INVAL);
        return removal;
    }
    match rustix::fs::unlinkat(parent, &*entry, AtFlags::empty()) {
        Ok(()) => removal.removed += 1,
        Err(Errno::NOENT) => {}
        // Linux returns ISDIR; POSIX also allows PERM, which an immutable file returns too.
        Err(Errno::ISDIR) => tree(parent, shown, name, &entry, &mut removal),
        Err(Errno::PERM) if is_directory(parent, &entry) => tree(parent, shown, name, &entry, &mut removal),
        Err(error) => removal.fail(shown.join(name), error),
    }
    removal
}

fn is_directory(parent: BorrowedFd<'_>, entry: &CStr) -> bool {
    rustix::fs::statat(parent, entry, AS_IT_IS)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

struct Level {
    directory: OwnedFd,
    name: CString,
    subdirectories: Vec<CString>,
}

fn tree(parent: BorrowedFd<'_>, shown: &Path, name: &OsStr, entry: &CStr, removal: &mut Removal) {
    let opener = Opener::detect(parent);
    let top = shown.join(name);
    let mut work = TreeRemoval { opener, top: &top, removal, stuck: Vec::new(), moved: 0, next: 0 };
    let Some(level) = work.open(parent, entry, &top) else { return };
    let mut levels = vec![level];
    while let Some(depth) = levels.len().checked_sub(1) {
        if work.is_interrupted() {
            return;
        }
        if let Some(child) = levels[depth].subdirectories.pop() {
            if depth + 1 >= MAX_DEPTH && work.move_up(&levels, &child) {
                continue;
            }
            let path = work.path(&levels, &child);
            if let Some(level) = work.open(levels[depth].directory.as_fd(), &child, &path) {
                levels.push(level);
            }
            continue;
        }
        // The directories that were moved up are in the top directory now.
        if depth == 0 && work.moved > 0 {
            work.moved = 0;
            let Level { directory, .. } = &levels[0];
            let subdirectories = work.empty(directory, &top);
            let stuck = &work.stuck;
            levels[0].subdirectories =
                subdirectories.into_iter().filter(|name| !stuck.contains(name)).collect();
            if !levels[0].subdirectories.is_empty() {
                continue;
            }
        }
        let Some(done) = levels.pop() else { break };
        let from = levels.last().map_or(parent, |level| level.directory.as_fd());
        let path = if levels.is_empty() { top.clone() } else { work.path(&levels, &done.name) };
        work.remove_directory(from, &done.name, path, levels.len() == 1);
    }
}

struct TreeRemoval<'a> {
    opener: Opener,
    top: &'a Path,
    removal: &'a mut Removal,
    stuck: Vec<CString>,
    /// Number of directories that were moved up since the top directory was last listed.
    moved: usize,
    /// Number for the name of the next directory that is moved up.
    next: u64,
}

impl TreeRemoval<'_> {
    fn path(&self, levels: &[Level], name: &CStr) -> PathBuf {
        let mut path = self.top.to_path_buf();
        path.extend(levels.iter().skip(1).map(|level| OsStr::from_bytes(level.name.to_bytes())));
        path.push(OsStr::from_bytes(name.to_bytes()));
        path
    }

    /// Opens a directory and unlinks everything in it except directories.
    fn open(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &Path) -> Option<Level> {
        match self.opener.directory(parent, name) {
            Ok(directory) => {
                let subdirectories = self.empty(&directory, path);
                Some(Level { directory, name: name.to_owned(), subdirectories })
            }
            Err(Errno::NOENT) => None,
            Err(error) => {
                self.removal.fail(path.to_path_buf(), error);
                None
            }
        }
    }

    /// Returns whether a signal interrupts the removal. Checked for every entry, since a tree may have millions.
    fn is_interrupted(&mut self) -> bool {
        self.removal.interrupted |= stop::is_requested();
        self.removal.interrupted
    }

    /// Unlinks everything except directories, and returns the directories.
    fn empty(&mut self, directory: &OwnedFd, path: &Path) -> Vec<CString> {
        let names = match entries(directory.as_fd()) {
            Ok(names) => names,
            Err(error) => {
                self.removal.fail(path.to_path_buf(), error);
                return Vec::new();
            }
        };
        let mut subdirectories = Vec::new();
        for (name, kind) in names {
            if self.is_interrupted() {
                break;
            }
            if kind == FileType::Directory {
                subdirectories.push(name);
                continue;
            }
            match rustix::fs::unlinkat(directory, &*name, AtFlags::empty()) {
                Ok(()) => self.removal.removed += 1,
                Err(Errno::NOENT) => {}
                // It was not a directory when it was listed, or the filesystem did not report its kind.
                Err(Errno::ISDIR) => subdirectories.push(name),
                Err(error) => {
                    self.removal.fail(path.join(OsStr::from_bytes(name.to_bytes())), error);
                }
            }
        }
        subdirectories
    }

    /// Moves a directory that is too deep into the top directory; returns `false` if that fails.
    fn move_up(&mut self, levels: &[Level], name: &CStr) -> bool {
        let (Some(top), Some(from)) = (levels.first(), levels.last()) else { return false };
        // A removal that was killed earlier may have left such names.
        for _ in 0..1000 {
            self.next += 1;
            let Ok(new) = CString::new(format!(".layersweep-deep-{}", self.next)) else { return false };
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&from.directory, name, &top.directory, &*new, flags) {
                Ok(()) => {
                    self.moved += 1;
                    return true;
                }
                Err(Errno::EXIST) => {}
                // It may be a mount point: the attempt to remove it in place reports the reason.
                Err(_) => return false,
            }
        }
        false
    }

    fn remove_directory(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: PathBuf, in_top: bool) {
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => self.removal.removed += 1,
            Err(Errno::NOENT) => {}
            Err(error) => {
                if in_top {
                    self.stuck.push(name.to_owned());
                }
                // The entries that remain in it have been reported already.
                if error != Errno::NOTEMPTY || self.removal.failures.is_empty() {
                    self.removal.fail(path, error);
                }
            }
        }
    }
}

fn entries(directory: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let entries = beneath::entries(directory)?;
    entries.map(|entry| entry.map(|entry| (entry.file_name().to_owned(), entry.file_type()))).collect()
}

#[cfg(test)]
mod tests;
