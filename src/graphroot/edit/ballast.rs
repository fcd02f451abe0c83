//! A file of our own that is given up when a deletion needs room to begin.
//!
//! Deleting an image writes its record file anew before it frees anything, and a record file
//! is never written in place. On a filesystem with no block or no inode left that write fails,
//! for us as for every runtime. The ballast lies on the same filesystem as the records: in our
//! state directory where that is the same one, so that nothing of ours is in the store, else
//! at the top of the graphroot (or imagestore), where no library looks.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::graphroot::snapshot::Places;

/// Room for a record file of a few thousand layers and what the filesystem needs beside it.
const LEAST_BYTES: u64 = 4 << 20;

/// Restored only where it takes at most this part of what is free: it must never be what fills
/// the disk.
const PART_OF_FREE: u64 = 8;

/// Its name in a store.
const IN_STORE: &str = ".layersweep-ballast";

/// One file on one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ballast {
    path: PathBuf,
    device: u64,
    bytes: u64,
}

impl Ballast {
    /// Where the ballast of a store belongs: one for each filesystem that has record files.
    ///
    /// # Errors
    /// When one of the store's directories cannot be examined.
    pub fn of_store(places: &Places, state_dir: &Path) -> io::Result<Vec<Self>> {
        let state = std::fs::metadata(state_dir).ok().map(|facts| facts.dev());
        let mut all: Vec<Self> = Vec::new();
        for area in places.areas() {
            let device = std::fs::metadata(area)?.dev();
            let path = match state == Some(device) {
                true => state_dir.join(format!("ballast-{device:x}")),
                false => area.join(IN_STORE),
            };
            let bytes = LEAST_BYTES.max(2 * largest_record_file(places, area));
            match all.iter_mut().find(|known| known.device == device) {
                Some(known) => known.bytes = known.bytes.max(bytes),
                None => all.push(Self { path, device, bytes }),
            }
        }
        Ok(all)
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The filesystem it lies on.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// Makes it, where there is room to spare; whether it is there afterwards.
    ///
    /// # Errors
    /// When it cannot be made for another reason than want of room.
    pub fn prepare(&self) -> io::Result<bool> {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|facts| facts.len() >= self.bytes) {
            return Ok(true);
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        if fs2::available_space(parent)? < self.bytes.saturating_mul(PART_OF_FREE) {
            return Ok(false);
        }
        self.release()?;
        let file = File::options().write(true).create_new(true).open(&self.path)?;
        // Reserved blocks, even where the filesystem would compress or punch zeroes away.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            Ok(()) => Ok(true),
            Err(error) => {
                self.release()?;
                if super::error::is_no_space(error) { Ok(false) } else { Err(error.into()) }
            }
        }
    }

    /// Gives its room back; whether there was any.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn release(&self) -> io::Result<bool> {
        match std::fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn largest_record_file(places: &Places, area: &Path) -> u64 {
    let files = ["layers", "images", "containers"].into_iter().flat_map(|what| {
        let directory = places.records_dir(area, what);
        [format!("{what}.json"), format!("volatile-{what}.json")].map(|name| directory.join(name))
    });
    files.filter_map(|path| std::fs::symlink_metadata(path).ok()).map(|facts| facts.len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_once_and_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ballast");
        let ballast = Ballast { path: path.clone(), device: 0, bytes: LEAST_BYTES };
        assert!(!ballast.release().unwrap());
        assert!(ballast.prepare().unwrap());
        let facts = std::fs::metadata(&path).unwrap();
        assert!(facts.blocks() * 512 >= LEAST_BYTES, "real blocks");
        let inode = facts.ino();
        assert!(ballast.prepare().unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode, "it is there already");
        assert!(ballast.release().unwrap());
        assert!(!path.exists());
        let greedy = Ballast { bytes: u64::MAX / 2, ..ballast };
        assert!(!greedy.prepare().unwrap(), "never what fills the disk");
    }
}
