//! A reading of the machine's clocks.

use std::io;

use jiff::{SignedDuration, Timestamp};
use nix::libc;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// The wall clock (`CLOCK_REALTIME`), which may be set wrongly.
    pub wall: Timestamp,
    /// Which boot this is; another one after every boot.
    pub boot_id: String,
    /// Microseconds since the boot, time in suspension included (`CLOCK_BOOTTIME`). Nobody
    /// can set it.
    pub since_boot: i64,
    /// The wall clock is synchronised, according to the kernel.
    pub synchronised: bool,
}

/// A leap of the wall clock that the time since boot does not explain: dates on the disk from before
/// it look older than they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leap {
    /// The last date that is known to be of the clock before the leap.
    pub from: Timestamp,
    /// The first that is known to be of the clock after it.
    pub to: Timestamp,
    /// The size of the leap in microseconds.
    pub by: i64,
}

/// The present that dates on the disk are counted to.
#[derive(Clone, Debug)]
pub struct Present {
    now: Timestamp,
    /// As in [`ClockReading::since_boot`], when this was created.
    since_boot: i64,
    leaps: Vec<Leap>,
}

impl Present {
    /// `now` by the wall clock, after `leaps`, the oldest first.
    #[must_use]
    pub fn at(now: Timestamp, leaps: Vec<Leap>) -> Self {
        Self { now, since_boot: since_boot(), leaps }
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// A date on the disk as the present clock would have written it, or later: what is not known to
    /// be old counts as young.
    #[must_use]
    pub fn dated(&self, date: Timestamp) -> Timestamp {
        self.leaps.iter().fold(date, |date, leap| {
            if date < leap.from {
                date.checked_add(SignedDuration::from_micros(leap.by)).unwrap_or(leap.to).min(leap.to)
            } else {
                date.max(leap.to)
            }
        })
    }

    /// How old that is; never negative, so that a clock set back makes nothing old.
    #[must_use]
    pub fn age(&self, date: Timestamp) -> SignedDuration {
        self.now.duration_since(self.dated(date)).max(SignedDuration::ZERO)
    }

    /// The same a while later, by the clock that nobody can set.
    #[must_use]
    pub fn later(&self) -> Self {
        let passed = (since_boot() - self.since_boot).max(0);
        let now = self.now.checked_add(SignedDuration::from_micros(passed)).unwrap_or(self.now);
        Self { now, ..self.clone() }
    }
}

/// `CLOCK_BOOTTIME` in microseconds.
fn since_boot() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// A new value at every boot, see `random(4)`.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Stands for the boot where `/proc` does not tell.
const UNKNOWN_BOOT: &str = "unknown";

/// Reads all clocks.
///
/// # Errors
/// When the wall clock is set to before the year -9999.
pub fn read() -> io::Result<ClockReading> {
    let wall = clock_gettime(ClockId::Realtime);
    let wall = Timestamp::new(wall.tv_sec, i32::try_from(wall.tv_nsec).unwrap_or(0));
    let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    Ok(ClockReading {
        wall: wall.map_err(io::Error::other)?,
        boot_id: match boot_id.trim() {
            "" => UNKNOWN_BOOT.into(),
            id => id.into(),
        },
        since_boot: since_boot(),
        synchronised: is_synchronised(),
    })
}

/// Whether the kernel holds the wall clock for synchronised: `adjtimex(2)` without
/// `STA_UNSYNC`. chrony (with `rtcsync`), ntpd and systemd-timesyncd clear that flag; the
/// kernel sets it at boot, when somebody sets the clock by hand, and when no time service
/// has reported for some hours. Where the call is forbidden (seccomp profiles of
/// containers), the clock counts as not synchronised.
#[allow(unsafe_code)]
fn is_synchronised() -> bool {
    // SAFETY: `timex` is plain integers, for which all bits zero are values; `modes` 0 asks
    // only, and the kernel writes no further than the struct that it is given.
    let (state, timex) = unsafe {
        let mut timex: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut timex), timex)
    };
    state != -1 && timex.status & libc::STA_UNSYNC == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run_within_one_boot() {
        let first = read().unwrap();
        let second = read().unwrap();
        assert_eq!(first.boot_id, second.boot_id);
        assert_ne!(first.boot_id, "");
        assert!(second.since_boot >= first.since_boot && first.since_boot > 0);
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        #[allow(clippy::cast_precision_loss)] // a second is enough
        let since_boot = second.since_boot as f64 / 1e6;
        assert!((uptime - since_boot).abs() < 5.0, "{uptime} {since_boot}");
        assert!(Timestamp::now().duration_since(second.wall).as_secs().abs() < 5);
    }

    #[test]
    fn a_leap_makes_nothing_old() {
        let at = |hour: i64| Timestamp::from_second(hour * 3600).unwrap();
        let leap = |from, to, by: i64| Leap { from: at(from), to: at(to), by: by * 3_600_000_000 };
        // An hour after a leap of two days at 101, then a reboot of an hour at 160.
        let present = Present::at(at(170), vec![leap(100, 149, 48), leap(159, 160, 0)]);
        let age = |hour| present.age(at(hour)).as_hours();
        assert_eq!(age(52), 70, "made two days before the leap");
        assert_eq!(age(99), 23, "made before it");
        assert_eq!([age(100), age(120), age(148)], [21; 3], "made at any moment since the last look");
        assert_eq!((age(150), age(158)), (20, 12), "made after it");
        assert_eq!((age(159), age(165), age(171)), (10, 5, 0));
        let none = Present::at(at(170), Vec::new());
        assert_eq!(none.age(at(100)).as_hours(), 70);
        assert!(none.later().age(at(100)) >= none.age(at(100)));
    }

    #[test]
    fn the_kernel_is_asked_without_being_told() {
        // A read without privileges, so it must work twice and say the same.
        assert_eq!(is_synchronised(), is_synchronised());
    }
}
