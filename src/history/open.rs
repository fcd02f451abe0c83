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

/// How long a program that is not ours is waited for at most.
const FOREIGN: Duration = Duration::from_secs(5);

/// What every connection of ours is like. The file may have been written by others: no
/// function with effects is called for its schema's sake, no cell is believed beyond its page.
pub(super) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // FULL syncs the log at each commit. NORMAL does so only before a checkpoint: a power cut
    // then takes back commits that were reported as saved, after the files that waited are gone.
    // A journal, which commits with each deletion, does with NORMAL until it ends.
    connection.pragma_update(None, "synchronous", "FULL")?;
    // A log that was once long is cut when it is begun anew.
    connection.pragma_update(None, "journal_size_limit", 4 << 20)
}

/// A database in memory with `content`, at the present schema; says why it is damaged.
pub(super) fn in_memory(content: &[u8]) -> Result<Connection, String> {
    files::schema_version(content)?;
    let open = || {
        let mut connection = Connection::open_in_memory()?;
        connection.deserialize_read_exact("main", content, content.len(), false)?;
        configure(&connection)?;
        // All of it is in memory, so this costs little; and a reader that meets the damage later
        // could only give up.
        check_integrity(&connection)?;
        schema::migrate(&mut connection)?;
        let missing = schema::missing(&connection)?;
        Ok::<_, rusqlite::Error>((connection, missing))
    };
    match open() {
        Ok((connection, None)) => Ok(connection),
        Ok((_, Some(missing))) => Err(format!("{missing} is missing")),
        Err(error) => Err(error.to_string()),
    }
}

/// Fails where a newer layersweep made the database; what else is wrong shows later.
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

/// How far a database is looked at before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Not at all: this process has checked it before, and nobody has written to it since.
    Nothing,
    Schema,
    /// Its structure too, in full.
    Structure,
}

impl Check {
    /// Of a database in `dir`. `doubtful`: it was not closed, or damage was seen.
    ///
    /// `quick_check` reads the whole file: of 46 MiB, 0.04 s to 0.1 s from the page cache and 1.4 s
    /// from the disk, which is too much for a run every five minutes. It is done where the last
    /// writer did not close the file, and by the first run of a day (UTC): closing writes the file, so
    /// its modification time says which run that is. Damage that is met in between is dealt with
    /// where it is met ([`super::Records`]).
    pub(super) fn of(dir: &Path, doubtful: bool) -> Self {
        let day = |time: Timestamp| time.to_zoned(TimeZone::UTC).date();
        let modified = crate::sys::quiet::facts(&dir.join(DATABASE)).ok().and_then(|facts| facts.modified);
        let today = modified.is_some_and(|modified| day(modified) == day(Timestamp::now()));
        if doubtful || !today { Self::Structure } else { Self::Schema }
    }
}

/// Opens the database at `directory` for writing; the caller holds the lock. A program that is not ours
/// and holds the file is waited for as long as `patience`.
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
            // Not for lack of soundness: what it holds is worth more than a new beginning.
            None => Degraded::NotUpgraded { path, cause: error.to_string() }.into(),
        },
        other => other,
    })
}

fn open_existing(directory: &StateDirectory, check: Check, patience: Duration) -> Result<Connection, Error> {
    let dir = &directory.dir;
    let failed = |error: std::io::Error| Degraded::from_io(dir, &error);
    // SQLite is to follow no symlink in place of the database, so the way there has none.
    let path = dir.canonicalize().map_err(failed)?.join(DATABASE);
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(&path, flags)?;
    // Our own writers wait for the lock; this is for an sqlite3 at work on the file.
    connection.busy_timeout(patience.min(FOREIGN))?;
    // If it is damaged, file and log are quarantined unchanged: SQLite must not merge them or remove the log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Then SQLite needs no `-shm` file. It maps that into memory, and where its pages cannot be
    // written any more (seen on an XFS that has shut down), the kernel ends the process with
    // SIGBUS. The lock excludes all other writers; readers take copies.
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
        // It is so already, unless somebody has copied it with a tool of their own.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        schema::migrate(&mut connection)?;
        // Checked again through SQLite: no writer came in between.
        refuse(directory, schema::version(&connection)?)?;
        if let Some(missing) = schema::missing(&connection)? {
            return Err(Degraded::corrupt(&path, format!("{missing} is missing")).into());
        }
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok(connection)
}

/// Finds what is wrong with the structure of the database.
pub(super) fn check_integrity(connection: &Connection) -> rusqlite::Result<()> {
    let first: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if first == "ok" {
        return Ok(());
    }
    let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    // SQLite heads its finding with the name of the database, on a line of its own.
    let first = first.lines().last().unwrap_or_default().trim().to_owned();
    Err(rusqlite::Error::SqliteFailure(failure, Some(first)))
}

/// What damage that SQLite reports really is. To a read that fails with EIO it says the same
/// as to a malformed page; but a disk that fails is no reason to begin anew, and what was read
/// wrong once may be read right the next time. Not while this process has the file open: it is read.
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
    let sound = in_memory(&content).is_ok_and(|copy| {
        let all = copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0));
        all.is_ok_and(|all| all == "ok")
    });
    if sound {
        let cause = format!("{cause}; a second read found no damage");
        return Degraded::Io { path: dir.to_path_buf(), cause };
    }
    degraded
}
