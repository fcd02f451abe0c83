use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;
const CAPACITY: u64 = 100 * GIB;
const NOW: i64 = 1_800_000_000;

fn time(hours_ago: f64) -> Timestamp {
    #[allow(clippy::cast_possible_truncation)]
    Timestamp::from_second(NOW - (hours_ago * 3600.0) as i64).unwrap()
}

/// Returns a reading every `minutes` minutes; `used` gives the used bytes by hours ago.
fn series(hours: u32, minutes: u32, used: impl Fn(f64) -> f64) -> Vec<UsageReading> {
    let steps = hours * 60 / minutes;
    let readings = (0..=steps).map(|step| {
        let ago = f64::from((steps - step) * minutes) / 60.0;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let used = used(ago).clamp(0.0, 1e15) as u64;
        UsageReading {
            time: time(ago),
            capacity_bytes: CAPACITY,
            available_bytes: CAPACITY.saturating_sub(used),
        }
    });
    readings.collect()
}

fn gib(number: f64) -> f64 {
    number * 1_073_741_824.0
}

/// Returns a pseudo-random number between -1 and 1.
fn noise(ago: f64) -> f64 {
    ((ago * 7919.0).sin() * 43758.5453).fract()
}

fn forecast_now(readings: &[UsageReading], freed: &[FreedAt]) -> Option<Forecast> {
    forecast(readings, freed, readings.last()?.available_bytes, time(0.0))
}

fn hours(duration: SignedDuration) -> f64 {
    duration.as_secs_f64() / 3600.0
}

#[test]
fn steady_growth_is_forecast_and_noise_is_not() {
    // Name, readings, then the window and the hours until it is full; `None` for no forecast.
    let steady = |rate: f64| move |ago: f64| gib(60.0 - rate * ago);
    for (name, readings, expected) in [
        ("40 GiB left at 2 GiB/h", series(6, 5, steady(2.0)), Some((6, 20.0))),
        ("the shorter window is enough", series(3, 5, steady(2.0)), Some((6, 20.0))),
        ("hourly readings", series(6, 60, steady(2.0)), Some((6, 20.0))),
        ("too short a history", series(2, 5, steady(2.0)), None),
        ("too few readings", series(6, 120, steady(2.0)), None),
        ("too far ahead for six hours", series(6, 5, steady(1.0)), None),
        ("within four weeks by seven days", series(7 * 24, 5, steady(0.1)), Some((168, 400.0))),
        ("half of seven days", series(85, 60, steady(0.1)), Some((168, 400.0))),
        ("less than half of seven days", series(80, 60, steady(0.1)), None),
        ("further than four weeks", series(7 * 24, 5, steady(0.05)), None),
        ("no growth", series(7 * 24, 5, steady(0.0)), None),
        ("it empties", series(7 * 24, 5, steady(-0.1)), None),
        ("noise alone", series(7 * 24, 5, |ago| gib(60.0 + noise(ago))), None),
        ("noise on growth", series(6, 5, |ago| gib(60.0 - 2.0 * ago + 0.2 * noise(ago))), Some((6, 20.0))),
        // A pull of 2 GiB at the end of each hour.
        ("a staircase", series(6, 5, |ago| gib(60.0 - 2.0 * ago.ceil())), Some((6, 20.0))),
        ("one pull of 20 GiB", series(6, 5, |ago| gib(if ago < 3.0 { 60.0 } else { 40.0 })), None),
        (
            "one prune of 20 GiB an hour ago",
            series(6, 5, |ago| gib(60.0 - 2.0 * ago + if ago < 1.0 { 0.0 } else { 20.0 })),
            None,
        ),
        // Builds that remove their files: 5 GiB up and down every half hour.
        ("a sawtooth of other programs", series(6, 5, |ago| gib(60.0 - 10.0 * ago.rem_euclid(0.5))), None),
    ] {
        let found = forecast_now(&readings, &[]);
        let Some((window, full)) = expected else {
            assert_eq!(found, None, "{name}");
            continue;
        };
        let found = found.unwrap_or_else(|| panic!("{name}: no forecast"));
        let all = found.until_full();
        assert_eq!(found.window, SignedDuration::from_hours(window), "{name}");
        assert!((hours(all.after) / full - 1.0).abs() < 0.2, "{name}: {all:?}");
        assert!(all.earliest <= all.after && all.after <= all.latest, "{name}: {all:?}");
    }
}

/// layersweep's deletions are steps: every two hours 75 GiB become 70, and usage grows at 2.5 GiB/h all the same.
#[test]
fn own_deletions_are_not_a_trend() {
    let readings = series(6, 5, |ago| gib(75.0 - 2.5 * ago.rem_euclid(2.0)));
    assert_eq!(forecast_now(&readings, &[]), None, "as if another program had deleted");
    let freed: Vec<_> =
        [4.0, 2.0].map(|ago| FreedAt { time: time(ago + 0.01), bytes: 5 * GIB }).into_iter().collect();
    let found = forecast_now(&readings, &freed).expect("a forecast");
    assert!((found.rate * 3600.0 / gib(2.5) - 1.0).abs() < 0.05, "{found:?}");
    // A deletion before the first reading does not appear in any of them.
    let before = FreedAt { time: time(6.5), bytes: 50 * GIB };
    assert_eq!(forecast_now(&readings, &[&[before], &freed[..]].concat()), Some(found));
}

