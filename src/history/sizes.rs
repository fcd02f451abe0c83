//! Sizes of finished layers from one scan to the next: three tables of their own
//! (`migrations/0001_history.sql`), only a cache. Whatever in them does not make sense
//! counts as absent.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use crate::disk::inode_chunks::UnitInodes;
use crate::disk::kept::{How, KeptUnit, Remembered, ToKeep, UnitKey, decode_groups, encode_groups, scope};
use crate::disk::{Extents, Fingerprint, Fingerprinter, Tally};
use crate::model::{StoreId, StoreKind};

/// How long a store is remembered that no scan meets any more.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(30 * 24);

/// How exactly it is noted that a store was met: a write less for each scan.
const USED_EVERY: SignedDuration = SignedDuration::from_hours(24);

/// Reads all sizes. `seed` chooses which of them the next scan puts to the proof: another
/// number each time.
///
/// # Errors
/// What SQLite says. Rows that do not make sense are no error.
pub fn load(connection: &Connection, seed: u64) -> rusqlite::Result<Remembered> {
    let mut remembered = Remembered { seed, ..Remembered::default() };
    let mut stores: HashMap<i64, StoreId> = HashMap::new();
    let mut select = connection.prepare("SELECT id, kind, root, driver FROM size_stores")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let kind: String = row.get(1)?;
        if let Some(kind) = StoreKind::of_word(&kind) {
            let root = PathBuf::from(OsString::from_vec(row.get(2)?));
            stores.insert(row.get(0)?, StoreId::new(kind, root, row.get(3)?));
        }
    }
    let mut sizes: HashMap<i64, HashMap<UnitKey, Arc<KeptUnit>>> = HashMap::new();
    let mut select = connection.prepare(
        "SELECT store, tag, unit, record, evidence, extents, inode_chunks, measured, settled, bytes, \
         apparent_bytes, inodes, metadata_bytes, inline_bytes, held, groups, seal FROM layer_sizes",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let store: i64 = row.get(0)?;
        let Some((key, unit)) = unit(row)? else {
            tracing::debug!(store, "a remembered size does not make sense");
            continue;
        };
        sizes.entry(store).or_default().insert(key, Arc::new(unit));
    }
    for (id, store) in stores {
        remembered.stores.insert(store, sizes.remove(&id).unwrap_or_default());
    }
    let mut select = connection.prepare("SELECT scope, groups FROM outside_shares")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let scope = fingerprint(row.get_ref(0)?.as_blob()?);
        let (groups, rest) = row.get_ref(1)?.as_blob()?.as_chunks::<16>();
        if let (Some(scope), true) = (scope, rest.is_empty()) {
            remembered.outside.insert(scope, groups.iter().map(|one| Fingerprint(*one)).collect());
        }
    }
    Ok(remembered)
}

/// Writes what a scan leaves, as far as it is not there yet, and forgets what is gone. `now`
/// is by the wall clock.
///
/// # Errors
/// What SQLite says.
pub fn store(transaction: &Transaction<'_>, to_keep: &ToKeep, now: Timestamp) -> rusqlite::Result<()> {
    let now = now.as_microsecond();
    for (store, entries) in &to_keep.stores {
        let id = store_id(transaction, store, now)?;
        let mut select = transaction.prepare_cached("SELECT tag, unit FROM layer_sizes WHERE store = ?1")?;
        let key = |row: &Row<'_>| Ok(UnitKey { tag: row.get(0)?, id: row.get(1)? });
        let there: HashSet<UnitKey> = select.query_map([id], key)?.collect::<Result<_, _>>()?;
        let kept: HashSet<&UnitKey> = entries.iter().map(|entry| &entry.key).collect();
        for gone in there.iter().filter(|key| !kept.contains(key)) {
            let sql = "DELETE FROM layer_sizes WHERE store = ?1 AND tag = ?2 AND unit = ?3";
            transaction.prepare_cached(sql)?.execute(params![id, gone.tag, gone.id])?;
        }
        // A row may have gone since it was remembered: the database was begun anew, say.
        for entry in entries.iter().filter(|entry| entry.changed || !there.contains(&entry.key)) {
            put(transaction, id, &entry.key, &entry.unit)?;
        }
    }
    if let Some((scope, groups)) = &to_keep.outside {
        let mut groups: Vec<_> = groups.iter().collect();
        groups.sort_unstable();
        let groups: Vec<u8> = groups.into_iter().flat_map(|group| group.0).collect();
        let sql = "INSERT OR REPLACE INTO outside_shares (scope, groups, last_used) VALUES (?1, ?2, ?3)";
        transaction.prepare_cached(sql)?.execute(params![scope.0, groups, now])?;
    }
    forget(transaction, to_keep, now)
}

/// The number of a store, which is now known to be there.
fn store_id(transaction: &Transaction<'_>, store: &StoreId, now: i64) -> rusqlite::Result<i64> {
    let root = store.root().as_os_str().as_bytes();
    let sql = "SELECT id, last_used FROM size_stores WHERE kind = ?1 AND root = ?2 AND driver = ?3";
    let mut select = transaction.prepare_cached(sql)?;
    let found = select
        .query_row(params![store.kind().word(), root, store.driver()], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?))
        })
        .optional()?;
    match found {
        // A clock that went back is a clock, too.
        Some((id, used)) if used.abs_diff(now) < USED_EVERY.as_micros().unsigned_abs() as u64 => Ok(id),
        Some((id, _)) => {
            transaction.execute("UPDATE size_stores SET last_used = ?2 WHERE id = ?1", params![id, now])?;
            Ok(id)
        }
        None => {
            let sql = "INSERT INTO size_stores (kind, root, driver, last_used) VALUES (?1, ?2, ?3, ?4)";
            transaction.execute(sql, params![store.kind().word(), root, store.driver(), now])?;
            Ok(transaction.last_insert_rowid())
        }
    }
}

