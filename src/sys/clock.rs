//! A reading of the machine's clocks.

use std::io;

use jiff::{SignedDuration, Timestamp};
use nix::libc;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// Wall clock (`CLOCK_REALTIME`), which may be set wrongly.
    pub wall: Timestamp,
    /// Id of the boot; every boot has another one.
    pub boot_id: String,
    /// Microseconds since the boot, including suspended time (`CLOCK_BOOTTIME`). This clock cannot be set.
    pub since_boot: i64,
    /// The wall clock is synchronised, according to the kernel.
    pub synchronised: bool,
}

/// Leap of the wall clock that the time since boot does not explain. Dates on the disk from before it look older
/// than they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leap {
    /// Last date that is known to be from the clock before the leap.
    pub from: Timestamp,
    /// First date that is known to be from the clock after it.
    pub to: Timestamp,
    /// Size of the leap in microseconds.
    pub by: i64,
}

/// Present time, against which dates on the disk are measured.
#[derive(Clone, Debug)]
pub struct Present {
    now: Timestamp,
    /// [`ClockReading::since_boot`] at its creation.
    since_boot: i64,
    leaps: Vec<Leap>,
}

impl Present {
    /// Creates the present from the time of the wall clock and the leaps before it, the oldest first.
    #[must_use]
    pub fn at(now: Timestamp, leaps: Vec<Leap>) -> Self {
        Self { now, since_boot: since_boot(), leaps }
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Converts a date on the disk to the present clock, or to a later time: a date that is not known to be old
    /// counts as young.
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

    /// Returns the age of a date; never negative, so that nothing is old after the clock was set back.
    #[must_use]
    pub fn age(&self, date: Timestamp) -> SignedDuration {
        self.now.duration_since(self.dated(date)).max(SignedDuration::ZERO)
    }

    /// Returns the present after some time has passed, by the clock that cannot be set.
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

/// File with a new value after every boot; see `random(4)`.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Boot id if `/proc` does not provide one.
const UNKNOWN_BOOT: &str = "unknown";

/// Reads all clocks.
///
/// # Errors
/// If the wall clock is set to before the year -9999.
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

/// Returns whether the kernel considers the wall clock synchronised: `adjtimex(2)` without `STA_UNSYNC`. chrony
/// (with `rtcsync`), ntpd and systemd-timesyncd clear that flag. The kernel sets it at boot, when the clock is set
/// by hand, and when no time service has reported for some hours. If the call is forbidden (seccomp profiles of
/// containers), the clock counts as not synchronised.
#[allow(unsafe_code)]
fn is_synchronised() -> bool {
    // SAFETY: all fields of `timex` are plain integers, for which zero bits are valid values. With `modes` 0 the
    // call only reads, and the kernel does not write beyond the struct that it gets.
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
    fn leap_makes_nothing_old() {
        fn time(hour: i64) -> Timestamp {
            Timestamp::from_second(hour * 3600).unwrap()
        }
        fn leap(from: i64, to: i64, by: i64) -> Leap {
            Leap { from: time(from), to: time(to), by: by * 3_600_000_000 }
        }
        // One hour after a leap of two days at 101, then a reboot of one hour at 160.
        let present = Present::at(time(170), vec![leap(100, 149, 48), leap(159, 160, 0)]);
        for (hour, age) in [
            // Two days before the leap, and right before it.
            (52, 70),
            (99, 23),
            // At any moment since the last date that is known to be before it.
            (100, 21),
            (120, 21),
            (148, 21),
            // After it.
            (150, 20),
            (158, 12),
            (159, 10),
            (165, 5),
            (171, 0),
        ] {
            assert_eq!(present.age(time(hour)).as_hours(), age, "{hour}");
        }
        let none = Present::at(time(170), Vec::new());
        assert_eq!(none.age(time(100)).as_hours(), 70);
        assert!(none.later().age(time(100)) >= none.age(time(100)));
    }

    #[test]
    fn synchronisation_is_read_without_privileges() {
        // The read has no effect, so it must work twice with the same result.
        assert_eq!(is_synchronised(), is_synchronised());
    }
}
