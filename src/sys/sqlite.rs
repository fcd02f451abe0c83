//! A copy of an SQLite database and its write-ahead log, read as SQLite itself reads them.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// Where a copy is put, the best first: memory, since the disk may be full, then what everybody may
/// write to.
fn places() -> impl Iterator<Item = PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    runtime.into_iter().chain(["/dev/shm".into(), "/run".into(), std::env::temp_dir()])
}

/// The database that `database` and its log `log` are together, as one file without a log: what was
/// committed, and nothing else.
///
/// The files are copied to a private directory and opened there, so nothing of the originals is
/// locked or changed, and no descriptor of theirs is closed while they are open through SQLite.
///
/// # Errors
/// When there is no place for the copy; `InvalidData` when SQLite cannot read it.
pub fn merged(database: &[u8], log: &[u8]) -> io::Result<Vec<u8>> {
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
    Err(io::Error::new(last.kind(), format!("no place for a copy of it: {last}")))
}

const NAME: &str = "copy.db";

fn open(path: &Path) -> rusqlite::Result<Vec<u8>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    // Without a `-shm` file: the copy is ours alone.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection.serialize("main")?.to_vec())
}

/// A directory of ours that goes with this value.
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
        std::fs::write(self.path.join(format!("{NAME}-wal")), log)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let removed =
            ["", "-wal", "-shm", "-journal"].iter().try_for_each(|end| {
                match std::fs::remove_file(self.path.join(format!("{NAME}{end}"))) {
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
    fn a_log_counts_up_to_its_last_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let writer = Connection::open(&path).unwrap();
        writer.pragma_update(None, "journal_mode", "WAL").unwrap();
        writer.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        writer.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1); PRAGMA wal_checkpoint").unwrap();
        writer.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        writer.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        let (database, log) =
            (std::fs::read(&path).unwrap(), std::fs::read(dir.path().join("db-wal")).unwrap());
        assert_eq!(numbers(&merged(&database, &log).unwrap()), [1, 2, 3]);
        // Without the end of its last frame, the last commit is gone, and the one before counts.
        assert_eq!(numbers(&merged(&database, &log[..log.len() - 1]).unwrap()), [1, 2]);
        assert_eq!(numbers(&merged(&database, b"rubbish").unwrap()), [1]);
        assert!(merged(b"rubbish", &log).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), database);
    }
}
