use jiff::SignedDuration;
use jiff::Timestamp;
use rusqlite::Connection;

use super::*;
use crate::history::DATABASE;
use crate::history::db::tests::kept;
use crate::history::usage::{self, Span};
use crate::model::deletion::outcome::UsageChange;
use crate::model::space::Started;
use crate::model::{Filesystem, StoreId, StoreKind};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn database() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    connection.set_prepared_statement_cache_capacity(64);
    crate::history::schema::fill(&mut connection).unwrap();
    connection
}

fn ended(time: Timestamp, outcome: OutcomeKind) -> RunEnd {
    RunEnd::of(time, outcome)
}

fn deletion(time: Timestamp, kind: TargetKind) -> DeletionRow {
    DeletionRow {
        at: time,
        kind,
        store: Some(StoreId::new(
            StoreKind::ContainersStorage,
            "/var/lib/containers/storage".into(),
            "overlay".into(),
        )),
        id: "0123456789abcdef".repeat(4),
        names: vec!["quay.io/team/app:1".into()],
        layers: Vec::new(),
        reason: Reason::Space,
        predicted_bytes: 1000,
        measured_bytes: None,
        byproduct_bytes: 0,
        others_wrote: false,
        usage_after_percent: None,
        error: None,
        certainty: Certainty::Seen,
    }
}

fn all() -> Query {
    Query { quiet: true, ..Query::default() }
}

#[test]
fn runs_are_kept_by_age_and_kind() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    // Each case has two runs. If they are merged, the second is kept, so the first shows whether they were.
    let mut expected = Vec::new();
    for (started, quiet, deletes, stays) in [
        ("2026-11-21T13:00:00Z", true, false, true),
        ("2026-11-14T00:00:00Z", true, false, true),
        ("2026-11-13T23:59:58Z", true, false, false),
        ("2026-11-12T23:59:58Z", false, false, true),
        ("2026-08-22T23:59:58Z", false, false, false),
        ("2026-08-21T23:59:58Z", false, true, true),
        ("2024-11-20T00:00:00Z", false, true, true),
        ("2024-11-19T23:59:58Z", false, true, false),
        ("2024-11-18T23:59:58Z", true, false, false),
        ("2030-01-01T00:00:00Z", true, false, true),
    ] {
        let ids = [0, 1].map(|second| {
            let started = at(started) + SignedDuration::from_secs(second);
            let start = Start::of(if quiet { Command::Scan } else { Command::Gc }, started);
            let run = begin(&tx, &start).unwrap();
            if deletes {
                deleted(&tx, run, 0, &deletion(started, TargetKind::Image)).unwrap();
            }
            let outcome = if quiet { OutcomeKind::Done } else { OutcomeKind::Failed };
            end(&tx, run, &ended(started, outcome)).unwrap();
            start.run_id
        });
        expected.push((started, ids, stays));
    }
    thin(&tx, at("2026-11-21T13:37:00Z")).unwrap();
    let left: Vec<_> = list(&tx, &all()).unwrap().0.into_iter().map(|run| run.start.run_id).collect();
    for (started, ids, stays) in expected {
        assert_eq!(left.contains(&ids[0]), stays, "{started}");
        let is_deleted = started < "2024-11-20";
        assert_eq!(left.contains(&ids[1]), !is_deleted, "{started}");
    }
}

#[test]
fn freed_bytes_are_returned_with_their_store() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    let began = at("2026-11-21T13:00:00Z");
    let run = begin(&tx, &Start::of(Command::Gc, began)).unwrap();
    let freed = |measured: i64| DeletionRow {
        measured_bytes: Some(measured),
        byproduct_bytes: 5,
        ..deletion(began, TargetKind::Image)
    };
    let outside = DeletionRow { store: None, ..freed(7) };
    let failed = DeletionRow { error: Some("in use".into()), ..freed(9) };
    for (position, deletion) in [freed(100), freed(-20), outside, failed].iter().enumerate() {
        deleted(&tx, run, position, deletion).unwrap();
    }
    let store = std::path::PathBuf::from("/var/lib/containers/storage");
    let expected = vec![(began, store.clone(), 105), (began, store, 5)];
    assert_eq!(super::freed(&tx, began).unwrap(), expected);
    assert_eq!(super::freed(&tx, at("2026-11-21T13:00:01Z")).unwrap(), []);
}

pub fn change(usage_after_percent: Option<f64>) -> UsageChange {
    UsageChange {
        mount: "/var".into(),
        started: Started { used: true, inodes: true, ..Started::default() },
        usage_before_percent: Some(80.5),
        usage_after_percent,
        measured_bytes: usage_after_percent.map(|_| -7),
    }
}

