//! The reserve file: a file of our own that is removed when a deletion needs space to begin.
//!
//! Deleting an image rewrites its record file before it frees anything, and a record file is
//! never written in place. On a filesystem without free blocks or inodes that write fails, for us as for
//! every runtime. The reserve file is on the same filesystem as the records: in our state directory if
//! that is on the same filesystem, else at the top of the graphroot (or imagestore), where no library
//! looks.
//!
//! On btrfs data and metadata run out independently. There the reserve file is a directory with such
//! a file and many small files that are stored in the metadata.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, Stat, statat, unlinkat};
use rustix::io::Errno;

use crate::stores::containers_storage::places::{RecordKind, StorePlaces};
use crate::stores::containers_storage::units::RESERVE_FILE;
use crate::sys::beneath::{AS_IT_IS, DIRECTORY, Opener};
use crate::sys::btrfs;
use crate::sys::root::Root;

/// Room for a record file of a few thousand layers and what the filesystem needs beside it.
const LEAST_BYTES: u64 = 4 << 20;

/// Restored only where it takes at most this part of what is free: it must never be what fills
/// the disk.
const PART_OF_FREE: u64 = 8;

/// Files of this length are in btrfs's metadata (`max_inline` is 2048 by default).
const INLINE_BYTES: usize = 2000;

/// Metadata for creating one file is reserved many times over: some hundred KiB.
const INLINE_FILES: usize = 2048;

/// The file of data in a reserve file that is a directory; made last.
const DATA: &str = "data";

/// One file on one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveFile {
    /// The directory that it is in.
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

    /// The reserve files of a store: one for each filesystem that has record files. None for a store that
    /// cannot be edited.
    ///
    /// # Errors
    /// When the state directory is there and cannot be examined.
    pub fn of_store(places: &StorePlaces, state_dir: &Path) -> io::Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        if super::store_directory::prove_ours(places).is_err() {
            return Ok(all);
        }
        let state = opened(state_dir)?;
        for area in places.areas() {
            let device = area.identity().0;
            let bytes = LEAST_BYTES.max(2 * largest_record_file(places, area));
            let beside = Self::new(area.clone(), RESERVE_FILE, bytes);
            // It may be there from a run that had no room for a state directory.
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

    /// The reserve file in the state directory, if that is on the filesystem of `root`: in a store of
    /// containerd nothing of ours has a place.
    ///
    /// # Errors
    /// When one of them cannot be examined.
    pub fn in_state_dir(state_dir: &Path, root: &Path) -> io::Result<Option<Self>> {
        let device = std::fs::metadata(root)?.dev();
        let state = opened(state_dir)?.ok_or(io::ErrorKind::NotFound)?;
        let here = state.identity().0 == device;
        Ok(here.then(|| Self::new(state, format!("reserve-{device:x}"), LEAST_BYTES)))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The filesystem it is on (`st_dev`).
    #[must_use]
    pub fn device(&self) -> u64 {
        self.parent.identity().0
    }

    /// Whether its path exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.examine().is_some()
    }

    fn examine(&self) -> Option<Stat> {
        statat(self.parent.fd(), &self.name, AS_IT_IS).ok()
    }

    /// The directory that it is, where it is one.
    fn directory(&self) -> rustix::io::Result<OwnedFd> {
        Opener::usual(self.parent.fd()).beneath(self.parent.fd(), Path::new(&self.name), DIRECTORY, false)
    }

    /// Bytes that it takes now, as `st_blocks` counts.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        let bytes = |stat: &Stat| u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let mut sum = self.examine().as_ref().map_or(0, bytes);
        if let Ok(directory) = self.directory()
            && let Ok(entries) = Dir::read_from(&directory)
        {
            for entry in entries.flatten().filter(|entry| entry.file_type() == FileType::RegularFile) {
                let stat = statat(&directory, entry.file_name(), AS_IT_IS);
                sum += stat.as_ref().map_or(0, bytes);
            }
        }
        sum
    }

    /// How many bytes have to be available for it to be created.
    #[must_use]
    pub fn least_available_bytes(&self) -> u64 {
        self.bytes.saturating_mul(PART_OF_FREE)
    }

    /// Whether they are, and an inode is free. That says nothing of deletions, which need less (`room`).
    ///
    /// # Errors
    /// When the filesystem cannot be asked.
    pub fn fits(&self) -> io::Result<bool> {
        let space = rustix::fs::fstatvfs(self.parent.fd())?;
        let bytes = space.f_bavail.saturating_mul(space.f_frsize);
        let has_inode = space.f_files == 0 || space.f_ffree > 0 || self.exists();
        Ok(has_inode && bytes >= self.least_available_bytes())
    }

    /// Creates it if there is enough free space; returns whether it exists afterwards.
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
        let made = match btrfs::is_btrfs(self.parent.fd())? {
            true => self.make_inline(),
            false => reserve(self.parent.fd(), &self.name, self.bytes),
        };
        match made {
            Ok(()) => Ok(true),
            Err(error) => {
                self.release()?;
                let no_space =
                    rustix::io::Errno::from_io_error(&error).is_some_and(super::error::is_no_space);
                if no_space { Ok(false) } else { Err(error) }
            }
        }
    }

    /// It is there.
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
        for at in 0..INLINE_FILES {
            // Noise: a filesystem that compresses would make nothing of zeroes.
            for chunk in content.chunks_mut(8) {
                chunk.copy_from_slice(&super::locks::noise64().to_le_bytes()[..chunk.len()]);
            }
            create(directory.as_fd(), at.to_string().as_ref())?.write_all(&content)?;
        }
        reserve(directory.as_fd(), DATA.as_ref(), self.bytes)
    }

    /// Removes it to free its space; returns whether it existed.
    ///
    /// # Errors
    /// When it exists and cannot be removed.
    pub fn release(&self) -> io::Result<bool> {
        let unlink = |directory: BorrowedFd<'_>, name: &OsStr, flags| match unlinkat(directory, name, flags) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(io::Error::from(error)),
        };
        match self.directory() {
            Ok(directory) => {
                let names = (0..INLINE_FILES).map(|at| at.to_string());
                for name in std::iter::once(DATA.to_owned()).chain(names) {
                    unlink(directory.as_fd(), name.as_ref(), AtFlags::empty())?;
                }
                unlink(self.parent.fd(), &self.name, AtFlags::REMOVEDIR)
            }
            Err(_) => unlink(self.parent.fd(), &self.name, AtFlags::empty()),
        }
    }
}

/// The state directory, which root's programs name; `None` where there is none yet.
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

/// Makes a file of reserved blocks, whatever the filesystem would do with zeroes.
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
    fn prepared_once_and_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reserve");
        let reserve_file = ReserveFile::new(Root::open(dir.path()).unwrap(), "reserve", LEAST_BYTES);
        assert!(!reserve_file.release().unwrap());
        assert!(reserve_file.prepare().unwrap());
        let facts = std::fs::metadata(&path).unwrap();
        assert!(facts.blocks() * 512 >= LEAST_BYTES, "real blocks");
        let inode = facts.ino();
        assert!(reserve_file.prepare().unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode, "it is there already");
        assert!(reserve_file.release().unwrap());
        assert!(!path.exists());
        let greedy = ReserveFile { bytes: u64::MAX / 2, ..reserve_file };
        assert!(!greedy.prepare().unwrap(), "never what fills the disk");
    }
}
