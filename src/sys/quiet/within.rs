//! Reading without a trace below the directories of a store, where no component of the path may be a symlink. A
//! planted symlink would lead out of the store, even out of a mounted disk, and following it would change its
//! access time.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use hashbrown::HashMap;
use jiff::Timestamp;
use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;

use super::{DirectoryEntry, FileKind, InodeFacts, Times};
use crate::sys::allowance::{self, Allowance};
use crate::sys::beneath::{AS_IT_IS, DIRECTORY, HANDLE, Opener};
use crate::sys::root::{Root, into_mounts};

/// Flags for opening a known regular file for reading.
const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOATIME)
    .union(OFlags::CLOEXEC);

/// Open directories of a store. Below them symlinks are not followed, and directories that are put in their place
/// later are not seen. Mounts below them are entered only if no user except root could have made them, because a
/// user's filesystem may never answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Within {
    roots: Vec<Root>,
    /// Charged for each listed entry and each byte of a file.
    allowance: Allowance,
}

/// Error: a symlink where a directory or a file should be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Symlink(PathBuf);

impl fmt::Display for Symlink {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} is a symlink; not followed", self.0.display())
    }
}

impl std::error::Error for Symlink {}

#[must_use]
pub fn is_symlink(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Symlink>())
}

#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns `None` if the path does not exist.
///
/// # Errors
/// Every other error of `result`.
pub fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Within {
    /// Creates a reader below `roots`. A path in several of them is opened from the innermost.
    pub fn new<'a>(roots: impl IntoIterator<Item = &'a Root>) -> Self {
        Self { roots: roots.into_iter().cloned().collect(), ..Self::default() }
    }

    /// Opens directories that the configuration of root's programs names. Directories that cannot be opened are
    /// left out.
    pub fn at<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let opened = paths.into_iter().filter_map(|path| Root::open_in(path, Path::new("/")).ok());
        Self { roots: opened.collect(), ..Self::default() }
    }

    #[must_use]
    pub fn charging(self, allowance: Allowance) -> Self {
        Self { allowance, ..self }
    }

    pub fn extend(&mut self, other: Self) {
        self.roots.extend(other.roots);
    }

    #[must_use]
    pub fn covers(&self, path: &Path) -> bool {
        self.root_of(path).is_some()
    }

    /// Returns whether a path in one of the directories may cross into a mount.
    #[must_use]
    pub fn enters_mounts(&self, path: &Path) -> bool {
        self.root_of(path).is_some_and(|(root, _)| root.way().is_trusted())
    }

    /// Returns the innermost directory that contains `path`, and the rest of the path.
    fn root_of<'p>(&self, path: &'p Path) -> Option<(&Root, &'p Path)> {
        let roots = self.roots.iter().filter_map(|root| Some((root, path.strip_prefix(root).ok()?)));
        roots.min_by_key(|(_, below)| below.components().count())
    }

    pub fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let directory = self.open(path, DIRECTORY)?;
        super::entries(
            directory,
            || self.allowance.charge(allowance::ENTRY),
            |name: &OsString| Ok(self.facts(&path.join(name))?.kind),
        )
    }

    /// Returns the symlinks in a directory: name and inode number. Names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// See [`Self::list`].
    pub fn symlinks(&self, path: &Path) -> io::Result<HashMap<String, u64>> {
        let mut found = HashMap::new();
        for entry in Dir::new(self.open(path, DIRECTORY)?)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let is_symlink = match entry.file_type() {
                FileType::Unknown => self.facts(&path.join(name))?.kind == FileKind::Symlink,
                known => known.is_symlink(),
            };
            if is_symlink {
                self.allowance.charge(allowance::ENTRY)?;
                found.insert(name.to_owned(), entry.ino());
            }
        }
        Ok(found)
    }

    /// Opens a directory once, for many small reads below it.
    ///
    /// # Errors
    /// If it cannot be opened, is not a directory, or its path contains a symlink.
    pub fn below(&self, path: &Path) -> io::Result<Below> {
        let start = self.open(path, HANDLE | OFlags::DIRECTORY)?;
        Ok(Below { start, enters_mounts: self.enters_mounts(path), allowance: self.allowance.clone() })
    }

    /// Opens a directory for reading.
    ///
    /// # Errors
    /// If it cannot be opened, is not a directory, or its path contains a symlink.
    pub fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open(path, DIRECTORY)
    }

    /// See [`super::facts`]: a symlink at the end of the path is examined itself.
    pub fn facts(&self, path: &Path) -> io::Result<InodeFacts> {
        let handle = self.open(path, HANDLE)?;
        Ok(super::facts_of(&rustix::fs::fstat(handle)?))
    }

    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        match self.facts(path)?.kind {
            FileKind::File => {}
            FileKind::Symlink => return Err(not_followed(path)),
            _ => return Err(super::not_regular()),
        }
        super::regular(File::from(self.open(path, FILE)?))
    }

    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file(path)?;
        self.charge(&file)?;
        super::read_whole(file, limit)
    }

    /// Reads a file whose content needs far more memory than its length: a list of short entries.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub fn read_dense(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file(path)?;
        self.allowance.charge_with(|| Ok(file.metadata()?.len().saturating_mul(allowance::DENSE)))?;
        super::read_whole(file, limit)
    }

    /// Charges a file that is read completely.
    ///
    /// # Errors
    /// If it is longer than the rest of the allowance.
    pub fn charge(&self, file: &File) -> io::Result<()> {
        self.allowance.charge_with(|| Ok(file.metadata()?.len()))
    }

    pub fn born(&self, path: &Path) -> io::Result<Option<Timestamp>> {
        super::born_of(self.open(path, HANDLE)?.as_fd())
    }

    pub fn size_of(&self, path: &Path) -> io::Result<(u64, u64)> {
        Ok(super::size_of(&rustix::fs::fstat(self.open(path, HANDLE)?)?))
    }

    /// Returns the newest of these times of `path` and everything below it, without mounts; `None` if there are
    /// more than `limit` inodes.
    pub fn newest_below(&self, path: &Path, times: Times, limit: usize) -> io::Result<Option<Timestamp>> {
        super::newest(self.open(path, HANDLE)?, times, limit)
    }

    /// Returns whether a directory or regular file is marked immutable or append-only (`chattr(1)`), so that even
    /// root cannot remove its content. `false` if unknown.
    #[must_use]
    pub fn is_immutable(&self, path: &Path) -> bool {
        let is_openable =
            self.facts(path).is_ok_and(|facts| matches!(facts.kind, FileKind::Directory | FileKind::File));
        is_openable && self.open(path, FILE).is_ok_and(|open| super::has_immutable_flag(open.as_fd()))
    }

    /// Opens anything to examine it, without activating a device or fifo.
    ///
    /// # Errors
    /// If it cannot be opened, or its path contains a symlink.
    pub fn handle(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open(path, HANDLE)
    }

    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let Some((root, below)) = self.root_of(path) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is outside the store's directories"));
        };
        match reach(root.fd(), below, flags, root.way().is_trusted()) {
            Err(error @ (Errno::LOOP | Errno::NOTDIR)) => {
                Err(symlink_on(root, below).unwrap_or(error.into()))
            }
            Err(Errno::XDEV) => Err(foreign()),
            other => other.map_err(io::Error::from),
        }
    }
}

