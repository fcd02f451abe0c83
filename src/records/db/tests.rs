use super::*;
use crate::records::files::{SIDECARS, beside};
use crate::records::format::{APPLICATION_ID, Header};
use crate::records::open::check_integrity;
use proptest::prelude::*;
use rusqlite::types::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Instant;

/// Every file of a directory with its bytes: what a test compares where nothing may be written.
fn bytes_of(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

fn open(dir: &Path, access: Access) -> Opened {
    Records::open_at(&Place::local(dir), access, Duration::from_millis(200)).unwrap()
}

fn add_store(records: &mut Records, root: &str) -> Result<usize, Error> {
    let sql = "INSERT INTO stores (kind, root, driver, first_seen, last_seen) VALUES ('k', ?1, 'd', ?2, ?2)";
    records.write(|transaction| transaction.execute(sql, (root, 1_767_225_600_000_000i64)))
}

fn stores(records: &Records) -> Vec<String> {
    let all = |connection: &Connection| {
        connection.prepare("SELECT root FROM stores ORDER BY id")?.query_map([], |row| row.get(0))?.collect()
    };
    records.read(all).unwrap()
}

/// A database with some rows, closed.
fn filled(dir: &Path) {
    let mut records = Records::open(dir, Access::Write).unwrap();
    let sql = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39)
        INSERT INTO stores (kind, root, driver, first_seen, last_seen)
        SELECT 'k', '/store/' || i, 'd', 1767225600000000, 1767225600000000 FROM n";
    records.write(|transaction| transaction.execute(sql, [])).unwrap();
}

#[test]
fn a_new_database_is_ours_alone_complete_and_in_wal_mode() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut records = Records::open(&state, Access::Write).unwrap();
    assert!(records.is_kept());
    add_store(&mut records, "/a").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&state), 0o700);
    for suffix in ["", "-wal"] {
        assert_eq!(mode(&beside(&state.join(DATABASE), suffix)), 0o600, "{suffix}");
    }
    assert!(!beside(&state.join(DATABASE), "-shm").exists());
    let pragma = |name: &str| {
        records
            .read(|connection| connection.pragma_query_value(None, name, |row| row.get::<_, Value>(0)))
            .unwrap()
    };
    assert_eq!(pragma("journal_mode"), Value::Text("wal".into()));
    assert_eq!(pragma("synchronous"), Value::Integer(2));
    assert_eq!(pragma("foreign_keys"), Value::Integer(1));
    assert_eq!(pragma("application_id"), Value::Integer(APPLICATION_ID.into()));
    assert_eq!(pragma("user_version"), Value::Integer(schema::newest().into()));
    drop(records);
    let names: Vec<_> = bytes_of(&state).into_keys().collect();
    assert_eq!(names, [DATABASE, "write.lock"], "nothing else is left");
}

