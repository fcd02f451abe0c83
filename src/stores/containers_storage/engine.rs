//! Reader for podman's database, which contains podman's containers and volumes.
//!
//! Two formats are in use: the bolt file `libpod/bolt_state.db` and the SQLite file `db.sql` (podman,
//! `libpod/boltdb_state_internal.go` and `libpod/sqlite_state_internal.go`).
//!
//! A database library would take locks and write to the file. Therefore the files, including SQLite's log, are copied
//! into memory, and the copy is read.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use serde_json::Value;

use crate::model::{ContainerState, Volume};
use crate::stores::bolt::{BoltDatabase, BoltError, Limits};
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::records::lenient::Object;
use crate::sys::allowance::{self, Allowance};
use crate::sys::quiet::Within;
use crate::sys::sqlite;

/// Maximum size of a database. That of ten thousand containers has at most a few hundred MB.
const MOST_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Engine {
    /// There is no database: podman was never used with this store, or the database was deleted.
    #[default]
    Absent,
    /// Reason why an existing database cannot be read.
    Unreadable(String),
    Known(PodmanRecords),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodmanRecords {
    pub(crate) containers: HashMap<String, PodmanContainer>,
    /// Volumes by name, each with the id of the container of the store that keeps its data, if its driver is `image`
    /// (podman, `libpod/runtime_volume_common.go`). That container is not one of podman's.
    pub(crate) volumes: HashMap<String, Option<String>>,
}

/// A container in podman's database. It may lack a record in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodmanContainer {
    pub(crate) state: ContainerState,
    /// Name, or the id if it has no name.
    pub(crate) name: String,
    /// Id of the image from which the container was created.
    pub(crate) image: Option<String>,
    pub(crate) named_volumes: Vec<String>,
    /// Names or ids of images mounted into the container: `--mount type=image`.
    pub(crate) image_volumes: Vec<String>,
    /// Names or digests of artifacts mounted into the container: `--mount type=artifact`.
    pub(crate) artifact_volumes: Vec<String>,
    pub(crate) created: Option<Timestamp>,
}

impl PodmanContainer {
    /// Creates a container from the number of its state and its configuration (podman, `libpod/container_config.go`).
    ///
    /// # Errors
    /// When the configuration does not show which images the container uses.
    fn new(id: &str, state_number: Option<u64>, config: Option<&[u8]>) -> Result<Self, String> {
        Self::parse(id, state_number, config)
            .ok_or_else(|| format!("the configuration of container {id} cannot be read"))
    }

    fn parse(id: &str, state_number: Option<u64>, config: Option<&[u8]>) -> Option<Self> {
        let config: Value = serde_json::from_slice(config?).ok().filter(Value::is_object)?;
        Some(Self {
            state: state(state_number),
            name: text(&config, "name").unwrap_or_else(|| id.to_owned()),
            image: text(&config, "rootfsImageID"),
            named_volumes: volume_texts(&config, "namedVolumes", "volumeName")?,
            image_volumes: volume_texts(&config, "ctrImageVolumes", "source")?,
            artifact_volumes: volume_texts(&config, "artifactVolumes", "source")?,
            created: text(&config, "createdTime").and_then(|time| time.parse().ok()),
        })
    }

    /// Charges the work of comparing every image with each reference of the container.
    fn charge(&self, allowance: &Allowance) -> io::Result<()> {
        let references =
            1 + self.named_volumes.len() + self.image_volumes.len() + self.artifact_volumes.len();
        allowance.charge(allowance::CONTAINER * references as u64)
    }
}

