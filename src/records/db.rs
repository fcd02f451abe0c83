//! The database file: opening, migrations, transactions.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

/// Name of the database in the state directory.
pub const DATABASE: &str = "layersweep.db";

/// All migrations, in order; the number of those applied is `PRAGMA user_version`.
const MIGRATIONS: &[&str] = &[
    include_str!("../../migrations/0001_images.sql"),
    include_str!("../../migrations/0002_layer_sizes.sql"),
];

/// What the database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look only; nothing is created.
    Read,
    /// Record something; the database is created where there is none.
    Write,
}

/// Why the records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite says no.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// The open database.
#[derive(Debug)]
pub struct Records {
    connection: Connection,
}

impl Records {
    /// Opens the database in `state_dir`.
    ///
    /// # Errors
    /// When it cannot be opened or brought to the present schema.
    pub fn open(state_dir: &Path, access: Access) -> Result<Self, Error> {
        let flags = match access {
            Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
            Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        };
        let mut connection = Connection::open_with_flags(state_dir.join(DATABASE), flags)?;
        if access == Access::Write {
            connection.pragma_update(None, "journal_mode", "WAL")?;
            migrate(&mut connection)?;
        }
        Ok(Self { connection })
    }

    /// Reads; sees one moment of the database.
    ///
    /// # Errors
    /// What SQLite says, or `work`.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let moment = self.connection.unchecked_transaction()?;
        Ok(work(&moment)?)
    }

    /// Writes all or nothing.
    ///
    /// # Errors
    /// What SQLite says, or `work`; then nothing was written.
    pub fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }
}

fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let applied: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for (version, sql) in (1..).zip(MIGRATIONS).filter(|(version, _)| *version > applied) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    Ok(())
}
