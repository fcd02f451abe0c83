use super::*;
use crate::disk::size_cache::CachedSize;
use crate::disk::{Extents, Fingerprint, Tally};
use crate::history::Records;
use crate::history::db::tests::kept;
use crate::model::StoreKind;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn loaded(records: &Records) -> SizeCache {
    records.read(|connection| load(connection, 7)).unwrap()
}

fn stored(records: &mut Records, stores: &[(StoreId, Option<StoreSizes>)], at: Timestamp) -> SizeCache {
    records.write(|transaction| store(transaction, stores, at)).unwrap();
    loaded(records)
}

fn a_store(root: &str) -> StoreId {
    StoreId::new(StoreKind::ContainersStorage, root.into(), "overlay".into())
}

fn sizes(layers: u8) -> StoreSizes {
    let size = |number: u8| CachedSize {
        stamp: Fingerprint([number; 16]),
        extents: Extents::Probe,
        inode_chunks: true,
        tally: Tally { bytes: u64::from(number) * 4096, inodes: 60, ..Tally::default() },
        inodes: Box::default(),
    };
    let layers = (0..layers).map(|number| (Fingerprint([number; 16]), size(number)));
    StoreSizes { layers: layers.collect() }
}

fn expected(stores: &[(&str, u8)]) -> SizeCache {
    let stores = stores.iter().map(|(root, layers)| (a_store(root), sizes(*layers)));
    SizeCache { stores: stores.collect(), seed: 7, settled_after: SETTLED_AFTER }
}

#[test]
fn stores_are_replaced_and_left_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = kept(dir.path());
    assert_eq!(loaded(&records), expected(&[]));
    let both = [(a_store("/a"), Some(sizes(3))), (a_store("/b"), Some(sizes(1)))];
    assert_eq!(stored(&mut records, &both, now()), expected(&[("/a", 3), ("/b", 1)]));
    let later = [(a_store("/a"), Some(sizes(2))), (a_store("/b"), None)];
    assert_eq!(stored(&mut records, &later, now()), expected(&[("/a", 2), ("/b", 1)]));
    // What makes no sense counts as absent.
    let damage = "UPDATE layer_sizes SET sizes = x'0102' WHERE root = '/a'";
    assert_eq!(records.write(|transaction| transaction.execute(damage, [])).unwrap(), 1);
    assert_eq!(loaded(&records), expected(&[("/b", 1)]));
}

#[test]
fn stores_that_nobody_meets_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = kept(dir.path());
    let both = [(a_store("/old"), Some(sizes(1))), (a_store("/met"), Some(sizes(1)))];
    let all = stored(&mut records, &both, now());
    let met = [(a_store("/met"), None)];
    for day in 0..=30 {
        let at = now() + SignedDuration::from_hours(24 * day);
        assert_eq!(stored(&mut records, &met, at), all, "day {day}");
    }
    let later = now() + SignedDuration::from_hours(24 * 31);
    assert_eq!(stored(&mut records, &met, later), expected(&[("/met", 1)]));
}
