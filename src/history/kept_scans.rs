//! Summaries of earlier scans, kept for comparison (`diff`).
//!
//! The oldest scan of each ten minutes is kept for two hours, the newest of each hour for a day, and the newest of each
//! day for thirty days. The last two scans, which `diff` compares by default, are always kept.

use std::borrow::Cow;
use std::io::{BufReader, BufWriter, IntoInnerError, Read};
use std::path::Path;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;

use super::values::{damaged, json, micros, signed, time, unsigned};
use crate::model::documents::scan_summary::{
    ComparedScan, ScanSummary, SummaryKind, SummaryStore, mount_above,
};

/// Deletes the scans that are not kept. Times are microseconds: ten minutes, an hour, a day; two hours, a day and thirty
/// days. Within ten minutes the oldest is kept, since a question about the last ten minutes compares with it.
const THIN: &str = "
    DELETE FROM kept_scans WHERE id NOT IN (
        SELECT id FROM (
            SELECT id, at,
                   row_number() OVER (ORDER BY id DESC) AS number,
                   row_number() OVER (PARTITION BY at / 600000000 ORDER BY id) AS of_minutes,
                   row_number() OVER (PARTITION BY at / 3600000000 ORDER BY id DESC) AS of_hour,
                   row_number() OVER (PARTITION BY at / 86400000000 ORDER BY id DESC) AS of_day
            FROM kept_scans)
        WHERE number <= 2
           OR of_minutes = 1 AND at > ?1 - 7200000000
           OR of_hour = 1 AND at > ?1 - 86400000000
           OR of_day = 1 AND at > ?1 - 2592000000000)";

/// Maximum length of an unpacked summary. A damaged row may claim more.
const MAX_UNPACKED: u64 = 512 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Scanned<'a> {
    pub run_id: &'a str,
    /// Start of the scan, in record time.
    pub started: Timestamp,
    /// All stores were scanned. If not, the summary of the other stores is copied from the previous scan.
    pub all_stores: bool,
}

/// A summary, with its stored form. Packing the summary of a large store takes longer than writing it and needs no
/// database, so it happens before the database is locked.
#[derive(Debug)]
pub struct Packed {
    summary: ScanSummary,
    bytes: Vec<u8>,
}

impl Packed {
    pub fn new(summary: ScanSummary) -> rusqlite::Result<Self> {
        let bytes = pack(&summary)?;
        Ok(Self { summary, bytes })
    }
}

/// Stores the summary of a recorded scan, and deletes the scans that are no longer kept. Idempotent.
pub fn store(tx: &Transaction<'_>, scan: &Scanned<'_>, packed: &Packed) -> rusqlite::Result<()> {
    let before = match all(tx) {
        Ok(before) => before,
        // An unreadable row would fail every later scan. No other table refers to these rows, so they are deleted.
        Err(error) => {
            tracing::warn!("discarding the scans kept for diff: {error}");
            tx.execute("DELETE FROM kept_scans", [])?;
            Vec::new()
        }
    };
    let Packed { summary, bytes } = packed;
    let (mut summary, mut bytes) = (Cow::Borrowed(summary), Cow::Borrowed(bytes));
    if !scan.all_stores
        && let Some(before) = before.last()
        && has_elsewhere(tx, before, &summary)?
    {
        // If the previous summary is unreadable, the stores that were not scanned are missing from this one.
        match load(tx, before) {
            Ok(before) => add_elsewhere(&mut summary, before.summary),
            Err(error) => tracing::warn!("the scan before this one: {error}"),
        }
        bytes = Cow::Owned(pack(&summary)?);
    }
    tx.prepare_cached(
        "INSERT OR IGNORE INTO kept_scans (run_id, at, complete, bytes, outline, summary)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        scan.run_id,
        micros(scan.started),
        summary.complete,
        signed(summary.bytes()),
        json(&summary.outline())?,
        *bytes
    ])?;
    tx.prepare_cached(THIN)?.execute([micros(scan.started)])?;
    Ok(())
}

/// Checks whether a kept scan has stores or filesystems that `summary` does not have. Its outline is compared, because
/// unpacking the summary of a large store takes longer than all other steps of saving.
fn has_elsewhere(tx: &Transaction<'_>, before: &KeptScan, summary: &ScanSummary) -> rusqlite::Result<bool> {
    let outline = summary.outline();
    let mut select = tx.prepare_cached("SELECT outline FROM kept_scans WHERE id = ?1")?;
    select.query_row([before.id], |row| {
        let text = row.get_ref(0)?.as_str().unwrap_or_default();
        let Ok(before) = serde_json::from_str::<Vec<(SummaryStore, String)>>(text) else { return Ok(true) };
        Ok(before.iter().any(|(place, mount)| outline.binary_search(&(place, mount)).is_err()))
    })
}

