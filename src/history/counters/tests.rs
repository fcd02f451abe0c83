use std::collections::BTreeMap;

use jiff::SignedDuration;
use rusqlite::Transaction;

use super::*;
use crate::history::db::Records;
use crate::history::db::tests::kept;
use crate::history::runs::tests::change;
use crate::history::runs::{self, Certainty, DeletionRow, Reason, RunEnd, Start, TargetKind};
use crate::history::{files, known, schema};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_772_366_400 + seconds).unwrap()
}

fn deletion(measured_bytes: Option<i64>) -> DeletionRow {
    DeletionRow {
        at: at(0),
        kind: TargetKind::Image,
        store: None,
        id: "i".into(),
        names: vec![],
        layers: Vec::new(),
        reason: Reason::Space,
        predicted_bytes: 100,
        measured_bytes,
        byproduct_bytes: 0,
        others_wrote: false,
        usage_after_percent: None,
        error: None,
        certainty: Certainty::Seen,
    }
}

fn database() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::fill(&mut connection).unwrap();
    connection
}

fn put<T>(connection: &mut Connection, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> T {
    let tx = connection.transaction().unwrap();
    let done = work(&tx).unwrap();
    tx.commit().unwrap();
    done
}

fn begin(connection: &mut Connection, command: Command, seconds: i64) -> i64 {
    put(connection, |tx| runs::begin(tx, &Start::of(command, at(seconds))))
}

/// All sums as `name command label` and value.
fn sums(connection: &Connection) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for Counter { name, command, label, value } in all(connection).unwrap() {
        sums.insert(format!("{name} {command} {label}"), value);
    }
    sums
}

fn expected<const N: usize>(sums: [(&str, u64); N]) -> BTreeMap<String, u64> {
    sums.map(|(name, value)| (name.to_owned(), value)).into()
}

#[test]
fn each_row_counts_once_and_sums_never_decrease() {
    let mut connection = database();
    let run = begin(&mut connection, Command::Gc, 0);
    let steps = [
        (0, deletion(None)),
        (0, deletion(Some(90))),
        (0, deletion(Some(90))),
        // Other processes wrote more than the deletion freed.
        (1, deletion(None)),
        (1, deletion(Some(-5000))),
        (2, DeletionRow { byproduct_bytes: 7, ..deletion(Some(100)) }),
        (2, DeletionRow { byproduct_bytes: 9, ..deletion(Some(100)) }),
        // The same deletion again, with smaller values.
        (2, DeletionRow { byproduct_bytes: 3, ..deletion(Some(40)) }),
        (3, DeletionRow { error: Some("in use".into()), ..deletion(None) }),
        (4, DeletionRow { kind: TargetKind::Leak, ..deletion(Some(0)) }),
        // Spoiled measurements count as predicted.
        (5, deletion(None)),
        (5, DeletionRow { others_wrote: true, ..deletion(Some(90_000)) }),
        (5, DeletionRow { others_wrote: true, ..deletion(Some(90_000)) }),
        (6, DeletionRow { others_wrote: true, ..deletion(Some(-90_000)) }),
    ];
    let mut before = BTreeMap::new();
    for (position, deletion) in steps {
        put(&mut connection, |tx| runs::deleted(tx, run, position, &deletion));
        let now = sums(&connection);
        for (name, value) in &before {
            assert!(now[name] >= *value, "{name} went down: {value}, {now:?}");
        }
        before = now;
    }
    for outcome in [OutcomeKind::Reached, OutcomeKind::Failed] {
        put(&mut connection, |tx| runs::end(tx, run, &RunEnd::of(at(9), outcome)));
    }
    assert_eq!(
        sums(&connection),
        expected([
            ("runs gc reached", 1),
            ("deletions gc image", 5),
            ("deletions gc leak", 1),
            ("failures gc image", 1),
            ("freed_bytes gc image", 390),
            ("freed_bytes gc byproduct", 9),
            ("freed_bytes gc leak", 0),
            ("predicted_bytes gc image", 500),
            ("predicted_bytes gc leak", 100),
        ])
    );
}

