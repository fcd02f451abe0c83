//! The database file: opening it, transactions, and working without it.

use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::files::{self, DATABASE, DatabaseFile, Stamp};
use super::health::{Degraded, Error};
use super::lock::StateLock;
use super::open::{Check, configure, connect, in_memory, judged, refuse, refuse_newer};
use super::quarantine::{self, renew};
use super::schema;
use super::state_directory::{StateDirectory, make_private, trusted};

/// Default time that a writer waits for another writer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Length of the log from which it is moved into the database file, because each opening reads the log.
const LONG_LOG: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read: the files are read as bytes, and not even SQLite's lock files are created.
    Read,
    /// Write; a missing database is created.
    Write,
    /// Write, after a reader has found damage: the whole structure is checked first.
    Mend,
}

/// Connection to the database, or to a copy of it in memory.
#[derive(Debug)]
pub struct Records {
    // Declared first: the connection must close before the lock is released.
    connection: Connection,
    directory: StateDirectory,
    patience: Duration,
    /// Write lock of the database file; `None` if the connection is a copy in memory.
    lock: Option<StateLock>,
}

#[derive(Debug)]
pub struct Opened {
    /// Always usable; [`Records::is_kept`] tells whether writes reach the disk.
    pub records: Records,
    pub found: bool,
    /// Problems to warn of.
    pub degraded: Vec<Degraded>,
}

impl Records {
    /// Opens the records at `directory`, whatever state they are in.
    ///
    /// For reading, the database and its log are copied into memory. That neither blocks nor waits for other
    /// processes, and needs neither space nor permission to write (SQLite itself would create a `-shm` file to read).
    /// An older schema is migrated in the copy.
    ///
    /// For writing, the lock is held until the records are dropped, so open late and close early. A damaged database
    /// is quarantined and a new one created. If writing is impossible, or another run keeps the lock for longer than
    /// `patience`, the records are a copy in memory, or empty: writes succeed but are not kept.
    ///
    /// # Errors
    /// Only [`Error::Newer`], and errors of SQLite on a database in memory.
    pub fn open(directory: &StateDirectory, access: Access, patience: Duration) -> Result<Opened, Error> {
        match &directory.unresolved {
            Some((std::io::ErrorKind::NotFound, _)) => return Self::without(directory, patience, Vec::new()),
            Some((_, cause)) => {
                let degraded = Degraded::NotReadable { path: directory.dir.clone(), cause: cause.clone() };
                return Self::without(directory, patience, vec![degraded]);
            }
            None => {}
        }
        // On the disk of another system, the owner of the state directory does not matter.
        if !directory.foreign
            && let Err(error) = trusted(&directory.dir)
        {
            let degraded = Degraded::NotReadable { path: directory.dir.clone(), cause: error.to_string() };
            return Self::without(directory, patience, vec![degraded]);
        }
        if access == Access::Read || directory.foreign {
            return Self::copied(directory, patience, Vec::new());
        }
        // Checked before anything is changed, even before a lock file is created.
        refuse_newer(directory)?;
        match Self::for_writing(directory, access == Access::Mend, patience, None) {
            Ok(opened) => Ok(opened),
            Err(Error::Degraded(degraded)) => Self::copied(directory, patience, vec![*degraded]),
            Err(error) => Err(error),
        }
    }

    /// Opens the database at `directory` for writing. Any obstacle is an error, and no copy is made. It is for a
    /// caller that writes a little and often, and has another place to write to.
    ///
    /// `left` is the stamp that [`Self::leave`] returned. While the files still match it, no other process has written,
    /// and all checks are skipped.
    pub(super) fn open_to_write(
        directory: &StateDirectory,
        patience: Duration,
        left: Option<&Stamp>,
    ) -> Result<Opened, Error> {
        fn not_readable(directory: &StateDirectory, cause: String) -> Error {
            Degraded::NotReadable { path: directory.dir.clone(), cause }.into()
        }
        if let Some((_, cause)) = &directory.unresolved {
            return Err(not_readable(directory, cause.clone()));
        }
        trusted(&directory.dir).map_err(|error| not_readable(directory, error.to_string()))?;
        if left.is_none() {
            refuse_newer(directory)?;
        }
        Self::for_writing(directory, false, patience, left)
    }

