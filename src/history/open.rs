//! Opens the database file and detects damage.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::files::{self, DATABASE, DatabaseFile};
use super::health::{Degraded, Error};
use super::schema;
use super::state_directory::StateDirectory;

/// Maximum time that another program with the database open, such as `sqlite3`, is waited for.
const OTHER_PROGRAM: Duration = Duration::from_secs(5);

/// Configures a connection. The file may have been written by another program: functions with side effects are not
/// called by its schema, and no cell is read beyond its page.
pub(super) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // FULL syncs the log at each commit. NORMAL syncs it only before a checkpoint: a power cut could then undo commits
    // that were reported as saved, after the queue files were deleted. A journal commits with each deletion and uses
    // NORMAL until its end.
    connection.pragma_update(None, "synchronous", "FULL")?;
    // A log that was long once is truncated when it starts again.
    connection.pragma_update(None, "journal_size_limit", 4 << 20)
}

/// Opens a database in memory with `content`, migrated to the present schema. The error is the damage.
pub(super) fn in_memory(content: &[u8]) -> Result<Connection, String> {
    files::schema_version(content)?;
    let mut connection = memory_with(content).map_err(|error| error.to_string())?;
    schema::migrate(&mut connection).map_err(|error| error.to_string())?;
    match schema::missing(&connection) {
        Ok(None) => Ok(connection),
        Ok(Some(missing)) => Err(format!("{missing} is missing")),
        Err(error) => Err(error.to_string()),
    }
}

fn memory_with(content: &[u8]) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    connection.deserialize_read_exact("main", content, content.len(), false)?;
    configure(&connection)?;
    // The content is in memory, so this is cheap. A reader that found the damage later could only give up.
    check_integrity(&connection)?;
    Ok(connection)
}

/// Fails if a newer layersweep wrote the database. Other problems are found later.
pub(super) fn refuse_newer(directory: &StateDirectory) -> Result<(), Error> {
    match files::look(&directory.dir) {
        Ok(DatabaseFile::Database { version, .. }) => refuse(directory, version),
        _ => Ok(()),
    }
}

pub(super) fn refuse(directory: &StateDirectory, found: u32) -> Result<(), Error> {
    let (path, known) = (directory.dir.join(DATABASE), schema::newest());
    if found > known { Err(Error::Newer { path, found, known }) } else { Ok(()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// No checks: this process has checked the database before, and no other process has written to it since.
    Nothing,
    Schema,
    /// The schema and the whole structure.
    Structure,
}

impl Check {
    /// Returns the checks for the database in `dir`. `is_doubtful`: it was not closed, or damage was found.
    ///
    /// The structure check `quick_check` reads the whole file: for 46 MiB it takes 0.04 s to 0.1 s from the page cache
    /// and 1.4 s from the disk, which is too much for a run every five minutes. It is done if the last writer did not
    /// close the file, and by the first run of each day (UTC). Closing writes the file, so its modification time shows
    /// whether a run was the first. Damage that is found in between is handled where it is found ([`super::Records`]).
    pub(super) fn of(dir: &Path, is_doubtful: bool) -> Self {
        let modified = crate::sys::quiet::facts(&dir.join(DATABASE)).ok().and_then(|facts| facts.modified);
        let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
        let is_of_today = modified.is_some_and(|modified| modified.to_zoned(TimeZone::UTC).date() == today);
        if is_doubtful || !is_of_today { Self::Structure } else { Self::Schema }
    }
}

/// Opens the database at `directory` for writing; the caller holds the lock. Waits for at most `patience` for another
/// program that has the file open.
pub(super) fn connect(
    directory: &StateDirectory,
    check: Check,
    patience: Duration,
) -> Result<Connection, Error> {
    let path = directory.dir.join(DATABASE);
    let opened = open_existing(directory, check, patience);
    opened.map_err(|error| match error {
        Error::Sqlite(error) => match Degraded::from_sqlite(&path, &error) {
            Some(degraded) => judged(&directory.dir, degraded).into(),
            // The database is not damaged, and its content is worth more than a new database.
            None => Degraded::NotUpgraded { path, cause: error.to_string() }.into(),
        },
        other => other,
    })
}

fn open_existing(directory: &StateDirectory, check: Check, patience: Duration) -> Result<Connection, Error> {
    let dir = &directory.dir;
    // SQLite must not follow a symlink in place of the database, so the path is resolved up to the file name.
    let real = dir.canonicalize().map_err(|error| Degraded::from_io(dir, &error))?;
    let path = real.join(DATABASE);
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(&path, flags)?;
    // layersweep's own writers wait for the lock. This timeout is for another program, such as `sqlite3`.
    connection.busy_timeout(patience.min(OTHER_PROGRAM))?;
    // A damaged file and its log are quarantined unchanged: SQLite must not merge them or delete the log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // In this mode SQLite needs no `-shm` file. It would map that file into memory, and if the pages cannot be written
    // any more (seen on an XFS that had shut down), the kernel kills the process with SIGBUS. The lock excludes all
    // other writers, and readers use copies.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    if connection.is_readonly("main")? {
        let cause = "it is read-only".into();
        return Err(Degraded::NotWritable { path, cause }.into());
    }
    configure(&connection)?;
    if check == Check::Structure {
        check_integrity(&connection)?;
    }
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    if check != Check::Nothing {
        // This is already the mode, unless the file was copied with another tool.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        schema::migrate(&mut connection)?;
        // Checked again, now through SQLite: no other writer came in between.
        refuse(directory, schema::version(&connection)?)?;
        if let Some(missing) = schema::missing(&connection)? {
            return Err(Degraded::corrupt(&path, format!("{missing} is missing")).into());
        }
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok(connection)
}

pub(super) fn check_integrity(connection: &Connection) -> rusqlite::Result<()> {
    let first: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if first == "ok" {
        return Ok(());
    }
    let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    // SQLite writes the name of the database on the first line, and its finding on the last.
    let first = first.lines().last().unwrap_or_default().trim().to_owned();
    Err(rusqlite::Error::SqliteFailure(failure, Some(first)))
}

/// Decides whether damage that SQLite reported is real. SQLite reports the same error for a read that fails with EIO
/// as for a malformed page. But a failing disk is no reason for a new database, and a page that was read wrongly once
/// may be read correctly the next time. This process must not have the file open, because it is read again.
pub(super) fn judged(dir: &Path, degraded: Degraded) -> Degraded {
    let Degraded::Corrupt { cause, .. } = &degraded else {
        return degraded;
    };
    let content = match files::copy(&dir.join(DATABASE)) {
        Ok(Some(content)) => content,
        Ok(None) => return degraded,
        Err(error) if error.raw_os_error().is_some() => return Degraded::from_reading(dir, &error),
        Err(_) => return degraded,
    };
    let is_sound = in_memory(&content).is_ok_and(|copy| {
        let result = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0));
        result.is_ok_and(|result| result == "ok")
    });
    if is_sound {
        let cause = format!("{cause}; a second read found no damage");
        return Degraded::Io { path: dir.to_path_buf(), cause };
    }
    degraded
}
