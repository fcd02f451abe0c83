//! Taking what is still sound out of a damaged database.
//!
//! Only what nothing else can say again is taken: since when images are known, when they
//! were last used, by which clock, and the keep-list. A row is taken if it is whole, has the types of the
//! present schema, and its times can be true; the rest is left in the file set aside.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Transaction};

use super::db::CONTAINERD_STORES;
use super::format::HEADER;
use super::{open, schema};

/// Tables to be saved; each after those it refers to. Those the schema lacks are passed over.
const TABLES: [&str; 4] = ["clock", "stores", "images", "pins"];

/// Columns that hold a time in microseconds.
const TIMES: [&str; 10] = [
    "record_time",
    "first_seen",
    "last_seen",
    "last_complete",
    "first_detected",
    "last_used",
    "proven_since",
    "gone_since",
    "added",
    "created",
];

/// Nobody had a container image before 2013-01-01T00:00:00Z.
const FIRST_IMAGES: i64 = 1_356_998_400_000_000;
const DAY: i64 = 86_400_000_000;

/// A longer damaged database is not padded to the length its header claims.
const LONGEST: usize = 512 << 20;

type Row = BTreeMap<String, Value>;

/// Copies what is sound in `content`, a database without a log, into the new database at
/// `path`; says how many rows. The caller holds the lock.
///
/// # Errors
/// When the new database cannot be written; then nothing was taken over.
pub(super) fn salvage(content: &[u8], path: &Path) -> rusqlite::Result<u64> {
    if content.len() < HEADER {
        return Ok(0);
    }
    let content = mended(content)?;
    let mut damaged = Connection::open_in_memory()?;
    damaged.deserialize_read_exact("main", content.as_slice(), content.len(), true)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut renewed = Connection::open_with_flags(path, flags)?;
    open::configure(&renewed)?;
    let transaction = renewed.transaction()?;
    let mut taken = 0;
    for table in TABLES {
        let theirs = columns(&damaged, table).unwrap_or_default();
        let common: Vec<_> = columns(&transaction, table)?.intersection(&theirs).cloned().collect();
        if common.is_empty() {
            continue;
        }
        let Some(key) = key(&transaction, table)?.filter(|key| common.contains(key)) else {
            continue;
        };
        let mut seen = BTreeSet::new();
        // From both ends: a damaged page ends a reading, and there may be sound ones behind.
        for order in ["ASC", "DESC"] {
            rows(&damaged, table, &common, &format!("\"{key}\" {order}"), |row| {
                if !seen.insert(format!("{:?}", row.get(&key))) {
                    return false;
                }
                if is_plausible(&row, Timestamp::now())
                    && insert(&transaction, table, &row).is_ok_and(|n| n > 0)
                {
                    taken += 1;
                }
                true
            });
        }
    }
    // The damaged database may be of an older schema.
    transaction.execute_batch(CONTAINERD_STORES)?;
    // Rows of images may be lost: that one is missing does not prove that it was not there.
    transaction.execute("UPDATE stores SET last_complete = NULL", [])?;
    transaction.commit()?;
    Ok(taken)
}

/// `content` with what SQLite needs to open it at all: a header, and its length.
fn mended(content: &[u8]) -> rusqlite::Result<Vec<u8>> {
    let mut content = content.to_vec();
    let mut model = Connection::open_in_memory()?;
    schema::fill(&mut model, schema::newest())?;
    let model = model.serialize("main")?;
    let magic = 0..16;
    if content.get(magic.clone()) != model.get(magic)
        && let (Some(head), Some(model)) = (content.get_mut(..HEADER), model.get(..HEADER))
    {
        head.copy_from_slice(model);
        head[28..32].fill(0); // its page count: as long as it is
        head[32..40].fill(0); // no free pages
    }
    if let Some(&[a, b, c, d]) = content.get(28..32) {
        let page = usize::from(content[16]) << 8 | usize::from(content[17]) << 16;
        let length = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_mul(page);
        if length > content.len() && length <= LONGEST {
            content.resize(length, 0);
        }
    }
    Ok(content)
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<BTreeSet<String>> {
    connection
        .prepare("SELECT name FROM pragma_table_info(?1)")?
        .query_map([table], |row| row.get(0))?
        .collect()
}

/// The column that the table is ordered by on disk.
fn key(connection: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
    connection
        .prepare("SELECT name FROM pragma_table_info(?1) WHERE pk = 1")?
        .query_map([table], |row| row.get(0))?
        .next()
        .transpose()
}

/// Hands out rows until one cannot be read, or `take` has enough.
fn rows(from: &Connection, table: &str, columns: &[String], order: &str, mut take: impl FnMut(Row) -> bool) {
    let list = columns.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    // The table itself and no index, which may be damaged where the table is not.
    let sql = format!("SELECT {list} FROM {table} NOT INDEXED ORDER BY {order}");
    let mut read = || {
        let mut statement = from.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let values = columns.iter().enumerate().map(|(at, name)| Ok((name.clone(), row.get(at)?)));
            if !take(values.collect::<rusqlite::Result<_>>()?) {
                break;
            }
        }
        Ok::<_, rusqlite::Error>(())
    };
    if let Err(error) = read() {
        tracing::debug!("reading {table} of the damaged database ({order}): {error}");
    }
}

