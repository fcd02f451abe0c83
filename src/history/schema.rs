//! The schema of the database, and migrations to it.

use std::sync::OnceLock;

use rusqlite::{Connection, TransactionBehavior};

/// Application id in the header of every database of layersweep: "lswp".
pub(super) const APPLICATION_ID: u32 = 0x6c73_7770;

/// All migrations, in order. `PRAGMA user_version` is the number of applied migrations.
const MIGRATIONS: &[&str] = &[include_str!("../../migrations/0001_history.sql")];

/// Returns the schema version that this binary supports, which is the number of migrations.
pub(super) fn newest() -> u32 {
    u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX)
}

/// Applies the missing migrations. Each runs in its own transaction, which also sets its number, so it is applied
/// completely or not at all.
pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    for (number, sql) in (1..).zip(MIGRATIONS) {
        if version(connection)? < number {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(sql)?;
            transaction.pragma_update(None, "user_version", number)?;
            transaction.commit()?;
        }
    }
    Ok(())
}

/// Returns `PRAGMA user_version`, which SQLite keeps as a signed number.
pub fn version(connection: &Connection) -> rusqlite::Result<u32> {
    let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(version.cast_unsigned())
}

pub(super) fn fill(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "application_id", APPLICATION_ID.cast_signed())?;
    migrate(connection)
}

/// Returns a table, column or index of the present schema that `connection` lacks. SQLite's checks of the structure do
/// not find this damage, because any other name is valid too.
pub(super) fn missing(connection: &Connection) -> rusqlite::Result<Option<String>> {
    static WANTED: OnceLock<Vec<String>> = OnceLock::new();
    let wanted = match WANTED.get() {
        Some(wanted) => wanted,
        None => {
            let mut model = Connection::open_in_memory()?;
            fill(&mut model)?;
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
