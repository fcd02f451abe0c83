//! What scans saw, kept so that two of them can be compared: by changes, not as copies.
//!
//! The newest scan is always kept; of older ones the first of every hour for two days, and the
//! first of every day for ninety. However much changes, [`ENTRIES`] that ended are kept at most:
//! beyond that the oldest scans go earlier.

mod find;

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, params};

pub use find::{Kept, Missing, Name, all, find};

use super::values::{damaged, moment, signed, unsigned};
use crate::inventory::picture::{Entry, Key, Picture, Place, Taken, What};

/// The first scan of every hour is kept so long.
const HOURLY: SignedDuration = SignedDuration::from_hours(48);
/// And the first of every day so long.
const DAILY: SignedDuration = SignedDuration::from_hours(24 * 90);
/// No more entries that have ended are kept; about 18 MiB.
pub const ENTRIES: i64 = 150_000;

/// Keeps what the scan that was recorded last saw, and forgets what is due. Once more for the
/// same scan, it does nothing.
///
/// # Errors
/// What SQLite says.
pub fn store(tx: &Transaction<'_>, picture: &Picture) -> rusqlite::Result<()> {
    store_at_most(tx, picture, ENTRIES)
}

fn store_at_most(tx: &Transaction<'_>, picture: &Picture, entries: i64) -> rusqlite::Result<()> {
    let last: Option<(String, i64)> = tx
        .prepare_cached("SELECT run_id, started FROM runs WHERE command = 'scan' ORDER BY id DESC LIMIT 1")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((run_id, at)) = last else { return Ok(()) };
    let before: i64 = tx.query_row("SELECT coalesce(max(id), 0) FROM kept_scans", [], |row| row.get(0))?;
    let added = tx
        .prepare_cached(
            "INSERT OR IGNORE INTO kept_scans (run_id, at, complete, bytes) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![run_id, at, picture.complete, signed(picture.bytes())])?;
    if added == 0 {
        return Ok(());
    }
    let new = tx.last_insert_rowid();
    update(tx, picture, before, new)?;
    let scans = all(tx)?;
    let times: Vec<_> = scans.iter().map(|scan| (scan.id, scan.at)).collect();
    forget(tx, &due(&times, moment(at)?))?;
    crowd_out(tx, entries)
}

/// Ends the entries that are not as they were, and begins new ones.
fn update(tx: &Transaction<'_>, picture: &Picture, before: i64, new: i64) -> rusqlite::Result<()> {
    let mut places = places(tx)?;
    let mut known = read(tx, "until IS NULL", &[], &places)?;
    let mut end = tx.prepare_cached(
        "UPDATE picture_entries SET until = ?4
         WHERE place = ?1 AND what = ?2 AND object = ?3 AND until IS NULL",
    )?;
    let mut begin = tx.prepare_cached(
        "INSERT INTO picture_entries (place, what, object, since, bytes, extra, name)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for (key, entry) in &picture.entries {
        let old = known.remove(key);
        if old.as_ref() == Some(entry) {
            continue;
        }
        let place = match places.get(&key.place) {
            Some(place) => *place,
            None => {
                let Place { kind, root, driver } = &key.place;
                tx.execute(
                    "INSERT INTO picture_places (kind, root, driver) VALUES (?1, ?2, ?3)",
                    params![kind, root, driver],
                )?;
                places.insert(key.place.clone(), tx.last_insert_rowid());
                tx.last_insert_rowid()
            }
        };
        if old.is_some() {
            end.execute(params![place, key.what.word(), Object(&key.id), before])?;
        }
        begin.execute(params![
            place,
            key.what.word(),
            Object(&key.id),
            new,
            signed(entry.bytes),
            signed(entry.extra),
            entry.name
        ])?;
    }
    for key in known.keys() {
        let place = places.get(&key.place).copied().unwrap_or_default();
        end.execute(params![place, key.what.word(), Object(&key.id), before])?;
    }
    Ok(())
}

/// Which scans need not be kept any more, seen from `now`; `scans` by id.
fn due(scans: &[(i64, Timestamp)], now: Timestamp) -> Vec<i64> {
    let mut last_hour = None;
    let mut last_day = None;
    let mut due = Vec::new();
    let newest = scans.last().map(|(id, _)| *id);
    for (id, at) in scans {
        let (hour, day) = (at.as_second().div_euclid(3600), at.as_second().div_euclid(86_400));
        let first_of_hour = last_hour.replace(hour) != Some(hour);
        let first_of_day = last_day.replace(day) != Some(day);
        let age = now.duration_since(*at);
        let stays = Some(*id) == newest || (age <= HOURLY && first_of_hour) || (age <= DAILY && first_of_day);
        if !stays {
            due.push(*id);
        }
    }
    due
}

/// Forgets scans, and the entries that no other scan saw.
fn forget(tx: &Transaction<'_>, due: &[i64]) -> rusqlite::Result<()> {
    if due.is_empty() {
        return Ok(());
    }
    let mut delete = tx.prepare_cached("DELETE FROM kept_scans WHERE id = ?1")?;
    for id in due {
        delete.execute([id])?;
    }
    tx.prepare_cached(
        "DELETE FROM picture_entries WHERE until IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM kept_scans WHERE id BETWEEN picture_entries.since AND picture_entries.until)",
    )?
    .execute([])?;
    tx.prepare_cached("DELETE FROM picture_places WHERE id NOT IN (SELECT place FROM picture_entries)")?
        .execute([])?;
    Ok(())
}

/// Where too much changes, the oldest scans go; the newest stays.
fn crowd_out(tx: &Transaction<'_>, entries: i64) -> rusqlite::Result<()> {
    loop {
        let ended: i64 = tx
            .prepare_cached("SELECT count(*) FROM picture_entries WHERE until IS NOT NULL")?
            .query_row([], |row| row.get(0))?;
        let scans = all(tx)?;
        if ended <= entries || scans.len() < 2 {
            return Ok(());
        }
        // A quarter at once: each step looks through all entries.
        let gone: Vec<_> =
            scans.iter().take(scans.len().div_ceil(4).min(scans.len() - 1)).map(|scan| scan.id).collect();
        forget(tx, &gone)?;
    }
}

/// What a kept scan saw.
///
/// # Errors
/// What SQLite says.
pub fn load(connection: &Connection, scan: &Kept) -> rusqlite::Result<Taken> {
    let places = places(connection)?;
    let entries = read(connection, "since <= ?1 AND (until IS NULL OR until >= ?1)", &[&scan.id], &places)?;
    let picture = Picture { complete: scan.complete, entries: entries.into_iter().collect() };
    Ok(Taken { id: scan.run_id.clone(), at: scan.at, picture })
}

fn places(connection: &Connection) -> rusqlite::Result<HashMap<Place, i64>> {
    connection
        .prepare_cached("SELECT id, kind, root, driver FROM picture_places")?
        .query_map([], |row| {
            Ok((Place { kind: row.get(1)?, root: row.get(2)?, driver: row.get(3)? }, row.get(0)?))
        })?
        .collect()
}

fn read(
    connection: &Connection,
    condition: &str,
    parameters: &[&dyn ToSql],
    places: &HashMap<Place, i64>,
) -> rusqlite::Result<HashMap<Key, Entry>> {
    let by_id: BTreeMap<i64, &Place> = places.iter().map(|(place, id)| (*id, place)).collect();
    connection
        .prepare_cached(&format!(
            "SELECT place, what, object, bytes, extra, name FROM picture_entries WHERE {condition}"
        ))?
        .query_map(parameters, |row| {
            let place =
                by_id.get(&row.get::<_, i64>(0)?).ok_or_else(|| damaged("a place that is not there"))?;
            let word: String = row.get(1)?;
            let what = What::ALL.into_iter().find(|what| what.word() == word);
            let what = what.ok_or_else(|| damaged(format!("{word:?} is no kind of entry")))?;
            let key = Key { place: (*place).clone(), what, id: object(row.get_ref(2)?)? };
            let entry =
                Entry { bytes: unsigned(row, "bytes")?, extra: unsigned(row, "extra")?, name: row.get(5)? };
            Ok((key, entry))
        })?
        .collect()
}

/// An id on its way in: half as long where it is a digest.
struct Object<'a>(&'a str);

impl ToSql for Object<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(bytes_of(self.0).map_or_else(|| self.0.into(), ToSqlOutput::from))
    }
}

/// 32 bytes of 64 lower-case digits.
fn bytes_of(id: &str) -> Option<Vec<u8>> {
    let digits = id.as_bytes();
    let is_digit = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 64 || !digits.iter().all(is_digit) {
        return None;
    }
    (0..32).map(|at| u8::from_str_radix(id.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}

/// An id on its way out.
fn object(value: ValueRef<'_>) -> rusqlite::Result<String> {
    match value {
        ValueRef::Blob(bytes) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        other => Ok(other.as_str()?.to_owned()),
    }
}

#[cfg(test)]
mod tests;
