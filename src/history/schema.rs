//! Migrates a database to the current schema.

use std::sync::OnceLock;

use rusqlite::{Connection, TransactionBehavior};

use super::header::APPLICATION_ID;

/// All migrations, in order; the number of those applied is `PRAGMA user_version`.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/0001_history.sql")];

/// The schema this binary knows: the number of migrations.
pub(super) fn newest() -> u32 {
    u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX)
}

/// Applies the migrations up to number `to` that are missing, each in a transaction of its
/// own that also notes its number, so that it is there wholly or not at all.
pub(super) fn migrate(connection: &mut Connection, to: u32) -> rusqlite::Result<()> {
    let steps: Vec<_> = (1..=to).zip(MIGRATIONS).collect();
    if version(connection)? >= to {
        return Ok(());
    }
    // SQLite's own way of changing a table is to make it anew, which dangling references
    // would forbid in between; the pragma does nothing inside a transaction.
    connection.pragma_update(None, "foreign_keys", false)?;
    let result = steps.into_iter().try_for_each(|(number, sql)| apply(connection, number, sql));
    connection.pragma_update(None, "foreign_keys", true)?;
    result?;
    // An older binary looks at the file's own header first. Where a reader keeps the log
    // busy, the version stays in the log, where it is looked for too.
    if connection.is_readonly("main")? {
        return Ok(());
    }
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

fn apply(connection: &mut Connection, number: u32, sql: &str) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been here since.
    if version(&transaction)? >= number {
        return Ok(());
    }
    transaction.execute_batch(sql)?;
    let dangling: Option<String> = transaction
        .query_row("SELECT \"table\" FROM pragma_foreign_key_check LIMIT 1", [], |row| row.get(0))
        .map(Some)
        .or_else(|error| if error == rusqlite::Error::QueryReturnedNoRows { Ok(None) } else { Err(error) })?;
    if let Some(table) = dangling {
        let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CONSTRAINT_FOREIGNKEY);
        let message = format!("migration {number} left a dangling reference in table {table}");
        return Err(rusqlite::Error::SqliteFailure(failure, Some(message)));
    }
    transaction.pragma_update(None, "user_version", number)?;
    transaction.commit()
}

/// `PRAGMA user_version`, which SQLite keeps as a signed number.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(version.cast_unsigned())
}

/// Fills an empty database, up to migration `to`.
pub(super) fn fill(connection: &mut Connection, to: u32) -> rusqlite::Result<()> {
    connection.pragma_update(None, "application_id", APPLICATION_ID.cast_signed())?;
    migrate(connection, to)
}

/// A table, column or index of the present schema that `connection` lacks: the damage that
/// no check of the structure finds, since another name is as good as any to SQLite.
pub(super) fn missing(connection: &Connection) -> rusqlite::Result<Option<String>> {
    static WANTED: OnceLock<Vec<String>> = OnceLock::new();
    let wanted = match WANTED.get() {
        Some(wanted) => wanted,
        None => {
            let mut model = Connection::open_in_memory()?;
            fill(&mut model, newest())?;
            let wanted = parts(&model)?;
            WANTED.get_or_init(|| wanted)
        }
    };
    let has = parts(connection)?;
    Ok(wanted.iter().find(|part| !has.contains(part)).cloned())
}

fn parts(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT s.type || ' ' || s.name || coalesce('.' || c.name || ' ' || c.type, '')
        FROM sqlite_schema AS s LEFT JOIN pragma_table_info(s.name) AS c
        WHERE s.name NOT LIKE 'sqlite_%'";
    connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}
