use super::*;
use crate::history::files::{SIDECARS, beside, schema_version};
use crate::history::open::check_integrity;
use crate::history::pins;
use crate::history::schema::APPLICATION_ID;
use proptest::prelude::*;
use rusqlite::types::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

/// Every file of a directory with its bytes, for tests that check that no file is written.
fn bytes_of(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

fn open(dir: &Path, access: Access) -> Opened {
    Records::open(&StateDirectory::local(dir), access, Duration::from_millis(200)).unwrap()
}

/// Opens the database in `dir` for writing, without problems.
pub(in crate::history) fn kept(dir: &Path) -> Records {
    let opened = Records::open(&StateDirectory::local(dir), Access::Write, PATIENCE).unwrap();
    assert!(opened.records.is_kept(), "{:?}", opened.degraded);
    opened.records
}

fn add_store(records: &mut Records, root: &str) -> Result<usize, Error> {
    let sql = "INSERT INTO stores (kind, root, driver, first_seen, last_seen) VALUES ('k', ?1, 'd', ?2, ?2)";
    records.write(|transaction| transaction.execute(sql, (root, 1_767_225_600_000_000i64)))
}

fn stores(records: &Records) -> Vec<String> {
    let sql = "SELECT root FROM stores ORDER BY id";
    records.read(|connection| connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()).unwrap()
}

/// Creates a database with some rows, and closes it.
fn filled(dir: &Path) {
    let mut records = kept(dir);
    let sql = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39)
        INSERT INTO stores (kind, root, driver, first_seen, last_seen)
        SELECT 'k', '/store/' || i, 'd', 1767225600000000, 1767225600000000 FROM n";
    records.write(|transaction| transaction.execute(sql, [])).unwrap();
}

#[test]
fn new_database_is_private_complete_and_in_wal_mode() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut records = kept(&state);
    assert!(records.is_kept());
    add_store(&mut records, "/a").unwrap();
    let modes = [state.clone(), state.join(DATABASE), beside(&state.join(DATABASE), "-wal")]
        .map(|path| std::fs::metadata(path).unwrap().mode() & 0o7777);
    assert_eq!(modes, [0o700, 0o600, 0o600]);
    assert!(!beside(&state.join(DATABASE), "-shm").exists());
    for (name, expected) in [
        ("journal_mode", Value::Text("wal".into())),
        ("synchronous", Value::Integer(2)),
        ("foreign_keys", Value::Integer(1)),
        ("application_id", Value::Integer(APPLICATION_ID.into())),
        ("user_version", Value::Integer(schema::newest().into())),
    ] {
        let value: Value =
            records.read(|connection| connection.pragma_query_value(None, name, |row| row.get(0))).unwrap();
        assert_eq!(value, expected, "{name}");
    }
    drop(records);
    let names: Vec<_> = bytes_of(&state).into_keys().collect();
    assert_eq!(names, [DATABASE, "write.lock"], "no other file is left");
}

#[test]
fn reading_leaves_no_trace_and_sees_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let missing = open(dir.path(), Access::Read);
    assert!(!missing.found && missing.degraded.is_empty());
    assert!(stores(&missing.records).is_empty());
    assert!(bytes_of(dir.path()).is_empty());
    let mut writer = kept(dir.path());
    add_store(&mut writer, "/a").unwrap();
    let before = bytes_of(dir.path());
    let reader = open(dir.path(), Access::Read);
    assert_eq!(stores(&reader.records), ["/a"], "still in the log");
    assert!(!reader.records.is_kept() && reader.found);
    assert!(bytes_of(dir.path()) == before);
    drop(writer);
    let before = bytes_of(dir.path());
    assert_eq!(stores(&open(dir.path(), Access::Read).records), ["/a"]);
    assert!(bytes_of(dir.path()) == before);
}

#[test]
fn readers_do_not_wait_for_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let mut writer = kept(dir.path());
    let seen = writer.write(|transaction| {
        transaction.execute("DELETE FROM stores", [])?;
        let start = Instant::now();
        let reader = open(dir.path(), Access::Read);
        assert!(reader.degraded.is_empty());
        let seen = stores(&reader.records).len();
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        Ok(seen)
    });
    assert_eq!(seen.unwrap(), 40, "what was committed before");
    assert!(stores(&open(dir.path(), Access::Read).records).is_empty());
}