#[test]
fn recorded_run_is_read_unchanged() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    let [began, middle, over] =
        ["2026-11-21T13:00:00Z", "2026-11-21T13:00:05Z", "2026-11-21T13:00:09.5Z"].map(at);
    let start = Start {
        policy: Some("exact".into()),
        via: Some("cri".into()),
        trigger_space: true,
        usage: vec![change(None)],
        wanted_bytes: Some(5000),
        predicted_bytes: Some(6000),
        ..Start::of(Command::Gc, began)
    };
    let run = begin(&tx, &start).unwrap();
    let (found, _) = list(&tx, &all()).unwrap();
    assert_eq!((found[0].ended, found[0].outcome, found[0].quiet), (None, None, false), "killed here");

    let begun = DeletionRow {
        names: vec!["named/when:planned".into()],
        certainty: Certainty::Unknown,
        ..deletion(middle, TargetKind::Image)
    };
    deleted(&tx, run, 0, &begun).unwrap();
    deleted(&tx, run, 0, &deletion(middle, TargetKind::Image)).unwrap();
    let failed = DeletionRow { error: Some("busy".into()), ..deletion(middle, TargetKind::Leak) };
    deleted(&tx, run, 1, &failed).unwrap();
    let measured = DeletionRow {
        measured_bytes: Some(-7),
        byproduct_bytes: 30,
        usage_after_percent: Some(79.0),
        ..deletion(middle, TargetKind::Image)
    };
    deleted(&tx, run, 0, &measured).unwrap();
    let (found, _) = list(&tx, &all()).unwrap();
    assert_eq!((found[0].measured_bytes, found[0].byproduct_bytes), (Some(-7), 30), "up to now");
    let event = Event { reason: "FreeDiskSpaceFailed".into(), message: "too little".into() };
    record_events(&tx, run, std::slice::from_ref(&event)).unwrap();
    let error =
        RunError { id: "x".into(), step: "remove".into(), message: "busy".into(), ..RunError::default() };
    let end_of_it = RunEnd {
        usage: vec![change(Some(69.9))],
        measured_bytes: Some(-7),
        errors: vec![error.clone()],
        ..ended(over, OutcomeKind::Failed)
    };
    end(&tx, run, &end_of_it).unwrap();

    let (found, more) = list(&tx, &Query::default()).unwrap();
    assert!(!more);
    let expected = RunRow {
        start: Start { usage: vec![change(Some(69.9))], ..start.clone() },
        ended: Some(over),
        outcome: Some(OutcomeKind::Failed),
        measured_bytes: Some(-7),
        byproduct_bytes: 30,
        errors: vec![error],
        events: vec![event],
        killed: false,
        runs: 1,
        quiet: false,
        deletions: vec![measured, failed],
    };
    assert_eq!(found, std::slice::from_ref(&expected));
    begin(&tx, &start).unwrap();
    assert_eq!(list(&tx, &Query::default()).unwrap().0, [expected], "a state from before its end");

    let leaks = list(&tx, &Query { kind: Some(TargetKind::Leak), ..Query::default() }).unwrap().0;
    assert_eq!(leaks[0].deletions.len(), 1);
    assert!(list(&tx, &Query { kind: Some(TargetKind::Log), ..all() }).unwrap().0.is_empty());
    assert!(list(&tx, &Query { since: Some(at("2026-11-21T13:00:10Z")), ..all() }).unwrap().0.is_empty());
    assert_eq!(that_deleted(&tx, Some(began)).unwrap().len(), 1);
}

#[test]
fn run_ids_are_unique_and_sorted_by_time() {
    let now = at("2026-11-21T13:00:00Z");
    let a = new_id(now);
    assert!((0..9).any(|_| new_id(now) != a), "{a}");
    for (earlier, later) in [("00.001Z", "00.002Z"), ("00.5Z", "00.999999999Z"), ("00.999Z", "01Z")] {
        let [earlier, later] =
            [earlier, later].map(|seconds| new_id(at(&format!("2026-11-21T13:00:{seconds}"))));
        assert!(earlier < later, "{earlier} {later}");
    }
    assert!(a.starts_with("20261121T130000Z-"), "{a}");
}

