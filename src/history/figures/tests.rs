use super::*;
use crate::history::scan_run::ScanRun;
use crate::history::schema;
use crate::model::{Consistency, Store, StoreKind};
use crate::sys::clock::ClockReading;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_772_366_400 + seconds).unwrap()
}

fn store(root: &str) -> Store {
    Store {
        kind: StoreKind::ContainersStorage,
        root: root.into(),
        driver: "overlay".into(),
        filesystem: 0.into(),
        read_only: false,
        origin: String::new(),
        consistency: Consistency::Consistent,
    }
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

/// Records a scan of these stores, each with a number of layers.
fn scan(connection: &mut Connection, seconds: i64, all: bool, stores: &[(&str, u64)]) {
    let clock =
        ClockReading { wall: at(seconds + 1), boot_id: "b".into(), since_boot: 0, synchronised: true };
    let inventory =
        Inventory { stores: stores.iter().map(|(root, _)| store(root)).collect(), ..Inventory::default() };
    let refs = Refs::new(&inventory);
    let figures = stores.iter().map(|(_, layers)| Figures { layers: *layers, ..Figures::default() });
    let scan = ScanRun {
        seconds: 0.5,
        complete: true,
        figures: figures.collect(),
        all_stores: all,
        ..ScanRun::new("r".into(), (&inventory, &refs), at(seconds + 1), clock, None)
    };
    let tx = connection.transaction().unwrap();
    crate::history::scans::remember(&tx, at(seconds), &scan).unwrap();
    tx.commit().unwrap();
}

fn layers(connection: &Connection) -> Vec<(String, u64)> {
    let all = all(connection).unwrap().stores.into_iter();
    all.map(|store| (store.key.root().to_string_lossy().into_owned(), store.figures.layers)).collect()
}

fn list(stores: &[(&str, u64)]) -> Vec<(String, u64)> {
    stores.iter().map(|(root, layers)| ((*root).to_owned(), *layers)).collect()
}

#[test]
fn figures_of_the_last_scan_are_stored() {
    let mut connection = database(&["/a", "/b"]);
    scan(&mut connection, 10, true, &[("/a", 1), ("/b", 2)]);
    scan(&mut connection, 20, true, &[("/a", 3), ("/b", 4)]);
    // This scan is earlier: it waited in the queue.
    scan(&mut connection, 15, true, &[("/a", 9)]);
    assert_eq!(layers(&connection), list(&[("/a", 3), ("/b", 4)]));
    let first = all(&connection).unwrap().stores.remove(0);
    assert_eq!((first.scanned, first.seconds), (at(21), 0.5));
    // Only one store was scanned: the other keeps its figures.
    scan(&mut connection, 30, false, &[("/a", 5)]);
    assert_eq!(layers(&connection), list(&[("/a", 5), ("/b", 4)]));
    // All stores were scanned, and the other was not found.
    scan(&mut connection, 40, true, &[("/a", 6)]);
    assert_eq!(layers(&connection), list(&[("/a", 6)]));
    // An earlier scan of a store that has been removed since.
    scan(&mut connection, 35, true, &[("/b", 7), ("/a", 7)]);
    assert_eq!(layers(&connection)[0], ("/a".to_owned(), 6));
    // The last store is removed too.
    scan(&mut connection, 50, false, &[]);
    assert!(!layers(&connection).is_empty());
    scan(&mut connection, 60, true, &[]);
    assert!(layers(&connection).is_empty());
}

#[test]
fn newer_fields_are_ignored_and_damage_is_counted() {
    let mut connection = database(&["/a", "/b"]);
    scan(&mut connection, 10, true, &[("/a", 1), ("/b", 2)]);
    let put = |text: &str| {
        connection.execute("UPDATE store_figures SET figures = ?1 WHERE store = 1", [text]).unwrap();
        let all = all(&connection).unwrap();
        assert_eq!(all.stores.last().unwrap().figures.layers, 2, "the other store is unchanged");
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
    assert_eq!(layers(&connection), list(&[("/a", 3), ("/b", 4)]), "the next scan replaces it");
}

#[test]
fn namespaces_have_bounded_cardinality() {
    let names = (0..1000_u64).map(|number| (format!("ns-{number}"), number)).chain([(NONE.to_owned(), 5)]);
    let largest = largest_namespaces(names, 2);
    let expected = [(NONE, 5), (OTHER, 997 * 998 / 2), ("ns-998", 998), ("ns-999", 999)];
    assert_eq!(largest, expected.map(|(name, bytes)| (name.to_owned(), bytes)).into());
    // Fewer of stored ones: the sum stays the same.
    let fewer = largest_namespaces(largest, 1);
    let expected = [(NONE, 5), (OTHER, 997 * 998 / 2 + 998), ("ns-999", 999)];
    assert_eq!(fewer, expected.map(|(name, bytes)| (name.to_owned(), bytes)).into());
}
