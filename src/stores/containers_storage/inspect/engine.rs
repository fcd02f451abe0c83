//! Podman's own database: which containers and volumes podman knows.
//!
//! Two kinds are in use (podman, `libpod/boltdb_state_internal.go` and
//! `libpod/sqlite_state_internal.go`): `libpod/bolt_state.db`, a bolt file, and `db.sql`,
//! SQLite. Neither is opened in place by a database library, which would take locks and
//! write: the files, including SQLite's log, are copied and the copy is read.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use serde_json::Value;

use crate::model::ContainerState;
use crate::stores::bolt::{BoltError, Database, Limits};
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::records::lenient::Object;
use crate::sys::allowance::{self, Allowance};
use crate::sys::quiet::Within;
use crate::sys::sqlite;

/// A database of ten thousand containers has some hundred MB at most.
const MOST_BYTES: u64 = 256 << 20;

/// What podman's database says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Engine {
    /// There is none: podman was never used here, or the database was removed.
    #[default]
    Absent,
    /// There is one that could not be read, with the reason.
    Unreadable(String),
    Known(PodmanRecords),
}

/// The content of the database, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodmanRecords {
    /// Containers by id.
    pub(crate) containers: HashMap<String, PodmanContainer>,
    /// Volumes by name.
    pub(crate) volumes: HashSet<String>,
}

/// Podman's own data of a container, independent of the store's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodmanContainer {
    pub(crate) state: ContainerState,
    /// Its name, or its id.
    pub(crate) name: String,
    /// The id of the image that it was made from.
    pub(crate) image: Option<String>,
    /// Names or ids of the images that are mounted into it: `--mount type=image`.
    pub(crate) image_volumes: Vec<String>,
    /// Names or digests of the artifacts that are mounted into it: `--mount type=artifact`.
    pub(crate) artifact_volumes: Vec<String>,
    pub(crate) created: Option<Timestamp>,
}

impl PodmanContainer {
    /// From the number of its state, and its configuration (podman, `libpod/container_config.go`).
    ///
    /// # Errors
    /// Where that does not tell which images it uses.
    fn new(id: &str, number: Option<u64>, config: Option<&[u8]>) -> Result<Self, String> {
        let unknown = || format!("the configuration of container {id} cannot be read");
        let config: Option<Value> = config.and_then(|text| serde_json::from_slice(text).ok());
        let config = config.filter(Value::is_object).ok_or_else(unknown)?;
        let text = |name: &str| config[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let volumes = |key: &str| {
            let volumes = config[key].as_array().into_iter().flatten();
            let sources = volumes.map(|volume| volume["source"].as_str().map(str::to_owned));
            sources.collect::<Option<Vec<_>>>().ok_or_else(unknown)
        };
        Ok(Self {
            state: state(number),
            name: text("name").unwrap_or_else(|| id.to_owned()),
            image: text("rootfsImageID"),
            image_volumes: volumes("ctrImageVolumes")?,
            artifact_volumes: volumes("artifactVolumes")?,
            created: text("createdTime").and_then(|time| time.parse().ok()),
        })
    }

    /// Images are compared with each that it names.
    fn charge(&self, allowance: &Allowance) -> io::Result<()> {
        let named = 1 + self.image_volumes.len() + self.artifact_volumes.len();
        allowance.charge(allowance::CONTAINER * named as u64)
    }
}

impl Engine {
    /// The containers, where podman has any.
    pub(crate) fn containers(&self) -> impl Iterator<Item = (&str, &PodmanContainer)> {
        let known = if let Self::Known(known) = self { Some(&known.containers) } else { None };
        known.into_iter().flatten().map(|(id, found)| (id.as_str(), found))
    }

