//! Reading of an SQLite database while other processes may write to it, without a trace: file and log are copied,
//! and the copy is opened.
//!
//! A file must not be copied while this process has it open through SQLite: POSIX releases all record locks of a
//! process on a file when *any* of its descriptors of the file is closed.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::quiet::Within;

/// Length of the header of a database file.
pub const HEADER: usize = 100;

pub const LOG_HEADER: usize = 32;

/// Maximum number of attempts to copy a database that other processes write to. The pause between two attempts
/// grows by one millisecond each time.
const ATTEMPTS: u64 = 40;

/// Returns the database at `path` including the committed part of its log, as one file to be opened in memory;
/// `None` if it does not exist. Neither waits for writers nor disturbs them.
///
/// # Errors
/// If it cannot be read, is longer than `limit` bytes, changed all the time, or has an unfinished change that only
/// SQLite can roll back.
pub fn copy(within: &Within, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    for attempt in 0..ATTEMPTS {
        std::thread::sleep(Duration::from_millis(attempt));
        let Some(mut content) = copy_once(within, path, limit)? else { continue };
        // Versions of the format for writing and reading: a database in memory has no log.
        if let Some(versions @ [2, 2]) = content.get_mut(18..20) {
            versions.fill(1);
        }
        return Ok((!content.is_empty() || within.facts(path).is_ok()).then_some(content));
    }
    Err(io::Error::other("it kept changing while it was read, or a write to it was interrupted"))
}

/// Returns the path of the file beside a database that ends in `suffix`: `-wal`, `-shm`, `-journal`.
#[must_use]
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the first bytes of a file; empty if it does not exist.
pub fn start(within: &Within, path: &Path, length: usize) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    match within.open_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(start),
        file => File::take(file?, length as u64).read_to_end(&mut start)?,
    };
    Ok(start)
}

/// Copies once. Returns an empty copy if the database does not exist, and `None` if it changed meanwhile.
fn copy_once(within: &Within, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    // The header of the log has other salts each time the log is restarted.
    let log_start = || start(within, &beside(path, "-wal"), LOG_HEADER);
    let has_journal = || within.facts(&beside(path, "-journal")).is_ok_and(|facts| facts.length > 0);
    let log_before = log_start()?;
    let before = match within.facts(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Vec::new())),
        facts => facts?,
    };
    if has_journal() {
        return Ok(None);
    }
    let database = within.read(path, limit)?;
    // The log is read after the database: pages that a checkpoint moves in between are in both.
    let log = match within.read(&beside(path, "-wal"), limit) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        log => log?,
    };
    let is_same_log = log_start()? == log_before && log.starts_with(&log_before);
    let after = within.facts(path)?;
    let is_same_file = (after.device, after.inode) == (before.device, before.inode);
    if !is_same_log || !is_same_file || has_journal() {
        return Ok(None);
    }
    if log.len() <= LOG_HEADER {
        // This compares the change counter too: two changes may have the same time.
        let start = start(within, path, HEADER)?;
        return Ok((after == before && database.starts_with(&start)).then_some(database));
    }
    match merged(&database, &log) {
        // It is damaged; opening it shows the error.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(database)),
        merged => merged.map(Some),
    }
}

/// Returns the directories for a copy, the best first: memory, since the disk may be full, then directories that
/// every user can write to.
fn places() -> impl Iterator<Item = PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    runtime.into_iter().chain(["/dev/shm".into(), "/run".into(), std::env::temp_dir()])
}

/// Merges `database` and its log `log` into one file without a log, which contains exactly what was committed.
///
/// The files are copied to a private directory and opened there. The originals are therefore neither locked nor
/// changed, and none of their descriptors is closed while they are open through SQLite.
///
/// # Errors
/// If no directory for the copy works; `InvalidData` if SQLite cannot read it.
fn merged(database: &[u8], log: &[u8]) -> io::Result<Vec<u8>> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for place in places() {
        match Private::new(&place).and_then(|dir| dir.write(database, log).map(|()| dir)) {
            Ok(dir) => {
                let opened = open(&dir.path.join(NAME));
                return opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
            }
            Err(error) => last = error,
        }
    }
    Err(io::Error::new(last.kind(), format!("cannot make a copy of it: {last}")))
}

const NAME: &str = "copy.db";

fn open(path: &Path) -> rusqlite::Result<Vec<u8>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    // Without a `-shm` file: no other process uses the copy.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection.serialize("main")?.to_vec())
}

/// Private directory, removed together with this value.
struct Private {
    path: PathBuf,
}

impl Private {
    fn new(parent: &Path) -> io::Result<Self> {
        for _ in 0..100 {
            let path = parent.join(format!("layersweep-{:016x}", fastrand::u64(..)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn write(&self, database: &[u8], log: &[u8]) -> io::Result<()> {
        std::fs::write(self.path.join(NAME), database)?;
        std::fs::write(beside(&self.path.join(NAME), "-wal"), log)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let removed =
            ["", "-wal", "-shm", "-journal"].iter().try_for_each(|end| {
                match std::fs::remove_file(beside(&self.path.join(NAME), end)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                }
            });
        if let Err(error) = removed.and_then(|()| std::fs::remove_dir(&self.path)) {
            tracing::warn!("removing {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(content: &[u8]) -> Vec<i64> {
        let mut content = content.to_vec();
        content[18..20].fill(1);
        let mut connection = Connection::open_in_memory().unwrap();
        connection.deserialize_read_exact("main", content.as_slice(), content.len(), false).unwrap();
        let mut select = connection.prepare("SELECT a FROM t ORDER BY a").unwrap();
        select.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn log_counts_up_to_its_last_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let writer = Connection::open(&path).unwrap();
        writer.pragma_update(None, "journal_mode", "WAL").unwrap();
        writer.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        writer
            .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1); PRAGMA wal_checkpoint(TRUNCATE)")
            .unwrap();
        writer.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        writer.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        let (database, log) =
            (std::fs::read(&path).unwrap(), std::fs::read(dir.path().join("db-wal")).unwrap());
        assert_eq!(numbers(&merged(&database, &log).unwrap()), [1, 2, 3]);
        // Without the end of its last frame, the last commit is lost, and the one before counts.
        assert_eq!(numbers(&merged(&database, &log[..log.len() - 1]).unwrap()), [1, 2]);
        assert_eq!(numbers(&merged(&database, b"rubbish").unwrap()), [1]);
        assert!(merged(b"rubbish", &log).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), database);
    }
}