#[test]
fn reading_leaves_no_trace_and_sees_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let missing = open(dir.path(), Access::Read);
    assert!(!missing.found && missing.degraded.is_empty());
    assert!(stores(&missing.records).is_empty());
    assert!(bytes_of(dir.path()).is_empty());
    let mut writer = Records::open(dir.path(), Access::Write).unwrap();
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
fn readers_wait_for_no_writer() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let mut writer = Records::open(dir.path(), Access::Write).unwrap();
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
fn a_copy_is_one_moment_however_busy_the_writer_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Records::open(dir.path(), Access::Write).unwrap();
    let place = dir.path().to_path_buf();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let told = stop.clone();
    let writing = std::thread::spawn(move || {
        let mut number = 0;
        while !told.load(std::sync::atomic::Ordering::Relaxed) {
            number += 1;
            writer
                .write(|transaction| {
                    for _ in 0..3 {
                        let sql = "INSERT INTO caught_up VALUES (hex(randomblob(700)))";
                        transaction.execute(sql, [])?;
                    }
                    // Begun anew all the time, which is what a copy must notice.
                    transaction.execute("DELETE FROM caught_up WHERE rowid % 5 = ?1 % 5", [number])
                })
                .unwrap();
            if number % 7 == 0 {
                writer.connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
            }
        }
    });
    let mut copies = 0;
    for _ in 0..60 {
        if let Ok(Some(content)) = files::copy(&place) {
            let connection = in_memory(&content).unwrap();
            check_integrity(&connection).unwrap();
            copies += 1;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writing.join().unwrap();
    assert!(copies > 40, "{copies} of 60");
}

/// Each older schema with data in it, from the fixture that a migration brings along.
#[test]
fn every_older_schema_is_upgraded_with_all_its_data() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for version in 1..=schema::newest() {
        let fixture = root.join(format!("fixtures/records/{version:04}.sql"));
        let data = std::fs::read_to_string(&fixture).unwrap_or_else(|error| {
            panic!("migration {version} comes with a fixture, {}: {error}", fixture.display())
        });
        for access in [Access::Write, Access::Read] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(DATABASE);
            let mut old = Connection::open(&path).unwrap();
            old.pragma_update(None, "journal_mode", "WAL").unwrap();
            schema::fill(&mut old, version).unwrap();
            old.execute_batch(&data).unwrap();
            let expected = content_of(&old);
            for (table, rows) in &expected {
                assert!(!rows.is_empty(), "{} has no row for {table}", fixture.display());
            }
            drop(old);
            let before = bytes_of(dir.path());
            let opened = open(dir.path(), access);
            assert!(opened.found && opened.degraded.is_empty(), "{version}: {:?}", opened.degraded);
            opened.records.read(check_integrity_in).unwrap();
            let now = opened.records.read(|connection| Ok(content_of(connection))).unwrap();
            for (table, rows) in expected {
                for mut row in rows {
                    // Since schema 5 a containerd root is one store.
                    if row.get("kind").is_some_and(|kind| kind == "'containerd'") {
                        row.insert("driver".into(), "''".into());
                    }
                    let has = |new: &BTreeMap<String, String>| row.iter().all(|(k, v)| new.get(k) == Some(v));
                    assert!(now[&table].iter().any(has), "{version}: {table} lost {row:?}");
                }
            }
            let header = Header::parse(&std::fs::read(&path).unwrap()).unwrap();
            if access == Access::Write {
                assert_eq!(header.user_version, schema::newest(), "in the file itself, while it is open");
            } else {
                assert!(bytes_of(dir.path()) == before, "reading changes nothing");
            }
        }
    }
}

/// A database of schema 4 in which a containerd root is three stores: 11 was seen last, 12 before
/// it, and 13 first. Of images `a` is in all, and so on. Times are microseconds of this decade.
const THREE_OF_ONE: &str = "
    CREATE TEMP TABLE t AS SELECT 1577836800000000 AS zero;
    INSERT INTO stores (id, kind, root, driver, first_seen, last_seen, last_complete)
        SELECT column1, 'containerd', '/c', column2, zero + column3, zero + column4, zero + column5
        FROM t, (VALUES (13, 'a', 100000000, 200000000, 190000000), (12, 'native', 200000000, 300000000, NULL),
                 (11, 'overlayfs', 300000000, 400000000, NULL));
    INSERT INTO images (id, store, image_id, life, first_detected, evidence, last_seen, in_use, last_used,
        proven_since, use_count, gone_since, names, total_bytes, exclusive_bytes, frees_bytes, pinned)
    SELECT 100 + column1, column2, column3, column4, zero + column5, column6, zero + column7, column8, zero + column9,
        zero + column10, column11, zero + column12, '[]', 0, 0, 0, 0
    FROM t, (VALUES
        -- In all: used last in 12, where it was in use to the end.
        (1, 11, 'a', 1, 110000000, '\"11\"', NULL, 0, 120000000, NULL, 2, NULL),
        (2, 12, 'a', 1, 100000000, '\"12\"', NULL, 1, NULL, 290000000, 5, NULL),
        (3, 13, 'a', 1, 90000000, '\"13\"', NULL, 0, 80000000, NULL, 1, NULL),
        -- Pulled again while it was 12: it is younger than 11 believes.
        (4, 11, 'b', 1, 110000000, '\"11\"', NULL, 1, NULL, NULL, 1, NULL),
        (5, 12, 'b', 1, 100000000, '\"12\"', 210000000, 0, NULL, NULL, 7, 220000000),
        (6, 12, 'b', 2, 230000000, '\"12\"', NULL, 0, NULL, NULL, 0, NULL),
        -- 11 has not seen it.
        (7, 12, 'c', 1, 100000000, '\"12\"', 210000000, 0, NULL, NULL, 0, 220000000),
        (8, 12, 'c', 2, 230000000, '\"12\"', NULL, 1, NULL, NULL, 3, NULL),
        (9, 13, 'c', 1, 90000000, '\"13\"', NULL, 0, 150000000, NULL, 0, NULL),
        -- Gone from 11, and back before 12 was last seen.
        (10, 11, 'd', 1, 110000000, '\"11\"', 240000000, 0, NULL, NULL, 0, 250000000),
        (11, 12, 'd', 1, 260000000, '\"12\"', NULL, 0, 270000000, NULL, 1, NULL),
        -- Gone from 11, and not seen since.
        (12, 11, 'e', 1, 110000000, '\"11\"', 340000000, 0, NULL, NULL, 0, 350000000),
        (13, 12, 'e', 1, 100000000, '\"12\"', NULL, 0, 270000000, NULL, 1, NULL));
    INSERT INTO containers (id, store, container_id, name, owner, image, state, bytes, first_seen, last_seen)
    SELECT 100 + column1, column2, column3, '', 'containerd', 100 + column4, '', 0, zero, NULL
    FROM t, (VALUES (1, 11, 'x', 1), (2, 12, 'x', 2), (3, 12, 'y', 2), (4, 13, 'y', 3), (5, 12, 'z', 13));
    INSERT INTO attempts (kind, root, driver, image_id, failures, tried, next_try, last_error)
    VALUES ('containerd', '/c', 'overlayfs', 'a', 1, 5, 6, 'early'), ('containerd', '/c', 'native', 'a', 2, 7, 8, 'late');
    INSERT INTO size_stores (id, kind, root, driver, last_used)
    VALUES (11, 'containerd', x'2f63', 'overlayfs', 7), (12, 'containerd', x'2f63', 'native', 6);
    INSERT INTO layer_sizes
    SELECT 100 + column1, column1, 'snapshot', '1', x'', x'', 0, 0, 0, 0, 0, 0, 0, 0, 0, x'', x'', x''
    FROM (VALUES (11), (12));
    DROP TABLE t;";

