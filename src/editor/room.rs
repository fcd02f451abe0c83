//! The room that a deletion needs to begin: a new version of the largest record file, beside the old one.
//!
//! Here alone it is said how much that is, whether it is there, how much is freed first where it is not, and whether
//! that has come. What is done then, in this order: what a killed run had begun is finished ([`super::resume`]), leaks
//! go (`app::store_editing`), the reserve file (`Editor::write_with_room`), what dead processes left of record files,
//! and the image's own layers ([`super::full_disk`]); which image, the planner says (`policy::plan::full_disk`), by
//! [`Editor::full_filesystems`].

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::StatVfs;
use walkdir::WalkDir;

use super::directory::{Directory, device};
use super::graphroot_editor::Editor;
use super::reserve_file::{ReserveFile, largest_record_file};
use super::to_delete::LayerToDelete;
use crate::model::space::{BytesAndInodes, NEEDED_INODES, lacks_inodes};
use crate::sys::{btrfs, stop, users, xfs};

/// Bytes that a filesystem wants beside a record file's own blocks to create and rename it. XFS refuses to create a
/// file while as much is free as a new chunk of inodes and the trees above might take.
const WRITE_OVERHEAD: u64 = 64 << 10;
const WRITE_OVERHEAD_ON_XFS: u64 = 512 << 10;

/// `f_bfree` has blocks that not even root gets: ext4 keeps up to so many clusters for itself.
const EXT4_RESERVED_BLOCKS: u64 = 4096;

/// How many times what is needed is freed first. An image is lost for it, so it has to be enough: some of what files hold
/// stays with the filesystem (its own metadata, blocks that are freed later), and others write on the disk as well.
const ROOM_FACTOR: u64 = 2;

/// What is freed may be usable only after the filesystem's next commit, or by work in the background. So
/// long a session waits for that in all, with the locks held.
pub(super) const FREED_WITHIN: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(20);

/// The layers that a session may empty for want of room, and those that it has emptied.
#[derive(Default)]
pub(super) struct RoomFromLayers {
    /// The image's own layers, the topmost first. `None`: no image is deleted.
    pub(super) offered: Option<Vec<LayerToDelete>>,
    /// So many of them had their turn.
    pub(super) next: usize,
    /// How long this session has waited for the room.
    pub(super) waited: Duration,
    /// Half-written record files of dead processes were removed.
    pub(super) is_swept: bool,
    /// Indices and new names of the layers' directories that were renamed to be emptied, by this session or by the
    /// killed run that it finishes. Where there are any the image is lost already, and it is not asked again whether
    /// that is worth it.
    pub(super) quarantined: Vec<(usize, String)>,
}

impl Editor {
    /// The filesystems (`st_dev`) of the store's layers and records on which no record file can be written anew, not even
    /// with what the reserve file takes; and what has to be freed there before anything is written.
    #[must_use]
    pub fn full_filesystems(&self) -> Vec<(u64, BytesAndInodes)> {
        let mut full: Vec<(u64, BytesAndInodes)> = Vec::new();
        for area in self.places.areas() {
            let device = area.identity().0;
            if full.iter().any(|(known, _)| *known == device) {
                continue;
            }
            let Ok(directory) = Directory::top(area) else { continue };
            // It may be empty, or partly released by a run that was killed. If it is there, it has an inode as well.
            let needed = self.needed_bytes(&directory);
            let is_enough = |one: &ReserveFile| one.device() == device && one.taken_bytes() >= needed;
            if self.options.reserve_files.iter().any(is_enough) {
                continue;
            }
            let to_free = self.to_free(&directory);
            if !to_free.is_nothing() {
                full.push((device, to_free));
            }
        }
        full
    }

    /// Whether an image of this store can free what is needed itself: of this driver layers are emptied before their
    /// records.
    #[must_use]
    pub fn empties_layers_first(&self) -> bool {
        self.places.driver == "overlay"
    }

    /// What has to be freed on the filesystem of `directory` before a record file can be written anew, of what is
    /// short.
    pub(super) fn to_free(&self, directory: &Directory) -> BytesAndInodes {
        let Ok(space) = rustix::fs::fstatvfs(directory.fd()) else { return BytesAndInodes::default() };
        let lacks_bytes = lacks_bytes(directory, &space, self.needed_bytes(directory));
        let lacks_inodes = lacks_inodes(space.f_files, space.f_ffree);
        BytesAndInodes {
            bytes: if lacks_bytes { ROOM_FACTOR * self.needed_bytes(directory) } else { 0 },
            inodes: if lacks_inodes { ROOM_FACTOR * NEEDED_INODES } else { 0 },
        }
    }