    /// Stops waiting for the disk: from now on, writes stay in the log, also when the database is closed, until the log
    /// is long. If the process is killed nothing is lost; a power cut may undo the last writes.
    pub(super) fn defer_sync(&self) -> rusqlite::Result<()> {
        self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        let is_long = Stamp::of(&self.directory.dir).is_some_and(|now| now.log_bytes() > LONG_LOG);
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !is_long).map(drop)
    }

    /// Closes the database, and returns the stamp of its files at that time.
    pub(super) fn leave(self) -> Option<Stamp> {
        let Self { connection, directory, lock, .. } = self;
        drop(connection);
        let left = Stamp::of(&directory.dir);
        drop(lock);
        left
    }

    /// Returns whether writes reach the disk. If not, they must be queued ([`super::pending`]).
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.lock.is_some()
    }

    /// Reads in one transaction, so that all reads see the same state.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let transaction = self.connection.unchecked_transaction().map_err(|error| self.judge(error))?;
        work(&transaction).map_err(|error| self.judge(error))
    }

    pub fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let written = transaction.and_then(|transaction| {
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        });
        written.map_err(|error| self.judge(error))
    }

    /// Continues with a copy of the records in memory after a write failed. Later writes are not kept.
    pub fn fall_back(&mut self) -> Result<Vec<Degraded>, Error> {
        if !self.is_kept() {
            return Ok(Vec::new());
        }
        // Close first, because closing moves the log into the file, which the copy should contain.
        self.connection = Connection::open_in_memory()?;
        self.lock = None;
        let opened = Self::copied(&self.directory, self.patience, Vec::new())?;
        *self = opened.records;
        Ok(opened.degraded)
    }

    /// Quarantines the database after `damage` was found during use, and continues with a new database.
    ///
    /// # Errors
    /// Reason why there is no new database; the records are then a copy, as after [`Self::fall_back`].
    pub(super) fn renew(&mut self, damage: Degraded) -> Result<Degraded, Error> {
        let Some(lock) = self.lock.take() else {
            return Err(damage.into());
        };
        // The database is quarantined unchanged, with its log.
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        self.connection = Connection::open_in_memory()?;
        let renewed = renew(&self.directory.dir, judged(&self.directory.dir, damage)).and_then(|renewed| {
            connect(&self.directory, Check::Schema, self.patience).map(|connection| (renewed, connection))
        });
        match renewed {
            Ok((renewed, connection)) => {
                self.connection = connection;
                self.lock = Some(lock);
                Ok(renewed)
            }
            Err(error) => {
                *self = Self::copied(&self.directory, self.patience, Vec::new())?.records;
                Err(error)
            }
        }
    }

    fn judge(&self, error: rusqlite::Error) -> Error {
        if self.is_kept()
            && let Some(degraded) = Degraded::from_sqlite(&self.directory.dir.join(DATABASE), &error)
        {
            return degraded.into();
        }
        Error::Sqlite(error)
    }

    fn for_writing(
        directory: &StateDirectory,
        is_doubtful: bool,
        patience: Duration,
        left: Option<&Stamp>,
    ) -> Result<Opened, Error> {
        let dir = &directory.dir;
        make_private(dir).map_err(|error| Degraded::from_io(dir, &error))?;
        let lock = StateLock::for_writing(dir, patience).map_err(Degraded::from_lock)?;
        let mut degraded = Vec::new();
        let connected = if left.is_some() && left == Stamp::of(dir).as_ref() {
            connect(directory, Check::Nothing, patience)
        } else {
            match files::look(dir).map_err(|error| Degraded::from_io(dir, &error))? {
                DatabaseFile::Missing => {
                    quarantine::create(dir)?;
                    connect(directory, Check::Schema, patience)
                }
                DatabaseFile::Database { version, unclosed } => {
                    refuse(directory, version)?;
                    connect(directory, Check::of(dir, unclosed || is_doubtful), patience)
                }
                DatabaseFile::Damaged(why) => Err(Degraded::corrupt(&dir.join(DATABASE), why).into()),
            }
        };
        let connection = match connected {
            Err(Error::Degraded(damage)) if matches!(*damage, Degraded::Corrupt { .. }) => {
                degraded.push(renew(dir, *damage)?);
                connect(directory, Check::Schema, patience)?
            }
            other => other?,
        };
        let records = Self { connection, directory: directory.clone(), patience, lock: Some(lock) };
        Ok(Opened { records, found: true, degraded })
    }

    fn copied(
        directory: &StateDirectory,
        patience: Duration,
        mut degraded: Vec<Degraded>,
    ) -> Result<Opened, Error> {
        refuse_newer(directory)?;
        let path = directory.dir.join(DATABASE);
        let content = match files::copy(&path) {
            Ok(Some(content)) => content,
            Ok(None) => return Self::without(directory, patience, degraded),
            Err(error) => {
                note(&mut degraded, Degraded::from_reading(&directory.dir, &error));
                return Self::without(directory, patience, degraded);
            }
        };
        match in_memory(&content) {
            Ok(connection) => {
                let records = Self { connection, directory: directory.clone(), patience, lock: None };
                Ok(Opened { records, found: true, degraded })
            }
            Err(why) => {
                note(&mut degraded, Degraded::corrupt(&path, why));
                Self::without(directory, patience, degraded)
            }
        }
    }

    /// Returns empty records in memory.
    fn without(
        directory: &StateDirectory,
        patience: Duration,
        degraded: Vec<Degraded>,
    ) -> Result<Opened, Error> {
        let mut connection = Connection::open_in_memory()?;
        configure(&connection)?;
        schema::fill(&mut connection)?;
        let records = Self { connection, directory: directory.clone(), patience, lock: None };
        Ok(Opened { records, found: false, degraded })
    }
}

/// Adds `new`, unless a problem of the same kind is already noted.
fn note(degraded: &mut Vec<Degraded>, new: Degraded) {
    if degraded.iter().all(|old| old.code() != new.code()) {
        degraded.push(new);
    }
}

#[cfg(test)]
pub(super) mod tests;