/// Fills a database as [`THREE_OF_ONE`] says.
fn three_of_one(path: &Path) {
    let mut old = Connection::open(path).unwrap();
    schema::fill(&mut old, 4).unwrap();
    old.execute_batch(include_str!("../../../fixtures/records/0004.sql")).unwrap();
    old.execute_batch(THREE_OF_ONE).unwrap();
}

/// Rows of a statement, as text; times in seconds of this decade.
fn said(records: &Records, sql: &str) -> Vec<String> {
    let time = |value: Value| match value {
        Value::Integer(time) if time > 1_577_836_800_000_000 => {
            ((time - 1_577_836_800_000_000) / 1_000_000).to_string()
        }
        Value::Integer(number) => number.to_string(),
        Value::Text(text) => text,
        Value::Null => "-".into(),
        other => format!("{other:?}"),
    };
    let all = |connection: &Connection| {
        let mut select = connection.prepare(sql)?;
        let columns = select.column_count();
        select
            .query_map([], |row| {
                let values = (0..columns).map(|at| Ok(time(row.get(at)?)));
                Ok(values.collect::<rusqlite::Result<Vec<_>>>()?.join(" "))
            })?
            .collect()
    };
    records.read(all).unwrap()
}

/// No image is older afterwards than any row has made it, and no use is forgotten.
#[test]
fn the_stores_of_one_containerd_root_become_one() {
    let dir = tempfile::tempdir().unwrap();
    three_of_one(&dir.path().join(DATABASE));
    let opened = open(dir.path(), Access::Write);
    assert!(opened.degraded.is_empty(), "{:?}", opened.degraded);
    opened.records.read(check_integrity_in).unwrap();
    let said = |sql: &str| said(&opened.records, sql);
    let stores = "SELECT id, driver, first_seen, last_seen, last_complete FROM stores WHERE root = '/c'";
    assert_eq!(said(stores), ["11  100 400 190"]);
    let images = said(
        "SELECT id, image_id, life, first_detected, evidence, last_seen, in_use, last_used, proven_since,
             use_count, gone_since FROM images WHERE store = 11 ORDER BY image_id, life",
    );
    let expected = [
        "101 a 1 110 \"11\" - 0 300 290 5 -",
        "104 b 1 230 \"12\" - 1 - - 1 -",
        "107 c 1 100 \"12\" 210 0 - - 0 220",
        "108 c 2 230 \"12\" 300 1 150 - 3 -",
        "110 d 1 110 \"11\" 240 0 - - 0 250",
        "111 d 2 260 \"12\" 300 0 270 - 1 -",
        "112 e 1 110 \"11\" 340 0 - - 0 350",
    ];
    assert_eq!(images, expected);
    let containers = "SELECT id, container_id, image, last_seen FROM containers WHERE store = 11";
    assert_eq!(said(containers), ["101 x 101 -", "103 y 101 300", "105 z - 300"]);
    let attempts = "SELECT driver, image_id, failures, last_error FROM attempts WHERE root = '/c'";
    assert_eq!(said(attempts), [" a 2 late"]);
    assert_eq!(said("SELECT id, driver FROM size_stores WHERE root = x'2f63'"), ["11 "]);
    assert_eq!(said("SELECT id FROM layer_sizes WHERE id > 100"), ["111"]);
    // Nothing else has changed: each store and each image of the fixture is there.
    assert_eq!(said("SELECT count(*) FROM stores"), ["3"]);
    assert_eq!(said("SELECT count(*) FROM images WHERE store <> 11"), ["3"]);
    drop(opened);
}

