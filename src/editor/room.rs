//! Deletion on a disk without a free byte or a free inode.
//!
//! The deletion of an image begins with a new version of its record file, which is written beside the old one and
//! renamed over it. On a full disk there is no room for that new file, so the deletion that would free the disk cannot
//! begin. For example, a store with an `images.json` of 300 KiB on ext4 needs 300 KiB, and [`WRITE_OVERHEAD`] for the
//! filesystem itself, before it can free the first byte.
//!
//! This module alone decides how many bytes and inodes a deletion needs ([`Editor::needed_bytes`]), whether they are
//! available, how much to free first if they are not ([`Editor::to_free`]), and how long to wait until freed bytes can
//! be used ([`await_bytes`]). Other modules free them. They begin with the objects that have no user, and touch an
//! image only if all else was too little:
//!
//! 1. Deletions that a killed run began are finished ([`super::resume`]). Their images are unusable already. The
//!    journal lists them (`history::runs::begun`), and so does the name of a quarantined directory, which is derived
//!    from the layer's id (`quarantine_name`). The next run that sees all processes finishes them, by whatever way it
//!    deletes images. As long as a layer has a record and no directory, its quarantined directory is evidence of an
//!    unfinished deletion, and not a leak (`fill/leaks.rs`). `Deleted::has_changed` alone decides whether an edit was
//!    stopped halfway.
//! 2. Leaks are deleted (`app::store_editing`). Most of them need no new record file.
//! 3. [`Editor::full_filesystems`] reports to the planner which filesystems are still full (`Input::full_filesystems`).
//!    Until the first image there is deleted, the planner chooses only images whose own layers contain enough bytes
//!    (`policy::plan::full_disk`).
//! 4. `Session::save`, which writes every record file, fails for want of room. It then releases the reserve file
//!    (`Editor::write_with_room`), removes the half-written record files of dead processes, and at last empties the
//!    image's own layers before its record is removed ([`super::full_disk`]). The layers are measured again before
//!    that. If they contain too little, nothing is changed and the store is skipped.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::StatVfs;
use walkdir::WalkDir;

use super::commit::commit;
use super::directory::{Directory, device};
use super::graphroot_editor::Editor;
use super::reserve_file::largest_record_file;
use super::to_delete::LayerToDelete;
use crate::model::space::{BytesAndInodes, NEEDED_INODES, lacks_inodes};
use crate::sys::{btrfs, users, xfs};

/// Bytes that a filesystem needs, beside a record file's own blocks, to create and rename the file. XFS refuses to
/// create a file unless more is free than a new chunk of inodes and the trees above it might take.
const WRITE_OVERHEAD: u64 = 64 << 10;
const WRITE_OVERHEAD_ON_XFS: u64 = 512 << 10;

/// Maximum number of clusters that ext4 keeps for itself: `f_bfree` counts them, and not even root gets them.
const EXT4_RESERVED_BLOCKS: u64 = 4096;

/// Multiple of the needed room that is freed. An image is lost for it, so it has to be enough: the filesystem keeps
/// some of the freed bytes (its own metadata, blocks that are freed later), and other processes write to the disk as
/// well.
const ROOM_FACTOR: u64 = 2;

const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The layers that a session may empty for want of room, and those that it has emptied.
#[derive(Default)]
pub(super) struct RoomFromLayers {
    /// Id of the image that is deleted, if any.
    pub(super) image: Option<String>,
    /// The image's own layers, the topmost first. `None`: no image is deleted.
    pub(super) offered: Option<Vec<LayerToDelete>>,
    /// Index of the next of them to be emptied.
    pub(super) next: usize,
    /// Time for which this session has waited for freed bytes.
    pub(super) waited: Duration,
    /// Half-written record files of dead processes were removed.
    pub(super) is_swept: bool,
    /// Directory indices and new names of the layers' directories that were renamed to be emptied, by this session or
    /// by the killed run that it finishes. If there are any, the image is lost already, so the remaining layers are not
    /// measured again.
    pub(super) quarantined: Vec<(usize, String)>,
}

impl Editor {
    /// Filesystems (`st_dev`) of the store's layers and records on which no new version of a record file can be
    /// written, not even with the bytes of the reserve file; each with the bytes and inodes to be freed before the
    /// first write.
    #[must_use]
    pub fn full_filesystems(&self) -> Vec<(u64, BytesAndInodes)> {
        let mut full: Vec<(u64, BytesAndInodes)> = Vec::new();
        for area in self.places.areas() {
            let device = area.identity().0;
            if full.iter().any(|(known, _)| *known == device) {
                continue;
            }
            let Ok(directory) = Directory::top(area) else { continue };
            // A killed run may have released a part of the reserve file. If the file exists, it has an inode as well.
            let needed = self.needed_bytes(&directory);
            let reserve_files = &self.options.reserve_files;
            if reserve_files.iter().any(|file| file.device() == device && file.taken_bytes() >= needed) {
                continue;
            }
            let to_free = self.to_free(&directory);
            if !to_free.is_nothing() {
                full.push((device, to_free));
            }
        }
        full
    }

