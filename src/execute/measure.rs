//! Measures on the filesystem how many bytes a deletion really freed.
//!
//! The bytes of deleted files are not always free at once. ext4 frees them immediately; XFS within milliseconds, if it
//! delays them at all; btrfs frees most of them only when the filesystem is synchronised; and a runtime may still be
//! deleting files after it has answered. So [`Gauge::settle`] reads the free space (`statvfs`) again and again, until
//! one of three conditions is met: the predicted bytes are free, the number has not risen for
//! [`SettlePatience::still`], or [`SettlePatience::deadline`] has passed.
//!
//! While bytes are missing, it also synchronises the filesystem (`syncfs`). That delays every process that writes
//! there, so it is done rarely: first after 15 ms, when filesystems that need no synchronisation have freed everything;
//! then after growing intervals; and at most `SettleWatch::SYNCS` times without effect. The call runs in the
//! background and is never waited for longer than for the bytes: on a disk that hangs it would never return.
//!
//! For example, an image of 600 MiB is deleted on btrfs. After 0, 5 and 15 ms nothing is free; the filesystem is
//! synchronised; the next look finds 598 MiB, which is within the tolerance, and the measurement ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::disk::filesystem;
use crate::model::deletion::outcome::{NOISE_BYTES, tolerance};
use crate::model::space::{Measured, Space, limiting_inodes};
use crate::model::{FilesystemIx, Finding};
use crate::sys::ext4;
use crate::sys::stop;
use crate::sys::sync::Syncing;

/// The room of a filesystem at one moment (`statvfs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Size in bytes (`f_blocks`).
    pub capacity_bytes: u64,
    /// Free bytes, root's reserve included (`f_bfree`).
    pub free_bytes: u64,
    /// Bytes that an unprivileged user can still write (`f_bavail`): the kubelet's measure.
    pub available_bytes: u64,
    /// Bytes that must be freed before any becomes available; also 0 if that cannot be read.
    pub owed_bytes: u64,
    /// Total number of inodes; 0 if they are not limited, see [`limiting_inodes`].
    pub inodes: u64,
    /// Number of free inodes; 0 if they are not limited.
    pub inodes_free: u64,
}

impl Room {
    /// Checks the numbers.
    ///
    /// # Errors
    /// When they are impossible.
    pub fn space(&self) -> Measured {
        let inodes = Some((self.inodes, self.inodes_free));
        let space = Space::checked(Some(self.capacity_bytes), Some(self.available_bytes), inodes)?;
        Ok(Space { owed_bytes: self.owed_bytes, ..space })
    }

    /// Bytes freed between `before` and now; negative if other processes wrote more.
    #[must_use]
    pub fn freed_since(&self, before: &Self) -> i64 {
        let difference = i128::from(self.free_bytes) - i128::from(before.free_bytes);
        i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
    }
}

/// An open directory of the filesystem to measure. It belongs to that filesystem even if another one is mounted over
/// its path.
#[derive(Debug)]
pub struct Gauge {
    directory: OwnedFd,
    path: PathBuf,
    /// A synchronisation that this gauge started, and that has not ended yet.
    syncing: RefCell<Option<Syncing>>,
}

impl Gauge {
    /// Opens `path`, a directory on the filesystem. Symlinks in it are followed.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = filesystem::open_for_reading(path)?;
        Ok(Self { directory, path: path.to_path_buf(), syncing: RefCell::default() })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device number of the filesystem (`st_dev`), if known.
    #[must_use]
    pub fn device(&self) -> Option<u64> {
        rustix::fs::fstat(&self.directory).ok().map(|stat| stat.st_dev)
    }

    /// Reads the current room.
    ///
    /// # Errors
    /// When `fstatvfs` fails.
    pub fn room(&self) -> io::Result<Room> {
        let space = rustix::fs::fstatvfs(&self.directory)?;
        let unit = space.f_frsize;
        let free_bytes = space.f_bfree.saturating_mul(unit);
        let reserved_bytes = match space.f_bavail {
            0 => ext4::reserved_bytes(self.directory.as_fd()).unwrap_or(0),
            _ => 0,
        };
        let fstype = filesystem::type_of(self.directory.as_fd()).unwrap_or("unknown");
        let (inodes, inodes_free) = limiting_inodes(fstype, space.f_files, space.f_ffree, free_bytes);
        Ok(Room {
            capacity_bytes: space.f_blocks.saturating_mul(unit),
            free_bytes,
            owed_bytes: reserved_bytes.saturating_sub(free_bytes),
            available_bytes: space.f_bavail.saturating_mul(unit),
            inodes,
            inodes_free,
        })
    }