fn reach(start: BorrowedFd<'_>, path: &Path, flags: OFlags, enters_mounts: bool) -> Result<OwnedFd, Errno> {
    let opener = Opener::usual(start);
    if enters_mounts {
        into_mounts(opener, start, path, flags)
    } else {
        opener.beneath(start, path, flags, false)
    }
}

fn foreign() -> io::Error {
    io::Error::new(io::ErrorKind::CrossesDevices, "is on another filesystem; not entered")
}

/// Directory of a store, created by [`Within::below`]. Reading through it needs half of the system calls.
#[derive(Debug)]
pub struct Below {
    start: OwnedFd,
    enters_mounts: bool,
    allowance: Allowance,
}

impl Below {
    /// Opens a directory in it that is not a mount.
    ///
    /// # Errors
    /// See [`Within::below`]; also if it is a mount.
    pub fn directory(&self, name: &Path) -> io::Result<Self> {
        let opener = Opener::usual(self.start.as_fd());
        let start = opener.beneath(self.start.as_fd(), name, HANDLE | OFlags::DIRECTORY, false)?;
        Ok(Self { start, enters_mounts: self.enters_mounts, allowance: self.allowance.clone() })
    }

    /// Examines a path (a symlink itself), and reads the beginning of a regular file: as much as fits into `into`,
    /// and nothing if it cannot be read.
    pub fn beginning(&self, path: &Path, into: &mut [u8]) -> io::Result<(InodeFacts, usize)> {
        let facts = self.facts(path)?;
        if facts.kind != FileKind::File || facts.length == 0 {
            return Ok((facts, 0));
        }
        let length = self.open(path, FILE).ok().and_then(|file| rustix::io::read(file, into).ok());
        Ok((facts, length.unwrap_or(0)))
    }