/// Copies the stores and filesystems that were not scanned from the previous scan.
fn add_elsewhere(summary: &mut Cow<'_, ScanSummary>, before: ScanSummary) {
    let scanned: Vec<_> = summary.places().into_iter().cloned().collect();
    let measured: Vec<_> = summary.mounts().into_iter().map(str::to_owned).collect();
    let mounts: Vec<_> = before.mounts().into_iter().map(str::to_owned).collect();
    let mounts = mounts.iter().map(String::as_str).collect();
    let mut users = before.users;
    for (key, entry) in before.entries {
        let is_elsewhere = if key.is_path() {
            let mount = mount_above(&mounts, &key.id);
            !measured.iter().any(|measured| mount == Some(measured))
        } else {
            key.kind == SummaryKind::Filesystem || !scanned.contains(&key.place)
        };
        if is_elsewhere && !summary.entries.contains_key(&key) {
            let summary = summary.to_mut();
            if let Some((id, user)) =
                users.remove_entry(&key.id).filter(|_| key.kind == SummaryKind::Container)
            {
                summary.users.entry(id).or_insert(user);
            }
            summary.entries.insert(key, entry);
        }
    }
    // A store that was not scanned was read as a path.
    let places = summary.places();
    let copied: Vec<_> = places.into_iter().filter(|place| !scanned.contains(place)).cloned().collect();
    if !copied.is_empty() {
        summary.to_mut().entries.retain(|key, _| {
            !key.is_path() || !copied.iter().any(|place| Path::new(&key.id).starts_with(&place.root))
        });
    }
}

fn pack(summary: &ScanSummary) -> rusqlite::Result<Vec<u8>> {
    fn pack(summary: &ScanSummary) -> std::io::Result<Vec<u8>> {
        let encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        // The encoder scans its buffer for each write, so writes are collected first.
        let mut writer = BufWriter::with_capacity(1 << 16, encoder);
        serde_json::to_writer(&mut writer, summary)?;
        writer.into_inner().map_err(IntoInnerError::into_error)?.finish()
    }
    pack(summary).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn unpack(packed: &[u8]) -> rusqlite::Result<ScanSummary> {
    // The text of a large store is ten times as long, so it is parsed while it is unpacked.
    let text = BufReader::with_capacity(1 << 16, DeflateDecoder::new(packed).take(MAX_UNPACKED));
    serde_json::from_reader(text).map_err(damaged)
}

pub fn load(connection: &Connection, scan: &KeptScan) -> rusqlite::Result<ComparedScan> {
    let packed: Option<Vec<u8>> = connection
        .prepare_cached("SELECT summary FROM kept_scans WHERE id = ?1")?
        .query_row([scan.id], |row| row.get(0))
        .optional()?;
    let packed = packed.ok_or_else(|| damaged("a kept scan without a summary"))?;
    Ok(ComparedScan { id: scan.run_id.clone(), taken_at: scan.at, summary: unpack(&packed)? })
}

/// Scan whose summary is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptScan {
    /// Row in the database; rows are in the order of the scans.
    #[serde(skip)]
    id: i64,
    /// Id of the scan.
    pub run_id: String,
    /// Start of the scan.
    pub at: Timestamp,
    /// The whole node could be read.
    pub complete: bool,
    /// Allocated bytes of all stores.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanName {
    /// The newest scan, or the given number before it.
    Last(usize),
    /// The id of a scan, or a prefix of it.
    Id(String),
    /// The last scan that had begun at this time.
    At(Timestamp),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("no scan is kept to compare with")]
    None,
    /// Fewer scans are kept.
    #[error("{}", match .0 { 1 => "only 1 scan is kept".to_owned(), many => format!("only {many} scans are kept") })]
    Few(usize),
    /// The first kept scan is later.
    #[error("the oldest kept scan is of {0}")]
    Later(Timestamp),
    /// No id has this prefix.
    #[error("no kept scan has that id")]
    Unknown,
    #[error("it could be any of {}", .0.join(", "))]
    Ambiguous(Vec<String>),
}

/// Returns all kept scans, the oldest first.
pub fn all(connection: &Connection) -> rusqlite::Result<Vec<KeptScan>> {
    connection
        .prepare_cached("SELECT id, run_id, at, complete, bytes FROM kept_scans ORDER BY id")?
        .query_map([], |row| {
            Ok(KeptScan {
                id: row.get("id")?,
                run_id: row.get("run_id")?,
                at: time(row, "at")?,
                complete: row.get("complete")?,
                bytes: unsigned(row, "bytes")?,
            })
        })?
        .collect()
}

/// Finds the scan with a name among `scans`, which are sorted from the oldest to the newest.
pub fn find<'a>(scans: &'a [KeptScan], name: &ScanName) -> Result<&'a KeptScan, Missing> {
    if scans.is_empty() {
        return Err(Missing::None);
    }
    match name {
        ScanName::Last(back) => scans.iter().rev().nth(*back).ok_or(Missing::Few(scans.len())),
        ScanName::At(time) => scans
            .iter()
            .filter(|scan| scan.at <= *time)
            .max_by_key(|scan| scan.at)
            .ok_or(Missing::Later(scans[0].at)),
        ScanName::Id(id) => {
            let found: Vec<_> = scans.iter().filter(|scan| scan.run_id.starts_with(id.as_str())).collect();
            match found.as_slice() {
                [] => Err(Missing::Unknown),
                [scan] => Ok(scan),
                several => match several.iter().find(|scan| scan.run_id == *id) {
                    Some(exact) => Ok(exact),
                    None => Err(Missing::Ambiguous(
                        several.iter().take(5).map(|scan| scan.run_id.clone()).collect(),
                    )),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests;
