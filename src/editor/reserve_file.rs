//! The reserve file: a file of layersweep's that is removed when a deletion needs space to begin.
//!
//! The deletion of an image replaces its record file before it frees anything, and a record file is never written in
//! place. On a filesystem without free blocks or inodes that write fails, for layersweep as for every runtime. Removing
//! the reserve file makes room for it. The file is on the filesystem of the records: in the state directory if that is
//! on the same filesystem, otherwise at the top of the graphroot (or imagestore), where no library looks.
//!
//! On btrfs, data and metadata run out independently. There the reserve file is a directory with such a file and many
//! small files that are stored in the metadata.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat, statat, unlinkat};
use rustix::io::Errno;

use crate::stores::containers_storage::places::{RecordKind, StorePlaces};
use crate::stores::containers_storage::units::RESERVE_FILE;
use crate::sys::beneath::{AS_IT_IS, DIRECTORY, Opener, entries};
use crate::sys::btrfs;
use crate::sys::root::Root;

/// Minimum size: room for a record file of a few thousand layers, and for the filesystem's own needs.
const LEAST_BYTES: u64 = 4 << 20;

/// The reserve file is created only if this many times its size is available: it must never be the file that fills the
/// disk.
const PART_OF_FREE: u64 = 8;

/// Length of the small files; btrfs stores it in the metadata (`max_inline` is 2048 by default).
const INLINE_BYTES: usize = 2000;

/// Number of the small files. btrfs reserves far more metadata than it needs to create one file: some hundred KiB.
const INLINE_FILES: usize = 2048;

/// Name of the data file in a reserve file that is a directory. It is created last.
const DATA: &str = "data";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveFile {
    parent: Root,
    name: OsString,
    path: PathBuf,
    bytes: u64,
}

impl ReserveFile {
    fn new(parent: Root, name: impl Into<OsString>, bytes: u64) -> Self {
        let name = name.into();
        Self { path: parent.join(&name), parent, name, bytes }
    }

