use super::*;
use crate::disk::size_cache::CachedSize;
use crate::disk::{Fingerprint, Tally};
use crate::history::Records;
use crate::history::db::tests::kept;
use crate::model::StoreKind;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn loaded(records: &Records) -> SizeCache {
    records.read(|connection| load(connection, 7)).unwrap()
}

fn stored(records: &mut Records, stores: &[(StoreId, Option<StoreSizes>)], now: Timestamp) -> SizeCache {
    records.write(|transaction| store(transaction, stores, now)).unwrap();
    loaded(records)
}

fn a_store(root: &str) -> StoreId {
    StoreId::new(StoreKind::ContainersStorage, root.into(), "overlay".into())
}

fn sizes(layers: u8) -> StoreSizes {
    let layers = (0..layers).map(|number| {
        let size = CachedSize {
            stamp: Fingerprint([number; 16]),
            extents: None,
            inode_chunks: true,
            tally: Tally { bytes: u64::from(number) * 4096, inodes: 60, ..Tally::default() },
            inodes: Box::default(),
        };
        (Fingerprint([number; 16]), size)
    });
    StoreSizes { layers: layers.collect() }
}

fn expected(stores: &[(&str, u8)]) -> SizeCache {
    let stores = stores.iter().map(|(root, layers)| (a_store(root), sizes(*layers)));
    SizeCache { stores: stores.collect(), seed: 7, settled_after: SETTLED_AFTER }
}

#[test]
fn stores_are_replaced_or_left_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = kept(dir.path());
    assert_eq!(loaded(&records), expected(&[]));
    let both = [(a_store("/a"), Some(sizes(3))), (a_store("/b"), Some(sizes(1)))];
    assert_eq!(stored(&mut records, &both, now()), expected(&[("/a", 3), ("/b", 1)]));
    let later = [(a_store("/a"), Some(sizes(2))), (a_store("/b"), None)];
    assert_eq!(stored(&mut records, &later, now()), expected(&[("/a", 2), ("/b", 1)]));
    // A damaged row counts as missing.
    let damage = "UPDATE layer_sizes SET sizes = x'0102' WHERE root = '/a'";
    assert_eq!(records.write(|transaction| transaction.execute(damage, [])).unwrap(), 1);
    assert_eq!(loaded(&records), expected(&[("/b", 1)]));
}

#[test]
fn stores_not_found_for_a_month_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = kept(dir.path());
    let both = [(a_store("/old"), Some(sizes(1))), (a_store("/found"), Some(sizes(1)))];
    let all = stored(&mut records, &both, now());
    let found = [(a_store("/found"), None)];
    for day in 0..=30 {
        let now = now() + SignedDuration::from_hours(24 * day);
        assert_eq!(stored(&mut records, &found, now), all, "day {day}");
    }
    let later = now() + SignedDuration::from_hours(24 * 31);
    assert_eq!(stored(&mut records, &found, later), expected(&[("/found", 1)]));
}