#[test]
fn copy_is_consistent_while_a_writer_is_busy() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = kept(dir.path());
    let path = dir.path().join(DATABASE);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let writing = std::thread::spawn(move || {
        let mut number = 0;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            number += 1;
            writer
                .write(|transaction| {
                    for _ in 0..3 {
                        let sql = "INSERT INTO pins VALUES (hex(randomblob(700)), '', random())";
                        transaction.execute(sql, [])?;
                    }
                    // The log starts again all the time, and a copy must notice that.
                    transaction.execute("DELETE FROM pins WHERE abs(added) % 5 = ?1 % 5", [number])
                })
                .unwrap();
            if number % 7 == 0 {
                writer.connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
            }
        }
    });
    let mut copies = 0;
    for _ in 0..60 {
        if let Ok(Some(content)) = files::copy(&path) {
            let connection = in_memory(&content).unwrap();
            check_integrity(&connection).unwrap();
            copies += 1;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writing.join().unwrap();
    assert!(copies > 40, "{copies} of 60");
}

fn check_integrity_in(connection: &Connection) -> rusqlite::Result<()> {
    let all: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    assert_eq!(all, "ok");
    let dangling = connection.prepare("PRAGMA foreign_key_check")?.exists([])?;
    assert!(!dangling);
    Ok(())
}

#[test]
fn newer_schema_is_refused_without_a_write() {
    for in_log in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        std::fs::remove_file(dir.path().join("write.lock")).unwrap();
        let path = dir.path().join(DATABASE);
        let newer = Connection::open(&path).unwrap();
        newer.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        newer.pragma_update(None, "user_version", schema::newest() + 1).unwrap();
        let unclosed = bytes_of(dir.path());
        drop(newer);
        if in_log {
            // The state that a killed process leaves.
            for (name, content) in &unclosed {
                std::fs::write(dir.path().join(name), content).unwrap();
            }
        }
        let before = bytes_of(dir.path());
        assert_eq!(schema_version(&before[DATABASE]).unwrap() > schema::newest(), !in_log);
        for access in [Access::Read, Access::Write] {
            let error = Records::open(&StateDirectory::local(dir.path()), access, PATIENCE).unwrap_err();
            assert!(matches!(error, Error::Newer { found, .. } if found == schema::newest() + 1), "{error}");
            assert!(bytes_of(dir.path()) == before, "{access:?}");
        }
    }
}

/// Each kind of damage that SQLite or the schema check can detect.
#[test]
fn damaged_database_is_quarantined_and_a_new_one_created() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage); 9] = [
        ("emptied", Vec::clear),
        ("cut in the header", |bytes| bytes.truncate(40)),
        ("cut in the middle", |bytes| bytes.truncate(bytes.len() / 2)),
        ("zeroed header", |bytes| bytes[..100].fill(0)),
        ("rubbish in the middle", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle..]
                .iter_mut()
                .zip((0..).map(|n: usize| (n * 7919 % 251) as u8))
                .for_each(|(byte, rubbish)| *byte = rubbish);
        }),
        ("not a database", |bytes| *bytes = b"hello, world\n".repeat(1000)),
        ("database of another program", |bytes| bytes[68..72].fill(9)),
        ("a database without a version", |bytes| bytes[60..64].fill(0)),
        ("another name of a table", |bytes| {
            // Every occurrence: a page that was split keeps a stale copy.
            let found: Vec<_> = (0..bytes.len() - 20)
                .filter(|position| bytes[*position..].starts_with(b"CREATE TABLE images "))
                .collect();
            assert!(!found.is_empty());
            for position in found {
                bytes[position + 13..position + 19].copy_from_slice(b"imagoz");
            }
        }),
    ];
    for (case, damage) in cases {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let path = dir.path().join(DATABASE);
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        std::fs::write(beside(&path, "-wal"), b"a log of rubbish").unwrap();
        let before = bytes_of(dir.path());

        let reader = open(dir.path(), Access::Read);
        assert!(bytes_of(dir.path()) == before, "{case}: a reader only reports it");
        // A reader may take an empty file for a new database.
        if case != "emptied" {
            assert_eq!((reader.degraded[0].code(), reader.found), ("corrupt", false), "{case}");
        }
        let mut opened = open(dir.path(), Access::Write);
        let [Degraded::Corrupt { quarantined: Some(quarantined), .. }] = &opened.degraded[..] else {
            panic!("{case}: {:?}", opened.degraded);
        };
        assert!(opened.records.is_kept());
        assert!(std::fs::read(quarantined).unwrap() == bytes, "{case}: kept unchanged");
        let log = std::fs::read(beside(quarantined, "-wal")).ok();
        assert_eq!(log.as_deref(), Some(&b"a log of rubbish"[..]), "{case}: {:?}", opened.degraded);
        assert!(opened.degraded[0].to_string().contains(&*quarantined.to_string_lossy()));
        add_store(&mut opened.records, "/new").unwrap();
        opened.records.read(check_integrity_in).unwrap();
        drop(opened);
        let again = open(dir.path(), Access::Write);
        assert!(again.degraded.is_empty() && stores(&again.records).contains(&"/new".to_owned()), "{case}");
    }
}