    /// Starts `syncfs` in the background, unless one is running.
    fn synchronise(&self) {
        if self.is_synchronising() {
            return;
        }
        match Syncing::start(&self.directory) {
            Ok(syncing) => *self.syncing.borrow_mut() = Some(syncing),
            // Without it the measured bytes may be too few, never too many.
            Err(error) => tracing::warn!("synchronising {}: {error}", self.path.display()),
        }
    }

    fn is_synchronising(&self) -> bool {
        let mut syncing = self.syncing.borrow_mut();
        match syncing.as_mut().map(Syncing::outcome) {
            None => return false,
            Some(None) => return true,
            Some(Some(Err(error))) => tracing::warn!("synchronising {}: {error}", self.path.display()),
            Some(Some(Ok(()))) => {}
        }
        *syncing = None;
        false
    }

    /// Waits until the predicted bytes are free, and measures them.
    ///
    /// # Errors
    /// When `fstatvfs` fails.
    pub fn settle(
        &self,
        before: &Room,
        predicted_bytes: u64,
        patience: SettlePatience,
    ) -> io::Result<Settled> {
        let began = Instant::now();
        let mut watch = SettleWatch::new(predicted_bytes, patience);
        // A synchronisation of an earlier measurement hangs: do not wait for it.
        let hangs = self.is_synchronising();
        let mut most = i64::MIN;
        loop {
            // Checked before reading the room, so that the room includes the bytes freed by a synchronisation that
            // ended.
            let synchronising = !hangs && self.is_synchronising();
            let room = self.room()?;
            let measured_bytes = room.freed_since(before);
            most = most.max(measured_bytes);
            let step = if stop::is_requested() {
                WatchStep::Done(SettleEnd::Signal)
            } else {
                watch.see(began.elapsed(), measured_bytes, synchronising)
            };
            match step {
                WatchStep::Wait(pause) => std::thread::sleep(pause),
                WatchStep::Synchronise if hangs => {}
                WatchStep::Synchronise => self.synchronise(),
                WatchStep::Done(why) => {
                    let fell_bytes = most.abs_diff(measured_bytes);
                    return Ok(Settled { measured_bytes, fell_bytes, room, why });
                }
            }
        }
    }
}

const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// Synchronises the filesystems of `directories`, all at once and within a deadline. Returns a finding for each that
/// failed or did not end in time. Until recently written data is on the disk, XFS reserves more blocks than it will
/// need, and the first deletions would seem to free those, too.
///
/// This changes nothing in a store, but blocks other writers of the filesystem: it is done once, by runs that delete.
#[must_use]
pub fn write_out<'p>(directories: impl Iterator<Item = (FilesystemIx, &'p Path)>) -> Vec<Finding> {
    let until = Instant::now() + WRITTEN_WITHIN;
    let by_filesystem: BTreeMap<_, _> = directories.collect();
    let begun = by_filesystem
        .into_values()
        .map(|root| (root, Gauge::open(root).and_then(|gauge| Syncing::start(&gauge.directory))));
    // All are started before the first is waited for.
    let begun: Vec<_> = begun.collect();
    begun.into_iter().filter_map(|(root, begun)| not_written_out(root, begun, until)).collect()
}

fn not_written_out(root: &Path, begun: io::Result<Syncing>, until: Instant) -> Option<Finding> {
    let error = begun.and_then(|mut syncing| syncing.wait(until)).err()?;
    let why = match error.kind() {
        io::ErrorKind::TimedOut => format!("not finished after {} s", WRITTEN_WITHIN.as_secs()),
        _ => error.to_string(),
    };
    let message = format!(
        "syncing its filesystem: {why}; the first deletions may be measured as freeing more than they do"
    );
    Some(Finding::new(root, message))
}

/// Timeouts for bytes that become free late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettlePatience {
    pub deadline: Duration,
    /// The measurement ends if the number of free bytes has not risen for this time. A number that falls only shows
    /// that other processes write.
    pub still: Duration,
    /// Time between the first and the second synchronisation; it doubles each time.
    pub between_syncs: Duration,
}