    /// Reads a regular file of at most `limit` bytes; `path` is relative. Never blocks, whatever is at the path.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path, FILE)?;
        // A large store has very many files of a few bytes: one that returns a few bytes at once is not examined.
        let mut beginning = [0; 64];
        let length = rustix::io::read(&file, &mut beginning[..])?;
        if length > 0 && length < beginning.len() && length as u64 <= limit {
            return Ok(beginning[..length].to_vec());
        }
        let mut file = super::regular(File::from(file))?;
        file.rewind()?;
        self.allowance.charge_with(|| Ok(file.metadata()?.len()))?;
        super::read_whole(file, limit)
    }

    /// Examines an entry of the directory itself, also a symlink, with one system call. A server behind a mount on
    /// it is not queried.
    pub fn entry(&self, name: &OsStr) -> io::Result<InodeFacts> {
        Ok(super::facts_of(&rustix::fs::statat(&self.start, name, AS_IT_IS)?))
    }

    fn facts(&self, path: &Path) -> io::Result<InodeFacts> {
        let mut parts = path.components();
        match (parts.next(), parts.next()) {
            // The same result with one system call instead of three, if mounts may be entered.
            (Some(Component::Normal(name)), None) if self.enters_mounts => self.entry(name),
            _ => Ok(super::facts_of(&rustix::fs::fstat(self.open(path, HANDLE)?)?)),
        }
    }

    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(reach(self.start.as_fd(), path, flags, self.enters_mounts)?)
    }
}

impl AsFd for Below {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.start.as_fd()
    }
}

fn not_followed(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, Symlink(path.to_path_buf()))
}

/// Returns an error for the first symlink on the path, which explains why it could not be opened.
fn symlink_on(root: &Root, below: &Path) -> Option<io::Error> {
    let mut way = PathBuf::new();
    for part in below.components() {
        way.push(part);
        let handle = reach(root.fd(), &way, HANDLE, root.way().is_trusted()).ok()?;
        if super::facts_of(&rustix::fs::fstat(handle).ok()?).kind == FileKind::Symlink {
            return Some(not_followed(&root.join(way)));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn symlinks_below_a_root_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("store/a/b")).unwrap();
        std::fs::create_dir_all(dir.path().join("elsewhere/b")).unwrap();
        for file in ["store/a/b/file", "elsewhere/b/file"] {
            std::fs::write(dir.path().join(file), b"12345").unwrap();
        }
        symlink(dir.path().join("elsewhere"), dir.path().join("store/out")).unwrap();
        symlink("a", dir.path().join("store/in")).unwrap();
        symlink("file", dir.path().join("store/a/b/link")).unwrap();
        symlink("store", dir.path().join("way")).unwrap();
        // relatime updates an access time that is not after the last change.
        let touched = |name: &str| std::fs::symlink_metadata(dir.path().join(name)).unwrap().atime_nsec();
        let before = ["store/out", "store/in"].map(touched);

        // The root itself may be reached through one.
        for root in ["store", "way"] {
            let root = Root::open(&dir.path().join(root)).unwrap();
            let store = Within::new([&root]);
            assert_eq!(store.read(&root.join("a/b/file"), 5).unwrap(), b"12345");
            assert_eq!(store.facts(&root.join("a/b/file")).unwrap().length, 5);
            assert_eq!(store.facts(&root.join("out")).unwrap().kind, FileKind::Symlink);
            assert_eq!(store.list(&root.join("a")).unwrap(), super::super::list(&root.join("a")).unwrap());
            assert_eq!(store.list(&root).unwrap().len(), 3);
            assert!(
                !is_symlink(&store.list(&root.join("a/b/file")).unwrap_err()),
                "a file is only not a directory"
            );
            assert_eq!(store.read(&root.join("none/x"), 5).unwrap_err().kind(), io::ErrorKind::NotFound);
            for way in ["out/b", "in/b"] {
                let link = root.join(way.split_once('/').unwrap().0);
                let expected = format!("{} is a symlink; not followed", link.display());
                let errors = [
                    store.list(&root.join(way)).map(drop),
                    store.list(&link).map(drop),
                    store.facts(&root.join(way)).map(drop),
                    store.read(&root.join(way).join("file"), 5).map(drop),
                    store.open_file(&root.join(way).join("file")).map(drop),
                ];
                for error in errors.map(Result::unwrap_err) {
                    assert!(is_symlink(&error), "{error}");
                    assert_eq!(error.to_string(), expected);
                }
            }
            assert!(is_symlink(&store.read(&root.join("a/b/link"), 5).unwrap_err()));
            let below = store.below(&root.join("a")).unwrap();
            assert_eq!(below.read(Path::new("b/file"), 5).unwrap(), b"12345");
            assert!(below.read(Path::new("b/file"), 4).is_err());
            assert!(below.read(Path::new("b/link"), 5).is_err());
            assert!(below.read(Path::new("b"), 5).is_err(), "no file");
            assert!(below.read(Path::new("../a/b/file"), 5).is_err(), "not upwards");
            assert!(store.below(&dir.path().join("out")).is_err());
            assert!(store.read(&dir.path().join("elsewhere/b/file"), 5).is_err(), "it is not below a root");
        }
        assert_eq!(["store/out", "store/in"].map(touched), before);
    }
}
