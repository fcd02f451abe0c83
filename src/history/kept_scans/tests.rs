use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::Connection;

use super::*;
use crate::history::runs::{Command, OutcomeKind, RunEnd, Start, record};
use crate::history::schema;
use crate::model::documents::scan_summary::{Key, SummaryEntry, SummaryStore};

const HOUR: i64 = 3600;
const DAY: i64 = 86_400;
const BEGIN: i64 = 1_767_225_600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(BEGIN + second).unwrap()
}

fn database() -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::fill(&mut connection).unwrap();
    connection
}

/// The summary of a store with these layers.
fn summary(layers: &[(String, u64)]) -> ScanSummary {
    summary_of("/store", layers)
}

fn summary_of(root: &str, layers: &[(String, u64)]) -> ScanSummary {
    let place =
        SummaryStore { kind: "containers-storage".into(), root: root.into(), driver: "overlay".into() };
    let place = Arc::new(place);
    let mut entries = BTreeMap::new();
    for (id, bytes) in layers {
        let key = Key { place: place.clone(), kind: SummaryKind::Layer, id: id.clone() };
        entries.insert(key, SummaryEntry { bytes: *bytes, inodes: 2, extra: 1, name: "layer".into() });
    }
    let sum = layers.iter().map(|(_, bytes)| bytes).sum();
    entries.insert(Key { place, kind: SummaryKind::Share, id: "images".into() }, SummaryEntry::of_bytes(sum));
    entries.insert(
        Key { place: Arc::default(), kind: SummaryKind::Filesystem, id: format!("/fs{root}") },
        SummaryEntry { bytes: 2 * sum, inodes: 0, extra: 1 << 40, name: "xfs".into() },
    );
    ScanSummary { complete: true, entries, ..ScanSummary::default() }
}

fn packed(summary: &ScanSummary) -> Packed {
    Packed::new(summary.clone()).unwrap()
}

fn layer(number: u64) -> String {
    format!("{number:064x}")
}

fn scan(connection: &mut Connection, second: i64, summary: &ScanSummary) -> String {
    let run_id = recorded(connection, second);
    let tx = connection.transaction().unwrap();
    let scan = Scanned { run_id: &run_id, started: at(second), all_stores: true };
    store(&tx, &scan, &packed(summary)).unwrap();
    tx.commit().unwrap();
    run_id
}

/// Records a scan without keeping its summary; returns its id.
fn recorded(connection: &mut Connection, second: i64) -> String {
    let tx = connection.transaction().unwrap();
    let start = Start::of(Command::Scan, at(second));
    record(&tx, &start, &RunEnd::of(at(second), OutcomeKind::Done)).unwrap();
    tx.commit().unwrap();
    start.run_id
}

fn keep(connection: &mut Connection, run_id: &str, second: i64, all_stores: bool, summary: &ScanSummary) {
    let tx = connection.transaction().unwrap();
    store(&tx, &Scanned { run_id, started: at(second), all_stores }, &packed(summary)).unwrap();
    tx.commit().unwrap();
}

#[test]
fn kept_summaries_are_loaded_unchanged() {
    let mut connection = database();
    let first = summary(&[(layer(1), 100), ("sha256:short".into(), 7), ("A".repeat(64), 8)]);
    scan(&mut connection, 0, &first);
    for hour in 1..10 {
        scan(&mut connection, hour * HOUR, &first);
    }
    let second = summary(&[(layer(1), 120), (layer(2), 5)]);
    scan(&mut connection, 10 * HOUR, &second);
    scan(&mut connection, 11 * HOUR, &first);
    let scans = all(&connection).unwrap();
    assert_eq!(scans.len(), 12);
    for (number, scan) in scans.iter().enumerate() {
        let expected = if number == 10 { &second } else { &first };
        assert_eq!(&load(&connection, scan).unwrap().summary, expected, "{number}");
        assert_eq!(scan.bytes, expected.bytes());
    }
    // Keeping the same scan twice changes nothing.
    let last = scans.last().unwrap();
    keep(&mut connection, &last.run_id, 11 * HOUR, true, &second);
    assert_eq!(all(&connection).unwrap(), scans);
    assert_eq!(load(&connection, last).unwrap().summary, first);
}

/// A scan every half hour for forty days.
#[test]
fn scans_of_minutes_hours_and_days_are_kept() {
    let mut connection = database();
    let seen = summary(&[(layer(1), 1)]);
    for number in 0..40 * 48 {
        scan(&mut connection, number * HOUR / 2, &seen);
    }
    let now = 40 * DAY - HOUR / 2;
    let kept: Vec<_> = all(&connection).unwrap().iter().map(|scan| scan.at.as_second() - BEGIN).collect();
    let is_last_of = |span: i64, second: &i64| (second + HOUR / 2) % span == 0;
    let expected: Vec<_> = (0..40 * 48)
        .map(|number| number * HOUR / 2)
        .filter(|second| {
            *second > now - DAY && is_last_of(HOUR, second)
                || *second > now - 30 * DAY && is_last_of(DAY, second)
                || *second > now - 2 * HOUR
        })
        .collect();
    assert_eq!(kept, expected);
    assert_eq!(kept.len(), 24 + 2 + 29, "hours, others of the last two hours, days");
    // A timer of minutes: the first scan stays while it is the only one of its time.
    let mut connection = database();
    for minute in 0..12 {
        scan(&mut connection, minute * 60, &seen);
    }
    let kept: Vec<_> = all(&connection).unwrap().iter().map(|scan| scan.at.as_second() - BEGIN).collect();
    assert_eq!(kept, [0, 600, 660]);
    assert!(all(&connection).unwrap().iter().all(|scan| load(&connection, scan).unwrap().summary == seen));
}