/// Creates a database with this keep-list, and 200 stores that can be damaged.
fn pinned(dir: &Path, patterns: &[&str]) {
    let mut records = kept(dir);
    for number in 0..200 {
        add_store(&mut records, &format!("/a/rather/long/path/to/store/number/{number}")).unwrap();
    }
    for pattern in patterns {
        let pattern = pins::parse(pattern).unwrap();
        records.write(|tx| pins::add(tx, &pattern, Some("why"), jiff::Timestamp::UNIX_EPOCH)).unwrap();
    }
}

fn patterns(records: &Records) -> Vec<String> {
    records.read(pins::list).unwrap().into_iter().map(|pin| pin.pattern).collect()
}

/// Zeroes the root page of a table or index, and makes the file look old.
fn zero(dir: &Path, name: &str) {
    let path = dir.join(DATABASE);
    let connection = Connection::open(&path).unwrap();
    let page = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: i64 = connection.query_row(page, [name], |row| row.get(0)).unwrap();
    let size: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0)).unwrap();
    drop(connection);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0; usize::try_from(size).unwrap()], ((page - 1) * size).cast_unsigned()).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
}

#[test]
fn keep_list_of_damaged_database_is_kept() {
    for kept in [&["quay.io/team/*", "docker.io/library/nginx"][..], &[]] {
        let dir = tempfile::tempdir().unwrap();
        pinned(dir.path(), kept);
        zero(dir.path(), "stores");
        let opened = open(dir.path(), Access::Write);
        let [Degraded::Corrupt { keep_list_lost: false, .. }] = opened.degraded[..] else {
            panic!("{:?}", opened.degraded)
        };
        let mut expected = kept.to_vec();
        expected.sort_unstable();
        assert_eq!(patterns(&opened.records), expected);
        assert!(stores(&opened.records).is_empty());
    }
}

#[test]
fn unreadable_keep_list_pins_everything() {
    let dir = tempfile::tempdir().unwrap();
    pinned(dir.path(), &["quay.io/team/*"]);
    zero(dir.path(), "pins");
    let opened = open(dir.path(), Access::Write);
    let [why @ Degraded::Corrupt { keep_list_lost: true, .. }] = &opened.degraded[..] else {
        panic!("{:?}", opened.degraded)
    };
    assert!(why.to_string().contains("every image is pinned"), "{why}");
    assert!(why.remedy().contains("pin remove '*'"), "{}", why.remedy());
    assert_eq!(patterns(&opened.records), ["*"]);
    drop(opened);
    // It is reported once, and the pin stays until the operator removes it.
    let again = open(dir.path(), Access::Write);
    assert!(again.degraded.is_empty());
    assert_eq!(patterns(&again.records), ["*"]);
}

#[test]
fn keep_list_is_found_after_kill_during_quarantine() {
    let dir = tempfile::tempdir().unwrap();
    pinned(dir.path(), &["quay.io/team/*"]);
    crate::history::quarantine::quarantine(dir.path()).unwrap();
    let opened = open(dir.path(), Access::Write);
    assert!(opened.degraded.is_empty(), "{:?}", opened.degraded);
    assert_eq!(patterns(&opened.records), ["quay.io/team/*"]);
}

#[test]
fn log_without_database_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = kept(dir.path());
    add_store(&mut records, "/old").unwrap();
    let log = bytes_of(dir.path())[&format!("{DATABASE}-wal")].clone();
    drop(records);
    std::fs::remove_file(dir.path().join(DATABASE)).unwrap();
    std::fs::write(dir.path().join(format!("{DATABASE}-wal")), &log).unwrap();
    let records = kept(dir.path());
    assert!(stores(&records).is_empty());
    let kept = bytes_of(dir.path());
    assert!(
        kept.iter().any(|(name, content)| name.contains("corrupt") && *content == log),
        "{:?}",
        kept.keys()
    );
}

#[test]
fn quarantine_replaces_no_file() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..5 {
        std::fs::write(dir.path().join(DATABASE), format!("rubbish {number}")).unwrap();
        assert_eq!(open(dir.path(), Access::Write).degraded.len(), 1);
    }
    let kept = bytes_of(dir.path());
    let kept: Vec<_> =
        kept.iter().filter(|(name, _)| name.contains("corrupt")).map(|(_, content)| content).collect();
    assert_eq!(kept.len(), 5);
}