/// What is taken out of a damaged database may be as an older schema had it.
#[test]
fn stores_of_a_damaged_older_database_become_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(DATABASE);
    three_of_one(&path);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[0; 100], 0).unwrap();
    let opened = open(dir.path(), Access::Write);
    assert_eq!(opened.degraded[0].code(), "corrupt");
    let stores = "SELECT id, driver FROM stores WHERE kind = 'containerd' ORDER BY id";
    assert_eq!(said(&opened.records, stores), ["2 ", "11 "]);
    let used = "SELECT last_used FROM images WHERE store = 11 AND image_id = 'a'";
    assert_eq!(said(&opened.records, used), ["300"]);
}

fn check_integrity_in(connection: &Connection) -> rusqlite::Result<()> {
    let all: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    assert_eq!(all, "ok");
    let dangling = connection.prepare("PRAGMA foreign_key_check")?.exists([])?;
    assert!(!dangling);
    Ok(())
}

/// All rows of all tables, column by column, as SQLite quotes them.
fn content_of(connection: &Connection) -> BTreeMap<String, Vec<BTreeMap<String, String>>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let tables: Vec<String> = column(connection, sql);
    let rows_of = |table: String| {
        let columns: Vec<String> =
            column(connection, &format!("SELECT name FROM pragma_table_info('{table}')"));
        let quoted: Vec<_> = columns.iter().map(|name| format!("quote(\"{name}\")")).collect();
        let sql = format!("SELECT {} FROM {table}", quoted.join(", "));
        let mut statement = connection.prepare(&sql).unwrap();
        let rows = statement.query_map([], |row| {
            columns.iter().enumerate().map(|(at, name)| Ok((name.clone(), row.get(at)?))).collect()
        });
        let rows = rows.unwrap().collect::<rusqlite::Result<_>>().unwrap();
        (table, rows)
    };
    tables.into_iter().map(rows_of).collect()
}

fn column(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

#[test]
fn a_newer_schema_is_refused_without_a_write_even_if_only_the_log_has_it() {
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
            // As a killed process leaves it.
            for (name, content) in &unclosed {
                std::fs::write(dir.path().join(name), content).unwrap();
            }
        }
        let before = bytes_of(dir.path());
        assert_eq!(Header::parse(&before[DATABASE]).unwrap().user_version > schema::newest(), !in_log);
        for access in [Access::Read, Access::Write] {
            let error = Records::open_at(&Place::local(dir.path()), access, PATIENCE).unwrap_err();
            assert!(matches!(error, Error::Newer { found, .. } if found == schema::newest() + 1), "{error}");
            assert!(bytes_of(dir.path()) == before, "{access:?}");
        }
    }
}