#[test]
fn unscanned_stores_are_copied_from_previous_scan() {
    let mut connection = database();
    let (here, there) = (summary_of("/a", &[(layer(1), 5)]), summary_of("/b", &[(layer(2), 7)]));
    let changed = summary_of("/b", &[(layer(3), 8)]);
    let both = |first: &ScanSummary, second: &ScanSummary| {
        let entries = first.entries.clone().into_iter().chain(second.entries.clone());
        ScanSummary { complete: true, entries: entries.collect(), ..ScanSummary::default() }
    };
    scan(&mut connection, 0, &both(&here, &there));
    for (second, all_stores, seen, expected) in [
        (1, false, &here, both(&here, &there)),
        (2, false, &changed, both(&here, &changed)),
        (3, true, &both(&here, &changed), both(&here, &changed)),
        (4, true, &changed, changed.clone()),
    ] {
        let run_id = recorded(&mut connection, second);
        keep(&mut connection, &run_id, second, all_stores, seen);
        let last = all(&connection).unwrap().pop().unwrap();
        assert_eq!(load(&connection, &last).unwrap().summary, expected, "{second}");
        assert_eq!(last.bytes, expected.bytes(), "{second}");
    }
}

#[test]
fn summary_is_stored_under_its_own_scan() {
    let mut connection = database();
    let (first, second) = (summary(&[(layer(1), 1)]), summary(&[(layer(2), 2)]));
    // Both scans are recorded before either is kept, as by two processes.
    let ids = [recorded(&mut connection, 0), recorded(&mut connection, 1)];
    keep(&mut connection, &ids[0], 0, true, &first);
    keep(&mut connection, &ids[1], 1, true, &second);
    let scans = all(&connection).unwrap();
    for (scan, (id, expected)) in scans.iter().zip(ids.iter().zip([&first, &second])) {
        assert_eq!((&scan.run_id, &load(&connection, scan).unwrap().summary), (id, expected));
    }
}

#[test]
fn damaged_rows_do_not_prevent_keeping_scans() {
    let seen = summary(&[(layer(1), 1)]);
    for damage in [
        "UPDATE kept_scans SET at = 9223372036854775807",
        "UPDATE kept_scans SET summary = x'00'",
        "UPDATE kept_scans SET summary = x'7b7d'",
        "UPDATE kept_scans SET outline = '?'",
    ] {
        let mut connection = database();
        scan(&mut connection, 0, &seen);
        connection.execute_batch(damage).unwrap();
        for (second, all_stores) in [(1, false), (2, true)] {
            let run_id = recorded(&mut connection, second);
            keep(&mut connection, &run_id, second, all_stores, &seen);
            let last = all(&connection).unwrap().pop().unwrap();
            assert_eq!(last.run_id, run_id, "{damage}");
            assert_eq!(load(&connection, &last).unwrap().summary, seen, "{damage}");
        }
    }
}

#[test]
fn scans_are_found_by_name() {
    let mut connection = database();
    assert_eq!(find(&all(&connection).unwrap(), &ScanName::Last(0)), Err(Missing::None));
    let summary = summary(&[(layer(1), 1)]);
    let ids: Vec<_> = (0..3).map(|hour| scan(&mut connection, hour * HOUR, &summary)).collect();
    let scans = all(&connection).unwrap();
    let find_id = |name: ScanName| find(&scans, &name).map(|scan| scan.run_id.clone());
    assert_eq!(find_id(ScanName::Last(0)).as_ref(), Ok(&ids[2]));
    assert_eq!(find_id(ScanName::Last(2)).as_ref(), Ok(&ids[0]));
    assert_eq!(find_id(ScanName::Last(3)), Err(Missing::Few(3)));
    assert_eq!(find_id(ScanName::Id(ids[1].clone())).as_ref(), Ok(&ids[1]));
    assert_eq!(find_id(ScanName::Id(ids[1][..14].into())).as_ref(), Ok(&ids[1]));
    assert!(
        matches!(find_id(ScanName::Id("2026".into())), Err(Missing::Ambiguous(several)) if several.len() == 3)
    );
    assert_eq!(find_id(ScanName::Id("1999".into())), Err(Missing::Unknown));
    assert_eq!(find_id(ScanName::At(at(HOUR + 1))).as_ref(), Ok(&ids[1]));
    assert_eq!(find_id(ScanName::At(at(-1))), Err(Missing::Later(at(0))));
}

fn size(connection: &Connection) -> i64 {
    let sql = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// A store of 2,000 images and 20,000 layers.
#[test]
fn summary_of_a_large_store_is_small() {
    let mut connection = database();
    let empty = size(&connection);
    let layers: Vec<_> = (0..20_000).map(|number| (layer(number), number)).collect();
    let mut summary = summary(&layers);
    let place = summary.entries.keys().find(|key| key.kind == SummaryKind::Layer).unwrap().place.clone();
    for image in 0..2_000 {
        let name = format!("registry.example.org/team-{}/service:{image}", image % 50);
        let key = Key { place: place.clone(), kind: SummaryKind::Image, id: layer(image) };
        summary.entries.insert(key, SummaryEntry { extra: image, name, ..SummaryEntry::of_bytes(image) });
    }
    scan(&mut connection, 0, &summary);
    let bytes = size(&connection) - empty;
    assert!(bytes < 3 << 20, "{bytes}");
    assert_eq!(load(&connection, &all(&connection).unwrap()[0]).unwrap().summary, summary);
}