#[test]
fn resized_filesystem_starts_a_new_series() {
    let mut readings = series(12, 5, |ago| gib(60.0 - 2.0 * ago));
    for reading in &mut readings[..72] {
        reading.capacity_bytes -= 20 * GIB;
        reading.available_bytes = reading.available_bytes.saturating_sub(20 * GIB);
    }
    assert!(forecast_now(&readings, &[]).is_some(), "six hours of the new size");
    let all = readings.len();
    for reading in &mut readings[72..all - 30] {
        reading.capacity_bytes -= 20 * GIB;
    }
    assert_eq!(forecast_now(&readings, &[]), None, "two and a half hours");
}

#[test]
fn stale_readings_and_full_disks_have_no_forecast() {
    let readings = series(6, 5, |ago| gib(60.0 - 2.0 * ago));
    let left = 40 * GIB;
    let after = |minutes: i64| {
        let now = time(0.0) + SignedDuration::from_mins(minutes);
        forecast(&readings, &[], left, now)
    };
    assert!(after(60).is_some());
    assert_eq!(after(61), None);
    assert_eq!(forecast(&readings, &[], 0, time(0.0)), None, "it is full");
    assert_eq!(forecast(&[], &[], left, time(0.0)), None);
    // Time until an event before that.
    let found = forecast_now(&readings, &[]).unwrap();
    assert!((hours(found.after(10 * GIB).after) - 5.0).abs() < 0.1, "{found:?}");
}

prop_compose! {
    fn any_readings()(
        steps in prop::collection::vec((0..40_000_i64, any::<u64>(), 0..4_u8), 0..60),
    ) -> Vec<UsageReading> {
        let mut second = NOW - 600_000;
        let readings = steps.into_iter().map(|(step, available_bytes, capacity)| {
            second += step;
            let capacity_bytes = if capacity == 0 { available_bytes / 2 } else { CAPACITY };
            UsageReading { time: Timestamp::from_second(second).unwrap(), capacity_bytes, available_bytes }
        });
        readings.collect()
    }
}

proptest! {
    #[test]
    fn every_series_is_judged_without_panic(
        readings in any_readings(),
        freed in prop::collection::vec((0..900_000_i64, any::<u64>()), 0..5),
        left in any::<u64>(),
    ) {
        let now = readings.last().map_or(time(0.0), |last| last.time);
        let freed: Vec<_> = freed
            .into_iter()
            .map(|(ago, bytes)| FreedAt { time: Timestamp::from_second(NOW - ago).unwrap(), bytes })
            .collect();
        if let Some(found) = forecast(&readings, &freed, left, now) {
            prop_assert!(found.slowest > 0.0 && found.slowest <= found.rate && found.rate <= found.fastest);
            let full = found.until_full();
            prop_assert!(full.earliest <= full.after && full.after <= full.latest);
            prop_assert!(full.after <= found.window * 4);
        }
    }

    /// layersweep's deletions do not change the rate, whatever they free and when.
    #[test]
    fn own_deletions_do_not_change_the_rate(
        rate in 1.7..20.0_f64,
        noisy in 0.0..0.1_f64,
        deletions in prop::collection::vec((0.1..5.9_f64, 1..20_u64), 0..4),
    ) {
        let grown = |ago: f64| gib(40.0 + rate * (6.0 - ago) / 20.0 * 19.9 + noisy * noise(ago));
        let without = series(6, 5, grown);
        let freed: Vec<_> =
            deletions.iter().map(|(ago, gibs)| FreedAt { time: time(*ago), bytes: gibs * GIB / 4 }).collect();
        let mut with = without.clone();
        for reading in &mut with {
            let freed = freed.iter().filter(|freed| freed.time <= reading.time);
            reading.available_bytes += freed.map(|freed| freed.bytes).sum::<u64>();
        }
        let left = 20 * GIB;
        let (a, b) = (forecast(&without, &[], left, time(0.0)), forecast(&with, &freed, left, time(0.0)));
        prop_assert_eq!(a.is_some(), b.is_some());
        if let (Some(a), Some(b)) = (a, b) {
            prop_assert!((a.rate / b.rate - 1.0).abs() < 1e-6);
        }
    }

    /// The interval contains the rate of a steady growth.
    #[test]
    fn interval_contains_the_true_rate(rate in 2.0..8.0_f64, noisy in 0.0..0.3_f64) {
        let readings = series(6, 5, |ago| gib(50.0 - rate * ago + noisy * noise(ago)));
        let found = forecast(&readings, &[], 10 * GIB, time(0.0)).expect("a forecast");
        let truth = gib(rate) / 3600.0;
        prop_assert!(found.slowest * 0.97 <= truth && truth <= found.fastest * 1.03, "{found:?} {truth}");
    }
}
