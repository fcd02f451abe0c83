//! Summaries of earlier scans, kept for comparison (`diff`).
//!
//! The newest scan of each hour is kept for a day, the newest of each day for thirty; and always the last two,
//! which `diff` compares by default.

use std::borrow::Cow;
use std::io::{BufReader, BufWriter, IntoInnerError, Read};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;

use super::values::{damaged, json, micros, signed, time, unsigned};
use crate::model::scan_summary::{ComparedScan, ScanSummary, SummaryKind, SummaryStore};

/// Deletes the others. Times are microseconds: an hour, a day and thirty days.
const THIN: &str = "
    DELETE FROM kept_scans WHERE id NOT IN (
        SELECT id FROM (
            SELECT id, at,
                   row_number() OVER (ORDER BY id DESC) AS number,
                   row_number() OVER (PARTITION BY at / 3600000000 ORDER BY id DESC) AS of_hour,
                   row_number() OVER (PARTITION BY at / 86400000000 ORDER BY id DESC) AS of_day
            FROM kept_scans)
        WHERE number <= 2
           OR of_hour = 1 AND at > ?1 - 86400000000
           OR of_day = 1 AND at > ?1 - 2592000000000)";

/// No summary is longer, whatever its row says.
const LONGEST: u64 = 512 << 20;

/// The scan that a summary was made from.
#[derive(Clone, Copy, Debug)]
pub struct Scanned<'a> {
    pub run_id: &'a str,
    /// When it began, in record time.
    pub at: Timestamp,
    /// All stores were scanned. If not, the others are taken from the scan before.
    pub all_stores: bool,
}

/// A summary, and as it is stored. To make that of a large store takes longer than to write it, and needs
/// no database.
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

/// Keeps the summary of a recorded scan and deletes summaries that are due. Idempotent.
pub fn store(tx: &Transaction<'_>, scan: &Scanned<'_>, packed: &Packed) -> rusqlite::Result<()> {
    let before = match all(tx) {
        Ok(before) => before,
        // An unreadable row would block every later scan; nothing else refers to these rows.
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
        // An unreadable earlier summary says nothing about the stores that were not scanned.
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
        micros(scan.at),
        summary.complete,
        signed(summary.bytes()),
        json(&summary.outline())?,
        *bytes
    ])?;
    tx.prepare_cached(THIN)?.execute([micros(scan.at)])?;
    Ok(())
}

/// Whether a kept scan has stores or filesystems that `summary` has not. A summary is not unpacked for
/// that: of a large store it takes longer than the rest of the saving.
fn has_elsewhere(tx: &Transaction<'_>, before: &KeptScan, summary: &ScanSummary) -> rusqlite::Result<bool> {
    let here = summary.outline();
    let mut select = tx.prepare_cached("SELECT outline FROM kept_scans WHERE id = ?1")?;
    select.query_row([before.id], |row| {
        let text = row.get_ref(0)?.as_str().unwrap_or_default();
        let outline = serde_json::from_str::<Vec<(SummaryStore, String)>>(text);
        let is_elsewhere =
            |(place, mount): &(SummaryStore, String)| here.binary_search(&(place, mount)).is_err();
        Ok(outline.map_or(true, |outline| outline.iter().any(is_elsewhere)))
    })
}

/// Copies the stores and filesystems that were not scanned from the scan before.
fn add_elsewhere(summary: &mut Cow<'_, ScanSummary>, before: ScanSummary) {
    let seen: Vec<_> = summary.places().into_iter().cloned().collect();
    for (key, entry) in before.entries {
        let is_elsewhere = key.kind == SummaryKind::Filesystem || !seen.contains(&key.place);
        if is_elsewhere && !summary.entries.contains_key(&key) {
            summary.to_mut().entries.insert(key, entry);
        }
    }
}

fn pack(summary: &ScanSummary) -> rusqlite::Result<Vec<u8>> {
    let pack = || {
        let to = DeflateEncoder::new(Vec::new(), Compression::fast());
        // Each piece that the encoder takes costs it a pass over its buffer.
        let mut to = BufWriter::with_capacity(1 << 16, to);
        serde_json::to_writer(&mut to, summary)?;
        to.into_inner().map_err(IntoInnerError::into_error)?.finish()
    };
    pack().map_err(|error: std::io::Error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn unpacked(packed: &[u8]) -> rusqlite::Result<ScanSummary> {
    // The text of a large store is ten times as long: it is not in memory at once.
    let text = BufReader::with_capacity(1 << 16, DeflateDecoder::new(packed).take(LONGEST));
    serde_json::from_reader(text).map_err(damaged)
}

/// What a kept scan saw.
pub fn load(connection: &Connection, scan: &KeptScan) -> rusqlite::Result<ComparedScan> {
    let packed: Option<Vec<u8>> = connection
        .prepare_cached("SELECT summary FROM kept_scans WHERE id = ?1")?
        .query_row([scan.id], |row| row.get(0))
        .optional()?;
    let packed = packed.ok_or_else(|| damaged("a kept scan without a summary"))?;
    Ok(ComparedScan { id: scan.run_id.clone(), taken_at: scan.at, summary: unpacked(&packed)? })
}

/// A scan that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptScan {
    /// Its place in the order of scans.
    #[serde(skip)]
    id: i64,
    /// Its id.
    pub run_id: String,
    /// When it began.
    pub at: Timestamp,
    /// Everything could be read.
    pub complete: bool,
    /// Allocated bytes of all stores.
    pub bytes: u64,
}

/// How a user names a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanName {
    /// The newest, or so many before it.
    Last(usize),
    /// Its id, or the start of it.
    Id(String),
    /// The last one that had begun by then.
    At(Timestamp),
}

/// Why a name matches no scan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("no scan is kept to compare with")]
    None,
    /// There are not that many.
    #[error("{}", match .0 { 1 => "only 1 scan is kept".to_owned(), many => format!("only {many} scans are kept") })]
    Few(usize),
    /// The first is later.
    #[error("the oldest kept scan is of {0}")]
    Later(Timestamp),
    /// No id begins so.
    #[error("no kept scan has that id")]
    Unknown,
    #[error("it could be any of {}", .0.join(", "))]
    Ambiguous(Vec<String>),
}

/// All kept scans, the oldest first.
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

/// The scan among `scans`, the oldest first, that is meant.
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
                [one] => Ok(one),
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
