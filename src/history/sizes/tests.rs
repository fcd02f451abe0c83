use std::time::{Duration, Instant};

use super::*;
use crate::disk::inode_chunks::Window;
use crate::disk::kept::{KeptEntry, KeptGroup};
use crate::history::{Access, Records};
use crate::model::StoreKind;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn open(dir: &tempfile::TempDir) -> Records {
    Records::open(dir.path(), Access::Write).unwrap()
}

fn stored(records: &mut Records, to_keep: &ToKeep, at: Timestamp) -> Remembered {
    records.write(|transaction| store(transaction, to_keep, at)).unwrap();
    records.read(|connection| load(connection, 7)).unwrap()
}

fn a_store(root: &str) -> StoreId {
    StoreId::new(StoreKind::ContainersStorage, root.into(), "overlay".into())
}

fn group(number: u64) -> KeptGroup {
    let members = vec![Fingerprint([1; 16]), Fingerprint([2; 16])];
    KeptGroup { members, tally: Tally { bytes: number, inodes: 3, ..Tally::default() } }
}

fn entry(number: u64, windows: u64) -> KeptEntry {
    let window = |at| Window { device: 2049, window: number * 1000 + at * 3, inodes: u64::MAX >> (at % 5) };
    let unit = KeptUnit {
        record: Fingerprint([1; 16]),
        evidence: Fingerprint([number.to_le_bytes()[0]; 16]),
        how: How { extents: Extents::Probe, inode_chunks: true },
        measured_at: now(),
        settled: true,
        tally: Tally { bytes: number * 4096, inodes: 60, ..Tally::default() },
        inodes: UnitInodes::new((0..windows).map(window).collect()),
        groups: if number % 7 == 2 { vec![group(number)] } else { Vec::new() },
    };
    let id = format!("{number:064}");
    KeptEntry { key: UnitKey { tag: "layer".into(), id }, unit: Arc::new(unit), changed: true }
}

fn keeping(root: &str, entries: Vec<KeptEntry>) -> ToKeep {
    ToKeep { stores: vec![(a_store(root), entries)], outside: None }
}

/// What [`load`] should give.
fn expected(all: &[&ToKeep]) -> Remembered {
    let mut remembered = Remembered { seed: 7, ..Remembered::default() };
    for to_keep in all {
        for (store, entries) in &to_keep.stores {
            let entries = entries.iter().map(|one| (one.key.clone(), Arc::clone(&one.unit)));
            remembered.stores.insert(store.clone(), entries.collect());
        }
        remembered.outside.extend(to_keep.outside.clone());
    }
    remembered
}

#[test]
fn what_was_kept_is_remembered_and_what_is_gone_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = open(&dir);
    assert_eq!(records.read(|connection| load(connection, 7)).unwrap(), expected(&[]));
    let groups = [Fingerprint([3; 16]), Fingerprint([4; 16])].into_iter().collect();
    let outside = Some((scope(&[a_store("/a")]), groups));
    let first = ToKeep { outside, ..keeping("/a", vec![entry(1, 3), entry(2, 0), entry(3, 9)]) };
    assert_eq!(stored(&mut records, &first, now()), expected(&[&first]));
    let other = keeping("/b", vec![entry(1, 1)]);
    assert_eq!(stored(&mut records, &other, now()), expected(&[&first, &other]));
    // Layer 1 is gone, layer 2 is another; nobody outside shares any more.
    let mut second = keeping("/a", vec![entry(2, 5), KeptEntry { changed: false, ..entry(3, 9) }]);
    assert_eq!(stored(&mut records, &second, now()).outside, expected(&[&first]).outside);
    second.outside = Some((scope(&[a_store("/a")]), HashSet::new()));
    assert_eq!(stored(&mut records, &second, now()), expected(&[&second, &other]));
}

