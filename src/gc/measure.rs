//! What a deletion really gave back, measured on the filesystem.
//!
//! ext4 gives back at once. XFS keeps the blocks of big files and btrfs nearly everything
//! until the filesystem is synchronised, and a runtime may still be deleting after it has
//! answered. So: synchronise, look, and look again until the predicted bytes have come,
//! the number is still, or the time is up.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

/// Smallest difference between prediction and measurement that means anything: a
/// filesystem's own journal and trees move by this much while nothing is deleted.
pub const NOISE_BYTES: u64 = 64 * 1024;

/// The room of a filesystem at one moment (`statvfs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Size in bytes (`f_blocks`).
    pub capacity_bytes: u64,
    /// Free bytes, root's reserve included (`f_bfree`).
    pub free_bytes: u64,
    /// Bytes that an unprivileged user can still write (`f_bavail`): the kubelet's measure.
    pub available_bytes: u64,
    /// Inodes in all; 0 where there is no fixed number.
    pub inodes: u64,
    /// Free inodes; 0 where there is no fixed number.
    pub inodes_free: u64,
}

impl Room {
    /// Bytes that came free between `before` and now; negative where others wrote more.
    #[must_use]
    pub fn freed_since(&self, before: &Self) -> i64 {
        let difference = i128::from(self.free_bytes) - i128::from(before.free_bytes);
        i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
    }
}

/// An open directory of the filesystem that is measured: it stays the same filesystem even
/// if another one is mounted over its path.
#[derive(Debug)]
pub struct Gauge {
    directory: OwnedFd,
    path: PathBuf,
}

impl Gauge {
    /// Opens `path`, a directory on the filesystem. Symlinks in it are followed.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { directory, path: path.to_path_buf() })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The filesystem's number (`st_dev`), where it can be told.
    #[must_use]
    pub fn device(&self) -> Option<u64> {
        rustix::fs::fstat(&self.directory).ok().map(|stat| stat.st_dev)
    }

    /// Looks.
    ///
    /// # Errors
    /// What `fstatvfs` says.
    pub fn room(&self) -> io::Result<Room> {
        let space = rustix::fs::fstatvfs(&self.directory)?;
        let unit = space.f_frsize;
        Ok(Room {
            capacity_bytes: space.f_blocks.saturating_mul(unit),
            free_bytes: space.f_bfree.saturating_mul(unit),
            available_bytes: space.f_bavail.saturating_mul(unit),
            inodes: space.f_files,
            inodes_free: space.f_ffree,
        })
    }

    /// Makes the filesystem finish what it has put off.
    fn synchronise(&self) {
        if let Err(error) = rustix::fs::syncfs(&self.directory) {
            // What is measured is then too little, never too much.
            tracing::warn!("synchronising {}: {error}", self.path.display());
        }
    }

    /// Waits until what was deleted has come back.
    ///
    /// # Errors
    /// What `fstatvfs` says.
    pub fn settle(&self, before: &Room, predicted_bytes: u64, patience: Patience) -> io::Result<Settled> {
        let began = Instant::now();
        let mut watch = Watch::new(predicted_bytes, patience);
        let mut synchronised: Option<Instant> = None;
        loop {
            if synchronised.is_none_or(|at| at.elapsed() >= patience.between_syncs) {
                self.synchronise();
                synchronised = Some(Instant::now());
            }
            let room = self.room()?;
            match watch.see(began.elapsed(), room.freed_since(before)) {
                Step::Wait(pause) => std::thread::sleep(pause),
                Step::Done(why) => {
                    return Ok(Settled {
                        measured_bytes: room.freed_since(before),
                        room,
                        why,
                        waited: began.elapsed(),
                    });
                }
            }
        }
    }
}

/// How long to wait for late frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Give up after this.
    pub deadline: Duration,
    /// A number that has not moved for this long is still.
    pub still: Duration,
    /// Synchronise again after this.
    pub between_syncs: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
            still: Duration::from_millis(1500),
            between_syncs: Duration::from_millis(500),
        }
    }
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Bytes that are free now and were not before; negative where others wrote more.
    pub measured_bytes: i64,
    /// The room now.
    pub room: Room,
    /// Why the waiting ended.
    pub why: Ended,
    /// How long it took.
    pub waited: Duration,
}

/// Why the waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// What was predicted has come, as far as noise allows to say.
    Came,
    /// Nothing moves any more.
    Still,
    /// The time is up and the number still moves.
    Deadline,
}

/// How far a measurement may be off a prediction before it means something, in bytes: one
/// percent, at least [`NOISE_BYTES`].
#[must_use]
pub fn tolerance(predicted_bytes: u64) -> u64 {
    (predicted_bytes / 100).max(NOISE_BYTES)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wait(Duration),
    Done(Ended),
}

/// Decides whether to wait on. Pure: it is told the time and what has come.
#[derive(Debug)]
struct Watch {
    enough: i64,
    patience: Patience,
    /// The last number, and since when it is that (noise apart).
    last: Option<(i64, Duration)>,
    pause: Duration,
}

impl Watch {
    const FIRST_PAUSE: Duration = Duration::from_millis(5);
    const LONGEST_PAUSE: Duration = Duration::from_millis(100);

