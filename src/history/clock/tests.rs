use proptest::prelude::*;

use super::*;

const HOUR: i64 = 60 * MINUTE;

/// 2026-03-01T12:00:00Z.
const NOON: i64 = 1_772_366_400 * SECOND;

fn reading(boot: &str, since_boot: i64, wall: i64, synchronised: bool) -> ClockReading {
    ClockReading { wall: timestamp(wall), boot_id: boot.into(), since_boot, synchronised }
}

/// A reading (boot, since boot, wall, synchronised) and its result: record time, settled, leap.
type Row = (&'static str, i64, i64, bool, i64, bool, Option<i64>);

/// Advances through the readings. Times are in seconds from noon, except the time since boot.
fn walk(name: &str, rows: &[Row]) -> Vec<Advance> {
    let mut last: Option<ClockState> = None;
    let mut all = Vec::new();
    for (row, (boot, since, wall, synchronised, record, settled, leap)) in rows.iter().enumerate() {
        let now = reading(boot, since * SECOND, NOON + wall * SECOND, *synchronised);
        let advance = advance(last.as_ref(), &now);
        let got = advance.state.record_time.as_microsecond() - NOON;
        assert_eq!(got, record * SECOND, "{name}, row {row}: record time {} s", got / SECOND);
        assert_eq!(advance.state.unsettled_after.is_none(), *settled, "{name}, row {row}: settled");
        let leapt = advance.correction.map(|correction| correction.by.as_secs());
        assert_eq!(leapt, *leap, "{name}, row {row}: leap");
        last = Some(advance.state.clone());
        all.push(advance);
    }
    all
}

#[test]
fn record_time_follows_a_right_clock() {
    walk(
        "an ordinary day",
        &[
            ("a", 100, 0, true, 0, true, None),
            ("a", 400, 300, true, 300, true, None),
            // Slewed, by at most one part in a thousand either way.
            ("a", 4000, 3903, true, 3903, true, None),
            ("a", 7600, 7500, true, 7500, true, None),
            // The time service is silent for a while.
            ("a", 7900, 7800, false, 7800, true, None),
            // Suspended for three days: CLOCK_BOOTTIME counts it.
            ("a", 267_400, 267_300, true, 267_300, true, None),
            // A reboot of a minute.
            ("b", 20, 267_360, true, 267_360, true, None),
            ("b", 320, 267_660, true, 267_660, true, None),
        ],
    );
    walk(
        "a reboot, read before the time service is up",
        &[
            ("a", 100, 0, true, 0, true, None),
            ("b", 10, 60, false, 60, false, None),
            ("b", 310, 361, true, 361, true, None),
        ],
    );
    walk(
        "the clock is right without a time service",
        &[
            ("a", 100, 0, false, 0, false, None),
            ("a", 400, 300, false, 300, false, None),
            // The gap is believed, but what was recorded in doubt ages by 10 s only.
            ("b", 10, 400, false, 400, false, Some(90)),
            ("b", 310, 700, false, 700, false, None),
        ],
    );
}

#[test]
fn boot_with_two_ids_ages_nothing() {
    walk(
        "a container: its units see the machine's id",
        &[
            ("machine", 50_000, 0, false, 0, false, None),
            ("container", 50_060, 60, false, 60, false, None),
            ("machine", 50_061, 61, false, 61, false, None),
            ("container", 50_900, 900, true, 900, true, None),
            ("machine", 51_000, 1000, true, 1000, true, None),
        ],
    );
    walk(
        "a boot that lasted longer than the one before",
        &[("a", 100, 0, true, 0, true, None), ("b", 5000, 5030, true, 5030, true, None)],
    );
}

#[test]
fn steps_within_a_boot_age_nothing() {
    walk(
        "set forwards by an hour, by hand",
        &[
            ("a", 100, 0, true, 0, true, None),
            ("a", 400, 3900, false, 300, false, None),
            ("a", 700, 4200, false, 600, false, None),
        ],
    );
    let rows = walk(
        "set forwards by a time service: record time catches up, nothing ages",
        &[
            ("a", 100, 0, true, 0, true, None),
            ("a", 400, 3900, true, 300, false, None),
            ("a", 700, 4200, true, 4200, true, Some(3600)),
            ("a", 1000, 4500, true, 4500, true, None),
        ],
    );
    assert_eq!(rows[2].correction.unwrap().after, Timestamp::MIN);
    walk(
        "set forwards and back again",
        &[
            ("a", 100, 0, true, 0, true, None),
            ("a", 400, 400_000, false, 300, false, None),
            ("a", 700, 600, true, 600, true, None),
        ],
    );
    walk(
        "set back by a time service: record time runs a sixteenth slower until they agree",
        &[
            ("a", 100, 0, true, 0, true, None),
            ("a", 1700, -2000, true, 1500, true, None),
            ("a", 33_700, 30_000, true, 31_500, true, None),
            ("a", 65_700, 62_000, true, 62_000, true, None),
            ("a", 66_000, 62_300, true, 62_300, true, None),
        ],
    );
    walk(
        "set back to 1970",
        &[
            ("a", 100, 0, true, 0, true, None),
            ("a", 1700, -NOON / SECOND, false, 1600, true, None),
            ("b", 16, -NOON / SECOND, false, 1616, false, None),
        ],
    );
}

#[test]
fn wrong_clock_after_a_boot_is_not_believed() {
    let rows = walk(
        "the battery is empty, a time service sets it after five minutes",
        &[
            ("a", 1000, 0, true, 0, true, None),
            ("b", 30, -NOON / SECOND, false, 30, false, None),
            ("b", 330, 86_400, true, 86_400, true, Some(86_400 - 330)),
            ("b", 630, 86_700, true, 86_700, true, None),
        ],
    );
    // Images from before the boot have aged by the day, later ones have not.
    assert_eq!(rows[2].correction.unwrap().after, timestamp(NOON));
    walk(
        "an hour behind after the boot",
        &[
            ("a", 1000, 0, true, 0, true, None),
            ("b", 30, -3540, false, 30, false, None),
            ("b", 60, 90, true, 90, true, Some(30)),
        ],
    );
    walk(
        "five years ahead after the boot, never corrected: only proven time passes",
        &[
            ("a", 1000, 0, true, 0, true, None),
            ("b", 30, 157_000_000, false, 30, false, None),
            ("b", 330, 157_000_300, false, 330, false, None),
            ("c", 10, 157_001_000, false, 330 + 700, false, Some(690)),
        ],
    );
    walk(
        "off for a week with a good clock, synchronised at the first reading",
        &[("a", 1000, 0, true, 0, true, None), ("b", 30, 604_800, true, 604_800, true, None)],
    );
    walk(
        "off for a week, synchronised later in the boot",
        &[
            ("a", 1000, 0, true, 0, true, None),
            ("b", 30, 604_800, false, 30, false, None),
            ("b", 90, 604_860, true, 604_860, true, Some(604_770)),
        ],
    );
    walk(
        "off for 24 hours with an unsynchronised clock",
        &[
            ("a", 1000, 0, true, 0, true, None),
            ("b", 30, 86_430, false, 86_430, false, None),
            ("b", 60, 86_460, false, 86_460, false, None),
        ],
    );
    walk(
        "one second more is not believed",
        &[("a", 1000, 0, true, 0, true, None), ("b", 30, 86_431, false, 30, false, None)],
    );
}

#[test]
fn doubt_survives_reboots() {
    let rows = walk(
        "unbelieved in one boot, synchronised in the next",
        &[
            ("a", 1000, 0, true, 0, true, None),
            ("b", 30, 604_800, false, 30, false, None),
            ("c", 30, 604_900, true, 604_900, true, Some(604_840)),
        ],
    );
    assert_eq!(rows[2].correction.unwrap().after, timestamp(NOON), "images of boot b have not aged");
    walk(
        "behind the wall clock at the reboot: record time catches up",
        &[
            ("a", 1000, 0, true, 0, true, None),
            ("a", 1100, 3700, true, 100, false, None),
            ("b", 30, 3800, true, 3800, true, Some(3670)),
        ],
    );
}

#[test]
fn first_reading_is_believed_if_plausible() {
    let first = advance(None, &reading("a", 50 * SECOND, NOON, true)).state;
    assert_eq!((first.record_time, first.unsettled_after), (timestamp(NOON), None));
    let first = advance(None, &reading("a", 50 * SECOND, NOON, false)).state;
    let boot = timestamp(NOON - 50 * SECOND);
    assert_eq!((first.record_time, first.unsettled_after), (timestamp(NOON), Some(boot)));

    for wall in [0, -5 * DAY, FIRST_PLAUSIBLE - 1] {
        let first = advance(None, &reading("a", 50 * SECOND, wall, true)).state;
        assert_eq!(first.record_time, timestamp(FIRST_PLAUSIBLE + 50 * SECOND));
        // A user sets the clock: record time follows, and nothing ages by it.
        let set = advance(Some(&first), &reading("a", 80 * SECOND, NOON, false));
        assert_eq!(set.state.record_time, timestamp(NOON));
        let correction = set.correction.unwrap();
        assert_eq!(correction.after, Timestamp::MIN);
        assert_eq!(correction.by.as_micros(), i128::from(NOON - FIRST_PLAUSIBLE - 80 * SECOND));
    }
}

#[test]
fn restored_memory_snapshot_ages_nothing() {
    walk(
        "the clock was set at once",
        &[
            ("a", 5000, 0, true, 0, true, None),
            ("a", 1000, 3600, true, 3600, false, None),
            ("a", 1300, 3900, true, 3900, true, None),
        ],
    );
    walk(
        "the clock is that of the snapshot, and is set later",
        &[
            ("a", 5000, 0, true, 0, true, None),
            ("a", 1000, -4000, true, 0, false, None),
            ("a", 1300, 600, true, 600, true, Some(300)),
        ],
    );
    walk(
        "months later",
        &[
            ("a", 5000, 0, true, 0, true, None),
            ("a", 1000, 9_000_000, true, 0, false, None),
            ("a", 1300, 9_000_300, true, 9_000_300, true, Some(9_000_000)),
        ],
    );
}

#[test]
fn record_time_never_goes_back_with_extreme_readings() {
    let extremes = [Timestamp::MIN, Timestamp::UNIX_EPOCH, timestamp(NOON), Timestamp::MAX];
    for first in extremes {
        for (boot, since_boot) in [("a", 0), ("a", i64::MAX / 4), ("b", 5), ("b", i64::MIN)] {
            for second in extremes {
                let start = ClockReading { wall: first, ..reading("a", 10, 0, true) };
                let start = advance(None, &start).state;
                let next = ClockReading { wall: second, ..reading(boot, since_boot, 0, true) };
                let next = advance(Some(&start), &next).state;
                assert!(next.record_time >= start.record_time);
            }
        }
    }
}

/// Next event of a simulated machine.
#[derive(Clone, Debug)]
struct MachineStep {
    passes: i64,
    /// Reboots, with this time switched off.
    off: Option<i64>,
    /// Sets the wall clock to the true time plus this offset.
    set: Option<i64>,
    synchronised: bool,
}

fn events(wrong: std::ops::Range<i64>) -> impl Strategy<Value = Vec<MachineStep>> {
    let passes = prop_oneof![0..10 * SECOND, 0..10 * MINUTE, 0..5 * DAY];
    let off = proptest::option::weighted(0.2, prop_oneof![0..5 * MINUTE, 0..40 * DAY]);
    let set = proptest::option::weighted(0.3, prop_oneof![-5 * SECOND..0, wrong]);
    let event = (passes, off, set, any::<bool>()).prop_map(|(passes, off, set, synchronised)| MachineStep {
        passes,
        off,
        set,
        synchronised,
    });
    proptest::collection::vec(event, 1..40)
}

/// A moment at which something was recorded.
struct Mark {
    /// Time from which its age counts.
    counted: i64,
    made: i64,
    boot: usize,
    /// Time that tolerances may have added since.
    slack: i64,
}

/// Simulates the machine and calls `check` for the age of every mark: (age, true age, slack, same boot).
fn run(events: &[MachineStep], truthful: bool, mut check: impl FnMut(i64, i64, i64, bool)) {
    let (mut now, mut boot, mut since, mut wrong) = (NOON, 0_usize, 100 * SECOND, 0);
    let mut last: Option<ClockState> = None;
    let mut marks: Vec<Mark> = Vec::new();
    for event in events {
        if let Some(off) = event.off {
            now += off + 10 * SECOND;
            (boot, since) = (boot + 1, 10 * SECOND);
        }
        now += event.passes;
        since += event.passes;
        wrong = event.set.unwrap_or(wrong);
        let synchronised = event.synchronised && (!truthful || event.set.is_none());
        if truthful && synchronised {
            wrong = 0;
        }
        let now_reading = reading(&boot.to_string(), since, now + wrong, synchronised);
        let advance = advance(last.as_ref(), &now_reading);
        let record = advance.state.record_time.as_microsecond();
        if let Some(last) = &last {
            assert!(advance.state.record_time >= last.record_time, "went back");
            let leap =
                advance.correction.map_or(0, |correction| i64::try_from(correction.by.as_micros()).unwrap());
            assert!(leap >= 0);
            if last.boot_id == advance.state.boot_id {
                let grown = record - last.record_time.as_microsecond() - leap;
                assert!(grown <= event.passes + (event.passes / 1000).clamp(2 * SECOND, MINUTE));
            }
        }
        for mark in &mut marks {
            if let Some(leap) = advance.correction
                && timestamp(mark.counted) > leap.after
            {
                mark.counted += i64::try_from(leap.by.as_micros()).unwrap();
            }
            mark.slack += (event.passes / 1000).clamp(2 * SECOND, MINUTE);
            check(record - mark.counted, now - mark.made, mark.slack, mark.boot == boot);
        }
        marks.push(Mark { counted: record, made: now, boot, slack: 0 });
        last = Some(advance.state);
    }
}

proptest! {
    /// For every sequence of settings of the wall clock, synchronised or not.
    #[test]
    fn within_a_boot_nothing_ages_faster_than_time(events in events(-3000 * DAY..3000 * DAY)) {
        run(&events, false, |age, truth, slack, this_boot| {
            assert!(!this_boot || age <= truth + slack, "{age} {truth}");
        });
    }

    /// A synchronised clock is right; an unsynchronised one may be behind, as after a loss of power.
    #[test]
    fn over_boots_nothing_looks_older_than_it_is(events in events(-60_000 * DAY..0)) {
        run(&events, true, |age, truth, slack, _| assert!(age <= truth + slack, "{age} {truth}"));
    }

    /// A node with a right clock and a time service.
    #[test]
    fn right_clock_is_followed(
        events in events(0..1),
        jitter in proptest::collection::vec(-SECOND / 2..SECOND / 2, 40)
    ) {
        let mut last: Option<ClockState> = None;
        let (mut now, mut boot, mut since) = (NOON, 0, HOUR);
        for (event, jitter) in events.iter().zip(jitter) {
            if event.off.is_some() {
                now += event.off.unwrap_or(0);
                (boot, since) = (boot + 1, 0);
            }
            now += event.passes;
            since += event.passes;
            let seen = reading(&boot.to_string(), since, now + jitter, true);
            let state = advance(last.as_ref(), &seen).state;
            let off = state.record_time.as_microsecond() - now;
            assert!(off.abs() <= 3 * SECOND, "{off}");
            last = Some(state);
        }
    }
}