    /// The same where a record file found no room: it is bytes that are short if the filesystem says that nothing is.
    pub(super) fn to_free_after_fault(&self, directory: &Directory) -> BytesAndInodes {
        let to_free = self.to_free(directory);
        let bytes = || BytesAndInodes { bytes: ROOM_FACTOR * self.needed_bytes(directory), inodes: 0 };
        if to_free.is_nothing() { bytes() } else { to_free }
    }

    /// What the largest of the store's record files on the filesystem of `directory` takes, written anew.
    pub(super) fn needed_bytes(&self, directory: &Directory) -> u64 {
        let device = device(directory.fd());
        let areas = self.places.areas().filter(|area| Some(area.identity().0) == device);
        let largest = areas.map(|area| largest_record_file(&self.places, area)).max().unwrap_or(0);
        let is_xfs = xfs::is_xfs(directory.fd()).unwrap_or(false);
        largest + if is_xfs { WRITE_OVERHEAD_ON_XFS } else { WRITE_OVERHEAD }
    }
}

/// Whether so many bytes cannot be written. What is free on btrfs, but not available, is for metadata alone; elsewhere
/// root gets it.
fn lacks_bytes(directory: &Directory, space: &StatVfs, needed: u64) -> bool {
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    let is_for_root = !btrfs::is_btrfs(directory.fd()).unwrap_or(false)
        && rustix::process::geteuid().is_root()
        && users::is_first_user_namespace();
    bytes(space.f_bavail) < needed
        && !(is_for_root && bytes(space.f_bfree) >= needed.saturating_add(bytes(EXT4_RESERVED_BLOCKS)))
}

/// Inodes with several names, and how many of these were seen.
pub(super) type NamesSeen = HashMap<u64, u64>;

/// Bytes of the files below a directory that have no name elsewhere than there and where `seen` is from; at most
/// `enough`.
pub(super) fn holds(path: &Path, enough: u64, seen: &mut NamesSeen) -> u64 {
    let mut sum: u64 = 0;
    for entry in WalkDir::new(path).same_file_system(true).into_iter().flatten() {
        let Ok(facts) = entry.metadata() else { continue };
        let mut is_all_here = facts.is_dir() || facts.nlink() == 1;
        if !is_all_here {
            let here = seen.entry(facts.ino()).or_default();
            *here += 1;
            is_all_here = *here == facts.nlink();
        }
        if is_all_here {
            sum = sum.saturating_add(facts.blocks().saturating_mul(512));
        }
        if sum >= enough {
            return enough;
        }
    }
    sum
}

pub(super) fn free_bytes(directory: &Directory) -> u64 {
    let space = rustix::fs::fstatvfs(directory.fd());
    space.map_or(0, |space| space.f_bfree.saturating_mul(space.f_frsize))
}

/// Waits until so many bytes are free, or a signal comes; returns how long that was.
pub(super) fn await_bytes(directory: &Directory, wanted: u64, at_most: Duration) -> Duration {
    let since = Instant::now();
    loop {
        let _ = rustix::fs::syncfs(directory.fd());
        if free_bytes(directory) >= wanted || since.elapsed() >= at_most || stop::is_asked() {
            return since.elapsed();
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_another_name_are_not_freed() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer");
        std::fs::create_dir(&layer).unwrap();
        std::fs::write(layer.join("own"), [1; 40_000]).unwrap();
        let alone = holds(&layer, u64::MAX, &mut NamesSeen::new());
        assert!(alone >= 40_000, "{alone}");
        std::fs::write(dir.path().join("shared"), [1; 90_000]).unwrap();
        std::fs::hard_link(dir.path().join("shared"), layer.join("shared")).unwrap();
        assert!(holds(&layer, u64::MAX, &mut NamesSeen::new()) < alone + 90_000);
        // As in busybox.
        std::fs::hard_link(layer.join("own"), layer.join("own too")).unwrap();
        assert!(holds(&layer, u64::MAX, &mut NamesSeen::new()) >= alone);
        assert!(holds(&layer, 1, &mut NamesSeen::new()) <= alone);
    }
}