    /// Whether podman has this volume; `None` if unknown.
    pub(crate) fn has_volume(&self, name: &str) -> Option<bool> {
        match self {
            Self::Absent => Some(false),
            Self::Unreadable(_) => None,
            Self::Known(known) => Some(known.volumes.contains(name)),
        }
    }
}

/// Reads all databases of the graphroot and merges them, since podman migrates from one
/// kind to the other.
pub(crate) fn read(places: &StorePlaces) -> Engine {
    let within = places.within();
    let [bolts, sqlites] = places.podman_databases();
    let allowance = &places.allowance;
    let bolts = bolts.iter().map(|path| bolt(&within, path, allowance));
    let found = bolts.chain(sqlites.iter().map(|path| sqlite(&within, path, allowance)));
    let mut all: Option<PodmanRecords> = None;
    for known in found {
        match known {
            Err(error) => return Engine::Unreadable(error),
            Ok(None) => {}
            Ok(Some(newer)) => {
                let known = all.get_or_insert_default();
                known.containers.extend(newer.containers);
                known.volumes.extend(newer.volumes);
            }
        }
    }
    all.map_or(Engine::Absent, Engine::Known)
}

/// Podman's numbers for states (`libpod/define/containerstate.go`).
fn state(number: Option<u64>) -> ContainerState {
    match number {
        Some(1 | 2) => ContainerState::Created,
        Some(3 | 5) => ContainerState::Running,
        Some(4 | 6) => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

fn bolt(within: &Within, path: &Path, allowance: &Allowance) -> Result<Option<PodmanRecords>, String> {
    let limits = Limits { bytes: MOST_BYTES, attempts: 10, patience: Duration::from_millis(300) };
    let database = match within.open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.and_then(|file| within.charge(&file).map(|()| file)).map_err(BoltError::from),
    };
    let database = database.and_then(|file| Database::read(&file, &limits));
    let about = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let database = database.map_err(|error| about(&error))?;
    // What the other one would lead to may have one container more.
    if database.has_one_meta() {
        return Err(about(
            &"one of its two meta pages is damaged, and the other may be of an earlier transaction",
        ));
    }
    let root = database.root();
    let mut known = PodmanRecords::default();
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let Some(all) = root.bucket("all-ctrs") else {
        return Err(format!("{}: it has no list of containers", path.display()));
    };
    let details = root.bucket("ctr");
    for (id, _) in all.entries() {
        let id = text(id);
        let details = details.and_then(|bucket| bucket.bucket(&id));
        let bytes = details.and_then(|bucket| bucket.value("state"));
        let number = bytes.and_then(|state| Object::of(state).get("state").ok().flatten());
        let config = details.and_then(|bucket| bucket.value("config"));
        let container = PodmanContainer::new(&id, number, config).map_err(|error| about(&error))?;
        container.charge(allowance).map_err(|error| about(&error))?;
        known.containers.insert(id, container);
    }
    // Pods' and volumes' buckets came later than containers'.
    for bucket in ["allVolumes", "vol"] {
        let entries = root.bucket(bucket).into_iter().flat_map(|bucket| bucket.entries());
        for (name, _) in entries {
            allowance.charge(allowance::TEXT).map_err(|error| about(&error))?;
            known.volumes.insert(text(name));
        }
    }
    Ok(Some(known))
}

fn sqlite(within: &Within, path: &Path, allowance: &Allowance) -> Result<Option<PodmanRecords>, String> {
    let about = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = sqlite::copy(within, path, MOST_BYTES).map_err(|error| about(&error))?;
    bytes.map(|bytes| tables(bytes, allowance).map_err(|error| about(&error))).transpose()
}

/// How long reading podman's tables may take, and the longest value in them. Any user may have written
/// the file, and it is read for every command of root's.
const MOST_TIME: Duration = Duration::from_secs(5);
const MOST_VALUE: i32 = 8 << 20;

/// A copy in memory, in which nothing but plain tables is read: a view, or a column that is computed, is
/// a program of whoever wrote the file.
fn opened(bytes: Vec<u8>) -> Result<Connection, TableError> {
    let mut connection = Connection::open_in_memory()?;
    let length = bytes.len();
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MOST_VALUE)?;
    connection.deserialize_read_exact("main", std::io::Cursor::new(bytes), length, true)?;
    let end = Instant::now() + MOST_TIME;
    connection.progress_handler(1000, Some(move || Instant::now() > end))?;
    for table in TABLES {
        let plain: bool = connection.query_row(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1
                                AND sql NOT LIKE 'create virtual%')
                AND NOT EXISTS (SELECT 1 FROM pragma_table_xinfo(?1) WHERE hidden <> 0)",
            [table],
            |row| row.get(0),
        )?;
        if !plain {
            return Err(TableError::NotPlain(table));
        }
    }
    Ok(connection)
}

/// What is read of podman's database.
const TABLES: [&str; 3] = ["ContainerConfig", "ContainerState", "VolumeConfig"];