    /// Reserve files of a store: one for each filesystem with record files. Empty for a store that cannot be edited.
    ///
    /// # Errors
    /// When the state directory exists and cannot be examined.
    pub fn of_store(places: &StorePlaces, state_dir: &Path) -> io::Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        if super::store_directory::prove_ownership(places).is_err() {
            return Ok(all);
        }
        let state = opened(state_dir)?;
        for area in places.areas() {
            let device = area.identity().0;
            let bytes = LEAST_BYTES.max(2 * largest_record_file(places, area));
            let beside = Self::new(area.clone(), RESERVE_FILE, bytes);
            // A run that had no room for a state directory may have created it in the store.
            let state = state.clone().filter(|state| state.identity().0 == device && !beside.exists());
            let reserve_file =
                state.map_or(beside, |state| Self::new(state, format!("reserve-{device:x}"), bytes));
            match all.iter_mut().find(|known| known.device() == device) {
                Some(known) => known.bytes = known.bytes.max(bytes),
                None => all.push(reserve_file),
            }
        }
        Ok(all)
    }

    /// The reserve file in the state directory, if that is on the filesystem of `root`. For stores of containerd, in
    /// which layersweep creates no files.
    ///
    /// # Errors
    /// When the state directory or `root` cannot be examined.
    pub fn in_state_dir(state_dir: &Path, root: &Path) -> io::Result<Option<Self>> {
        let device = std::fs::metadata(root)?.dev();
        let state = opened(state_dir)?.ok_or(io::ErrorKind::NotFound)?;
        let here = state.identity().0 == device;
        Ok(here.then(|| Self::new(state, format!("reserve-{device:x}"), LEAST_BYTES)))
    }

    /// The reserve file at a path that an earlier scan recorded. `None` if its directory cannot be opened.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let parent = Root::open(path.parent()?).ok()?;
        Some(Self::new(parent, path.file_name()?, LEAST_BYTES))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Filesystem that contains it (`st_dev`).
    #[must_use]
    pub fn device(&self) -> u64 {
        self.parent.identity().0
    }

    #[must_use]
    pub fn exists(&self) -> bool {
        self.examine().is_some()
    }

    fn examine(&self) -> Option<Stat> {
        statat(self.parent.fd(), &self.name, AS_IT_IS).ok()
    }

    /// Opens the directory that a reserve file on btrfs is; fails for a plain file.
    fn directory(&self) -> rustix::io::Result<OwnedFd> {
        Opener::usual(self.parent.fd()).beneath(self.parent.fd(), Path::new(&self.name), DIRECTORY, false)
    }

    /// Bytes allocated to it now (`st_blocks`).
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        let mut sum = self.examine().as_ref().map_or(0, allocated_bytes);
        if let Ok(directory) = self.directory()
            && let Ok(entries) = entries(&directory)
        {
            for entry in entries.flatten().filter(|entry| entry.file_type() == FileType::RegularFile) {
                let stat = statat(&directory, entry.file_name(), AS_IT_IS);
                sum += stat.as_ref().map_or(0, allocated_bytes);
            }
        }
        sum
    }

    /// Minimum number of available bytes for its creation.
    #[must_use]
    pub fn least_available_bytes(&self) -> u64 {
        self.bytes.saturating_mul(PART_OF_FREE)
    }

    /// Returns true if that many bytes are available and an inode is free. Deletions need less (`room`).
    ///
    /// # Errors
    /// When `fstatvfs` fails.
    pub fn fits(&self) -> io::Result<bool> {
        let space = rustix::fs::fstatvfs(self.parent.fd())?;
        let bytes = space.f_bavail.saturating_mul(space.f_frsize);
        let has_inode = space.f_files == 0 || space.f_ffree > 0 || self.exists();
        Ok(has_inode && bytes >= self.least_available_bytes())
    }

    /// Creates it if there is enough free space. Returns true if it exists afterwards.
    ///
    /// # Errors
    /// When creating it fails for another reason than lack of space.
    pub fn prepare(&self) -> io::Result<bool> {
        if self.is_ready() {
            return Ok(true);
        }
        if !self.fits()? {
            return Ok(false);
        }
        self.release()?;
        let created = if btrfs::is_btrfs(self.parent.fd())? {
            self.make_inline()
        } else {
            reserve(self.parent.fd(), &self.name, self.bytes)
        };
        match created {
            Ok(()) => Ok(true),
            Err(error) => {
                self.release()?;
                let no_space =
                    rustix::io::Errno::from_io_error(&error).is_some_and(super::error::is_no_space);
                if no_space { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Returns true if it exists and is complete.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let Some(stat) = self.examine() else { return false };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.directory().is_ok_and(|directory| statat(directory, DATA, AS_IT_IS).is_ok())
            }
            _ => u64::try_from(stat.st_size).is_ok_and(|length| length >= self.bytes),
        }
    }

    fn make_inline(&self) -> io::Result<()> {
        rustix::fs::mkdirat(self.parent.fd(), &self.name, Mode::RWXU)?;
        let directory = self.directory()?;
        let mut content = [0_u8; INLINE_BYTES];
        for number in 0..INLINE_FILES {
            // Random bytes: compression would reduce zeroes to nothing.
            for chunk in content.chunks_mut(8) {
                chunk.copy_from_slice(&super::locks::noise64().to_le_bytes()[..chunk.len()]);
            }
            create(directory.as_fd(), number.to_string().as_ref())?.write_all(&content)?;
        }
        reserve(directory.as_fd(), DATA.as_ref(), self.bytes)
    }

    /// Removes it to free its space. Returns true if it existed.
    ///
    /// # Errors
    /// When it exists and cannot be removed.
    pub fn release(&self) -> io::Result<bool> {
        match self.directory() {
            Ok(directory) => {
                let names = (0..INLINE_FILES).map(|number| number.to_string());
                for name in std::iter::once(DATA.to_owned()).chain(names) {
                    unlink(directory.as_fd(), name.as_ref(), AtFlags::empty())?;
                }
                unlink(self.parent.fd(), &self.name, AtFlags::REMOVEDIR)
            }
            Err(_) => unlink(self.parent.fd(), &self.name, AtFlags::empty()),
        }
    }
}

fn allocated_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// Removes a file or an empty directory. Returns true if it existed.
fn unlink(directory: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> io::Result<bool> {
    match unlinkat(directory, name, flags) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(io::Error::from(error)),
    }
}

/// Opens the state directory, whose path root has configured; `None` if it does not exist yet.
fn opened(state_dir: &Path) -> io::Result<Option<Root>> {
    match Root::open_in(state_dir, Path::new("/")) {
        Ok(root) => Ok(Some(root)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn create(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?))
}

/// Creates a file of allocated blocks, even on a filesystem that stores zeroes without blocks.
fn reserve(directory: BorrowedFd<'_>, name: &OsStr, bytes: u64) -> io::Result<()> {
    let file = create(directory, name)?;
    Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?)
}

pub(super) fn largest_record_file(places: &StorePlaces, area: &Path) -> u64 {
    let within = places.within();
    let files = RecordKind::ALL.into_iter().flat_map(|kind| {
        let directory = places.records_dir(area, kind);
        kind.files().map(|(name, _)| directory.join(name))
    });
    files.filter_map(|path| within.facts(&path).ok()).map(|facts| facts.length).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_file_is_prepared_once_and_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let reserve_file = ReserveFile::new(Root::open(dir.path()).unwrap(), "reserve", LEAST_BYTES);
        assert!(!reserve_file.release().unwrap());
        assert!(reserve_file.prepare().unwrap());
        let facts = std::fs::metadata(&path).unwrap();
        assert!(facts.blocks() * 512 >= LEAST_BYTES, "real blocks");
        let inode = facts.ino();
        assert!(reserve_file.prepare().unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode, "it exists already");
        assert!(reserve_file.release().unwrap());
        assert!(!path.exists());
        let greedy = ReserveFile { bytes: u64::MAX / 2, ..reserve_file };
        assert!(!greedy.prepare().unwrap(), "it never fills the disk");
    }
}
