//! Asks for the extents of files on filesystems where files can share them.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Stat};
use rustix::io::{Errno, Result};

use super::types::{ExtentOptions, UnitExtents};
use crate::disk::runs::{self, DiskRun, EncodedRuns};
use crate::disk::samples::{self, FileSample};
use crate::disk::top::Top;
use crate::sys::beneath::{self, HANDLE, Opener, mount_id};
use crate::sys::fiemap::{self, FileExtent};
use crate::sys::mounts::Mount;
use crate::sys::{btrfs, xfs};

/// Number of runs of a unit at which a thread merges them for the first time: 128 KiB.
const FIRST_MERGE: usize = 4096;

/// A filesystem on which files can share extents.
#[derive(Clone, Copy, Debug)]
pub struct Reflinks {
    /// Device number in the mount table. `st_dev` is used only if the table lacks the mount: it differs between the
    /// subvolumes of a btrfs although they share extents.
    pub filesystem: u64,
    pub is_btrfs: bool,
    from_bytes: u64,
    /// One file is a sample for each of these bytes, on average.
    stride: u64,
    seed: u64,
}

impl Reflinks {
    pub fn of(top: &Top, options: &ExtentOptions, mounts: &[Mount]) -> Option<Self> {
        let fd = top.fd();
        let is_btrfs = btrfs::is_btrfs(fd).ok()?;
        if !is_btrfs && !xfs::is_xfs(fd).ok()? {
            return None;
        }
        let mount = mount_id(fd).ok().and_then(|id| mounts.iter().find(|mount| mount.id == id));
        let device = mount.map(|mount| rustix::fs::makedev(mount.device.0, mount.device.1));
        let space = rustix::fs::fstatvfs(fd).ok()?;
        let used = space.f_blocks.saturating_sub(space.f_bfree).saturating_mul(space.f_frsize);
        Some(Self {
            filesystem: device.or_else(|| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev))?,
            is_btrfs,
            from_bytes: if is_btrfs { 1 } else { options.from_bytes.max(1) },
            stride: samples::stride(used),
            seed: options.seed,
        })
    }

    pub fn wants(&self, kind: FileType, bytes: u64) -> bool {
        kind.is_file() && bytes >= self.from_bytes
    }

    /// Returns the bytes that this file represents if it is a sample: the larger, the more likely.
    pub fn sample(&self, inode: u64, bytes: u64) -> Option<u64> {
        samples::is_drawn(inode ^ self.seed, bytes, self.stride).then_some(bytes.max(self.stride))
    }
}

#[derive(Debug, Default)]
pub struct FileRuns {
    pub runs: Vec<DiskRun>,
    /// Some are compressed, and their size on the disk is not permitted to be read.
    pub is_estimate: bool,
    /// The content is in the metadata of the filesystem: that of btrfs, if it has at most 2 KiB, also compressed.
    pub is_inline: bool,
}

/// Asks for the extents of the entry `name` of `parent`, which is a regular file according to `stat`.
///
/// The entry is opened with `O_PATH` first, and for reading only if it still is the same file: opening wakes devices
/// and waits for fifos, and the entry may have been replaced. A filesystem that does not support the request has no
/// shared extents.
pub fn ask(
    opener: Opener,
    parent: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
    reflinks: &Reflinks,
) -> Result<FileRuns> {
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let handle = opener.beneath(parent, path, HANDLE, false)?;
    let now = rustix::fs::fstat(&handle)?;
    if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino)
        || !FileType::from_raw_mode(now.st_mode).is_file()
    {
        return Err(Errno::NOENT);
    }
    ask_held(handle.as_fd(), now.st_ino, reflinks)
}

/// Asks for the extents of the regular file of `handle` (`O_PATH`).
pub fn ask_held(handle: BorrowedFd<'_>, inode: u64, reflinks: &Reflinks) -> Result<FileRuns> {
    let file = beneath::reopen(handle)?;
    let (extents, is_inline) = match fiemap::extents(file.as_fd()) {
        Err(Errno::OPNOTSUPP | Errno::NOTTY) => return Ok(FileRuns::default()),
        result => result?,
    };
    if reflinks.is_btrfs
        && let Ok(on_disk) = btrfs::disk_extents(file.as_fd(), inode)
    {
        return Ok(FileRuns { runs: whole(&on_disk, &extents), is_estimate: false, is_inline });
    }
    let is_estimate = extents.iter().any(|extent| extent.encoded);
    let runs = extents.iter().map(|extent| DiskRun {
        start: extent.physical,
        length: extent.length,
        counted: extent.length,
        references: 1,
        shared: extent.shared,
    });
    Ok(FileRuns { runs: runs.collect(), is_estimate, is_inline })
}