    fn new(predicted_bytes: u64, patience: Patience) -> Self {
        // One byte short of the tolerance is short.
        let enough = predicted_bytes.saturating_sub(tolerance(predicted_bytes));
        let enough = i64::try_from(enough).unwrap_or(i64::MAX);
        Self { enough, patience, last: None, pause: Self::FIRST_PAUSE }
    }

    fn see(&mut self, elapsed: Duration, freed: i64) -> Step {
        let noise = i64::try_from(NOISE_BYTES).unwrap_or(i64::MAX);
        let since = match self.last {
            Some((last, since)) if (freed.saturating_sub(last)).abs() < noise => since,
            _ => {
                self.last = Some((freed, elapsed));
                elapsed
            }
        };
        if freed >= self.enough {
            return Step::Done(Ended::Came);
        }
        if elapsed.saturating_sub(since) >= self.patience.still {
            return Step::Done(Ended::Still);
        }
        if elapsed >= self.patience.deadline {
            return Step::Done(Ended::Deadline);
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(Self::LONGEST_PAUSE);
        Step::Wait(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    fn ends(predicted: i64, seen: &[(u64, i64)]) -> Option<(usize, Ended)> {
        let patience = Patience {
            deadline: Duration::from_secs(10),
            still: Duration::from_secs(2),
            between_syncs: Duration::from_secs(1),
        };
        let mut watch = Watch::new(predicted.unsigned_abs(), patience);
        for (at, (milliseconds, freed)) in seen.iter().enumerate() {
            if let Step::Done(why) = watch.see(Duration::from_millis(*milliseconds), *freed) {
                return Some((at, why));
            }
        }
        None
    }

    /// Predicted bytes; what is seen (milliseconds, bytes freed); which look ends it, and why.
    type Case<'a> = (i64, &'a [(u64, i64)], Option<(usize, Ended)>);

    #[test]
    fn table_of_waiting() {
        let cases: [Case; 9] = [
            // At once, to the byte, within one percent, within the noise.
            (MIB, &[(0, MIB)], Some((0, Ended::Came))),
            (100 * MIB, &[(0, 99 * MIB)], Some((0, Ended::Came))),
            (MIB, &[(0, MIB - 65536)], Some((0, Ended::Came))),
            (0, &[(0, 0)], Some((0, Ended::Came))),
            // One byte less is not enough; it comes late.
            (MIB, &[(0, MIB - 65537), (500, MIB - 65537), (900, MIB)], Some((2, Ended::Came))),
            // Nothing comes.
            (MIB, &[(0, 0), (1000, 0), (1999, 0), (2000, 0)], Some((3, Ended::Still))),
            // It moves every now and then, and then no more.
            (9 * MIB, &[(0, 0), (1900, MIB), (3800, 2 * MIB), (5799, 2 * MIB)], None),
            (9 * MIB, &[(0, 0), (1900, MIB), (3800, 2 * MIB), (5800, 2 * MIB)], Some((3, Ended::Still))),
            // It keeps moving: others write and delete.
            (
                90 * MIB,
                &[(0, 0), (1900, MIB), (3800, -MIB), (5700, MIB), (7600, 0), (9500, -MIB), (10_000, MIB)],
                Some((6, Ended::Deadline)),
            ),
        ];
        for (predicted, seen, expected) in cases {
            assert_eq!(ends(predicted, seen), expected, "{predicted} {seen:?}");
        }
    }

    #[test]
    fn noise_does_not_count_as_movement() {
        let seen: Vec<_> = (0..40).map(|at| (at * 100, i64::from(at % 2 == 0) * 4096)).collect();
        assert_eq!(ends(MIB, &seen), Some((20, Ended::Still)));
    }

    #[test]
    fn pauses_grow_and_stay_short() {
        let mut watch = Watch::new(1 << 30, Patience::default());
        let mut pauses = Vec::new();
        for at in 0..12 {
            match watch.see(Duration::from_millis(at), 0) {
                Step::Wait(pause) => pauses.push(pause),
                Step::Done(why) => panic!("{why:?}"),
            }
        }
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&Watch::LONGEST_PAUSE));
    }

    #[test]
    fn freed_since_has_a_sign() {
        let room = |free_bytes| Room { free_bytes, ..Room::default() };
        assert_eq!(room(10).freed_since(&room(4)), 6);
        assert_eq!(room(4).freed_since(&room(10)), -6);
        assert_eq!(room(u64::MAX).freed_since(&room(0)), i64::MAX);
        assert_eq!(room(0).freed_since(&room(u64::MAX)), i64::MIN);
    }

    #[test]
    fn measures_a_real_directory() {
        let dir = tempfile::tempdir().unwrap();
        let gauge = Gauge::open(dir.path()).unwrap();
        let room = gauge.room().unwrap();
        assert!(room.capacity_bytes >= room.free_bytes && room.free_bytes >= room.available_bytes);
        // Others write to this filesystem, so nothing is said of how much.
        let patience = Patience { deadline: Duration::from_millis(300), ..Patience::default() };
        let settled = gauge.settle(&room, 0, patience).unwrap();
        assert!(settled.why == Ended::Came || settled.waited >= patience.deadline);
    }
}