#[test]
fn only_what_changed_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = open(&dir);
    let all: Vec<_> = (0..100).map(|number| entry(number, 2)).collect();
    let first = keeping("/a", all.clone());
    stored(&mut records, &first, now());
    let again: Vec<_> = all.into_iter().map(|one| KeptEntry { changed: false, ..one }).collect();
    let mut again = keeping("/a", again);
    let changes = |records: &mut Records, to_keep: &ToKeep| {
        let count = |transaction: &Transaction<'_>| {
            let before = transaction.total_changes();
            store(transaction, to_keep, now())?;
            Ok(transaction.total_changes() - before)
        };
        records.write(count).unwrap()
    };
    assert_eq!(changes(&mut records, &again), 0);
    again.stores[0].1[5] = entry(5, 3);
    assert_eq!(changes(&mut records, &again), 1);
    // A row that somebody took away is written again.
    records.write(|transaction| transaction.execute("DELETE FROM layer_sizes WHERE id = 9", [])).unwrap();
    again.stores[0].1[5].changed = false;
    assert_eq!(changes(&mut records, &again), 1);
    assert_eq!(records.read(|connection| load(connection, 7)).unwrap(), expected(&[&again]));
}

#[test]
fn stores_that_nobody_meets_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = open(&dir);
    let outside = |root: &str| Some((scope(&[a_store(root)]), HashSet::new()));
    let old = ToKeep { outside: outside("/old"), ..keeping("/old", vec![entry(1, 1)]) };
    let met = ToKeep { outside: outside("/met"), ..keeping("/met", vec![entry(1, 1)]) };
    stored(&mut records, &old, now());
    let quiet = ToKeep { outside: None, ..met.clone() };
    for day in 0..=30 {
        let at = now() + SignedDuration::from_hours(24 * day);
        let remembered = stored(&mut records, if day == 0 { &met } else { &quiet }, at);
        assert_eq!(remembered, expected(&[&old, &met]), "day {day}");
    }
    let later = now() + SignedDuration::from_hours(24 * 31);
    assert_eq!(stored(&mut records, &quiet, later), expected(&[&met]));
}

#[test]
fn a_row_that_was_changed_counts_as_absent() {
    let damages = [
        "bytes = bytes + 1",
        "bytes = -1",
        "inodes = inodes - 1",
        "unit = 'another'",
        "tag = 'snapshot'",
        "settled = 0",
        "extents = 2",
        "extents = 3",
        "measured = 9223372036854775807",
        "measured = measured + 1",
        "inode_chunks = 0",
        "held = x'01'",
        "held = x''",
        "held = zeroblob(100000)",
        "groups = x''",
        "groups = x'0101'",
        "evidence = x'00'",
        "record = zeroblob(16)",
        "seal = zeroblob(16)",
        "seal = x''",
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut records = open(&dir);
    let both = keeping("/a", vec![entry(1, 3), entry(2, 3)]);
    let one = keeping("/a", vec![entry(2, 3)]);
    for damage in damages {
        stored(&mut records, &both, now());
        let sql = format!("UPDATE layer_sizes SET {damage} WHERE unit = ?1");
        let changed =
            records.write(|transaction| transaction.execute(&sql, [&both.stores[0].1[0].key.id])).unwrap();
        assert_eq!(changed, 1, "{damage}");
        assert_eq!(records.read(|connection| load(connection, 7)).unwrap(), expected(&[&one]), "{damage}");
        // The next scan measures the layer, and the row is whole again.
        assert_eq!(stored(&mut records, &both, now()), expected(&[&both]), "{damage}");
    }
    let foreign = "UPDATE size_stores SET kind = 'docker'";
    records.write(|transaction| transaction.execute(foreign, [])).unwrap();
    assert_eq!(records.read(|connection| load(connection, 7)).unwrap(), expected(&[]));
}

#[test]
fn ten_thousand_layers_load_in_a_moment() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = open(&dir);
    // 600,000 inodes, with a window of its own for every twenty of them.
    let all = keeping("/a", (0..10_000).map(|number| entry(number, 3)).collect());
    stored(&mut records, &all, now());
    let started = Instant::now();
    let remembered = records.read(|connection| load(connection, 7)).unwrap();
    let took = started.elapsed();
    assert_eq!(remembered.stores[&a_store("/a")].len(), 10_000);
    let size = std::fs::metadata(dir.path().join(crate::history::DATABASE)).unwrap().len();
    assert!(size < 12 << 20, "{size} bytes");
    // Without optimisation, on a machine that does other things.
    assert!(took < Duration::from_secs(3), "{took:?}");
    #[allow(clippy::print_stderr)] // the test harness shows it
    {
        eprintln!("{took:?}, {size} bytes");
    }
}
