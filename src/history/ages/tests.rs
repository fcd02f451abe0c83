use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn evidence(all: &[(EvidenceKind, &str)]) -> Vec<Evidence> {
    all.iter().map(|(kind, time)| Evidence { kind: *kind, at: at(time) }).collect()
}

use EvidenceKind::{Container, ImageRecord, MetadataDirectory, TopLayer};

const NOW: &str = "2026-03-01T12:00:00Z";

/// Name, evidence, time at which it was absent, first detected, rule.
type Sight =
    (&'static str, &'static [(EvidenceKind, &'static str)], Option<&'static str>, &'static str, AgeRule);

/// A moment on a node whose clock is right.
fn right(now: Timestamp) -> Moment {
    Moment { record_time: now, wall: now }
}

#[test]
fn first_detection_is_the_latest_proven_time() {
    let rows: &[Sight] = &[
        (
            "the latest creation counts",
            &[(TopLayer, "2025-01-01T00:00:00Z"), (MetadataDirectory, "2026-02-01T00:00:00Z")],
            None,
            "2026-02-01T00:00:00Z",
            AgeRule::Creation,
        ),
        (
            "a creation overrides a container",
            &[(ImageRecord, "2025-06-01T00:00:00Z"), (Container, "2025-07-01T00:00:00Z")],
            None,
            "2025-06-01T00:00:00Z",
            AgeRule::Creation,
        ),
        (
            "no creation: the container",
            &[(TopLayer, "1970-01-01T00:00:09Z"), (Container, "2025-07-01T00:00:00Z")],
            None,
            "2025-07-01T00:00:00Z",
            AgeRule::Container,
        ),
        ("nothing", &[], None, NOW, AgeRule::FirstScan),
        ("Go's zero time", &[(TopLayer, "0001-01-01T00:00:00Z")], None, NOW, AgeRule::FirstScan),
        ("just before 2015", &[(TopLayer, "2014-12-31T23:59:59Z")], None, NOW, AgeRule::FirstScan),
        ("2015", &[(TopLayer, "2015-01-01T00:00:00Z")], None, "2015-01-01T00:00:00Z", AgeRule::Creation),
        (
            "a part from the future",
            &[(TopLayer, "2025-01-01T00:00:00Z"), (MetadataDirectory, "2026-03-01T12:00:01Z")],
            None,
            NOW,
            AgeRule::FutureEvidence,
        ),
        (
            "a container from the future",
            &[(Container, "2031-01-01T00:00:00Z")],
            None,
            NOW,
            AgeRule::FutureEvidence,
        ),
        ("now", &[(TopLayer, NOW)], None, NOW, AgeRule::Creation),
        (
            "it was absent at the last scan",
            &[(TopLayer, "2025-01-01T00:00:00Z")],
            Some("2026-02-28T00:00:00Z"),
            "2026-02-28T00:00:00.000001Z",
            AgeRule::AbsentBefore,
        ),
        (
            "it was created after the last scan",
            &[(TopLayer, "2026-02-28T00:05:00Z")],
            Some("2026-02-28T00:00:00Z"),
            "2026-02-28T00:05:00Z",
            AgeRule::Creation,
        ),
        ("absent until now", &[(TopLayer, "2025-01-01T00:00:00Z")], Some(NOW), NOW, AgeRule::AbsentBefore),
    ];
    for (name, found, absent, expected, rule) in rows {
        let now = right(at(NOW));
        let found = evidence(found);
        let (first, detection) = first_detection(&found, absent.map(at), &now);
        assert_eq!((first, detection.rule), (at(expected), *rule), "{name}");
        assert_eq!(detection.found, found, "{name}: all of it is kept");
        match rule {
            AgeRule::Creation | AgeRule::Container => {
                assert_eq!(detection.deciding().unwrap().at, first, "{name}")
            }
            AgeRule::FutureEvidence => assert!(detection.deciding().unwrap().at > first, "{name}"),
            AgeRule::FirstScan | AgeRule::AbsentBefore | AgeRule::Unreadable => {
                assert_eq!(detection.deciding(), None, "{name}")
            }
        }
        let json = serde_json::to_string(&detection).unwrap();
        assert_eq!(serde_json::from_str::<FirstDetection>(&json).unwrap(), detection, "{name}");
    }
}

/// Record time is an hour ahead of the wall clock, which was set back: an image pulled ten minutes ago must not look
/// 70 minutes old.
#[test]
fn dates_are_converted_to_record_time() {
    let found = evidence(&[(TopLayer, "2026-03-01T10:50:00Z")]);
    let now = Moment { record_time: at(NOW), wall: at("2026-03-01T11:00:00Z") };
    assert_eq!(first_detection(&found, None, &now).0, at("2026-03-01T11:50:00Z"));
    // Created before the clock was set back: this date is in the future of the wall clock.
    let found = evidence(&[(TopLayer, "2026-03-01T11:30:00Z")]);
    let (first, detection) = first_detection(&found, None, &now);
    assert_eq!((first, detection.rule), (at(NOW), AgeRule::FutureEvidence));
    // If the wall clock is ahead, dates are used as they are, which is later than their true time.
    let now = Moment { record_time: at(NOW), wall: at("2026-03-01T13:00:00Z") };
    let found = evidence(&[(TopLayer, "2026-03-01T11:50:00Z")]);
    assert_eq!(first_detection(&found, None, &now).0, at("2026-03-01T11:50:00Z"));
}

#[test]
fn second_pull_differs_from_a_long_stay() {
    type Case = (&'static str, EvidenceKind, Option<&'static str>, &'static str, Option<&'static str>, bool);
    let cases: &[Case] = &[
        ("same directory", MetadataDirectory, Some("T10:00"), "T11:00", Some("T10:00"), false),
        ("another directory", MetadataDirectory, Some("T10:00"), "T11:00", Some("T11:30"), true),
        (
            "another, the clock was set back",
            MetadataDirectory,
            Some("T10:00"),
            "T11:00",
            Some("T09:00"),
            true,
        ),
        ("no evidence now", MetadataDirectory, Some("T10:00"), "T11:00", None, false),
        ("none before, older than the last scan", MetadataDirectory, None, "T11:00", Some("T10:00"), false),
        ("none before, newer than the last scan", MetadataDirectory, None, "T11:00", Some("T11:30"), true),
        ("none before, from the future", MetadataDirectory, None, "T11:00", Some("T13:00"), false),
        ("same record", ImageRecord, Some("T10:00"), "T11:00", Some("T10:00"), false),
        ("a new record", ImageRecord, Some("T10:00"), "T11:00", Some("T11:30"), true),
        ("the oldest name was removed", ImageRecord, Some("T10:00"), "T11:00", Some("T10:30"), false),
        ("an older name", ImageRecord, Some("T10:00"), "T11:00", Some("T09:00"), false),
        ("the clock was set back since", ImageRecord, Some("T10:00"), "T20:00", Some("T11:30"), true),
    ];
    for (name, kind, known, seen, found, expected) in cases {
        let time = |text: &str| at(&format!("2026-03-01{text}:00Z"));
        let found: Vec<_> = found.iter().map(|text| Evidence { kind: *kind, at: time(text) }).collect();
        let before = Before { made: known.map(time), seen_wall: time(seen) };
        let now = right(at(NOW));
        assert_eq!(was_remade(&before, &found, &now), *expected, "{name}");
    }
}

#[test]
fn age_counts_from_the_latest_time() {
    let (early, later, latest) = (at("2026-01-01T00:00:00Z"), at("2026-02-01T00:00:00Z"), at(NOW));
    assert_eq!(counted_from(early, None, None), early);
    assert_eq!(counted_from(early, Some(later), None), later);
    assert_eq!(counted_from(later, Some(early), None), later);
    assert_eq!(counted_from(early, Some(later), Some(latest)), latest);
    let mut age = unrecorded(&evidence(&[(TopLayer, "2026-02-01T00:00:00Z")]), None, 0, 1, &right(latest));
    assert_eq!(age.counted_from, later);
    assert_eq!((age.basis, age.last_used, age.use_count), (Basis::Disk, None, 0));
    age = unrecorded(&[], None, 2, 1, &right(latest));
    assert_eq!((age.last_used, age.use_count, age.counted_from), (Some(latest), 2, latest));
}