fn insert(into: &Transaction<'_>, table: &str, row: &Row) -> rusqlite::Result<usize> {
    let names = row.keys().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let marks = vec!["?"; row.len()].join(", ");
    let sql = format!("INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})");
    into.prepare_cached(&sql)?.execute(rusqlite::params_from_iter(row.values()))
}

/// Whether a row can be true: a flipped bit in a time must not make an image older than it is.
fn is_plausible(row: &Row, now: Timestamp) -> bool {
    let number = |name: &str| match row.get(name) {
        Some(Value::Integer(number)) => Some(*number),
        _ => None,
    };
    let times = TIMES.iter().filter_map(|name| number(name));
    let in_time = times.clone().all(|time| (FIRST_IMAGES..=now.as_microsecond() + DAY).contains(&time));
    let ordered = |early: &str, late: &str| match (number(early), number(late)) {
        (Some(early), Some(late)) => early <= late,
        _ => true,
    };
    let sound = |(name, value): (&String, &Value)| match value {
        Value::Text(text) => {
            let json = matches!(name.as_str(), "evidence" | "names");
            !text.contains(char::is_control)
                && (!json || serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
        }
        Value::Integer(number) => *number >= 0,
        Value::Null => true,
        Value::Real(_) | Value::Blob(_) => false,
    };
    in_time
        && ordered("first_seen", "last_seen")
        && ordered("first_detected", "last_seen")
        && ordered("last_used", "last_seen")
        && ordered("first_detected", "gone_since")
        && row.iter().all(sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-03-01T12:00:00Z";

    fn row(edits: &[(&str, Value)]) -> Row {
        let time = |text: &str| Value::Integer(text.parse::<Timestamp>().unwrap().as_microsecond());
        let mut row: Row = [
            ("first_detected", time("2026-01-01T00:00:00Z")),
            ("last_used", time("2026-02-01T00:00:00Z")),
            ("last_seen", time("2026-03-01T00:00:00Z")),
            ("gone_since", Value::Null),
            ("names", Value::Text("[\"a:1\"]".into())),
            ("image_id", Value::Text("sha256:00".into())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        row.extend(edits.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        row
    }

    #[test]
    fn a_row_that_cannot_be_true_is_left() {
        let now: Timestamp = NOW.parse().unwrap();
        assert!(is_plausible(&row(&[]), now));
        assert!(is_plausible(&row(&[("last_used", Value::Null)]), now));
        for (name, value) in [
            ("first_detected", Value::Integer(0)),
            ("first_detected", Value::Integer(FIRST_IMAGES - 1)),
            ("last_seen", Value::Integer(now.as_microsecond() + 2 * DAY)),
            ("first_detected", Value::Integer(now.as_microsecond())),
            ("last_used", Value::Integer(now.as_microsecond())),
            ("gone_since", Value::Integer(FIRST_IMAGES)),
            ("names", Value::Text("[\"a".into())),
            ("image_id", Value::Text("sha\u{1}".into())),
            ("image_id", Value::Blob(vec![1])),
            ("total_bytes", Value::Integer(-1)),
        ] {
            assert!(!is_plausible(&row(&[(name, value.clone())]), now), "{name} = {value:?}");
        }
    }
}
