use super::*;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn screen(width: usize, unicode: bool) -> Screen {
    Screen { width: Some(width), unicode, truncates: true, notes: true, zone: TimeZone::UTC }
}

fn reading(minutes: i64, percent: f64) -> Sample {
    let time = time("2026-11-21T00:00:00Z") + SignedDuration::from_mins(minutes);
    Sample { from: time, to: time, low: percent, high: percent }
}

fn draw(samples: &[Sample], marks: &[Timestamp], screen: &Screen) -> String {
    let (from, to) = (time("2026-11-21T00:00:00Z"), time("2026-11-21T12:00:00Z"));
    Chart { from, to, samples, marks }.draw(screen)
}

#[test]
fn ascii_chart_shows_a_ramp() {
    let samples: Vec<_> = (0..=72).map(|n| reading(n * 10, 60.0 + 20.0 * n as f64 / 72.0)).collect();
    let chart = draw(&samples, &[time("2026-11-21T06:00:00Z")], &screen(46, false));
    assert!(chart.starts_with(" 80% |"), "{chart}");
    assert!(chart.is_ascii());
    assert!(chart.lines().all(|line| line.len() <= 46), "{chart}");
    let filled: Vec<usize> = (6..46)
        .map(|x| chart.lines().take(8).filter(|line| line.chars().nth(x) == Some('#')).count())
        .collect();
    assert!(filled.iter().all(|count| (1..=2).contains(count)), "{chart}");
    assert!(chart.contains(" 60% +"), "{chart}");
    assert!(chart.contains("06:00"), "{chart}");
    let marks = chart.lines().find(|line| line.contains('^')).unwrap();
    assert_eq!(marks.find('^'), Some(6 + 20), "{chart}");
}

#[test]
fn spike_of_a_single_reading_is_visible() {
    let mut samples: Vec<_> = (0..144).map(|n| reading(n * 5, 60.0)).collect();
    samples[70].high = 95.0;
    for unicode in [true, false] {
        let chart = draw(&samples, &[], &screen(80, unicode));
        let top = chart.lines().next().unwrap();
        assert!(top.starts_with("100% "), "{chart}");
        let second = chart.lines().nth(1).unwrap();
        assert!(second.trim_end().chars().count() > usize::from(MARGIN), "the spike: {chart}");
    }
}

#[test]
fn gap_in_the_readings_is_empty() {
    let samples: Vec<_> = (0..144).filter(|n| !(40..100).contains(n)).map(|n| reading(n * 5, 60.0)).collect();
    let chart = draw(&samples, &[], &screen(80, false));
    let line = chart.lines().find(|line| line.contains('#')).unwrap();
    let plot: Vec<char> = line.chars().skip(MARGIN.into()).collect();
    // Readings 40 to 99 of 144 are missing: columns 20 to 51 of 74, except the edges.
    assert!(plot[22..50].iter().all(|c| *c == ' '), "{chart}");
    assert!(plot[..20].iter().all(|c| *c == '#'), "{chart}");
    assert!(plot[52..].iter().all(|c| *c == '#'), "{chart}");
}

#[test]
fn single_reading_and_none_are_drawn() {
    assert!(draw(&[reading(60, 0.0)], &[], &screen(80, true)).contains("0% └"));
    assert!(draw(&[reading(60, 100.0)], &[], &screen(80, true)).starts_with("100% ┤"));
    assert!(!draw(&[], &[], &screen(10, false)).is_empty());
}

#[test]
fn axes_are_round_and_include_all_samples() {
    for (low, high, expected) in [
        (60.0, 80.0, (60.0, 5.0, 4)),
        (71.2, 71.3, (68.0, 2.0, 3)),
        (0.0, 0.0, (0.0, 1.0, 3)),
        (100.0, 100.0, (97.0, 1.0, 3)),
        (3.0, 99.0, (0.0, 20.0, 5)),
        (85.0, 98.5, (85.0, 5.0, 3)),
    ] {
        let axis = Axis::over(&[Sample { low, high, ..reading(0, 0.0) }]);
        assert_eq!((axis.bottom, axis.step, axis.steps), expected, "{low} {high}");
        assert!(axis.bottom <= low && high <= axis.percent(axis.steps), "{axis:?}");
        assert!(axis.rows() <= HEIGHT && axis.rows() > HEIGHT / 2, "{axis:?}");
    }
}

#[test]
fn ticks_are_round_in_local_time() {
    let zone = TimeZone::fixed(jiff::tz::offset(5));
    let labels = |from: &str, to: &str, count| -> Vec<String> {
        ticks(time(from), time(to), count, &zone).into_iter().map(|(_, label)| label).collect()
    };
    assert_eq!(
        labels("2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z", 5),
        ["18:00", "Nov 21", "06:00", "12:00"]
    );
    let week = labels("2026-11-14T10:00:00Z", "2026-11-21T10:00:00Z", 6);
    assert!(week.iter().all(|label| label.starts_with("Nov ")) && (3..=7).contains(&week.len()), "{week:?}");
    let years = labels("2024-11-14T10:00:00Z", "2026-11-21T10:00:00Z", 6);
    assert_eq!(years, ["Jan 2025", "Jul 2025", "Jan 2026", "Jul 2026"]);
    assert!(ticks(time("2026-11-21T10:00:00Z"), time("2026-11-21T10:00:00Z"), 5, &zone).len() <= 1);
}