/// What may befall a database, and whether SQLite can tell at all.
#[test]
fn a_damaged_database_is_set_aside_and_a_new_one_is_started() {
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
                .for_each(|(b, r)| *b = r);
        }),
        ("not a database", |bytes| *bytes = b"hello, world\n".repeat(1000)),
        ("somebody else's database", |bytes| bytes[68..72].fill(9)),
        ("a database without a version", |bytes| bytes[60..64].fill(0)),
        ("another name of a table", |bytes| {
            // Wherever it stands: a page that was split keeps a stale copy.
            let found: Vec<_> = (0..bytes.len() - 20)
                .filter(|at| bytes[*at..].starts_with(b"CREATE TABLE images "))
                .collect();
            assert!(!found.is_empty());
            found.iter().for_each(|at| bytes[at + 13..at + 19].copy_from_slice(b"imagoz"));
        }),
    ];
    for (what, damage) in cases {
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
        assert!(bytes_of(dir.path()) == before, "{what}: a reader only says so");
        // An empty file may as well be a new one.
        if what != "emptied" {
            assert_eq!((reader.degraded[0].code(), reader.found), ("corrupt", false), "{what}");
        }
        let mut opened = open(dir.path(), Access::Write);
        let [Degraded::Corrupt { aside: Some(aside), .. }] = &opened.degraded[..] else {
            panic!("{what}: {:?}", opened.degraded);
        };
        assert!(opened.records.is_kept());
        assert!(std::fs::read(aside).unwrap() == bytes, "{what}: kept as it was");
        let log = std::fs::read(beside(aside, "-wal")).ok();
        assert_eq!(log.as_deref(), Some(&b"a log of rubbish"[..]), "{what}: {:?}", opened.degraded);
        assert!(opened.degraded[0].to_string().contains(&*aside.to_string_lossy()));
        add_store(&mut opened.records, "/new").unwrap();
        opened.records.read(check_integrity_in).unwrap();
        drop(opened);
        let again = open(dir.path(), Access::Write);
        assert!(again.degraded.is_empty() && stores(&again.records).contains(&"/new".to_owned()), "{what}");
    }
}

#[test]
fn rows_that_are_sound_are_taken_over() {
    for (what, offset) in [("header", 0..100), ("last page", 8192..12288)] {
        let dir = tempfile::tempdir().unwrap();
        let mut records = Records::open(dir.path(), Access::Write).unwrap();
        for number in 0..2000 {
            add_store(&mut records, &format!("/a/rather/long/path/to/store/number/{number}")).unwrap();
        }
        let fixture = include_str!("../../../fixtures/records/0001.sql");
        let images =
            fixture.split_once("INSERT INTO images").unwrap().1.split_once("INSERT INTO cont").unwrap().0;
        records
            .write(|transaction| transaction.execute_batch(&format!("INSERT INTO images{images}")))
            .unwrap();
        let lost = "UPDATE images SET first_detected = 77 WHERE id = 3";
        records.write(|transaction| transaction.execute(lost, [])).unwrap();
        drop(records);
        let path = dir.path().join(DATABASE);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let length = offset.len();
        let at = if what == "header" { 0 } else { file.metadata().unwrap().len() - 10 * 4096 };
        file.write_all_at(&vec![0; length], at).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let opened = open(dir.path(), Access::Write);
        let [Degraded::Corrupt { salvaged, .. }] = opened.degraded[..] else {
            panic!("{what}: {:?}", opened.degraded)
        };
        assert!(salvaged > 1000, "{what}: {salvaged} rows");
        assert_eq!(stores(&opened.records).len() as u64 + 2, salvaged, "{what}");
        let kept = opened.records.read(|connection| Ok(content_of(connection))).unwrap();
        let ages: Vec<_> = kept["images"].iter().map(|row| &*row["first_detected"]).collect();
        assert_eq!(ages, ["1760000000000001", "1766000000000000"], "{what}: and none that cannot be");
        opened.records.read(check_integrity_in).unwrap();
    }
}

#[test]
fn a_log_without_its_database_is_not_read_into_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = Records::open(dir.path(), Access::Write).unwrap();
    add_store(&mut records, "/old").unwrap();
    let log = bytes_of(dir.path())[&format!("{DATABASE}-wal")].clone();
    drop(records);
    std::fs::remove_file(dir.path().join(DATABASE)).unwrap();
    std::fs::write(dir.path().join(format!("{DATABASE}-wal")), &log).unwrap();
    let records = Records::open(dir.path(), Access::Write).unwrap();
    assert!(stores(&records).is_empty());
    let kept = bytes_of(dir.path());
    assert!(
        kept.iter().any(|(name, content)| name.contains("corrupt") && *content == log),
        "{:?}",
        kept.keys()
    );
}

