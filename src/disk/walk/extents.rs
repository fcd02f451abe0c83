//! Examines files for shared extents.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Stat};
use rustix::io::{Errno, Result};

use super::sharing::{Groups, Reference};
use super::types::{Extents, SharedExtents};
use crate::sys::beneath::{self, HANDLE, Opener};
use crate::sys::fiemap::{self, SharedExtent};

pub type FileExtents = Vec<SharedExtent>;

/// Minimum allocated bytes of a file that a probe always examines.
const BIG: u64 = 1 << 20;

/// Number of smaller files that a probe examines first. Of the remaining ones it examines one in [`SMALL_EVERY`]:
/// deduplication mostly shares very many small files. Examining a file costs as much as ten `stat` calls.
const SMALL_FIRST: u64 = 4096;
const SMALL_EVERY: u64 = 64;

#[derive(Debug)]
pub struct Collector {
    pub extents: Extents,
    found: AtomicBool,
    /// Number of smaller files that a probe has seen.
    small: AtomicU64,
    references: Mutex<HashMap<u64, Vec<Reference>>>,
}

impl Collector {
    pub fn new(extents: Extents) -> Self {
        Self {
            extents,
            found: AtomicBool::new(false),
            small: AtomicU64::new(0),
            references: Mutex::default(),
        }
    }

    /// Returns true if a file of this kind and with these allocated bytes must be examined.
    pub fn wants(&self, kind: FileType, bytes: u64) -> bool {
        match self.extents {
            Extents::Off => false,
            Extents::Probe if bytes == 0 || !kind.is_file() => false,
            Extents::Probe if bytes >= BIG => true,
            Extents::Probe => {
                let met = self.small.fetch_add(1, Ordering::Relaxed);
                met < SMALL_FIRST || met.is_multiple_of(SMALL_EVERY)
            }
            Extents::All => bytes > 0 && kind.is_file(),
        }
    }

    /// Returns true if references are collected. The filesystem of each tree is needed then, and hard links are kept
    /// to the end for [`super::links::Links::attach`].
    pub fn collects(&self) -> bool {
        self.extents == Extents::All
    }

    /// Returns true if a probe found sharing: this walk is then abandoned for one that examines every file.
    pub fn give_up(&self) -> bool {
        self.extents == Extents::Probe && self.found.load(Ordering::Relaxed)
    }

    /// Records the shared extents of a file; during a probe only the fact that there are some.
    pub fn note(&self, extents: FileExtents, filesystem: u64, unit: Option<usize>) {
        if extents.is_empty() {
            return;
        }
        self.found.store(true, Ordering::Relaxed);
        if !self.collects() {
            return;
        }
        let unit = unit.and_then(|unit| u32::try_from(unit).ok());
        let mut all = self.references.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(filesystem).or_default().extend(extents.iter().map(|extent| Reference {
            start: extent.physical,
            length: extent.length,
            unit,
            encoded: extent.encoded,
        }));
    }

    pub fn finish(self) -> Vec<SharedExtents> {
        let mut groups = Groups::default();
        for references in self.references.into_inner().unwrap_or_else(PoisonError::into_inner).into_values() {
            groups.add(references);
        }
        groups.into_shared()
    }
}

/// Examines the entry `name` of `parent`, which is a regular file according to `stat`.
///
/// The entry is opened with `O_PATH` first, and for reading only if it still is the same file: opening wakes devices
/// and waits for fifos, and the entry may have been replaced. A filesystem that does not support the request has no
/// shared extents.
pub fn ask(opener: Opener, parent: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Result<FileExtents> {
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let handle = opener.beneath(parent, path, HANDLE, false)?;
    let now = rustix::fs::fstat(&handle)?;
    if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino)
        || !FileType::from_raw_mode(now.st_mode).is_file()
    {
        return Err(Errno::NOENT);
    }
    ask_held(handle.as_fd())
}

/// Examines the regular file of `handle` (`O_PATH`).
pub fn ask_held(handle: BorrowedFd<'_>) -> Result<FileExtents> {
    let file = beneath::reopen(handle)?;
    match fiemap::shared_extents(file.as_fd()) {
        Err(Errno::OPNOTSUPP | Errno::NOTTY) => Ok(FileExtents::new()),
        result => result,
    }
}
