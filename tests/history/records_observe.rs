//! Scans in a real database: lives, ages and uses.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use crate::support;
use jiff::Timestamp;
use layersweep::history::Records;
use layersweep::history::ages::{AgeRule, Basis, Moment};
use layersweep::history::clock::advance;
use layersweep::history::known::{self, EndedLives, Life};
use layersweep::history::observe::observe;
use layersweep::model::{
    Consistency, Container, Evidence, EvidenceKind, Image, RecordBound, StoreId, StoreKind,
};
use support::scan_records::{
    Observed, Seen, add_node, at, container, id, image, known, open, record, record_fresh, scan_at, store,
    store_key,
};

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;

struct Rig {
    records: Records,
    _state: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        Self { records: open(state.path()), _state: state }
    }

    /// Records a scan of the store with these images and containers.
    fn see(&mut self, seconds: i64, change: impl FnOnce(&mut Seen)) -> Observed {
        let mut seen = scan_at(seconds);
        change(&mut seen);
        record_fresh(&mut self.records, seen)
    }

    fn life(&self, number: u64) -> Option<Life> {
        known(&self.records).image(&store_key(), &id(number)).cloned()
    }

    fn lives(&self, number: u64) -> Vec<Life> {
        self.records.read(|from| known::lives(from, &store_key(), &id(number))).unwrap()
    }

    fn sql<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.records.read(|from| from.query_row(sql, [], |row| row.get(0))).unwrap()
    }
}

#[test]
fn unmeasured_scan_records_uses_and_keeps_bytes() {
    /// Images 1 and 2, and image 3, which was pulled later.
    fn unmeasured() -> Vec<Image> {
        let images = [(1, -HOUR), (2, -HOUR), (3, 50)].map(|(number, made)| image(number, made));
        images.map(|image| Image { listed_bytes: None, ..image }).to_vec()
    }
    fn bytes(life: &Life) -> [u64; 3] {
        [life.total_bytes, life.exclusive_bytes, life.frees_bytes]
    }
    let mut rig = Rig::new();
    rig.see(0, |seen| seen.images = vec![image(1, -HOUR), image(2, -HOUR)]);
    let before = rig.life(1).unwrap();
    // A container that no scan with figures sees, and an image that was pulled for it.
    rig.see(60, |seen| {
        seen.is_measured = false;
        seen.images = unmeasured();
        seen.containers = vec![container(7, 58, Some(0)), container(8, 58, Some(2))];
    });
    // Repeated, it changes nothing; then an incomplete listing finds neither containers nor images.
    for consistency in [Consistency::Consistent, Consistency::WriterActive] {
        rig.see(62, |seen| {
            seen.is_measured = false;
            seen.stores[0].consistency = consistency;
            if consistency == Consistency::Consistent {
                seen.images = unmeasured();
                seen.containers = vec![container(7, 58, Some(0)), container(8, 58, Some(2))];
            }
        });
    }
    rig.see(90, |seen| {
        seen.is_measured = false;
        seen.images = unmeasured();
    });
    let used = rig.life(1).unwrap();
    assert_eq!((used.age.last_used, used.age.use_count, used.age.life), (Some(at(62)), 1, 1));
    assert_eq!((bytes(&used), used.listed_bytes), (bytes(&before), before.listed_bytes));
    assert_eq!(rig.life(2).unwrap().age.last_used, None);
    // No scan has measured the new image: it is not among the largest until one has.
    let pulled = rig.life(3).unwrap();
    assert_eq!((bytes(&pulled), pulled.age.first_detected, pulled.age.use_count), ([0; 3], at(50), 1));
    assert_eq!(rig.sql::<i64>("SELECT count(*) FROM images WHERE exclusive_bytes < 0"), 1);
    rig.see(300, |seen| seen.images = vec![image(3, 50)]);
    assert_eq!(bytes(&rig.life(3).unwrap()), [500_000_003, 40_000_000, 41_000_000]);
    assert_eq!(rig.sql::<i64>("SELECT count(*) FROM runs"), 0);
}