fn put(transaction: &Transaction<'_>, store: i64, key: &UnitKey, unit: &KeptUnit) -> rusqlite::Result<()> {
    let tally = &unit.tally;
    let numbers = [tally.bytes, tally.apparent_bytes, tally.inodes, tally.metadata_bytes, tally.inline_bytes];
    // No file is that long; what cannot be written is measured again.
    let Ok(numbers) = numbers.map(i64::try_from).into_iter().collect::<Result<Vec<_>, _>>() else {
        return Ok(());
    };
    let (held, groups) = (unit.inodes.encode(), encode_groups(&unit.groups));
    let sql = "INSERT OR REPLACE INTO layer_sizes (store, tag, unit, record, evidence, extents, inode_chunks, \
               measured, settled, bytes, apparent_bytes, inodes, metadata_bytes, inline_bytes, held, groups, seal) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";
    transaction.prepare_cached(sql)?.execute(params![
        store,
        key.tag,
        key.id,
        unit.record.0,
        unit.evidence.0,
        unit.how.extents as i64,
        unit.how.inode_chunks,
        unit.measured_at.as_microsecond(),
        unit.settled,
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        held,
        groups,
        seal(key, unit, &held, &groups).0,
    ])?;
    Ok(())
}

/// Forgets stores, and sets of stores, that were not met for long.
fn forget(transaction: &Transaction<'_>, met: &ToKeep, now: i64) -> rusqlite::Result<()> {
    let limit = now.saturating_sub(i64::try_from(FORGOTTEN_AFTER.as_micros()).unwrap_or(i64::MAX));
    let sql = "DELETE FROM layer_sizes WHERE store IN (SELECT id FROM size_stores WHERE last_used < ?1)";
    transaction.prepare_cached(sql)?.execute([limit])?;
    transaction.prepare_cached("DELETE FROM size_stores WHERE last_used < ?1")?.execute([limit])?;
    let stores: Vec<StoreId> = met.stores.iter().map(|(store, _)| store.clone()).collect();
    let (scope, every) = (scope(&stores), i64::try_from(USED_EVERY.as_micros()).unwrap_or(0));
    let sql = "UPDATE outside_shares SET last_used = ?2 WHERE scope = ?1 AND abs(last_used - ?2) >= ?3";
    transaction.prepare_cached(sql)?.execute(params![scope.0, now, every])?;
    transaction.prepare_cached("DELETE FROM outside_shares WHERE last_used < ?1")?.execute([limit])?;
    Ok(())
}

/// A row of `layer_sizes`, if it makes sense.
fn unit(row: &Row<'_>) -> rusqlite::Result<Option<(UnitKey, KeptUnit)>> {
    let key = UnitKey { tag: row.get(1)?, id: row.get(2)? };
    let (record, evidence) = (row.get_ref(3)?.as_blob()?, row.get_ref(4)?.as_blob()?);
    let (held, groups) = (row.get_ref(14)?.as_blob()?, row.get_ref(15)?.as_blob()?);
    let sealed = row.get_ref(16)?.as_blob()?;
    let number = |at: usize| row.get(at).map(|number: i64| u64::try_from(number).ok());
    let numbers = [number(9)?, number(10)?, number(11)?, number(12)?, number(13)?];
    let measured_at: i64 = row.get(7)?;
    let extents = match row.get(5)? {
        0 => Some(Extents::Off),
        1 => Some(Extents::Probe),
        2 => Some(Extents::All),
        i64::MIN..=-1 | 3.. => None,
    };
    let [Some(bytes), Some(apparent_bytes), Some(inodes), Some(metadata_bytes), Some(inline_bytes)] = numbers
    else {
        return Ok(None);
    };
    let tally = Tally { bytes, apparent_bytes, inodes, metadata_bytes, inline_bytes };
    let (Some(record), Some(evidence), Some(extents), Some(inodes), Some(shared), Ok(measured_at)) = (
        fingerprint(record),
        fingerprint(evidence),
        extents,
        UnitInodes::decode(held),
        decode_groups(groups),
        Timestamp::from_microsecond(measured_at),
    ) else {
        return Ok(None);
    };
    let how = How { extents, inode_chunks: row.get(6)? };
    let unit =
        KeptUnit { record, evidence, how, measured_at, settled: row.get(8)?, tally, inodes, groups: shared };
    Ok((seal(&key, &unit, held, groups).0 == sealed).then_some((key, unit)))
}

fn fingerprint(bytes: &[u8]) -> Option<Fingerprint> {
    bytes.try_into().ok().map(Fingerprint)
}

/// Of all that a row says.
fn seal(key: &UnitKey, unit: &KeptUnit, held: &[u8], groups: &[u8]) -> Fingerprint {
    let mut all = Fingerprinter::new("layer size, 1");
    all.bytes(key.tag.as_bytes()).bytes(key.id.as_bytes());
    all.bytes(&unit.record.0).bytes(&unit.evidence.0);
    all.number(unit.how.extents as u64).number(u64::from(unit.how.inode_chunks));
    all.bytes(&unit.measured_at.as_microsecond().to_le_bytes()).number(u64::from(unit.settled));
    let tally = &unit.tally;
    all.number(tally.bytes).number(tally.apparent_bytes).number(tally.inodes);
    all.number(tally.metadata_bytes).number(tally.inline_bytes);
    all.bytes(held).bytes(groups);
    all.finish()
}

#[cfg(test)]
mod tests;
