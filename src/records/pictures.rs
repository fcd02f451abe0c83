//! What scans saw, kept so that two of them can be compared: by changes, not as copies.
//!
//! The newest 24 scans are always kept; of older ones the first of every hour for two days, and the
//! first of every day for ninety. However much changes, [`ENTRIES`] that ended are kept at most:
//! beyond that the oldest scans go earlier.

mod find;

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, Transaction, params};

pub use find::{Kept, Missing, Name, all, find};

use super::save::is_refusal;
use super::values::{damaged, micros, signed, unsigned};
use crate::inventory::picture::{Entry, Key, Picture, Place, Taken, What};

/// So many scans are kept whenever they were: what was listed a moment ago is there, and `last~1` is
/// the scan before.
const NEWEST: usize = 24;
/// The first scan of every hour is kept so long.
const HOURLY: SignedDuration = SignedDuration::from_hours(48);
/// And the first of every day so long.
const DAILY: SignedDuration = SignedDuration::from_hours(24 * 90);
/// No more entries that have ended are kept; about 22 MiB, at 155 bytes each.
pub const ENTRIES: i64 = 150_000;

/// The scan that saw a picture.
#[derive(Clone, Copy, Debug)]
pub struct Scanned<'a> {
    /// Id of its run.
    pub run_id: &'a str,
    /// When it began, in record time.
    pub at: Timestamp,
    /// All stores were looked for. If not, those that it did not look at are as they were.
    pub all_stores: bool,
}

/// What became of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is kept, or was already.
    Kept,
    /// It is not kept: a scan that was recorded after it is.
    Late,
    /// It is kept, but those before are gone, since they made no sense: why not.
    Alone(String),
}

/// Keeps what a scan saw, once it is recorded, and forgets what is due. Once more for the same scan,
/// it does nothing. Where what was kept before does not read, it begins anew: nothing else hangs
/// on it.
///
/// # Errors
/// What SQLite says.
pub fn store(tx: &Transaction<'_>, scan: &Scanned<'_>, picture: &Picture) -> rusqlite::Result<Fate> {
    tx.execute_batch("SAVEPOINT picture")?;
    let fate = match store_at_most(tx, scan, picture, ENTRIES) {
        Err(error) if is_refusal(&error) => {
            tx.execute_batch(
                "ROLLBACK TO picture;
                 DELETE FROM picture_entries; DELETE FROM picture_places; DELETE FROM kept_scans",
            )?;
            store_at_most(tx, scan, picture, ENTRIES)?;
            Fate::Alone(error.to_string())
        }
        other => other?,
    };
    tx.execute_batch("RELEASE picture")?;
    Ok(fate)
}

fn store_at_most(
    tx: &Transaction<'_>,
    scan: &Scanned<'_>,
    picture: &Picture,
    entries: i64,
) -> rusqlite::Result<Fate> {
    let before = all(tx)?.last().map_or(0, |last| last.id);
    // In the order in which they were recorded: several scans may run at once.
    let late: bool = tx
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM kept_scans JOIN runs USING (run_id)
                            WHERE runs.id > (SELECT id FROM runs WHERE run_id = ?1))",
        )?
        .query_row([scan.run_id], |row| row.get(0))?;
    if late {
        return Ok(Fate::Late);
    }
    let added = tx
        .prepare_cached(
            "INSERT OR IGNORE INTO kept_scans (run_id, at, complete, bytes) VALUES (?1, ?2, ?3, 0)",
        )?
        .execute(params![scan.run_id, micros(scan.at), picture.complete])?;
    if added == 0 {
        return Ok(Fate::Kept);
    }
    let new = tx.last_insert_rowid();
    let elsewhere = update(tx, picture, scan.all_stores, before, new)?;
    tx.prepare_cached("UPDATE kept_scans SET bytes = ?2 WHERE id = ?1")?
        .execute(params![new, signed(picture.bytes().saturating_add(elsewhere))])?;
    let scans = all(tx)?;
    let times: Vec<_> = scans.iter().map(|scan| (scan.id, scan.at)).collect();
    forget(tx, &due(&times, scan.at))?;
    crowd_out(tx, entries)?;
    Ok(Fate::Kept)
}

/// Ends the entries that are not as they were, and begins new ones. Says how many bytes the stores
/// hold that were not looked at: their entries stay.
fn update(
    tx: &Transaction<'_>,
    picture: &Picture,
    all_stores: bool,
    before: i64,
    new: i64,
) -> rusqlite::Result<u64> {
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
    let seen = picture.places();
    let mut elsewhere: u64 = 0;
    for (key, entry) in &known {
        if !all_stores && !seen.contains(&key.place) {
            let bytes = if key.what == What::Share { entry.bytes } else { 0 };
            elsewhere = elsewhere.saturating_add(bytes);
            continue;
        }
        let place = places.get(&key.place).copied().unwrap_or_default();
        end.execute(params![place, key.what.word(), Object(&key.id), before])?;
    }
    Ok(elsewhere)
}

/// Which scans need not be kept any more, seen from `now`; `scans` by id.
fn due(scans: &[(i64, Timestamp)], now: Timestamp) -> Vec<i64> {
    let mut last_hour = None;
    let mut last_day = None;
    let mut due = Vec::new();
    let newest = scans.len().saturating_sub(NEWEST);
    for (number, (id, at)) in scans.iter().enumerate() {
        let (hour, day) = (at.as_second().div_euclid(3600), at.as_second().div_euclid(86_400));
        let first_of_hour = last_hour.replace(hour) != Some(hour);
        let first_of_day = last_day.replace(day) != Some(day);
        let age = now.duration_since(*at);
        let stays = number >= newest || (age <= HOURLY && first_of_hour) || (age <= DAILY && first_of_day);
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