impl Default for SettlePatience {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
            still: Duration::from_millis(1500),
            between_syncs: Duration::from_millis(500),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Bytes that became free; negative if other processes wrote more.
    pub measured_bytes: i64,
    /// Bytes that were free during the measurement and are not any more: other processes wrote.
    pub fell_bytes: u64,
    /// The room at the end of the measurement.
    pub room: Room,
    pub why: SettleEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleEnd {
    /// The predicted bytes are free, within the tolerance.
    Came,
    /// The number no longer changes.
    Still,
    /// The deadline has passed, and the number still changes.
    Deadline,
    /// Interrupted by a signal: the number may be too low.
    Signal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchStep {
    Wait(Duration),
    /// Synchronise, and look again at once.
    Synchronise,
    Done(SettleEnd),
}

/// Decides whether to keep waiting. Pure: time and freed bytes are arguments.
#[derive(Debug)]
struct SettleWatch {
    /// Freed bytes that end the measurement.
    enough: i64,
    patience: SettlePatience,
    /// The highest number of freed bytes, and the time when it was reached. Smaller rises are noise.
    best: Option<(i64, Duration)>,
    pause: Duration,
    next_sync: Duration,
    /// Time between the next two synchronisations.
    gap: Duration,
    /// Number of synchronisations that are left. One that had an effect is not counted.
    syncs_left: u32,
    /// The highest number at the start of the last synchronisation, until its effect is known.
    synchronised: Option<i64>,
    /// A synchronisation was started after the number stopped changing.
    last_call: bool,
}

impl SettleWatch {
    const FIRST_PAUSE: Duration = Duration::from_millis(5);
    const LONGEST_PAUSE: Duration = Duration::from_millis(100);
    /// By then a filesystem that needs no synchronisation has usually freed the bytes (XFS: 2 ms).
    const FIRST_SYNC: Duration = Duration::from_millis(15);
    /// Maximum number of synchronisations without effect.
    const SYNCS: u32 = 3;

    fn new(predicted_bytes: u64, patience: SettlePatience) -> Self {
        let enough = predicted_bytes.saturating_sub(tolerance(predicted_bytes));
        let enough = i64::try_from(enough).unwrap_or(i64::MAX);
        Self {
            enough,
            patience,
            best: None,
            pause: Self::FIRST_PAUSE,
            next_sync: Self::FIRST_SYNC,
            gap: patience.between_syncs,
            syncs_left: Self::SYNCS,
            synchronised: None,
            last_call: false,
        }
    }

    /// Returns the next step after `freed` bytes were measured at the time `elapsed`. `synchronising`: the
    /// synchronisation requested by [`WatchStep::Synchronise`] is still running.
    fn see(&mut self, elapsed: Duration, freed: i64, synchronising: bool) -> WatchStep {
        let noise = i64::try_from(NOISE_BYTES).unwrap_or(i64::MAX);
        let since = match self.best {
            Some((best, since)) if freed.saturating_sub(best) < noise => since,
            _ => {
                self.best = Some((freed, elapsed));
                self.last_call = false;
                elapsed
            }
        };
        if freed >= self.enough {
            return WatchStep::Done(SettleEnd::Came);
        }
        if elapsed >= self.patience.deadline {
            let is_still = elapsed.saturating_sub(since) >= self.patience.still;
            return WatchStep::Done(if is_still { SettleEnd::Still } else { SettleEnd::Deadline });
        }
        if !synchronising {
            if let Some(best) = self.synchronised.take() {
                // A synchronisation that freed bytes may be repeated.
                self.syncs_left += u32::from(freed.saturating_sub(best) >= noise);
            }
            let is_still = elapsed.saturating_sub(since) >= self.patience.still;
            // On btrfs, deletions since the last synchronisation may be visible only after another one.
            let last_call = is_still && !self.last_call;
            if self.syncs_left > 0 && (elapsed >= self.next_sync || last_call) {
                self.syncs_left -= 1;
                self.last_call |= is_still;
                self.synchronised = Some(self.best.map_or(freed, |(best, _)| best));
                self.next_sync = elapsed.saturating_add(self.gap);
                self.gap = self.gap.saturating_mul(2);
                self.pause = Self::FIRST_PAUSE;
                return WatchStep::Synchronise;
            }
            if is_still {
                return WatchStep::Done(SettleEnd::Still);
            }
        }
        let pause = self.pause;
        self.pause = (self.pause * 2).min(Self::LONGEST_PAUSE);
        WatchStep::Wait(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    fn ends(predicted: i64, seen: &[(u64, i64)]) -> Option<(usize, SettleEnd)> {
        let patience = SettlePatience {
            deadline: Duration::from_secs(10),
            still: Duration::from_secs(2),
            between_syncs: Duration::from_secs(1),
        };
        let mut watch = SettleWatch::new(predicted.unsigned_abs(), patience);
        for (look, (milliseconds, freed)) in seen.iter().enumerate() {
            loop {
                match watch.see(Duration::from_millis(*milliseconds), *freed, false) {
                    WatchStep::Done(why) => return Some((look, why)),
                    WatchStep::Synchronise => {}
                    WatchStep::Wait(_) => break,
                }
            }
        }
        None
    }

    /// Predicted bytes; the looks (milliseconds, bytes freed); the look that ends the measurement, and the reason.
    type Case<'a> = (i64, &'a [(u64, i64)], Option<(usize, SettleEnd)>);

    #[test]
    fn waiting_ends_as_in_the_table() {
        let cases: [Case; 10] = [
            // At once, to the byte, within one percent, within the noise.
            (MIB, &[(0, MIB)], Some((0, SettleEnd::Came))),
            (100 * MIB, &[(0, 99 * MIB)], Some((0, SettleEnd::Came))),
            (MIB, &[(0, MIB - 131_072)], Some((0, SettleEnd::Came))),
            (0, &[(0, 0)], Some((0, SettleEnd::Came))),
            // One byte less is not enough; the rest is free late.
            (MIB, &[(0, MIB - 131_073), (500, MIB - 131_073), (900, MIB)], Some((2, SettleEnd::Came))),
            // Nothing is freed.
            (MIB, &[(0, 0), (1000, 0), (1999, 0), (2000, 0)], Some((3, SettleEnd::Still))),
            // Bytes are freed now and then, and then no more.
            (9 * MIB, &[(0, 0), (1900, MIB), (3800, 2 * MIB), (5799, 2 * MIB)], None),
            (9 * MIB, &[(0, 0), (1900, MIB), (3800, 2 * MIB), (5800, 2 * MIB)], Some((3, SettleEnd::Still))),
            // Bytes are freed until the deadline.
            (
                90 * MIB,
                &[
                    (0, 0),
                    (1900, MIB),
                    (3800, 2 * MIB),
                    (5700, 3 * MIB),
                    (7600, 4 * MIB),
                    (9500, 5 * MIB),
                    (10_000, 6 * MIB),
                ],
                Some((6, SettleEnd::Deadline)),
            ),
            // Other processes write: that is not a reason to wait.
            (90 * MIB, &[(0, 0), (1900, -MIB), (2000, -2 * MIB)], Some((2, SettleEnd::Still))),
        ];
        for (predicted, seen, expected) in cases {
            assert_eq!(ends(predicted, seen), expected, "{predicted} {seen:?}");
        }
    }

    #[test]
    fn noise_does_not_count_as_movement() {
        let seen: Vec<_> = (0..40).map(|look| (look * 100, i64::from(look % 2 == 0) * 4096)).collect();
        assert_eq!(ends(MIB, &seen), Some((20, SettleEnd::Still)));
    }

    #[test]
    fn pauses_grow_and_stay_short() {
        let mut watch = SettleWatch::new(1 << 30, SettlePatience::default());
        let mut pauses = Vec::new();
        for milliseconds in 0..12 {
            match watch.see(Duration::from_millis(milliseconds), 0, false) {
                WatchStep::Wait(pause) => pauses.push(pause),
                other => panic!("{other:?}"),
            }
        }
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&SettleWatch::LONGEST_PAUSE));
    }

    /// Times of the synchronisations (milliseconds), the reason for the end, and its time. `freed` gets the time and
    /// the number of synchronisations before.
    fn synchronised(predicted: i64, freed: impl Fn(u64, usize) -> i64) -> (Vec<u64>, SettleEnd, u64) {
        let mut watch = SettleWatch::new(predicted.unsigned_abs(), SettlePatience::default());
        let (mut now, mut times) = (Duration::ZERO, Vec::new());
        loop {
            let milliseconds = u64::try_from(now.as_millis()).unwrap();
            match watch.see(now, freed(milliseconds, times.len()), false) {
                WatchStep::Wait(pause) => now += pause,
                WatchStep::Synchronise => times.push(milliseconds),
                WatchStep::Done(why) => return (times, why, milliseconds),
            }
        }
    }

    #[test]
    fn syncs_are_rare_and_only_for_missing_bytes() {
        // The bytes are free at once, or soon, without a synchronisation.
        assert_eq!(synchronised(MIB, |_, _| MIB), (vec![], SettleEnd::Came, 0));
        assert_eq!(synchronised(MIB, |now, _| i64::from(now >= 3) * MIB), (vec![], SettleEnd::Came, 5));
        // One synchronisation frees them.
        assert_eq!(synchronised(MIB, |_, syncs| i64::from(syncs > 0) * MIB), (vec![15], SettleEnd::Came, 15));
        // Nothing is freed; other processes write all the time.
        for writes in [0, MIB] {
            let (times, why, end) = synchronised(MIB, |now, _| -writes * i64::try_from(now).unwrap() / 10);
            assert_eq!((times.len(), why), (3, SettleEnd::Still), "{times:?}");
            assert!(
                times[0] < 50 && times[1] - times[0] >= 500 && times[2] - times[1] >= 500 && end < 1700,
                "{times:?}, {end}"
            );
        }
        // A runtime deletes for six seconds, and only a synchronisation shows the freed bytes.
        let last = std::cell::Cell::new((0, 0));
        let (times, why, _) = synchronised(600 * MIB, |now, syncs| {
            if syncs > last.get().0 {
                last.set((syncs, i64::try_from(now.min(6000)).unwrap() * MIB / 10));
            }
            last.get().1
        });
        assert_eq!(why, SettleEnd::Came, "{times:?}");
        assert!(times.len() <= 7, "{times:?}");
    }

    #[test]
    fn measurement_waits_for_a_running_sync() {
        let mut watch = SettleWatch::new(MIB.unsigned_abs(), SettlePatience::default());
        let mut see = |milliseconds, busy| watch.see(Duration::from_millis(milliseconds), 0, busy);
        assert!(matches!(see(0, false), WatchStep::Wait(_)));
        assert_eq!(see(20, false), WatchStep::Synchronise);
        assert!(matches!(see(5000, true), WatchStep::Wait(_)));
        assert_eq!(see(5001, false), WatchStep::Synchronise, "once more, for deletions meanwhile");
        assert_eq!(see(5002, false), WatchStep::Done(SettleEnd::Still));
    }

    /// On a disk that hangs the run continues without synchronising.
    #[test]
    fn hanging_sync_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let gauge = Gauge::open(dir.path()).unwrap();
        let hangs = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&hangs);
        *gauge.syncing.borrow_mut() = Some(Syncing::of_child(hangs));
        let patience = SettlePatience { still: Duration::from_millis(50), ..SettlePatience::default() };
        let room = gauge.room().unwrap();
        let began = Instant::now();
        let settled = gauge.settle(&room, u64::MAX / 4, patience).unwrap();
        assert!(settled.why == SettleEnd::Still || began.elapsed() >= patience.deadline, "{settled:?}");
        assert!(gauge.is_synchronising(), "it was not touched");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn late_or_failed_write_out_is_reported() {
        let root = Path::new("/store");
        let hangs = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&hangs);
        let finding = not_written_out(root, Ok(Syncing::of_child(hangs)), Instant::now()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert!(finding.message.contains("not finished after 10 s") && !finding.incomplete, "{finding:?}");
        let finding = not_written_out(root, Err(io::ErrorKind::NotFound.into()), Instant::now()).unwrap();
        assert_eq!(finding.path, root);
        let done = std::process::Command::new("true").spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(not_written_out(root, Ok(Syncing::of_child(done)), until), None);
    }

    #[test]
    fn freed_since_has_a_sign() {
        fn room(free_bytes: u64) -> Room {
            Room { free_bytes, ..Room::default() }
        }
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
        // Other processes write to this filesystem, so the number is not checked.
        let patience = SettlePatience { deadline: Duration::from_millis(300), ..SettlePatience::default() };
        let began = Instant::now();
        let settled = gauge.settle(&room, 0, patience).unwrap();
        assert!(settled.why == SettleEnd::Came || began.elapsed() >= patience.deadline);
    }
}
