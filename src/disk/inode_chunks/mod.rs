//! What XFS gives back for inodes: chunks of 64, each when all its inodes are free.
//!
//! The walk notes who holds which inodes of which chunk ([`Notes`]). Afterwards the
//! filesystem is asked which of them are allocated at all, so that it shows where somebody
//! holds inodes whom the walk did not see; without the permission to ask, what was seen is
//! taken for all.

mod groups;
mod notes;
mod of_unit;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

pub use groups::InodeChunks;
pub use notes::{FsNumber, Notes};
pub use of_unit::{UnitInodes, Window};

use crate::disk::top::Top;
use crate::sys::beneath;
use crate::sys::quiet::Within;
use crate::sys::xfs::inumbers::{self, INODES_PER_CHUNK, InodeChunk};
use crate::sys::xfs::{self, XfsGeometry};
use groups::Groups;
use notes::Note;

/// `f_type` of XFS.
const XFS: u64 = 0x5846_5342;

/// How one XFS gives back inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRule {
    /// What comes back when all inodes of a chunk are free.
    bytes: u64,
    /// `XFS_IOC_INUMBERS` is permitted.
    ask: bool,
}

impl ChunkRule {
    /// The rule of the XFS with this geometry that `fd` (open for reading) lies on. `None`
    /// where chunks may start anywhere and we may not ask where.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>, geometry: &XfsGeometry) -> Option<Self> {
        let ask = match inumbers::chunks(fd, 0) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(%error, "no XFS_IOC_INUMBERS: taking the inodes that are seen for all");
                false
            }
        };
        // Several chunks in one block are never given back (`xfs_difree_inobt`).
        let chunk = INODES_PER_CHUNK * u64::from(geometry.inode_bytes);
        let bytes = if chunk >= u64::from(geometry.block_bytes) { chunk } else { 0 };
        (ask || geometry.sparse_inodes).then_some(Self { bytes, ask })
    }
}

/// The XFS that a walk meets, each with a number.
#[derive(Debug, Default)]
pub struct Filesystems(Mutex<Vec<Held>>);

#[derive(Clone, Debug)]
struct Held {
    device: u64,
    /// Something on it that is open for reading.
    fd: Option<Arc<OwnedFd>>,
}

impl Filesystems {
    /// Those of them that `roots` lie on.
    #[must_use]
    pub fn of(roots: &[PathBuf], within: &Within) -> Self {
        let found = Self::default();
        for top in Top::all(roots, within).iter().flatten() {
            found.number(top.fd());
        }
        found
    }

    /// The number of the XFS that the start of a tree, `fd`, lies on; `None` if it is none.
    pub fn number(&self, fd: BorrowedFd<'_>) -> Option<FsNumber> {
        #[allow(clippy::unnecessary_cast)] // a signed or narrower type on other architectures
        let magic = rustix::fs::fstatfs(fd).ok()?.f_type as u64;
        if magic & 0xffff_ffff != XFS {
            return None;
        }
        let stat = rustix::fs::fstat(fd).ok()?;
        let mut known = self.lock();
        let at = known.iter().position(|held| held.device == stat.st_dev).unwrap_or_else(|| {
            known.push(Held { device: stat.st_dev, fd: None });
            known.len() - 1
        });
        let held = &mut known[at];
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        if held.fd.is_none() && (kind.is_dir() || kind.is_file()) {
            held.fd = beneath::reopen(fd).ok().map(Arc::new);
        }
        FsNumber::try_from(at).ok()
    }