#[test]
fn setting_aside_never_replaces() {
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
fn whoever_keeps_the_lock_makes_others_work_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let lock = WriteLock::acquire(dir.path(), Duration::ZERO).unwrap();
    let mut opened = open(dir.path(), Access::Write);
    let [degraded @ Degraded::Locked { holder, .. }] = &opened.degraded[..] else { panic!() };
    assert_eq!(holder.pid, Some(std::process::id()), "{degraded}");
    assert!(!opened.records.is_kept() && opened.found);
    add_store(&mut opened.records, "/in memory").unwrap();
    assert_eq!(stores(&opened.records).len(), 41);
    drop(lock);
    assert_eq!(stores(&open(dir.path(), Access::Read).records).len(), 40);
}

#[test]
fn a_copy_in_the_same_process_leaves_sqlite_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let writer = Records::open(dir.path(), Access::Write).unwrap();
    let count = |connection: &Connection| connection.query_row("SELECT count(*) FROM stores", [], |_| Ok(()));
    writer.read(count).unwrap();
    let locks = || {
        let inode = std::fs::symlink_metadata(dir.path().join(DATABASE)).unwrap().ino();
        let table = std::fs::read_to_string("/proc/locks").unwrap();
        table.lines().filter(|line| line.contains("POSIX") && line.contains(&format!(":{inode} "))).count()
    };
    let before = locks();
    assert!(before > 0, "SQLite keeps a lock");
    open(dir.path(), Access::Read);
    assert_eq!(locks(), before, "closing our own descriptor would have taken it away");
    drop(writer);
    assert_eq!(locks(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever happens to the bytes: no panic, and what was there is still there, either in
    /// use or under another name.
    #[test]
    fn flipped_bytes_neither_panic_nor_lose_the_file(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..12),
        in_log in any::<bool>(),
        old in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let path = dir.path().join(DATABASE);
        let mut writer = Records::open(dir.path(), Access::Write).unwrap();
        add_store(&mut writer, "/in the log").unwrap();
        let unclosed = bytes_of(dir.path());
        drop(writer);
        for suffix in ["", "-wal"] {
            std::fs::write(beside(&path, suffix), &unclosed[&format!("{DATABASE}{suffix}")]).unwrap();
        }
        let target = beside(&path, if in_log { "-wal" } else { "" });
        let mut bytes = std::fs::read(&target).unwrap();
        for (at, flip) in &flips {
            *at.get_mut(&mut bytes) ^= flip;
        }
        std::fs::write(&target, &bytes).unwrap();
        if old {
            std::fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        let before = std::fs::read(&path).unwrap();
        let place = Place::local(dir.path());
        if let Ok(reader) = Records::open_at(&place, Access::Read, Duration::ZERO) {
            let _ = reader.records.read(|connection| Ok(content_or_error(connection)));
        }
        prop_assert!(std::fs::read(&path).unwrap() == before);
        match Records::open_at(&place, Access::Write, Duration::ZERO) {
            Ok(mut opened) => {
                let aside = opened.degraded.iter().find_map(|degraded| match degraded {
                    Degraded::Corrupt { aside, .. } => aside.clone(),
                    _ => None,
                });
                let used = add_store(&mut opened.records, "/after");
                match aside {
                    Some(aside) => {
                        // SQLite may have moved pages of the log into it before it found out.
                        prop_assert!(std::fs::metadata(&aside).unwrap().len() > 0);
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
    let count = |table| {
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
    };
    ["stores", "images", "containers"].iter().filter_map(|table| count(table).ok()).sum()
}

/// Whatever page is lost, readers either say so or can read everything, and the next writer who
/// is told of the doubt begins anew.
#[test]
fn a_lost_page_stops_nobody() {
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
            reader.records.read(crate::records::known::images).unwrap();
            reader.records.read(crate::records::pins::list).unwrap();
            reader.records.read(|connection| crate::records::sizes::load(connection, 0)).unwrap();
            continue;
        }
        noticed += 1;
        let mended = open(dir.path(), Access::Mend);
        assert!(matches!(mended.degraded[..], [Degraded::Corrupt { aside: Some(_), .. }]), "page {page}");
        assert!(mended.records.is_kept());
        drop(mended);
        assert!(open(dir.path(), Access::Read).degraded.is_empty(), "page {page}");
    }
    assert!(noticed > 5, "{noticed} pages");
}