#[test]
fn locked_database_is_copied_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let lock = StateLock::for_writing(dir.path(), Duration::ZERO).unwrap();
    let mut opened = open(dir.path(), Access::Write);
    let [degraded @ Degraded::Locked { holder, .. }] = &opened.degraded[..] else { panic!() };
    assert_eq!(holder.pid, Some(std::process::id()), "{degraded}");
    assert!(!opened.records.is_kept() && opened.found);
    add_store(&mut opened.records, "/in memory").unwrap();
    assert_eq!(stores(&opened.records).len(), 41);
    drop(lock);
    assert_eq!(stores(&open(dir.path(), Access::Read).records).len(), 40);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// For all damage there is no panic, and the old file still exists, in use or in quarantine.
    #[test]
    fn flipped_bytes_neither_panic_nor_lose_the_file(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..12),
        in_log in any::<bool>(),
        old in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let path = dir.path().join(DATABASE);
        let mut writer = kept(dir.path());
        add_store(&mut writer, "/in the log").unwrap();
        let unclosed = bytes_of(dir.path());
        drop(writer);
        for suffix in ["", "-wal"] {
            std::fs::write(beside(&path, suffix), &unclosed[&format!("{DATABASE}{suffix}")]).unwrap();
        }
        let target = beside(&path, if in_log { "-wal" } else { "" });
        let mut bytes = std::fs::read(&target).unwrap();
        for (index, flip) in &flips {
            *index.get_mut(&mut bytes) ^= flip;
        }
        std::fs::write(&target, &bytes).unwrap();
        if old {
            std::fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        let before = std::fs::read(&path).unwrap();
        let directory = StateDirectory::local(dir.path());
        if let Ok(reader) = Records::open(&directory, Access::Read, Duration::ZERO) {
            let _ = reader.records.read(|connection| Ok(content_or_error(connection)));
        }
        prop_assert!(std::fs::read(&path).unwrap() == before);
        match Records::open(&directory, Access::Write, Duration::ZERO) {
            Ok(mut opened) => {
                let quarantined = opened.degraded.iter().find_map(|degraded| match degraded {
                    Degraded::Corrupt { quarantined, .. } => quarantined.clone(),
                    _ => None,
                });
                let used = add_store(&mut opened.records, "/after");
                match quarantined {
                    Some(quarantined) => {
                        // SQLite may have moved pages of the log into it before it found the damage.
                        prop_assert!(std::fs::metadata(&quarantined).unwrap().len() > 0);
                        used.unwrap();
                        opened.records.read(check_integrity_in).unwrap();
                    }
                    None => prop_assert!(path.exists()),
                }
            }
            Err(error) => {
                prop_assert!(matches!(error, Error::Newer { .. }), "{error}");
                prop_assert!(std::fs::read(&path).unwrap() == before);
            }
        }
        for suffix in SIDECARS {
            let stray = beside(&dir.path().join("layersweep.db.new"), suffix);
            prop_assert!(!stray.exists());
        }
    }
}

fn content_or_error(connection: &Connection) -> i64 {
    let mut rows = 0;
    for table in ["stores", "images", "containers"] {
        let count = connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
        rows += count.unwrap_or(0);
    }
    rows
}

/// For each lost page, readers report the damage or can read everything, and a writer that opens with [`Access::Mend`]
/// creates a new database.
#[test]
fn lost_page_is_reported_and_mended() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let path = dir.path().join(DATABASE);
    let sound = std::fs::read(&path).unwrap();
    let size = usize::from(u16::from_be_bytes([sound[16], sound[17]]));
    let mut noticed = 0;
    for page in 0..sound.len() / size {
        let mut damaged = sound.clone();
        damaged[page * size..(page + 1) * size].fill(if page == 0 { 0x55 } else { 0 });
        std::fs::write(&path, &damaged).unwrap();
        let reader = open(dir.path(), Access::Read);
        if reader.degraded.is_empty() {
            reader.records.read(crate::history::known::images).unwrap();
            reader.records.read(crate::history::pins::list).unwrap();
            reader.records.read(|connection| crate::history::sizes::load(connection, 0)).unwrap();
            continue;
        }
        noticed += 1;
        let mended = open(dir.path(), Access::Mend);
        assert!(
            matches!(mended.degraded[..], [Degraded::Corrupt { quarantined: Some(_), .. }]),
            "page {page}"
        );
        assert!(mended.records.is_kept());
        drop(mended);
        assert!(open(dir.path(), Access::Read).degraded.is_empty(), "page {page}");
    }
    assert!(noticed > 5, "{noticed} pages");
}