    /// The number of the XFS with this `st_dev`, if it was met.
    pub fn known(&self, device: u64) -> Option<FsNumber> {
        let at = self.lock().iter().position(|held| held.device == device)?;
        FsNumber::try_from(at).ok()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which inodes of which chunks the units of a walk hold, or of several walks.
#[derive(Clone, Debug, Default)]
pub struct InodeHoldings {
    filesystems: Vec<Held>,
    notes: Vec<Note>,
}

impl InodeHoldings {
    /// What the notes of one walk say.
    #[must_use]
    pub fn new(filesystems: Filesystems, notes: Notes) -> Self {
        let filesystems = filesystems.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        Self { filesystems, notes: notes.into_sorted() }
    }

    /// What units held in an earlier walk, by unit number. What lies on none of
    /// `filesystems` is left out.
    #[must_use]
    pub fn recalled<'a>(
        filesystems: Filesystems,
        units: impl IntoIterator<Item = (usize, &'a UnitInodes)>,
    ) -> Self {
        let mut all = Vec::new();
        for (unit, inodes) in units {
            // More than 2^32 units: as in `Notes::see`.
            let unit = u32::try_from(unit).ok();
            all.extend(inodes.windows().iter().filter_map(|one| {
                let filesystem = filesystems.known(one.device)?;
                Some(Note { filesystem, window: one.window, unit, inodes: one.inodes })
            }));
        }
        let filesystems = filesystems.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        Self { filesystems, notes: notes::merged(all) }
    }

    /// What single units hold, by unit number, to be recalled later.
    #[must_use]
    pub fn of_units(&self, wanted: &dyn Fn(usize) -> bool) -> HashMap<usize, UnitInodes> {
        let mut windows: HashMap<usize, Vec<Window>> = HashMap::new();
        for note in &self.notes {
            let Some(unit) = note.unit.map(|unit| unit as usize).filter(|unit| wanted(*unit)) else {
                continue;
            };
            let Some(held) = self.filesystems.get(note.filesystem as usize) else { continue };
            let window = Window { device: held.device, window: note.window, inodes: note.inodes };
            windows.entry(unit).or_default().push(window);
        }
        windows.into_iter().map(|(unit, windows)| (unit, UnitInodes::new(windows))).collect()
    }

    /// Adds the holdings of a further walk.
    pub fn append(&mut self, other: Self) {
        let mut numbers = Vec::with_capacity(other.filesystems.len());
        for held in other.filesystems {
            let known = self.filesystems.iter().position(|known| known.device == held.device);
            match known {
                Some(at) => {
                    let known = &mut self.filesystems[at];
                    known.fd = known.fd.take().or(held.fd);
                    numbers.push(at);
                }
                None => {
                    numbers.push(self.filesystems.len());
                    self.filesystems.push(held);
                }
            }
        }
        self.notes.extend(other.notes.into_iter().filter_map(|note| {
            let at = numbers.get(note.filesystem as usize)?;
            Some(Note { filesystem: FsNumber::try_from(*at).ok()?, ..note })
        }));
        self.notes = notes::merged(std::mem::take(&mut self.notes));
    }

    /// Makes inodes (`st_dev`, `st_ino`) the unit's alone; those that were not noted stay
    /// out.
    pub fn hand_over(&mut self, inodes: impl IntoIterator<Item = (u64, u64, usize)>) {
        let mut given = Notes::default();
        for (device, inode, unit) in inodes {
            let Some(at) = self.filesystems.iter().position(|held| held.device == device) else { continue };
            let Ok(filesystem) = FsNumber::try_from(at) else { continue };
            let of = (filesystem, inode / INODES_PER_CHUNK);
            let bit = 1 << (inode % INODES_PER_CHUNK);
            let from = self.notes.partition_point(|note| (note.filesystem, note.window) < of);
            let here = self.notes[from..].iter_mut().take_while(|note| (note.filesystem, note.window) == of);
            for note in here.filter(|note| note.inodes & bit != 0) {
                note.inodes &= !bit;
                given.see(filesystem, Some(unit), inode);
            }
        }
        self.notes.extend(given.into_sorted());
        self.notes = notes::merged(std::mem::take(&mut self.notes));
    }

    /// Asks the filesystems, and says which units hold chunks alone and which together.
    /// Inodes of units that are not `alive` (any more) count as somebody else's where they
    /// still exist.
    #[must_use]
    pub fn chunks(&self, alive: &dyn Fn(usize) -> bool) -> Vec<InodeChunks> {
        let mut groups = Groups::default();
        for (at, held) in self.filesystems.iter().enumerate() {
            let from = self.notes.partition_point(|note| (note.filesystem as usize) < at);
            let to = self.notes.partition_point(|note| (note.filesystem as usize) <= at);
            let notes = &self.notes[from..to];
            let Some(fd) = held.fd.as_ref().map(|fd| fd.as_fd()) else { continue };
            let rule = xfs::geometry(fd).ok().and_then(|geometry| ChunkRule::of(fd, &geometry));
            let Some(rule) = rule else { continue };
            let asked = if rule.ask { ask(fd, notes) } else { None };
            groups.add(notes, asked.as_deref(), rule.bytes, alive);
        }
        groups.into_chunks()
    }
}

/// The chunks that hold inodes of `notes`; `None` where the filesystem does not say.
fn ask(fd: BorrowedFd<'_>, notes: &[Note]) -> Option<Vec<InodeChunk>> {
    let mut windows: Vec<u64> = notes.iter().map(|note| note.window).collect();
    windows.dedup();
    let wanted: HashSet<u64> = windows.iter().copied().collect();
    let mut found: Vec<InodeChunk> = Vec::new();
    let mut next = 0;
    while let Some(window) = windows.get(next) {
        let batch = match inumbers::chunks(fd, window * INODES_PER_CHUNK) {
            Ok(batch) => batch,
            Err(Errno::INTR) => continue,
            Err(error) => {
                tracing::debug!(%error, "XFS_IOC_INUMBERS failed");
                return None;
            }
        };
        let Some(last) = batch.last() else { break };
        let end = last.start.saturating_add(INODES_PER_CHUNK);
        let past = windows.partition_point(|window| (window + 1) * INODES_PER_CHUNK <= end);
        // A chunk that reaches into the next window comes again with that one.
        let before = found.last().map(|chunk| chunk.start);
        found.extend(batch.into_iter().filter(|chunk| {
            let reaches = [chunk.start, chunk.start + INODES_PER_CHUNK - 1];
            Some(chunk.start) > before
                && reaches.iter().any(|inode| wanted.contains(&(inode / INODES_PER_CHUNK)))
        }));
        next = past.max(next + 1);
    }
    Some(found)
}
