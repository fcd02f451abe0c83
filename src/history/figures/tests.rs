use super::*;
use crate::history::scan_record::{ScanRecord, ScanRun, SeenStore};
use crate::history::schema;
use crate::model::{Consistency, StoreKind};
use crate::sys::clock::ClockReading;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_772_366_400 + seconds).unwrap()
}

fn key(root: &str) -> StoreId {
    StoreId::new(StoreKind::ContainersStorage, root.into(), "overlay".into())
}

fn database(roots: &[&str]) -> Connection {
    let mut connection = Connection::open_in_memory().unwrap();
    schema::fill(&mut connection).unwrap();
    for root in roots {
        connection
            .execute(
                "INSERT INTO stores (kind, root, driver, first_seen, last_seen)
                 VALUES ('containers-storage', ?1, 'overlay', 1, 1)",
                [root],
            )
            .unwrap();
    }
    connection
}

/// A scan of these stores, each with so many layers.
fn scan(connection: &mut Connection, seconds: i64, all: bool, stores: &[(&str, u64)]) {
    let clock =
        ClockReading { wall: at(seconds + 1), boot_id: "b".into(), since_boot: 0, synchronised: true };
    let nothing = Inventory::default();
    let mut record = ScanRecord::new(&nothing, &Refs::new(&nothing), at(seconds + 1), clock, None);
    let seen = |root| SeenStore { key: key(root), consistency: Consistency::Consistent };
    record.stores = stores.iter().map(|(root, _)| seen(root)).collect();
    let figures =
        stores.iter().map(|(_, layers)| Figures { layers: *layers, ..Figures::default() }).collect();
    let scan = ScanRun { run_id: "r".into(), record, seconds: 0.5, complete: true, figures, all_stores: all };
    let tx = connection.transaction().unwrap();
    crate::history::scans::remember(&tx, at(seconds), &scan).unwrap();
    tx.commit().unwrap();
}

fn layers(connection: &Connection) -> Vec<(String, u64)> {
    let all = all(connection).unwrap().stores.into_iter();
    all.map(|one| (one.key.root().to_string_lossy().into_owned(), one.figures.layers)).collect()
}

fn list(stores: &[(&str, u64)]) -> Vec<(String, u64)> {
    stores.iter().map(|(root, layers)| ((*root).to_owned(), *layers)).collect()
}

#[test]
fn the_last_scan_is_what_is_remembered() {
    let mut connection = database(&["/a", "/b"]);
    scan(&mut connection, 10, true, &[("/a", 1), ("/b", 2)]);
    scan(&mut connection, 20, true, &[("/a", 3), ("/b", 4)]);
    // It had waited to be saved.
    scan(&mut connection, 15, true, &[("/a", 9)]);
    assert_eq!(layers(&connection), list(&[("/a", 3), ("/b", 4)]));
    let first = all(&connection).unwrap().stores.remove(0);
    assert_eq!((first.scanned, first.seconds), (at(21), 0.5));
    // One store was named, or not everything could be read: nothing follows for the other.
    scan(&mut connection, 30, false, &[("/a", 5)]);
    assert_eq!(layers(&connection), list(&[("/a", 5), ("/b", 4)]));
    // All were looked for.
    scan(&mut connection, 40, true, &[("/a", 6)]);
    assert_eq!(layers(&connection), list(&[("/a", 6)]));
    // An older scan of a store that has gone since.
    scan(&mut connection, 35, true, &[("/b", 7), ("/a", 7)]);
    assert_eq!(layers(&connection)[0], ("/a".to_owned(), 6));
    // The last one goes, too.
    scan(&mut connection, 50, false, &[]);
    assert!(!layers(&connection).is_empty());
    scan(&mut connection, 60, true, &[]);
    assert!(layers(&connection).is_empty());
}

#[test]
fn what_a_newer_version_adds_is_no_damage_and_what_is_none_is() {
    let mut connection = database(&["/a", "/b"]);
    scan(&mut connection, 10, true, &[("/a", 1), ("/b", 2)]);
    let put = |text: &str| {
        connection.execute("UPDATE store_figures SET figures = ?1 WHERE store = 1", [text]).unwrap();
        let all = all(&connection).unwrap();
        assert_eq!(all.stores.last().unwrap().figures.layers, 2, "the other one is as it was");
        (all.stores.len(), all.unreadable)
    };
    let newer = r#"{"mount":"/","read_only":false,"complete":true,"bytes":{"images":5},"colour":"red"}"#;
    assert_eq!(put(newer), (2, 0));
    assert_eq!(put("[]"), (1, 1));
    assert_eq!(put("{"), (1, 1));
    assert_eq!(put(newer), (2, 0));
    connection.execute("UPDATE store_figures SET wall = 9000000000000000000 WHERE store = 1", []).unwrap();
    assert_eq!(all(&connection).unwrap().unreadable, 1);
    scan(&mut connection, 20, true, &[("/a", 3), ("/b", 4)]);
    assert_eq!(layers(&connection), list(&[("/a", 3), ("/b", 4)]), "the next scan fixes it");
}