#[test]
fn run_without_end_is_killed_when_another_begins() {
    let mut connection = database();
    let first = begin(&mut connection, Command::Gc, 0);
    put(&mut connection, |tx| {
        runs::record(tx, &Start::of(Command::Scan, at(5)), &RunEnd::of(at(6), OutcomeKind::Done))
    });
    assert_eq!(sums(&connection), expected([("runs scan done", 1)]));
    let second = begin(&mut connection, Command::Sweep, 10);
    let killed = expected([("runs gc killed", 1), ("runs scan done", 1)]);
    assert_eq!(sums(&connection), killed);
    // Its end is saved late: it is counted as killed already.
    put(&mut connection, |tx| runs::end(tx, first, &RunEnd::of(at(9), OutcomeKind::Reached)));
    assert_eq!(sums(&connection), killed);
    // A run that is saved late does not make later runs killed.
    begin(&mut connection, Command::Rm, 1);
    put(&mut connection, |tx| runs::end(tx, second, &RunEnd::of(at(19), OutcomeKind::Done)));
    assert_eq!(sums(&connection)["runs sweep done"], 1);
    begin(&mut connection, Command::Rm, 30);
    assert_eq!(sums(&connection)["runs rm killed"], 1);
}

#[test]
fn sums_survive_the_deletion_of_rows() {
    let mut connection = database();
    let day = 86_400;
    for number in 0..900 {
        put(&mut connection, |tx| {
            let now = number * day;
            let start = Start::of(Command::Gc, at(now));
            let run = runs::begin(tx, &start)?;
            runs::deleted(tx, run, 0, &deletion(Some(10)))?;
            runs::end(tx, run, &RunEnd::of(at(now + 5), OutcomeKind::Reached))?;
            runs::record(
                tx,
                &Start::of(Command::Scan, at(now + 9)),
                &RunEnd::of(at(now + 10), OutcomeKind::Done),
            )?;
            runs::thin(tx, at(now + 10))
        });
    }
    let rows: i64 = connection.query_row("SELECT count(*) FROM deletions", [], |row| row.get(0)).unwrap();
    assert!(rows < 800, "no row was deleted: {rows}");
    let sums = sums(&connection);
    assert_eq!((sums["runs gc reached"], sums["runs scan done"]), (900, 900));
    assert_eq!((sums["freed_bytes gc image"], sums["predicted_bytes gc image"]), (9000, 90_000));
    assert_eq!(last_runs(&connection).unwrap().len(), 1);
}

#[test]
fn new_database_after_damage_starts_at_zero() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = kept(dir.path());
    let scan = |records: &mut Records| {
        records
            .write(|tx| {
                runs::record(tx, &Start::of(Command::Scan, at(0)), &RunEnd::of(at(1), OutcomeKind::Done))?;
                Ok(sums(tx))
            })
            .unwrap()
    };
    scan(&mut records);
    assert_eq!(scan(&mut records), expected([("runs scan done", 2)]));
    drop(records);
    std::fs::write(dir.path().join(files::DATABASE), "no database").unwrap();
    let mut records = kept(dir.path());
    assert_eq!(scan(&mut records), expected([("runs scan done", 1)]));
}

#[test]
fn last_run_has_wall_clock_times() {
    let mut connection = database();
    // The wall clock was set back by an hour; record time never is.
    connection
        .execute(
            "INSERT INTO clock (id, record_time, wall, boot_id, since_boot, leaps) VALUES (1, ?1, ?2, 'b', 1, '[]')",
            [at(7200).as_microsecond(), at(3600).as_microsecond()],
        )
        .unwrap();
    assert!(known::clock(&connection).unwrap().is_some());
    put(&mut connection, |tx| {
        runs::record(tx, &Start::of(Command::Gc, at(7000)), &RunEnd::of(at(7100), OutcomeKind::NotNeeded))
    });
    let start = Start { usage: vec![change(None)], ..Start::of(Command::Gc, at(7200)) };
    let run = put(&mut connection, |tx| runs::begin(tx, &start));
    let last = last_runs(&connection).unwrap().remove(0);
    assert_eq!((last.time, last.outcome), (at(3600), None));
    assert_eq!(last.seconds, None);
    let end = RunEnd { usage: vec![change(Some(70.5))], ..RunEnd::of(at(7260), OutcomeKind::NotReached) };
    put(&mut connection, |tx| runs::end(tx, run, &end));
    let last = last_runs(&connection).unwrap().remove(0);
    assert_eq!(last.time, at(3600) + SignedDuration::from_secs(60));
    assert_eq!((last.outcome, last.usage), (Some(OutcomeKind::NotReached), vec![change(Some(70.5))]));
    assert_eq!((last.seconds, last.deletions), (Some(60.0), 0));
}