#[test]
fn second_life_follows_the_first() {
    let mut rig = Rig::new();
    let seen = rig.see(0, |seen| seen.images = vec![image(1, -10 * HOUR)]);
    assert_eq!((seen.images_come, seen.images_gone), (1, 0));
    let first = rig.life(1).unwrap();
    assert_eq!(first.age.first_detected, at(-10 * HOUR));
    assert_eq!(first.age.detection.rule, AgeRule::Creation);
    assert_eq!(first.age.detection.found, image(1, -10 * HOUR).evidence);
    assert_eq!((first.age.last_used, first.age.use_count, first.age.life), (None, 0, 1));
    assert_eq!((first.age.basis, first.age.counted_from), (Basis::Records, at(-10 * HOUR)));
    assert_eq!((first.total_bytes, first.listed_bytes), (500_000_001, Some(480_000_000)));

    // Used by two containers, then by one of them, then by none.
    rig.see(5 * MINUTE, |seen| {
        seen.images = vec![image(1, -10 * HOUR)];
        seen.containers = vec![container(8, 200, Some(0)), container(9, 250, Some(0))];
    });
    rig.see(10 * MINUTE, |seen| {
        seen.images = vec![image(1, -10 * HOUR)];
        seen.containers = vec![container(9, 250, Some(0))];
    });
    let life = rig.life(1).unwrap();
    assert_eq!((life.age.last_used, life.age.use_count), (Some(at(10 * MINUTE)), 2));
    assert_eq!(life.age.counted_from, at(10 * MINUTE));
    let seen = rig.see(15 * MINUTE, |seen| seen.images = vec![image(1, -10 * HOUR)]);
    assert_eq!(seen.containers_gone, 1);
    let life = rig.life(1).unwrap();
    assert_eq!((life.age.last_used, life.age.use_count), (Some(at(10 * MINUTE)), 2), "not in use now");
    assert_eq!(life.last_seen, at(15 * MINUTE));
    let sql = "SELECT last_seen, gone_since FROM containers WHERE image = ?1 ORDER BY last_seen";
    let containers: Vec<(i64, i64)> = rig
        .records
        .read(|from| {
            let mut select = from.prepare(sql)?;
            let rows = select.query_map([life.row], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        })
        .unwrap();
    let [first, second, third] = [300, 600, 900].map(|seconds| at(seconds).as_microsecond());
    assert_eq!(containers, [(first, second), (second, third)]);

    // Gone, and back again with the same id; its top layer is old, its directory unreadable.
    let seen = rig.see(20 * MINUTE, |_| {});
    assert_eq!((seen.images_come, seen.images_gone), (0, 1));
    assert!(rig.life(1).is_none());
    let mut back = image(1, 0);
    back.evidence = vec![Evidence { kind: EvidenceKind::TopLayer, at: at(-10 * HOUR) }];
    rig.see(HOUR, |seen| seen.images = vec![back]);
    let lives = rig.lives(1);
    assert_eq!(lives.len(), 2);
    assert_eq!((lives[0].age.life, lives[0].age.use_count, lives[0].age.last_used), (2, 0, None));
    assert_eq!(lives[0].age.detection.rule, AgeRule::AbsentBefore);
    assert!(lives[0].age.first_detected > at(20 * MINUTE), "it was proven not to be there");
    assert_eq!((lives[1].gone_since, lives[1].last_seen), (Some(at(1200)), at(900)));
    assert_eq!(lives[1].age.first_detected, at(-10 * HOUR));
}

#[test]
fn second_pull_between_scans_starts_new_life() {
    let mut rig = Rig::new();
    rig.see(0, |seen: &mut Seen| {
        seen.images = vec![image(1, -HOUR)];
        seen.containers = vec![container(9, -60, Some(0))];
    });
    let seen = rig.see(5 * MINUTE, |seen| seen.images = vec![image(1, 2 * MINUTE)]);
    assert_eq!((seen.images_come, seen.images_gone), (1, 1));
    let lives = rig.lives(1);
    assert_eq!(lives[0].age.first_detected, at(2 * MINUTE));
    assert_eq!((lives[0].age.last_used, lives[0].age.use_count), (None, 0));
    assert_eq!((lives[1].gone_since, lives[1].age.last_used), (Some(at(300)), Some(at(0))));
    let seen = rig.see(10 * MINUTE, |seen| seen.images = vec![image(1, 2 * MINUTE)]);
    assert_eq!((seen.images_come, seen.images_gone), (0, 0), "once");
}

#[test]
fn only_complete_listing_proves_absence() {
    for doubt in [Consistency::WriterActive, Consistency::Damaged] {
        let mut rig = Rig::new();
        fn all(seen: &mut Seen) {
            seen.images = vec![image(1, -HOUR), image(2, -HOUR)];
            seen.containers = vec![container(9, -60, Some(0))];
        }
        rig.see(0, all);
        for scan in 1..4 {
            let seen = rig.see(scan * 300, |seen| {
                seen.images = vec![image(2, -HOUR)];
                seen.stores[0].consistency = doubt;
            });
            assert_eq!((seen.images_gone, seen.containers_gone), (0, 0));
        }
        let life = rig.life(1).unwrap();
        assert_eq!((life.last_seen, life.age.last_used), (at(0), Some(at(0))));
        assert_eq!(rig.life(2).unwrap().last_seen, at(900));
        // An image that is new in an incomplete listing was absent at the last complete one.
        rig.see(1200, |seen| {
            all(seen);
            seen.images.push(image(3, -HOUR));
            seen.stores[0].consistency = doubt;
        });
        assert_eq!(rig.life(3).unwrap().age.detection.rule, AgeRule::AbsentBefore);
        assert!(rig.life(3).unwrap().age.first_detected > at(0));
        let life = rig.life(1).unwrap();
        assert_eq!((life.age.life, life.age.use_count, life.last_seen), (1, 1, at(1200)));
        let seen = rig.see(1500, |_| {});
        assert_eq!((seen.images_gone, seen.containers_gone), (3, 1));
    }
}

#[test]
fn unread_store_is_unchanged() {
    let mut rig = Rig::new();
    rig.see(0, |seen| seen.images = vec![image(1, -HOUR)]);
    rig.see(300, |seen| seen.stores.clear());
    rig.see(600, |seen| seen.stores[0] = store(&key_at(StoreKind::ContainersStorage, "/other")));
    assert_eq!(rig.life(1).unwrap().last_seen, at(0));
    assert_eq!(rig.sql::<i64>("SELECT count(*) FROM stores"), 2);
}

#[test]
fn changed_containerd_names_keep_the_life() {
    let mut rig = Rig::new();
    let mut see = |seconds: i64, made: i64| {
        rig.see(seconds, |seen| {
            seen.stores[0] = store(&key_at(StoreKind::Containerd, "/var/lib/containers/storage"));
            let mut image = image(1, 0);
            image.evidence = vec![Evidence { kind: EvidenceKind::ImageRecord, at: at(made) }];
            seen.images = vec![image];
        })
    };
    see(0, -HOUR);
    // The second name is older than the last scan, and now the oldest.
    assert_eq!(see(300, -MINUTE).images_come, 0);
    assert_eq!(see(600, 400).images_come, 1);
}

#[test]
fn older_scan_of_store_changes_nothing() {
    let mut rig = Rig::new();
    let mut early = scan_at(300);
    early.images = vec![image(1, -HOUR), image(2, -HOUR)];
    early.containers = vec![container(7, 100, Some(0)), container(8, 100, Some(1))];
    let mut first = scan_at(0);
    first.images = vec![image(1, -HOUR), image(2, -HOUR)];
    let mut last = scan_at(600);
    last.images = vec![image(1, -HOUR)];
    last.containers = vec![container(9, 500, Some(0))];

    record(&mut rig.records, first);
    record(&mut rig.records, last.clone());
    let before = (rig.life(1).unwrap(), rig.lives(2));
    let clock = rig.records.read(known::clock).unwrap();
    let seen = record(&mut rig.records, early);
    assert_eq!((seen.images_come, seen.images_gone, seen.containers_come), (0, 0, 0));
    assert_eq!((rig.life(1).unwrap(), rig.lives(2)), before);
    assert_eq!(rig.records.read(known::clock).unwrap(), clock);

    // The same scan again changes nothing.
    let seen = record(&mut rig.records, last);
    assert_eq!((seen.images_come, seen.containers_come, seen.containers_gone), (0, 0, 0));
    assert_eq!(rig.life(1).unwrap().age.use_count, 1);
}

#[test]
fn record_time_leap_ages_only_affected_rows() {
    let mut rig = Rig::new();
    fn boot(seen: &mut Seen, since: i64, wall: Timestamp, synchronised: bool) {
        seen.clock.boot_id = "second".into();
        seen.clock.since_boot = since * 1_000_000;
        seen.clock.wall = wall;
        seen.clock.synchronised = synchronised;
    }
    rig.see(0, |seen| {
        seen.images = vec![image(1, -HOUR), image(2, -HOUR)];
    });
    // Off for three days; the clock starts at 1970. One image is used, one is new.
    rig.see(0, |seen| {
        boot(seen, 60, Timestamp::UNIX_EPOCH, false);
        seen.images = vec![image(1, -HOUR), image(2, -HOUR), image(3, -NOON_SECONDS)];
        seen.containers = vec![container(9, 0, Some(1))];
    });
    let fresh = rig.life(3).unwrap().age;
    assert_eq!((fresh.first_detected, fresh.detection.rule), (at(60), AgeRule::FirstScan));
    let now = rig.see(0, |seen| {
        boot(seen, 360, at(72 * HOUR), true);
        seen.images = vec![image(1, -HOUR), image(2, -HOUR), image(3, -NOON_SECONDS)];
    });
    assert_eq!(now.record_time, at(72 * HOUR));
    let age = |number| now.record_time.duration_since(rig.life(number).unwrap().age.counted_from).as_secs();
    assert_eq!(age(1), 73 * HOUR, "was there all the time");
    assert_eq!(age(2), 0, "was used until this scan, as far as is proven");
    assert_eq!(rig.life(2).unwrap().age.last_used, Some(at(60)));
    assert_eq!(age(3), 300, "came five minutes ago");
    assert_eq!(rig.life(3).unwrap().age.first_detected, at(60), "and that never moves");
}

/// From 1970 to noon.
const NOON_SECONDS: i64 = support::scan_records::NOON;

#[test]
fn odd_scans_are_harmless() {
    let mut rig = Rig::new();
    // A store, an image and a container that are listed twice.
    rig.see(0, |seen| {
        seen.stores.push(store(&store_key()));
        let mut twice = image(1, -HOUR);
        twice.store = 1.into();
        seen.images = vec![image(1, -HOUR), image(1, -HOUR), twice];
        seen.containers = vec![container(9, 0, Some(2)), container(9, 0, Some(0))];
    });
    let life = rig.life(1).unwrap();
    assert_eq!((life.age.use_count, life.age.last_used), (1, Some(at(0))));

    // A name that is used again for another container, and a container without its image.
    rig.see(300, |seen| {
        seen.images = vec![image(1, -HOUR)];
        seen.containers = vec![container(9, 200, Some(0)), container(10, 200, None)];
    });
    assert_eq!(rig.life(1).unwrap().age.use_count, 2);
    // The largest possible numbers.
    rig.see(600, |seen| {
        let mut big = image(2, -HOUR);
        big.holds = vec![add_node(&mut seen.nodes, 0.into(), u64::MAX, u64::MAX)];
        big.names = vec!["nul\0 and \u{202e}\u{1b}[2J".into()];
        seen.images = vec![big];
    });
    assert_eq!(rig.life(2).unwrap().total_bytes, i64::MAX as u64);
}

/// Rows as a damaged database may return them.
#[test]
fn invalid_rows_do_not_affect_others() {
    let mut rig = Rig::new();
    rig.see(0, |seen| seen.images = vec![image(1, -HOUR), image(2, -HOUR)]);
    rig.see(300, |seen| {
        seen.images = vec![image(1, -HOUR), image(2, -HOUR)];
        seen.stores.push(store(&key_at(StoreKind::ContainersStorage, "/other")));
    });
    rig.records
        .write(|to| {
            to.execute_batch(
                "UPDATE images SET evidence = '{\"from\":\"layer\"}', names = '', use_count = 9223372036854775807
                     WHERE id = 1;
                 UPDATE stores SET kind = 'contai', last_wall = NULL WHERE root = '/other';
                 UPDATE stores SET last_wall = NULL WHERE root <> '/other'",
            )
        })
        .unwrap();
    let life = rig.life(1).unwrap();
    assert_eq!((life.age.detection.rule, life.names.len()), (AgeRule::Unreadable, 0));
    assert_eq!(life.age.first_detected, at(-HOUR));
    rig.see(600, |seen| {
        seen.images = vec![image(1, -HOUR), image(2, -HOUR)];
        seen.containers = vec![container(9, 500, Some(0))];
    });
    let life = rig.life(1).unwrap();
    assert_eq!((life.age.last_used, life.names.len()), (Some(at(600)), 1));
    assert_eq!(known(&rig.records).all().count(), 2);
}

#[test]
fn unchanged_rows_are_not_written() {
    let mut rig = Rig::new();
    fn see(seen: &mut Seen) {
        seen.images = (0..200).map(|number| image(number, -HOUR)).collect();
        seen.containers = (0..100).map(|number| container(number, -60, Some(number as usize))).collect();
    }
    rig.see(0, see);
    fn writes(rig: &Rig) -> i64 {
        rig.sql::<i64>("SELECT total_changes()")
    }
    let before = writes(&rig);
    rig.see(300, see);
    assert_eq!(writes(&rig) - before, 2, "the clock and the store");
    let life = rig.life(5).unwrap();
    assert_eq!((life.last_seen, life.age.last_used), (at(300), Some(at(300))));
}

/// Returns the processor time of this thread: what other tests use does not count.
#[allow(clippy::cast_precision_loss)] // seconds
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[test]
fn large_node_is_written_quickly() {
    let mut rig = Rig::new();
    fn see(offset: u64) -> impl Fn(&mut Seen) {
        move |seen: &mut Seen| {
            seen.images = (offset..10_000 + offset).map(|number| image(number, -HOUR)).collect();
            seen.containers = (0..20_000)
                .map(|number| container(number + offset, -60, Some(number as usize / 2)))
                .collect();
        }
    }
    let mut seconds = Vec::new();
    for (scan, offset) in [(0, 0), (1, 0), (2, 500)] {
        let mut seen = scan_at(scan * 300);
        see(offset)(&mut seen);
        seconds.push(seen.with_run("", |run| {
            let start = processor_seconds();
            rig.records.write(|to| observe(to, run)).unwrap();
            processor_seconds() - start
        }));
    }
    let start = processor_seconds();
    assert_eq!(known(&rig.records).all().count(), 10_000);
    seconds.push(processor_seconds() - start);
    println!("10,000 images, 20,000 containers: first, unchanged, 5 % changed, read: {seconds:.3?} s");
    let most = if cfg!(debug_assertions) { 10.0 } else { 1.0 };
    assert!(seconds.iter().all(|time| *time < most), "{seconds:?}");
}

fn key_at(kind: StoreKind, root: &str) -> StoreId {
    StoreId::new(kind, root.into(), "overlay".into())
}

/// If the database cannot be written, ages are still correct.
#[test]
fn ages_are_right_before_the_scan_is_recorded() {
    let mut rig = Rig::new();
    rig.see(0, |seen| {
        seen.images = vec![image(1, -HOUR), image(2, -HOUR), image(4, -HOUR)];
    });
    // The first is unchanged, the second was pulled again, the third is new but has an old date, the last is used.
    let mut seen = scan_at(300);
    let found = [(1, -HOUR), (2, 100), (3, -HOUR), (4, -HOUR)];
    seen.images = found.map(|(number, made)| image(number, made)).to_vec();
    seen.images[0].pinned_by = vec!["crio.conf".into()];
    seen.containers = vec![container(99, 1, Some(3))];
    let known_before = known(&rig.records);
    seen.record_time = advance(known_before.clock(), &seen.clock).state.record_time;
    assert_eq!(seen.record_time, at(300));

    let now = Moment { record_time: seen.record_time, wall: seen.clock.wall };
    let inventory = seen.inventory.clone();
    let before = known_before.ages(&inventory, &now, &EndedLives::new());
    record(&mut rig.records, seen);
    assert_eq!(rig.sql::<String>("SELECT group_concat(id) FROM images WHERE pinned"), "1");
    let after = known(&rig.records).ages(&inventory, &now, &EndedLives::new());
    for (position, first, life, count, used) in [
        (0, at(-HOUR), 1, 0, None),
        (1, at(100), 2, 0, None),
        (2, at(0), 1, 0, None),
        (3, at(-HOUR), 1, 1, Some(at(300))),
    ] {
        let (before, after) = (before.of(position.into()), after.of(position.into()));
        assert_eq!(after.basis, Basis::Records, "image {position}");
        for age in [before, after] {
            assert_eq!(age.first_detected.as_second(), first.as_second(), "image {position}");
            assert_eq!((age.life, age.use_count, age.last_used), (life, count, used), "image {position}");
        }
        assert_eq!((before.counted_from, &before.detection), (after.counted_from, &after.detection));
    }
    assert_eq!(after.now.duration_since(after.of(0.into()).counted_from).as_secs(), HOUR + 300);
}

/// Another user renews all images and containers of a store before each scan; root's ended lives stay.
#[test]
fn lives_of_another_user_are_bounded() {
    let mut rig = Rig::new();
    rig.see(0, |seen| seen.images = vec![image(1, -HOUR)]);
    rig.see(60, |seen| seen.images = Vec::new());
    for round in 1..6_u32 {
        rig.see(60 + 60 * i64::from(round), |seen| {
            seen.stores.push(store(&key_at(StoreKind::ContainersStorage, "/home/alice/storage")));
            seen.of_other_users.insert(1.into());
            let numbers = 0..u64::from(RecordBound::OBJECTS) - 500;
            let numbers = numbers.map(|number| 1_000_000 * u64::from(round) + number);
            seen.images =
                numbers.clone().map(|number| Image { store: 1.into(), ..image(number, -HOUR) }).collect();
            seen.containers =
                numbers.map(|number| Container { store: 1.into(), ..container(number, 0, None) }).collect();
        });
        for table in ["images", "containers"] {
            let gone = rig.sql::<u32>(&format!(
                "SELECT count(*) FROM {table} JOIN stores ON stores.id = {table}.store WHERE root LIKE '/home/%'"
            ));
            assert!(gone <= RecordBound::OBJECTS, "{table}: {gone}");
        }
        let present = "SELECT count(*) FROM images WHERE gone_since IS NULL";
        assert_eq!(rig.sql::<u32>(present), RecordBound::OBJECTS - 500);
    }
    assert_eq!(rig.lives(1).len(), 1, "root's own history");
    assert_eq!(rig.sql::<u32>("SELECT count(*) FROM images"), RecordBound::OBJECTS + 1);
}