#[test]
fn runs_with_nothing_to_report_are_quiet() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    let now = at("2026-11-21T13:00:00Z");
    let error = RunError { step: "scan".into(), message: "no".into(), ..RunError::default() };
    let ends = [
        (Command::Scan, OutcomeKind::Done, vec![], true),
        (Command::Scan, OutcomeKind::Incomplete, vec![], true),
        (Command::Scan, OutcomeKind::Done, vec![error.clone()], false),
        (Command::Scan, OutcomeKind::Failed, vec![], false),
        (Command::Gc, OutcomeKind::NotNeeded, vec![], true),
        (Command::Gc, OutcomeKind::NotNeeded, vec![error], false),
        (Command::Gc, OutcomeKind::Refused, vec![], false),
        (Command::Gc, OutcomeKind::NotReached, vec![], false),
        (Command::Rm, OutcomeKind::Done, vec![], false),
    ];
    for (second, (command, outcome, errors, expected)) in (0..).zip(ends) {
        let start = Start::of(command, now + SignedDuration::from_secs(second));
        record(&tx, &start, &RunEnd { errors, ..ended(start.started, outcome) }).unwrap();
        let found =
            list(&tx, &all()).unwrap().0.into_iter().find(|run| run.start.run_id == start.run_id).unwrap();
        assert_eq!(found.quiet, expected, "{command:?} {outcome:?}");
    }
    let summary = quiet(&tx, None).unwrap();
    assert_eq!((summary.scans, summary.incomplete_scans, summary.other_runs), (2, 1, 1));
    assert_eq!(list(&tx, &Query::default()).unwrap().0.len(), 6);
    let (two, more) = list(&tx, &Query { limit: 2, ..Query::default() }).unwrap();
    assert!(two.len() == 2 && more);
    assert_eq!(quiet(&tx, Some(at("2026-11-22T00:00:00Z"))).unwrap(), Quiet::default());
}

#[test]
fn runs_of_a_day_are_merged() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    let now = at("2026-11-21T13:00:00Z");
    let scan = |time: &str, outcome| {
        record(&tx, &Start::of(Command::Scan, at(time)), &ended(at(time), outcome)).unwrap();
    };
    scan("2026-11-01T00:00:00Z", OutcomeKind::Done);
    scan("2026-11-01T12:00:00Z", OutcomeKind::Done);
    scan("2026-11-01T13:00:00Z", OutcomeKind::Incomplete);
    scan("2026-11-02T13:00:00Z", OutcomeKind::Done);
    scan("2026-11-20T13:00:00Z", OutcomeKind::Done);
    thin(&tx, now).unwrap();
    scan("2026-11-01T06:00:00Z", OutcomeKind::Done);
    thin(&tx, now).unwrap();
    let (found, _) = list(&tx, &all()).unwrap();
    let shown: Vec<_> = found.iter().map(|run| (run.start.started, run.runs, run.outcome.unwrap())).collect();
    let expected = [
        ("2026-11-20T13:00:00Z", 1, OutcomeKind::Done),
        ("2026-11-02T13:00:00Z", 1, OutcomeKind::Done),
        ("2026-11-01T13:00:00Z", 1, OutcomeKind::Incomplete),
        ("2026-11-01T00:00:00Z", 3, OutcomeKind::Done),
    ];
    assert_eq!(shown, expected.map(|(time, runs, outcome)| (at(time), runs, outcome)));
    assert_eq!(found[3].ended, Some(at("2026-11-01T12:00:00Z")));
    assert_eq!(quiet(&tx, None).unwrap().scans, 6, "every scan is counted");
}

#[test]
fn endless_loops_of_runs_are_bounded() {
    let mut connection = database();
    let tx = connection.transaction().unwrap();
    let start = at("2026-11-21T00:00:00Z");
    let after = |seconds| start + SignedDuration::from_secs(seconds);
    for second in 0..7_680 {
        record(&tx, &Start::of(Command::Scan, after(second)), &ended(after(second), OutcomeKind::Done))
            .unwrap();
        thin(&tx, after(second)).unwrap();
    }
    let rows: i64 = tx.query_row("SELECT count(*) FROM runs", [], |row| row.get(0)).unwrap();
    assert!(rows <= 5_130, "{rows} rows");
    assert_eq!(quiet(&tx, None).unwrap().scans, 7_680);

    for number in 0..600 {
        let run = begin(&tx, &Start::of(Command::Gc, after(20_000 + number))).unwrap();
        for position in 0..100 {
            deleted(&tx, run, position, &deletion(after(20_000 + number), TargetKind::Image)).unwrap();
        }
        thin(&tx, after(20_000 + number)).unwrap();
    }
    let rows: i64 = tx.query_row("SELECT count(*) FROM deletions", [], |row| row.get(0)).unwrap();
    assert!((50_000 - 100..=50_000 + 12_800).contains(&rows), "{rows} deletions");
    let newest = list(&tx, &Query { limit: 1, ..Query::default() }).unwrap().0;
    assert_eq!(newest[0].deletions.len(), 100, "the newest run is kept");
}