    /// Returns true if an image of this store can make the room itself: with this driver, layers can be emptied before
    /// their records are removed.
    #[must_use]
    pub fn empties_layers_first(&self) -> bool {
        self.places.driver == "overlay"
    }

    /// Bytes and inodes to be freed on the filesystem of `directory` before a new version of a record file can be
    /// written. Zero for the resource that is not short.
    pub(super) fn to_free(&self, directory: &Directory) -> BytesAndInodes {
        let Ok(space) = rustix::fs::fstatvfs(directory.fd()) else { return BytesAndInodes::default() };
        let lacks_bytes = lacks_bytes(directory, &space, self.needed_bytes(directory));
        let lacks_inodes = lacks_inodes(space.f_files, space.f_ffree);
        BytesAndInodes {
            bytes: if lacks_bytes { ROOM_FACTOR * self.needed_bytes(directory) } else { 0 },
            inodes: if lacks_inodes { ROOM_FACTOR * NEEDED_INODES } else { 0 },
        }
    }

    /// The same after a record file could not be written. If the filesystem reports that nothing is short, bytes are.
    pub(super) fn to_free_after_fault(&self, directory: &Directory) -> BytesAndInodes {
        match self.to_free(directory) {
            to_free if !to_free.is_nothing() => to_free,
            _ => BytesAndInodes { bytes: ROOM_FACTOR * self.needed_bytes(directory), inodes: 0 },
        }
    }

    /// Bytes that a new version of the store's largest record file on the filesystem of `directory` needs.
    pub(super) fn needed_bytes(&self, directory: &Directory) -> u64 {
        let device = device(directory.fd());
        let areas = self.places.areas().filter(|area| Some(area.identity().0) == device);
        let largest = areas.map(|area| largest_record_file(&self.places, area)).max().unwrap_or(0);
        let is_xfs = xfs::is_xfs(directory.fd()).unwrap_or(false);
        largest + if is_xfs { WRITE_OVERHEAD_ON_XFS } else { WRITE_OVERHEAD }
    }
}

/// Returns true if `needed` bytes cannot be written. On btrfs, space that is free but not available is for metadata
/// alone; on other filesystems root can use it.
fn lacks_bytes(directory: &Directory, space: &StatVfs, needed: u64) -> bool {
    let is_for_root = !btrfs::is_btrfs(directory.fd()).unwrap_or(false)
        && rustix::process::geteuid().is_root()
        && users::is_first_user_namespace();
    let available = space.f_bavail.saturating_mul(space.f_frsize);
    let free = space.f_bfree.saturating_mul(space.f_frsize);
    let reserved = EXT4_RESERVED_BLOCKS.saturating_mul(space.f_frsize);
    available < needed && !(is_for_root && free >= needed.saturating_add(reserved))
}

/// Inodes with several names, each with the number of its names that were seen.
pub(super) type NamesSeen = HashMap<u64, u64>;

/// Allocated bytes of the files below a directory, at most `enough`. A file with several names counts when all of them
/// were seen, here or in the directories that `seen` comes from: only then its bytes are freed.
pub(super) fn holds(path: &Path, enough: u64, seen: &mut NamesSeen) -> u64 {
    let mut sum: u64 = 0;
    for entry in WalkDir::new(path).same_file_system(true).into_iter().flatten() {
        let Ok(facts) = entry.metadata() else { continue };
        let mut is_all_here = facts.is_dir() || facts.nlink() == 1;
        if !is_all_here {
            let names_here = seen.entry(facts.ino()).or_default();
            *names_here += 1;
            is_all_here = *names_here == facts.nlink();
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

/// Waits until `wanted` bytes are free, `at_most` has passed or a signal has arrived. Returns the time waited.
///
/// While bytes are missing, it synchronises the filesystem, after growing pauses: that delays all writers there. It
/// never waits for a synchronisation beyond `at_most`, since other processes wait for the store's locks.
pub(super) fn await_bytes(directory: &Directory, wanted: u64, at_most: Duration) -> Duration {
    let since = Instant::now();
    let mut pause = PAUSE;
    loop {
        let until = since + at_most;
        let is_over = free_bytes(directory) >= wanted || !commit(directory.fd(), until);
        if is_over || free_bytes(directory) >= wanted || Instant::now() >= until {
            return since.elapsed();
        }
        std::thread::sleep(pause.min(until.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_with_another_name_frees_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer");
        std::fs::create_dir(&layer).unwrap();
        std::fs::write(layer.join("own"), [1; 40_000]).unwrap();
        let alone = holds(&layer, u64::MAX, &mut NamesSeen::new());
        assert!(alone >= 40_000, "{alone}");
        std::fs::write(dir.path().join("shared"), [1; 90_000]).unwrap();
        std::fs::hard_link(dir.path().join("shared"), layer.join("shared")).unwrap();
        assert!(holds(&layer, u64::MAX, &mut NamesSeen::new()) < alone + 90_000);
        // Two names of one file in the same layer, as in busybox.
        std::fs::hard_link(layer.join("own"), layer.join("own too")).unwrap();
        assert!(holds(&layer, u64::MAX, &mut NamesSeen::new()) >= alone);
        assert!(holds(&layer, 1, &mut NamesSeen::new()) <= alone);
    }
}
