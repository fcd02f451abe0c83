//! Record time: the time line of the records. Pure.
//!
//! Ages decide which images are deleted, so a wrong wall clock must not make anything look older than it is. Record
//! time follows the wall clock of a node whose clock is right, to within seconds, through reboots and suspension, and
//! never goes back. `CLOCK_BOOTTIME` proves how much time has passed since the last reading in the same boot. If the
//! wall clock claims more than that, it is believed only if the clock is synchronised. Record time then leaps, and a
//! [`Correction`] moves the ages of everything that was recorded in doubt by the same amount.
//!
//! Example: the clock's battery is empty, and the node boots with a date in 1970. Record time continues from the last
//! reading by the time since boot. Five minutes later the time service sets the clock, and record time leaps to the
//! present. Images from before the boot age by the leap, since the time has really passed for them. An image that was
//! first seen in those five minutes does not.

use jiff::{SignedDuration, Timestamp};

use crate::sys::clock::{ClockReading, Leap};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockState {
    pub record_time: Timestamp,
    pub wall: Timestamp,
    pub boot_id: String,
    /// Microseconds since that boot.
    pub since_boot: i64,
    /// `None` if record time is settled, which means that a synchronised clock has agreed with it. Otherwise everything
    /// recorded after this record time was recorded in doubt: a later leap of record time must not make it older.
    pub unsettled_after: Option<Timestamp>,
    /// Leaps of the wall clock, the oldest first. Dates on the disk are corrected by them.
    pub leaps: Vec<Leap>,
}

impl ClockState {
    /// Returns whether a later reading is from the same boot. In a container the id of the boot has two values: the
    /// container's own, and that of the machine in units with `ProtectKernelTunables=`. Clocks that agree on the time
    /// that has passed have not been through a boot, which sets one of them back.
    #[must_use]
    pub fn is_same_boot(&self, now: &ClockReading) -> bool {
        let passed = now.since_boot.saturating_sub(self.since_boot);
        let by_wall = now.wall.as_microsecond().saturating_sub(self.wall.as_microsecond());
        passed >= 0 && (self.boot_id == now.boot_id || by_wall.saturating_sub(passed).abs() <= READING_TAKES)
    }
}

/// A leap of record time ahead of the time that is proven to have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Times up to this one are true: their ages grow by the leap.
    pub after: Timestamp,
    /// Times after it are moved forwards by this amount, so that their ages do not grow.
    pub by: SignedDuration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advance {
    /// State to store. Its `record_time` is the present record time.
    pub state: ClockState,
    /// Correction to apply to the stored ages before that.
    pub correction: Option<Correction>,
}

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const DAY: i64 = 24 * 60 * MINUTE;

/// 2020-01-01T00:00:00Z. A clock with an earlier date was never set, because layersweep is younger than that.
pub const FIRST_PLAUSIBLE: i64 = 1_577_836_800 * SECOND;

/// Maximum gap between two boots, beyond the time since boot, that an unsynchronised clock may claim. Real-time clocks
/// lose their setting, but are rarely wrong by an hour or two.
const LONGEST_UNPROVEN_GAP: i64 = DAY;

/// Maximum difference between two clocks that is explained by the delay between reading them.
const READING_TAKES: i64 = 2 * SECOND;

/// If record time is ahead of a synchronised clock, it runs slower by one part in this number until they agree.
const SLOWER_BY: i64 = 16;

/// Time after which a leap is forgotten. No setting for ages is longer, so no decision depends on older leaps.
const LEAPS_COUNT_FOR: SignedDuration = SignedDuration::from_hours(31 * 24);

/// Maximum number of leaps that are stored separately; older leaps are merged.
const MAX_LEAPS: usize = 32;

/// Computes the present record time from the last stored reading and the present one.
#[must_use]
pub fn advance(last: Option<&ClockState>, now: &ClockReading) -> Advance {
    let step = match last {
        None => first(now),
        Some(last) if last.is_same_boot(now) => same_boot(&StoredClock::of(last), now),
        // The machine was restored from a snapshot of its memory: the time since boot proves nothing, and the
        // kernel's synchronisation state is that of the snapshot.
        Some(last) if last.boot_id == now.boot_id => other_boot(
            &StoredClock::of(last),
            &ClockReading { since_boot: 0, synchronised: false, ..now.clone() },
        ),
        Some(last) => other_boot(&StoredClock::of(last), now),
    };
    Advance {
        state: ClockState {
            record_time: timestamp(step.record),
            wall: timestamp(now.wall.as_microsecond()),
            boot_id: now.boot_id.clone(),
            since_boot: now.since_boot,
            unsettled_after: step.unsettled.map(timestamp),
            leaps: leaps(last, now),
        },
        correction: step
            .leap
            .map(|(after, by)| Correction { after: timestamp(after), by: SignedDuration::from_micros(by) }),
    }
}