/// Used bytes of the simulated filesystem: spikes and dips of one reading every other day.
fn used(reading: i64) -> u64 {
    let day = (reading / 288).unsigned_abs();
    match reading % 576 {
        300 => (90 << 30) + day,
        500 => (10 << 30) + day,
        _ => (50 << 30) + (reading.unsigned_abs() * 7919) % (1 << 30),
    }
}

fn one_scan(tx: &Transaction<'_>, now: Timestamp, reading: i64) -> rusqlite::Result<()> {
    const CAPACITY: u64 = 100 << 30;
    let filesystem = Filesystem {
        mount: "/var".into(),
        device: "/dev/vda4".into(),
        fstype: "xfs".into(),
        capacity_bytes: CAPACITY,
        used_bytes: used(reading),
        available_bytes: CAPACITY - used(reading),
        inodes: 50_000_000,
        inodes_free: 40_000_000,
    };
    usage::record(tx, now, &[filesystem])?;
    record(tx, &Start::of(Command::Scan, now), &ended(now, OutcomeKind::Done))?;
    if reading % 2016 == 1000 {
        let run = begin(tx, &Start::of(Command::Gc, now))?;
        for position in 0..10 {
            deleted(tx, run, position, &deletion(now, TargetKind::Image))?;
        }
        end(tx, run, &ended(now, OutcomeKind::Reached))?;
    }
    if reading % 12 == 0 {
        usage::thin(tx, now)?;
        thin(tx, now)?;
    }
    Ok(())
}

/// Two years of a node that is scanned every five minutes, and on which `gc` deletes something once a week.
#[test]
fn two_years_of_scans_fit_in_4_mib() {
    const DAYS: i64 = 740;
    let dir = tempfile::tempdir().unwrap();
    drop(kept(dir.path()));
    let mut connection = Connection::open(dir.path().join(DATABASE)).unwrap();
    // Two years in a few seconds: nothing has to survive a crash, no statement is parsed twice.
    connection.pragma_update(None, "synchronous", "off").unwrap();
    connection.set_prepared_statement_cache_capacity(64);
    let start = at("2024-11-21T00:00:00Z");
    for day in 0..DAYS {
        let tx = connection.transaction().unwrap();
        for reading in day * 288..(day + 1) * 288 {
            one_scan(&tx, start + SignedDuration::from_mins(reading * 5), reading).unwrap();
        }
        tx.commit().unwrap();
    }

    let now = start + SignedDuration::from_hours(DAYS * 24);
    let series = usage::series(&connection, None, Some("/var")).unwrap();
    let points = &series[0].points;
    // No reading within the two years is lost, and no minimum or maximum of any day.
    let first_day =
        usage::horizon(now, SignedDuration::from_hours(731 * 24), Span::Day).duration_since(start).as_secs()
            / 86_400;
    assert_eq!(first_day, 9);
    let readings: u64 = points.iter().map(|point| point.readings).sum();
    assert!(readings.abs_diff((DAYS - first_day).unsigned_abs() * 288) <= 288, "{readings}");
    for day in first_day..DAYS {
        let expected = (day * 288..(day + 1) * 288).map(used);
        let begin = start + SignedDuration::from_hours(day * 24);
        let of_day: Vec<_> = points.iter().filter(|point| Span::Day.begin(point.time) == begin).collect();
        let low = of_day.iter().map(|point| point.used.min).min();
        assert_eq!(low, expected.clone().min(), "day {day}");
        let high = of_day.iter().map(|point| point.used.max).max();
        assert_eq!(high, expected.max(), "day {day}");
    }
    let scans = quiet(&connection, None).unwrap().scans;
    assert!(scans >= 731 * 288, "{scans}");
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let deletions = number("SELECT count(*) FROM deletions");
    assert!(deletions >= 104 * 10, "{deletions}");
    let runs = number("SELECT count(*) FROM runs");
    assert!(runs < 4_000, "{runs} runs");
    connection.pragma_update(None, "wal_checkpoint", "truncate").unwrap();
    let size = std::fs::metadata(dir.path().join(DATABASE)).unwrap().len();
    eprintln!("{} points of /var, {runs} runs, {deletions} deletions, {size} bytes", points.len());
    assert!(size < 4 << 20, "{size} bytes");
}
