//! Record time: the time line of the records. Pure.
//!
//! It follows the wall clock of a node whose clock is right to within seconds, through
//! reboots and suspension. It never goes back. What the wall clock claims beyond what
//! `CLOCK_BOOTTIME` proves is believed only from a synchronised clock, and where record
//! time then leaps, a [`Correction`] keeps everything recorded in doubt from ageing by the
//! leap: nothing ever looks older than proven.

use jiff::{SignedDuration, Timestamp};

use crate::sys::clock::{ClockReading, Leap};

/// What is stored of the last reading of the clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockState {
    /// Record time at that reading.
    pub record_time: Timestamp,
    /// The wall clock then.
    pub wall: Timestamp,
    pub boot_id: String,
    /// Microseconds since that boot.
    pub since_boot: i64,
    /// `None`: record time is settled, a synchronised clock has agreed with it. Else what
    /// was recorded after this moment of record time was recorded in doubt: a later leap
    /// of record time must not make it older.
    pub unsettled_after: Option<Timestamp>,
    /// Leaps of the wall clock, the oldest first: what dates on the disk are counted by.
    pub leaps: Vec<Leap>,
}

/// Record time has leapt ahead of what is proven to have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Times up to this one are true and age by the leap.
    pub after: Timestamp,
    /// Ages that are counted from later times are counted from so much later still.
    pub by: SignedDuration,
}

/// The outcome of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advance {
    /// What to store; its `record_time` is the present record time.
    pub state: ClockState,
    /// What to apply to stored ages first.
    pub correction: Option<Correction>,
}

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const DAY: i64 = 24 * 60 * MINUTE;

/// 2020-01-01T00:00:00Z. A clock that shows less was never set: we are younger than that.
pub const FIRST_PLAUSIBLE: i64 = 1_577_836_800 * SECOND;

/// Beyond the time since boot, a gap between two boots that an unsynchronised clock may
/// claim: real-time clocks lose their setting, but rarely by an hour or two.
const LONGEST_UNPROVEN_GAP: i64 = DAY;

/// Where record time is ahead of a synchronised clock, it runs slower by this part until
/// they meet again.
const SLOWER_BY: i64 = 16;

/// After so long without one, a leap makes nothing look older than anybody asks for.
const LEAPS_COUNT_FOR: SignedDuration = SignedDuration::from_hours(31 * 24);

/// Number of leaps that are kept apart.
const MOST_LEAPS: usize = 32;

/// Works out the present record time from the last stored reading and the present one.
#[must_use]
pub fn advance(last: Option<&ClockState>, now: &ClockReading) -> Advance {
    let step = match last {
        None => first(now),
        Some(last) if last.boot_id == now.boot_id && now.since_boot >= last.since_boot => {
            same_boot(&Last::of(last), now)
        }
        // The machine was set back to a snapshot of its memory: the time since boot proves
        // nothing, and the kernel's word on the clock is from then.
        Some(last) if last.boot_id == now.boot_id => {
            other_boot(&Last::of(last), &ClockReading { since_boot: 0, synchronised: false, ..now.clone() })
        }
        Some(last) => other_boot(&Last::of(last), now),
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

/// The leaps that dates on the disk are to be corrected by: those of `last`, and the one since.
fn leaps(last: Option<&ClockState>, now: &ClockReading) -> Vec<Leap> {
    let Some(last) = last else { return Vec::new() };
    let same_boot = last.boot_id == now.boot_id && now.since_boot >= last.since_boot;
    let ahead = now.wall.as_microsecond().saturating_sub(last.wall.as_microsecond());
    let by = if same_boot { ahead.saturating_sub(now.since_boot - last.since_boot) } else { 0 };
    let leapt = if same_boot { by > tolerance(now.since_boot - last.since_boot) } else { ahead > 0 };
    let mut leaps = last.leaps.clone();
    // Processes that wrote between the two boots have ended; what was written since this boot, before
    // the clock was set, may have any date from then on.
    leaps.extend(leapt.then_some(Leap { from: last.wall, to: now.wall, by }));
    leaps.retain(|leap| now.wall.duration_since(leap.to) < LEAPS_COUNT_FOR);
    while leaps.len() > MOST_LEAPS {
        let first = leaps.remove(0);
        leaps[0] = Leap { from: first.from, to: leaps[0].to, by: leaps[0].by.saturating_add(first.by) };
    }
    leaps
}

/// The stored state in microseconds.
struct Last {
    record: i64,
    wall: i64,
    since_boot: i64,
    unsettled: Option<i64>,
}

impl Last {
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
    /// After which time, and by how much.
    leap: Option<(i64, i64)>,
}

/// Everything, however early.
fn always() -> i64 {
    Timestamp::MIN.as_microsecond()
}

fn first(now: &ClockReading) -> ClockStep {
    let wall = now.wall.as_microsecond();
    if wall < FIRST_PLAUSIBLE {
        let record = FIRST_PLAUSIBLE + now.since_boot.max(0);
        return ClockStep { record, unsettled: Some(always()), leap: None };
    }
    // Had the clock been wrong, it was wrong since the boot.
    let boot = wall.saturating_sub(now.since_boot);
    ClockStep { record: wall, unsettled: (!now.synchronised).then_some(boot), leap: None }
}

/// How far two clocks of one boot may drift apart.
fn tolerance(passed: i64) -> i64 {
    (passed / 1000).clamp(2 * SECOND, MINUTE)
}

fn same_boot(last: &Last, now: &ClockReading) -> ClockStep {
    let wall = now.wall.as_microsecond();
    let passed = now.since_boot - last.since_boot;
    let expected = last.record.saturating_add(passed);
    let ahead = wall.saturating_sub(expected);
    // The kernel slews both clocks alike, so they differ by the readings' own delay and by
    // what it rounds at suspension.
    let tolerance = tolerance(passed);
    let unsettled = last.unsettled.filter(|_| !now.synchronised);
    if ahead.abs() <= tolerance {
        let record = if now.synchronised { wall.max(last.record) } else { expected };
        return ClockStep { record, unsettled, leap: None };
    }
    if ahead < 0 {
        let record = match now.synchronised {
            true => expected - (passed / SLOWER_BY).min(-ahead),
            false => expected,
        };
        return ClockStep { record, unsettled, leap: None };
    }
    // A clock that nobody had set before is believed even without a time service.
    let set_at_last = last.wall < FIRST_PLAUSIBLE && wall >= FIRST_PLAUSIBLE;
    match last.unsettled {
        Some(after) if now.synchronised || set_at_last => {
            ClockStep { record: wall, unsettled, leap: Some((after, ahead)) }
        }
        // A step forwards ages nothing. If the clock is synchronised and stays there, record
        // time catches up at the next reading, and still nothing ages.
        after => ClockStep { record: expected, unsettled: Some(after.unwrap_or_else(always)), leap: None },
    }
}

fn other_boot(last: &Last, now: &ClockReading) -> ClockStep {
    let wall = now.wall.as_microsecond();
    let proven = last.record.saturating_add(now.since_boot.max(0));
    let gap = wall.saturating_sub(last.wall).min(wall.saturating_sub(last.record));
    let claimed = last.record.saturating_add(gap).max(proven);
    let doubted = Some(last.unsettled.unwrap_or(last.record));
    let leap = |after: i64, from: i64, to: i64| (to > from).then_some((after, to - from));
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

/// The time, or the earliest or latest that there is.
fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(if micros < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod tests;
