//! A file of our own that is given up when a deletion needs room to begin.
//!
//! Deleting an image writes its record file anew before it frees anything, and a record file
//! is never written in place. On a filesystem with no block or no inode left that write fails,
//! for us as for every runtime. The ballast lies on the same filesystem as the records: in our
//! state directory where that is the same one, so that nothing of ours is in the store, else
//! at the top of the graphroot (or imagestore), where no library looks.
//!
//! On btrfs data and metadata run out apart from each other. There the ballast is a directory
//! with such a file and many that are so small that they lie in the metadata.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FsWord};

use crate::graphroot::snapshot::Places;
use crate::graphroot::units::BALLAST;

/// Room for a record file of a few thousand layers and what the filesystem needs beside it.
const LEAST_BYTES: u64 = 4 << 20;

/// Restored only where it takes at most this part of what is free: it must never be what fills
/// the disk.
const PART_OF_FREE: u64 = 8;

/// `f_type` of btrfs (linux/magic.h).
const BTRFS: FsWord = 0x9123_683e;

/// Files of this length lie in btrfs's metadata (`max_inline` is 2048 by default).
const INLINE_BYTES: usize = 2000;

/// Metadata for creating one file is reserved many times over: some hundred KiB.
const INLINE_FILES: usize = 2048;

/// The file of data in a ballast that is a directory; made last.
const DATA: &str = "data";

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
                false => area.join(BALLAST),
            };
            let bytes = LEAST_BYTES.max(2 * largest_record_file(places, area));
            match all.iter_mut().find(|known| known.device == device) {
                Some(known) => known.bytes = known.bytes.max(bytes),
                None => all.push(Self { path, device, bytes }),
            }
        }
        Ok(all)
    }

    /// The ballast in the state directory, if that lies on the filesystem of `root`: in a store of
    /// containerd nothing of ours has a place.
    ///
    /// # Errors
    /// When one of them cannot be examined.
    pub fn in_state_dir(state_dir: &Path, root: &Path) -> io::Result<Option<Self>> {
        let device = std::fs::metadata(root)?.dev();
        if std::fs::metadata(state_dir)?.dev() != device {
            return Ok(None);
        }
        let path = state_dir.join(format!("ballast-{device:x}"));
        Ok(Some(Self { path, device, bytes: LEAST_BYTES }))
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

    /// The filesystem it lies on (`st_dev`).
    #[must_use]
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Bytes that it takes now, as `st_blocks` counts.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        let blocks = |path: &Path| std::fs::symlink_metadata(path).map_or(0, |facts| 512 * facts.blocks());
        let inside = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        blocks(&self.path) + inside.map(|entry| blocks(&entry.path())).sum::<u64>()
    }

    /// Whether its filesystem has as many bytes available as it would take, and an inode: then a
    /// deletion can begin without it. `false` where that cannot be asked.
    #[must_use]
    pub fn has_room_beside(&self) -> bool {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        rustix::fs::statvfs(parent).is_ok_and(|space| {
            let bytes = space.f_bavail.saturating_mul(space.f_frsize);
            bytes >= self.bytes && (space.f_files == 0 || space.f_ffree > 0)
        })
    }

    /// Makes it, where there is room to spare; whether it is there afterwards.
    ///
    /// # Errors
    /// When it cannot be made for another reason than want of room.
    pub fn prepare(&self) -> io::Result<bool> {
        if self.is_ready() {
            return Ok(true);
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        if fs2::available_space(parent)? < self.bytes.saturating_mul(PART_OF_FREE) {
            return Ok(false);
        }
        self.release()?;
        let is_btrfs = rustix::fs::statfs(parent)?.f_type == BTRFS;
        let made = match is_btrfs {
            true => self.make_inline(),
            false => reserve(&self.path, self.bytes),
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
        let Ok(facts) = std::fs::symlink_metadata(&self.path) else { return false };
        match facts.is_dir() {
            true => self.path.join(DATA).exists(),
            false => facts.len() >= self.bytes,
        }
    }

    fn make_inline(&self) -> io::Result<()> {
        std::fs::create_dir(&self.path)?;
        let mut content = [0_u8; INLINE_BYTES];
        for at in 0..INLINE_FILES {
            // Noise: a filesystem that compresses would make nothing of zeroes.
            for chunk in content.chunks_mut(8) {
                chunk.copy_from_slice(&super::locks::noise64().to_le_bytes()[..chunk.len()]);
            }
            std::fs::write(self.path.join(at.to_string()), content)?;
        }
        reserve(&self.path.join(DATA), self.bytes)
    }

    /// Gives its room back; whether there was any.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub fn release(&self) -> io::Result<bool> {
        let gone = match std::fs::symlink_metadata(&self.path) {
            Err(error) => Err(error),
            Ok(facts) if facts.is_dir() => {
                let names = (0..INLINE_FILES).map(|at| at.to_string());
                for name in std::iter::once(DATA.to_owned()).chain(names) {
                    match std::fs::remove_file(self.path.join(name)) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                        _ => {}
                    }
                }
                std::fs::remove_dir(&self.path)
            }
            Ok(_) => std::fs::remove_file(&self.path),
        };
        match gone {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Makes a file of reserved blocks, whatever the filesystem would do with zeroes.
fn reserve(path: &Path, bytes: u64) -> io::Result<()> {
    let file = File::options().write(true).create_new(true).open(path)?;
    Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?)
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
