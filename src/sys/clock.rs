//! What the clocks of the machine say at one moment.

use std::io;

use jiff::Timestamp;
use nix::libc;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// One look at the clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The wall clock (`CLOCK_REALTIME`): whatever somebody has set it to.
    pub wall: Timestamp,
    /// Which boot this is; another one after every boot.
    pub boot_id: String,
    /// Microseconds since the boot, time in suspension included (`CLOCK_BOOTTIME`). Nobody
    /// can set it.
    pub since_boot: i64,
    /// The kernel has been told by a time service that the wall clock is right.
    pub synchronised: bool,
}

/// A new value at every boot, see `random(4)`.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Stands for the boot where `/proc` does not tell.
const UNKNOWN_BOOT: &str = "unknown";

/// Reads all clocks.
///
/// # Errors
/// When the kernel has no such clock, or a wall clock set to before the year -9999.
pub fn read() -> io::Result<Reading> {
    let wall = clock_gettime(ClockId::CLOCK_REALTIME)?;
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    let wall = Timestamp::new(wall.tv_sec(), i32::try_from(wall.tv_nsec()).unwrap_or(0));
    let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    Ok(Reading {
        wall: wall.map_err(io::Error::other)?,
        boot_id: match boot_id.trim() {
            "" => UNKNOWN_BOOT.into(),
            id => id.into(),
        },
        since_boot: since_boot.tv_sec() * 1_000_000 + since_boot.tv_nsec() / 1_000,
        synchronised: is_synchronised(),
    })
}

/// Whether the kernel holds the wall clock for synchronised: `adjtimex(2)` without
/// `STA_UNSYNC`. chrony (with `rtcsync`), ntpd and systemd-timesyncd clear that flag; the
/// kernel sets it at boot, when somebody sets the clock by hand, and when no time service
/// has reported for some hours. Where the call is forbidden (seccomp profiles of
/// containers), nobody vouches for the clock.
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
    fn the_kernel_is_asked_without_being_told() {
        // A read without privileges, so it must work twice and say the same.
        assert_eq!(is_synchronised(), is_synchronised());
    }
}