/// Returns a run for each extent on the disk that the file refers to. `in_file` says which parts of them are shared.
fn whole(on_disk: &[btrfs::DiskExtent], in_file: &[FileExtent]) -> Vec<DiskRun> {
    let mut shared: Vec<_> = in_file.iter().filter(|extent| extent.shared).collect();
    shared.sort_unstable_by_key(|extent| extent.physical);
    let mut found: Vec<DiskRun> = Vec::with_capacity(on_disk.len());
    for extent in on_disk {
        found.push(DiskRun {
            start: extent.start,
            length: extent.length,
            counted: extent.in_file,
            references: 1,
            shared: false,
        });
    }
    found.sort_unstable_by_key(|run| run.start);
    found.dedup_by(|next, kept| {
        let is_same = next.start == kept.start;
        if is_same {
            kept.counted = kept.counted.saturating_add(next.counted);
        }
        is_same
    });
    for run in &mut found {
        // Compressed extents have their start as position, and the length in the file.
        let before = shared.partition_point(|extent| extent.physical < run.end());
        run.shared = shared[..before].last().is_some_and(|extent| {
            extent.physical >= run.start
                || !extent.encoded && extent.physical.saturating_add(extent.length) > run.start
        });
    }
    found
}

#[derive(Debug, Default)]
pub struct ThreadExtents {
    /// By filesystem and unit; `None` for an inode of several units.
    runs: HashMap<(u64, Option<usize>), UnitBuffer>,
    samples: HashMap<usize, Vec<FileSample>>,
    pub has_estimates: bool,
}

#[derive(Debug, Default)]
struct UnitBuffer {
    runs: Vec<DiskRun>,
    merge_at: usize,
}

impl ThreadExtents {
    pub fn add(&mut self, filesystem: u64, unit: Option<usize>, runs: &[DiskRun]) {
        let buffer = self.runs.entry((filesystem, unit)).or_default();
        buffer.runs.extend_from_slice(runs);
        if buffer.runs.len() > buffer.merge_at.max(FIRST_MERGE) {
            buffer.runs = runs::merged(std::mem::take(&mut buffer.runs));
            buffer.merge_at = 2 * buffer.runs.len();
        }
    }

    pub fn add_sample(&mut self, unit: usize, sample: FileSample) {
        self.samples.entry(unit).or_default().push(sample);
    }

    pub fn append(&mut self, other: Self) {
        for ((filesystem, unit), buffer) in other.runs {
            self.add(filesystem, unit, &buffer.runs);
        }
        self.has_estimates |= other.has_estimates;
        for (unit, samples) in other.samples {
            self.samples.entry(unit).or_default().extend(samples);
        }
    }

    pub fn into_units(self) -> HashMap<Option<usize>, UnitExtents> {
        let mut units: HashMap<Option<usize>, UnitExtents> = HashMap::new();
        for ((filesystem, unit), buffer) in self.runs {
            let bytes = runs::encode(runs::merged(buffer.runs));
            units.entry(unit).or_default().runs.push(EncodedRuns { filesystem, bytes });
        }
        for (unit, mut drawn) in self.samples {
            // The same whatever the threads did.
            drawn.sort_unstable();
            units.entry(Some(unit)).or_default().samples = samples::encode(&drawn);
        }
        for extents in units.values_mut() {
            extents.runs.sort_unstable_by_key(|runs| runs.filesystem);
        }
        units
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use btrfs::DiskExtent;

    #[test]
    fn extents_on_disk_are_shared_as_a_whole() {
        fn file(physical: u64, length: u64, shared: bool, encoded: bool) -> FileExtent {
            FileExtent { physical, length, shared, encoded }
        }
        fn disk(start: u64, length: u64, in_file: u64) -> DiskExtent {
            DiskExtent { start, length, in_file }
        }
        fn run(start: u64, length: u64, counted: u64, shared: bool) -> DiskRun {
            DiskRun { start, length, counted, references: 1, shared }
        }
        let cases = [
            ("nothing", vec![], vec![], vec![]),
            ("alone", vec![disk(0, 10, 10)], vec![file(0, 10, false, false)], vec![run(0, 10, 10, false)]),
            (
                "rewritten in the middle",
                vec![disk(0, 10, 4), disk(50, 2, 2), disk(0, 10, 4)],
                vec![file(0, 4, true, false), file(50, 2, false, false), file(6, 4, true, false)],
                vec![run(0, 10, 8, true), run(50, 2, 2, false)],
            ),
            (
                "two extents in one piece",
                vec![disk(0, 10, 10), disk(10, 10, 10), disk(20, 10, 10)],
                vec![file(0, 20, true, false), file(20, 10, false, false)],
                vec![run(0, 10, 10, true), run(10, 10, 10, true), run(20, 10, 10, false)],
            ),
            (
                "compressed",
                vec![disk(0, 4, 100), disk(4, 4, 100)],
                vec![file(0, 100, true, true), file(4, 100, false, true)],
                vec![run(0, 4, 100, true), run(4, 4, 100, false)],
            ),
        ];
        for (name, on_disk, in_file, expected) in cases {
            assert_eq!(whole(&on_disk, &in_file), expected, "{name}");
        }
    }
}