/// Returns the leaps by which dates on the disk are corrected: those of `last`, and a leap since then.
fn leaps(last: Option<&ClockState>, now: &ClockReading) -> Vec<Leap> {
    let Some(last) = last else { return Vec::new() };
    let same_boot = last.is_same_boot(now);
    let ahead = now.wall.as_microsecond().saturating_sub(last.wall.as_microsecond());
    let by = if same_boot { ahead.saturating_sub(now.since_boot - last.since_boot) } else { 0 };
    let leapt = if same_boot { by > tolerance(now.since_boot - last.since_boot) } else { ahead > 0 };
    let mut leaps = last.leaps.clone();
    // Between two boots there is no process that could write. Dates written since this boot, before the clock was set,
    // may be any date from `last.wall` on.
    leaps.extend(leapt.then_some(Leap { from: last.wall, to: now.wall, by }));
    leaps.retain(|leap| now.wall.duration_since(leap.to) < LEAPS_COUNT_FOR);
    while leaps.len() > MAX_LEAPS {
        let first = leaps.remove(0);
        leaps[0] = Leap { from: first.from, to: leaps[0].to, by: leaps[0].by.saturating_add(first.by) };
    }
    leaps
}

/// [`ClockState`] in microseconds.
struct StoredClock {
    record: i64,
    wall: i64,
    since_boot: i64,
    unsettled: Option<i64>,
}

impl StoredClock {
    fn of(state: &ClockState) -> Self {
        Self {
            record: state.record_time.as_microsecond(),
            wall: state.wall.as_microsecond(),
            since_boot: state.since_boot,
            unsettled: state.unsettled_after.map(Timestamp::as_microsecond),
        }
    }
}

struct ClockStep {
    record: i64,
    unsettled: Option<i64>,
    /// The fields of a [`Correction`].
    leap: Option<(i64, i64)>,
}

/// A time before all others: everything is in doubt.
fn always() -> i64 {
    Timestamp::MIN.as_microsecond()
}

fn first(now: &ClockReading) -> ClockStep {
    let wall = now.wall.as_microsecond();
    if wall < FIRST_PLAUSIBLE {
        let record = FIRST_PLAUSIBLE + now.since_boot.max(0);
        return ClockStep { record, unsettled: Some(always()), leap: None };
    }
    // If the clock is wrong, it has been wrong since the boot.
    let boot = wall.saturating_sub(now.since_boot);
    ClockStep { record: wall, unsettled: (!now.synchronised).then_some(boot), leap: None }
}

/// Maximum difference between two clocks of one boot after `passed` microseconds.
fn tolerance(passed: i64) -> i64 {
    (passed / 1000).clamp(READING_TAKES, MINUTE)
}

fn same_boot(last: &StoredClock, now: &ClockReading) -> ClockStep {
    let wall = now.wall.as_microsecond();
    let passed = now.since_boot - last.since_boot;
    let expected = last.record.saturating_add(passed);
    let ahead = wall.saturating_sub(expected);
    // The kernel slews both clocks alike. They differ by the delay between the two readings, and by rounding when the
    // machine is suspended.
    let tolerance = tolerance(passed);
    let unsettled = last.unsettled.filter(|_| !now.synchronised);
    if ahead.abs() <= tolerance {
        let record = if now.synchronised { wall.max(last.record) } else { expected };
        return ClockStep { record, unsettled, leap: None };
    }
    if ahead < 0 {
        let slower = if now.synchronised { (passed / SLOWER_BY).min(-ahead) } else { 0 };
        return ClockStep { record: expected - slower, unsettled, leap: None };
    }
    // If the clock had never been set at the last reading, a plausible time is believed even without a time service.
    let was_set = last.wall < FIRST_PLAUSIBLE && wall >= FIRST_PLAUSIBLE;
    match last.unsettled {
        Some(after) if now.synchronised || was_set => {
            ClockStep { record: wall, unsettled, leap: Some((after, ahead)) }
        }
        // A step forwards does not age anything. If the clock is synchronised and keeps its time, record time catches
        // up at the next reading, again without ageing anything.
        after => ClockStep { record: expected, unsettled: Some(after.unwrap_or_else(always)), leap: None },
    }
}

fn other_boot(last: &StoredClock, now: &ClockReading) -> ClockStep {
    let wall = now.wall.as_microsecond();
    let proven = last.record.saturating_add(now.since_boot.max(0));
    let gap = wall.saturating_sub(last.wall).min(wall.saturating_sub(last.record));
    let claimed = last.record.saturating_add(gap).max(proven);
    let doubted = Some(last.unsettled.unwrap_or(last.record));
    match (now.synchronised, last.unsettled) {
        _ if wall < FIRST_PLAUSIBLE => ClockStep { record: proven, unsettled: doubted, leap: None },
        (true, Some(after)) => {
            let record = proven.max(wall);
            ClockStep { record, unsettled: None, leap: leap(after, proven, record) }
        }
        (true, None) => {
            let record = claimed.max(wall);
            ClockStep { record, unsettled: None, leap: leap(always(), claimed, record) }
        }
        (false, _) if claimed - proven > LONGEST_UNPROVEN_GAP => {
            ClockStep { record: proven, unsettled: doubted, leap: None }
        }
        (false, Some(after)) => {
            ClockStep { record: claimed, unsettled: doubted, leap: leap(after, proven, claimed) }
        }
        (false, None) => ClockStep { record: claimed, unsettled: doubted, leap: None },
    }
}

fn leap(after: i64, from: i64, to: i64) -> Option<(i64, i64)> {
    (to > from).then_some((after, to - from))
}

/// Converts microseconds to a time, clamped to the earliest and latest possible time.
fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(if micros < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod tests;