/// Returns a string that is not empty.
fn text(config: &Value, name: &str) -> Option<String> {
    config[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Returns a text of each volume in a list, or `None` if a volume has none.
fn volume_texts(config: &Value, key: &str, text: &str) -> Option<Vec<String>> {
    let volumes = config[key].as_array().into_iter().flatten();
    volumes.map(|volume| volume[text].as_str().map(str::to_owned)).collect()
}

impl Engine {
    /// Returns podman's containers by id, or none if the database is absent or unreadable.
    pub(crate) fn containers(&self) -> impl Iterator<Item = (&str, &PodmanContainer)> {
        let known = if let Self::Known(known) = self { Some(&known.containers) } else { None };
        known.into_iter().flatten().map(|(id, found)| (id.as_str(), found))
    }

    /// Returns the container with this id, if the database is readable and has it.
    pub(crate) fn container(&self, id: &str) -> Option<&PodmanContainer> {
        if let Self::Known(known) = self { known.containers.get(id) } else { None }
    }

    /// Returns the names of the volumes of the driver `image`, by the container that keeps their data.
    pub(crate) fn volumes_by_container(&self) -> HashMap<&str, &str> {
        let known = if let Self::Known(known) = self { Some(&known.volumes) } else { None };
        let kept = known.into_iter().flatten();
        kept.filter_map(|(name, container)| Some((container.as_deref()?, name.as_str()))).collect()
    }

    /// Returns podman's volumes with the containers that use them, by name; `None` if that is unknown.
    pub(crate) fn volumes(&self) -> Option<Vec<Volume>> {
        let Self::Known(known) = self else { return None };
        let mut volumes: BTreeMap<&str, Vec<String>> =
            known.volumes.keys().map(|name| (name.as_str(), Vec::new())).collect();
        for container in known.containers.values() {
            for name in &container.named_volumes {
                volumes.entry(name).or_default().push(container.name.clone());
            }
        }
        let volumes = volumes.into_iter().map(|(name, mut containers)| {
            containers.sort_unstable();
            let kept_by = known.volumes.get(name).cloned().flatten();
            Volume { name: name.to_owned(), containers, kept_by: kept_by.map(Into::into) }
        });
        Some(volumes.collect())
    }

    /// Returns true if podman has this volume, and `None` if that is unknown.
    pub(crate) fn has_volume(&self, name: &str) -> Option<bool> {
        match self {
            Self::Absent => Some(false),
            Self::Unreadable(_) => None,
            Self::Known(known) => Some(known.volumes.contains_key(name)),
        }
    }
}

/// Reads all databases of the graphroot and merges them: podman migrates from bolt to SQLite, and both files can exist.
pub(crate) fn read(places: &StorePlaces) -> Engine {
    let within = places.within();
    let [bolts, sqlites] = places.podman_databases();
    let allowance = &places.allowance;
    let bolts = bolts.iter().map(|path| bolt(&within, path, allowance));
    let databases = bolts.chain(sqlites.iter().map(|path| sqlite(&within, path, allowance)));
    let mut merged: Option<PodmanRecords> = None;
    for database in databases {
        match database {
            Err(error) => return Engine::Unreadable(error),
            Ok(None) => {}
            Ok(Some(newer)) => {
                let merged = merged.get_or_insert_default();
                merged.containers.extend(newer.containers);
                merged.volumes.extend(newer.volumes);
            }
        }
    }
    merged.map_or(Engine::Absent, Engine::Known)
}

/// Returns the id of the container that keeps a volume's data, from the volume's configuration (podman,
/// `libpod/volume.go`).
fn storage_container(config: &[u8]) -> Option<String> {
    let config: Value = serde_json::from_slice(config).ok()?;
    text(&config, "storageID")
}

/// Converts podman's number of a state (`libpod/define/containerstate.go`).
fn state(number: Option<u64>) -> ContainerState {
    match number {
        Some(1 | 2) => ContainerState::Created,
        Some(3 | 5) => ContainerState::Running,
        Some(4 | 6) => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

fn about(path: &Path, error: impl Display) -> String {
    format!("{}: {error}", path.display())
}

fn bolt(within: &Within, path: &Path, allowance: &Allowance) -> Result<Option<PodmanRecords>, String> {
    let limits = Limits { bytes: MOST_BYTES, attempts: 10, patience: Duration::from_millis(300) };
    let database = match within.open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.and_then(|file| within.charge(&file).map(|()| file)).map_err(BoltError::from),
    };
    let database =
        database.and_then(|file| BoltDatabase::read(&file, &limits)).map_err(|error| about(path, error))?;
    // The damaged page may be that of a later transaction, with one more container.
    if database.has_one_meta() {
        let error = "one of its two meta pages is damaged, and the other may be of an earlier transaction";
        return Err(about(path, error));
    }
    let root = database.root();
    let mut known = PodmanRecords::default();
    let Some(ids) = root.bucket("all-ctrs") else {
        return Err(about(path, "it has no list of containers"));
    };
    let details = root.bucket("ctr");
    for (id, _) in ids.entries() {
        let id = String::from_utf8_lossy(id).into_owned();
        let details = details.and_then(|bucket| bucket.bucket(&id));
        let state = details.and_then(|bucket| bucket.value("state"));
        let state_number = state.and_then(|state| Object::of(state).get("state").ok().flatten());
        let config = details.and_then(|bucket| bucket.value("config"));
        let container =
            PodmanContainer::new(&id, state_number, config).map_err(|error| about(path, error))?;
        container.charge(allowance).map_err(|error| about(path, error))?;
        known.containers.insert(id, container);
    }
    // These buckets are missing in databases of early podman versions.
    let details = root.bucket("vol");
    for bucket in ["allVolumes", "vol"] {
        let entries = root.bucket(bucket).into_iter().flat_map(|bucket| bucket.entries());
        for (name, _) in entries {
            allowance.charge(allowance::TEXT).map_err(|error| about(path, error))?;
            let name = String::from_utf8_lossy(name).into_owned();
            let config =
                details.and_then(|bucket| bucket.bucket(&name)).and_then(|bucket| bucket.value("config"));
            known.volumes.insert(name, config.and_then(storage_container));
        }
    }
    Ok(Some(known))
}

fn sqlite(within: &Within, path: &Path, allowance: &Allowance) -> Result<Option<PodmanRecords>, String> {
    let bytes = sqlite::copy(within, path, MOST_BYTES).map_err(|error| about(path, error))?;
    bytes.map(|bytes| tables(bytes, allowance).map_err(|error| about(path, error))).transpose()
}

/// Maximum time for reading podman's tables. Any user may have written the file, and every command of root reads it.
const MOST_TIME: Duration = Duration::from_secs(5);

/// Maximum size of a value in podman's tables.
const MOST_VALUE: i32 = 8 << 20;

/// Opens a copy of a database in memory, in which `tables` are plain tables.
///
/// SAFETY: only plain tables are read. A view or a generated column is a program of the user who wrote the file
/// (`table_that_is_not_plain_is_not_read`).
pub(crate) fn opened(bytes: Vec<u8>, tables: &[&'static str]) -> Result<Connection, TableError> {
    let mut connection = Connection::open_in_memory()?;
    let length = bytes.len();
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MOST_VALUE)?;
    connection.deserialize_read_exact("main", std::io::Cursor::new(bytes), length, true)?;
    let end = Instant::now() + MOST_TIME;
    connection.progress_handler(1000, Some(move || Instant::now() > end))?;
    for table in tables.iter().copied() {
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

const TABLES: [&str; 3] = ["ContainerConfig", "ContainerState", "VolumeConfig"];

#[derive(Debug, thiserror::Error)]
pub(crate) enum TableError {
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
    let connection = opened(bytes, &TABLES)?;
    let mut known = PodmanRecords::default();
    let sql = "SELECT c.ID, s.State, c.JSON FROM ContainerConfig c LEFT JOIN ContainerState s ON s.ID = c.ID";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let state_number = row.get::<_, Option<i64>>(1)?.and_then(|number| number.try_into().ok());
        let config: Option<String> = row.get(2)?;
        let config = config.as_deref().map(str::as_bytes);
        let id: String = row.get(0)?;
        let container = PodmanContainer::new(&id, state_number, config).map_err(TableError::Config)?;
        container.charge(allowance)?;
        known.containers.insert(id, container);
    }
    let mut statement = connection.prepare("SELECT Name, JSON FROM VolumeConfig")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        allowance.charge(allowance::TEXT)?;
        let config: Option<String> = row.get(1)?;
        known.volumes.insert(row.get(0)?, config.and_then(|config| storage_container(config.as_bytes())));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(graphroot: &Path) -> StorePlaces {
        StorePlaces::for_tests(crate::sys::root::Root::open(graphroot).unwrap())
    }

    /// Creates a database with podman's tables, without the columns that do not matter here.
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
                     \"namedVolumes\":[{{\"volumeName\":\"data\",\"dest\":\"/v\"}}],
                     \"ctrImageVolumes\":[{{\"source\":\"quay.io/data:1\",\"dest\":\"/d\"}}],
                     \"artifactVolumes\":[{{\"source\":\"quay.io/model:1\",\"dest\":\"/m\"}}]}}'),
                     ('bb', 'db', '{{}}'), ('cc', 'x', '{{\"name\":null}}');
                 INSERT INTO ContainerState VALUES('aa', 3), ('bb', 6);
                 INSERT INTO VolumeConfig VALUES('data', '{{\"storageID\":\"ee\"}}');"
            ))
            .unwrap();
        connection
    }

    fn file_names(dir: &Path) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn sqlite_is_read_from_a_copy() {
        for journal in ["DELETE", "WAL"] {
            let dir = tempfile::tempdir().unwrap();
            assert_eq!(read(&places(dir.path())), Engine::Absent);
            let path = dir.path().join("db.sql");
            let connection = database(&path, journal);
            // While podman runs, all content is in the log.
            let live = read(&places(dir.path()));
            connection.close().unwrap();
            let before = file_names(dir.path());
            let engine = read(&places(dir.path()));
            assert_eq!(live, engine, "{journal}");
            let Engine::Known(known) = &engine else { panic!("{engine:?}") };
            let web = PodmanContainer {
                state: ContainerState::Running,
                name: "web".into(),
                named_volumes: vec!["data".into()],
                image: Some("i".into()),
                image_volumes: vec!["quay.io/data:1".into()],
                artifact_volumes: vec!["quay.io/model:1".into()],
                created: Some("2026-01-02T02:04:05.6Z".parse().unwrap()),
            };
            assert_eq!(known.containers["aa"], web);
            assert_eq!(known.containers["bb"].state, ContainerState::Exited);
            assert_eq!(known.containers["cc"], PodmanContainer { name: "cc".into(), ..Default::default() });
            assert_eq!(engine.has_volume("data"), Some(true));
            let kept_by = Some("ee".into());
            let volume = Volume { name: "data".into(), containers: vec!["web".into()], kept_by };
            assert_eq!(engine.volumes(), Some(vec![volume]));
            assert_eq!(engine.has_volume("other"), Some(false));
            assert_eq!(file_names(dir.path()), before, "no file is created");
        }
    }

    /// A container without a readable configuration may use any image.
    #[test]
    fn unreadable_configuration_makes_database_unreadable() {
        for config in ["", "[", "[]", r#"{"ctrImageVolumes":[{"dest":"/d"}]}"#, r#"{"artifactVolumes":[7]}"#]
        {
            let dir = tempfile::tempdir().unwrap();
            let connection = database(&dir.path().join("db.sql"), "DELETE");
            connection.execute("INSERT INTO ContainerConfig VALUES('dd', 'y', ?1)", [config]).unwrap();
            let Engine::Unreadable(why) = read(&places(dir.path())) else { panic!("{config}") };
            assert!(why.ends_with("the configuration of container dd cannot be read"), "{why}");
        }
    }

    /// While the database is read, podman writes, moves its log into the database and starts a new log. The copy must be
    /// of a single moment, and not older than the last commit before it.
    #[test]
    fn copy_of_busy_database_is_consistent() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sql");
        let writer = database(&path, "WAL");
        writer.pragma_update(None, "synchronous", "OFF").unwrap();
        writer.execute_batch("CREATE TABLE bulk(a); PRAGMA wal_autocheckpoint = 20;").unwrap();
        let (committed, ended) = (&AtomicU64::new(0), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 1.. {
                    let sql = format!(
                        "BEGIN; INSERT INTO ContainerConfig VALUES('c{number}', '', '{{}}');
                         INSERT INTO VolumeConfig VALUES('v{number}', '');
                         DELETE FROM bulk WHERE rowid % 50 = {number} % 50;
                         INSERT INTO bulk VALUES(randomblob(9000)); COMMIT;"
                    );
                    writer.execute_batch(&sql).unwrap();
                    committed.store(number, Ordering::SeqCst);
                    if ended.load(Ordering::SeqCst) {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            let mut successes = 0;
            for _ in 0..60 {
                let least = committed.load(Ordering::SeqCst);
                match read(&places(dir.path())) {
                    Engine::Known(known) => {
                        let containers = known.containers.len() as u64 - 3;
                        assert_eq!(known.volumes.len() as u64 - 1, containers, "of the same transaction");
                        assert!(containers >= least, "{containers}, {least} before");
                        successes += 1;
                    }
                    Engine::Unreadable(why) => assert!(why.contains("kept changing"), "{why}"),
                    Engine::Absent => panic!("it is there"),
                }
            }
            ended.store(true, Ordering::SeqCst);
            assert!(successes > 40, "{successes}");
        });
    }

    /// The user who wrote the file must not be able to run SQL in layersweep, or to fill its memory.
    #[test]
    fn table_that_is_not_plain_is_not_read() {
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
                // A join of all rows with all rows, which would take hours.
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
            assert!(
                matches!(&engine, Engine::Unreadable(reason) if reason.contains(why)),
                "{why}: {engine:?}"
            );
            assert!(start.elapsed() < 3 * MOST_TIME, "{why}: {:?}", start.elapsed());
        }
    }

    /// Only SQLite can roll back an interrupted change.
    #[test]
    fn database_with_leftover_journal_is_unreadable() {
        let dir = tempfile::tempdir().unwrap();
        database(&dir.path().join("db.sql"), "DELETE").close().unwrap();
        std::fs::write(dir.path().join("db.sql-journal"), "something").unwrap();
        let engine = read(&places(dir.path()));
        assert!(matches!(&engine, Engine::Unreadable(why) if why.contains("interrupted")), "{engine:?}");
    }

    #[test]
    fn file_that_is_no_database_is_unreadable() {
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
