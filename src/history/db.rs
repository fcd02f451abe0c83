//! The database file: opening, transactions, and going on without it.

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

/// Default wait of a writer for another one.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A log of that many bytes is moved into the file: each opening reads it.
const LONG_LOG: u64 = 1 << 20;

/// What the database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look only: the files are read, and not even SQLite's own lock files are made.
    Read,
    /// Record something; the database is created where there is none.
    Write,
    /// The same where a reader has found damage: its structure is looked at in full first.
    Mend,
}

#[derive(Debug)]
pub struct Records {
    // Closed before `lock` is dropped.
    connection: Connection,
    directory: StateDirectory,
    patience: Duration,
    /// The right to write to the file that the connection has open; `None`: it is a copy in memory.
    lock: Option<StateLock>,
}

/// The records, and what is wrong with them.
#[derive(Debug)]
pub struct Opened {
    /// Always usable; whether what is written there is kept says [`Records::is_kept`].
    pub records: Records,
    /// Whether there was a database that could be read.
    pub found: bool,
    /// What to warn of.
    pub degraded: Vec<Degraded>,
}

impl Records {
    /// Opens the records at `directory`, whatever state they are in.
    ///
    /// For reading, they are copied into memory with their log: that blocks nobody, is
    /// blocked by nobody, needs no space and no permission to write (SQLite's own way of
    /// reading makes a `-shm` file), and an older schema is brought to the present one there.
    ///
    /// For writing, it is ours alone until the records are dropped: open late, close early. A
    /// damaged database is quarantined and a new one created.
    /// Where nothing can be written, or another run keeps writing for longer than `patience`,
    /// the records are such a copy too, or empty: writing works, and is not kept.
    ///
    /// # Errors
    /// Only [`Error::Newer`], and what SQLite says about a database in memory.
    pub fn open(directory: &StateDirectory, access: Access, patience: Duration) -> Result<Opened, Error> {
        match &directory.unresolved {
            Some((std::io::ErrorKind::NotFound, _)) => return Self::without(directory, patience, Vec::new()),
            Some((_, cause)) => {
                let degraded = Degraded::NotReadable { path: directory.dir.clone(), cause: cause.clone() };
                return Self::without(directory, patience, vec![degraded]);
            }
            None => {}
        }
        // A dead node's disk is looked at as it is.
        if !directory.foreign
            && let Err(error) = trusted(&directory.dir)
        {
            let degraded = Degraded::NotReadable { path: directory.dir.clone(), cause: error.to_string() };
            return Self::without(directory, patience, vec![degraded]);
        }
        if access == Access::Read || directory.foreign {
            return Self::copied(directory, patience, Vec::new());
        }
        // Looked at before anything is touched, a lock file included.
        refuse_newer(directory)?;
        match Self::for_writing(directory, access == Access::Mend, patience, None) {
            Ok(opened) => Ok(opened),
            Err(Error::Degraded(degraded)) => Self::copied(directory, patience, vec![*degraded]),
            Err(error) => Err(error),
        }
    }

    /// Opens the database at `directory` for writing; what hinders that is an error, and no copy of
    /// it is made. For who writes a little and often, and has another place for it. `left` is what
    /// [`Self::leave`] returned: as long as that holds, nobody else has written, and nothing is checked.
    pub(super) fn open_to_write(
        directory: &StateDirectory,
        patience: Duration,
        left: Option<&Stamp>,
    ) -> Result<Opened, Error> {
        let not_readable = |cause: String| Degraded::NotReadable { path: directory.dir.clone(), cause };
        if let Some((_, cause)) = &directory.unresolved {
            return Err(not_readable(cause.clone()).into());
        }
        trusted(&directory.dir).map_err(|error| not_readable(error.to_string()))?;
        if left.is_none() {
            refuse_newer(directory)?;
        }
        Self::for_writing(directory, false, patience, left)
    }

    /// From now on waits for no disk: what is written stays in the log, also when the database is closed,
    /// until the log is long. A process that is killed loses none of it; a power cut may take back the
    /// last of it.
    pub(super) fn defer_sync(&self) -> rusqlite::Result<()> {
        self.connection.pragma_update(None, "synchronous", "NORMAL")?;
        let long = Stamp::of(&self.directory.dir).is_some_and(|now| now.log_bytes() > LONG_LOG);
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !long).map(drop)
    }

    /// Closes the database, and returns what its files are like then.
    pub(super) fn leave(self) -> Option<Stamp> {
        let Self { connection, directory, lock, .. } = self;
        drop(connection);
        let left = Stamp::of(&directory.dir);
        drop(lock);
        left
    }

    /// Whether what is written is kept. If not, it is to wait ([`super::pending`]).
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.lock.is_some()
    }

    /// Reads; sees one moment of the database.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let moment = self.connection.unchecked_transaction().map_err(|error| self.judge(error))?;
        work(&moment).map_err(|error| self.judge(error))
    }

    /// Writes all or nothing.
    pub fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let begun = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let written = begun.and_then(|transaction| {
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        });
        written.map_err(|error| self.judge(error))
    }

    /// Goes on with a copy of the records in memory, because writing failed. What is written
    /// from now on is not kept.
    pub fn fall_back(&mut self) -> Result<Vec<Degraded>, Error> {
        if !self.is_kept() {
            return Ok(Vec::new());
        }
        // Closed first: the copy is to see what closing moves from the log into the file.
        self.connection = Connection::open_in_memory()?;
        self.lock = None;
        let opened = Self::copied(&self.directory, self.patience, Vec::new())?;
        *self = opened.records;
        Ok(opened.degraded)
    }

    /// Quarantines the database after `damage` was found during use, and continues with a new one.
    ///
    /// # Errors
    /// Why there is no new one; then it goes on with a copy, as [`Self::fall_back`].
    pub(super) fn renew(&mut self, damage: Degraded) -> Result<Degraded, Error> {
        let Some(lock) = self.lock.take() else {
            return Err(damage.into());
        };
        // Quarantined unchanged, with its log.
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
        doubt: bool,
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
                    connect(directory, Check::of(dir, unclosed || doubt), patience)
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

    /// Empty records in memory.
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

/// Adds `new`, unless the same was said already of the same fault.
fn note(degraded: &mut Vec<Degraded>, new: Degraded) {
    if degraded.iter().all(|old| old.code() != new.code()) {
        degraded.push(new);
    }
}

#[cfg(test)]
pub(super) mod tests;