/// Why podman's tables are not read.
#[derive(Debug, thiserror::Error)]
enum TableError {
    #[error("{0} is not a plain table")]
    NotPlain(&'static str),
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Exceeded(#[from] io::Error),
}

fn tables(bytes: Vec<u8>, allowance: &Allowance) -> Result<PodmanRecords, TableError> {
    let connection = opened(bytes)?;
    let mut known = PodmanRecords::default();
    let sql = "SELECT c.ID, s.State, c.JSON FROM ContainerConfig c LEFT JOIN ContainerState s ON s.ID = c.ID";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let number: Option<u64> = row.get::<_, Option<i64>>(1)?.and_then(|number| number.try_into().ok());
        let config: Option<String> = row.get(2)?;
        let config = config.as_deref().map(str::as_bytes);
        let id: String = row.get(0)?;
        let container = PodmanContainer::new(&id, number, config).map_err(TableError::Config)?;
        container.charge(allowance)?;
        known.containers.insert(id, container);
    }
    let mut statement = connection.prepare("SELECT Name FROM VolumeConfig")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        allowance.charge(allowance::TEXT)?;
        known.volumes.insert(row.get(0)?);
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(graphroot: &Path) -> StorePlaces {
        StorePlaces::for_tests(crate::sys::root::Root::open(graphroot).unwrap())
    }

    /// The tables that podman makes, without the columns that do not matter here.
    fn database(path: &std::path::PathBuf, journal: &str) -> Connection {
        let connection = Connection::open(path).unwrap();
        connection
            .execute_batch(&format!(
                "PRAGMA journal_mode = {journal};
                 CREATE TABLE ContainerConfig(ID TEXT PRIMARY KEY NOT NULL, Name TEXT, JSON TEXT);
                 CREATE TABLE ContainerState(ID TEXT PRIMARY KEY NOT NULL, State INTEGER NOT NULL);
                 CREATE TABLE VolumeConfig(Name TEXT PRIMARY KEY NOT NULL, JSON TEXT);
                 INSERT INTO ContainerConfig VALUES('aa', 'web', '{{\"name\":\"web\",
                     \"rootfsImageID\":\"i\",\"createdTime\":\"2026-01-02T03:04:05.6+01:00\",
                     \"ctrImageVolumes\":[{{\"source\":\"quay.io/data:1\",\"dest\":\"/d\"}}],
                     \"artifactVolumes\":[{{\"source\":\"quay.io/model:1\",\"dest\":\"/m\"}}]}}'),
                     ('bb', 'db', '{{}}'), ('cc', 'x', '{{\"name\":null}}');
                 INSERT INTO ContainerState VALUES('aa', 3), ('bb', 6);
                 INSERT INTO VolumeConfig VALUES('data', '');"
            ))
            .unwrap();
        connection
    }

    #[test]
    fn sqlite_is_read_from_a_copy() {
        for journal in ["DELETE", "WAL"] {
            let dir = tempfile::tempdir().unwrap();
            assert_eq!(read(&places(dir.path())), Engine::Absent);
            let path = dir.path().join("db.sql");
            let connection = database(&path, journal);
            // All of it is in the log as long as podman runs.
            let live = read(&places(dir.path()));
            connection.close().unwrap();
            let names = || {
                let mut names: Vec<_> =
                    std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
                names.sort();
                names
            };
            let before = names();
            let engine = read(&places(dir.path()));
            assert_eq!(live, engine, "{journal}");
            let Engine::Known(known) = &engine else { panic!("{engine:?}") };
            let web = PodmanContainer {
                state: ContainerState::Running,
                name: "web".into(),
                image: Some("i".into()),
                image_volumes: vec!["quay.io/data:1".into()],
                artifact_volumes: vec!["quay.io/model:1".into()],
                created: Some("2026-01-02T02:04:05.6Z".parse().unwrap()),
            };
            assert_eq!(known.containers["aa"], web);
            assert_eq!(known.containers["bb"].state, ContainerState::Exited);
            assert_eq!(known.containers["cc"], PodmanContainer { name: "cc".into(), ..Default::default() });
            assert_eq!(engine.has_volume("data"), Some(true));
            assert_eq!(engine.has_volume("other"), Some(false));
            assert_eq!(names(), before, "nothing is made beside it");
        }
    }

    /// Then any image may be mounted into it.
    #[test]
    fn a_container_whose_configuration_cannot_be_read() {
        for config in ["", "[", "[]", r#"{"ctrImageVolumes":[{"dest":"/d"}]}"#, r#"{"artifactVolumes":[7]}"#]
        {
            let dir = tempfile::tempdir().unwrap();
            let connection = database(&dir.path().join("db.sql"), "DELETE");
            connection.execute("INSERT INTO ContainerConfig VALUES('dd', 'y', ?1)", [config]).unwrap();
            let Engine::Unreadable(why) = read(&places(dir.path())) else { panic!("{config}") };
            assert!(why.ends_with("the configuration of container dd cannot be read"), "{why}");
        }
    }

    /// Podman writes, moves its log into the database and begins a new log while we read: what is
    /// read is of one moment, and never older than what was committed before.
    #[test]
    fn a_database_that_is_written_all_the_time() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sql");
        let writer = database(&path, "WAL");
        writer.pragma_update(None, "synchronous", "OFF").unwrap();
        writer.execute_batch("CREATE TABLE bulk(a); PRAGMA wal_autocheckpoint = 20;").unwrap();
        let (committed, ended) = (&AtomicU64::new(0), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for at in 1.. {
                    let sql = format!(
                        "BEGIN; INSERT INTO ContainerConfig VALUES('c{at}', '', '{{}}');
                         INSERT INTO VolumeConfig VALUES('v{at}', '');
                         DELETE FROM bulk WHERE rowid % 50 = {at} % 50;
                         INSERT INTO bulk VALUES(randomblob(9000)); COMMIT;"
                    );
                    writer.execute_batch(&sql).unwrap();
                    committed.store(at, Ordering::SeqCst);
                    if ended.load(Ordering::SeqCst) {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            let mut read_well = 0;
            for _ in 0..60 {
                let least = committed.load(Ordering::SeqCst);
                match read(&places(dir.path())) {
                    Engine::Known(known) => {
                        let containers = known.containers.len() as u64 - 3;
                        assert_eq!(known.volumes.len() as u64 - 1, containers, "of one transaction");
                        assert!(containers >= least, "{containers}, {least} before");
                        read_well += 1;
                    }
                    Engine::Unreadable(why) => assert!(why.contains("kept changing"), "{why}"),
                    Engine::Absent => panic!("it is there"),
                }
            }
            ended.store(true, Ordering::SeqCst);
            assert!(read_well > 40, "{read_well}");
        });
    }

    /// Whoever wrote the file cannot make us run programs of theirs, nor fill our memory.
    #[test]
    fn what_is_no_plain_table_is_not_read() {
        let tables = "CREATE TABLE ContainerState(ID, State); CREATE TABLE VolumeConfig(Name);";
        let plain = "CREATE TABLE ContainerConfig(ID, Name, JSON);";
        for (sql, why) in [
            (
                format!(
                    "{tables} CREATE VIEW ContainerConfig AS WITH RECURSIVE c(x) AS
                     (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT 'a' AS ID, '{{}}' AS JSON FROM c;"
                ),
                "not a plain table",
            ),
            (
                format!(
                    "{tables} CREATE TABLE ContainerConfig(ID, Name, JSON AS (hex(zeroblob(100000000))));
                     INSERT INTO ContainerConfig(ID) VALUES ('a');"
                ),
                "not a plain table",
            ),
            (
                format!("{tables} {plain} INSERT INTO ContainerConfig VALUES ('a', '', zeroblob(9000000));"),
                "too big",
            ),
            (
                // Compared each with each: hours.
                format!(
                    "{tables} {plain}
                     WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 100000)
                     INSERT INTO ContainerConfig SELECT 'a', '', '{{}}' FROM n;
                     INSERT INTO ContainerState SELECT 'a', 1 FROM ContainerConfig;"
                ),
                "interrupted",
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let written = Connection::open(dir.path().join("db.sql")).unwrap();
            written.execute_batch(&sql).unwrap();
            drop(written);
            let start = Instant::now();
            let engine = read(&places(dir.path()));
            assert!(matches!(&engine, Engine::Unreadable(said) if said.contains(why)), "{why}: {engine:?}");
            assert!(start.elapsed() < 3 * MOST_TIME, "{why}: {:?}", start.elapsed());
        }
    }

    /// A change that was interrupted can only be taken back by SQLite.
    #[test]
    fn a_journal_that_is_left_is_unreadable() {
        let dir = tempfile::tempdir().unwrap();
        database(&dir.path().join("db.sql"), "DELETE").close().unwrap();
        std::fs::write(dir.path().join("db.sql-journal"), "something").unwrap();
        let engine = read(&places(dir.path()));
        assert!(matches!(&engine, Engine::Unreadable(why) if why.contains("interrupted")), "{engine:?}");
    }

    #[test]
    fn what_is_no_database_tells_nothing() {
        for (name, content) in [
            ("db.sql", b"SQLite format 3\0 and then nothing of the kind".as_slice()),
            ("db.sql", &[0; 5000]),
            ("libpod/bolt_state.db", b"no bolt"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("libpod")).unwrap();
            std::fs::write(dir.path().join(name), content).unwrap();
            let engine = read(&places(dir.path()));
            assert!(matches!(engine, Engine::Unreadable(_)), "{name}: {engine:?}");
            assert_eq!(engine.has_volume("data"), None);
        }
    }
}
