//! Runs and deletions, as `history` shows them.

use std::path::PathBuf;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde::Serialize;

use super::types::{DeletionRow, Event, RunError, Start};
use crate::history::values::{from_json, maybe_time, maybe_unsigned, micros, signed, store, time, unsigned};
use crate::model::OutcomeKind;
use crate::model::deletion::plan::TargetKind;
use crate::model::text::path_text;

#[derive(Clone, Copy, Debug, Default)]
pub struct Query {
    /// Only runs that ended at or after this time. A run without an end counts by its start.
    pub since: Option<Timestamp>,
    /// Maximum number of runs, the newest; 0 for all.
    pub limit: usize,
    /// Only runs that deleted an object of this kind, with only these deletions.
    pub kind: Option<TargetKind>,
    pub quiet: bool,
}

/// A recorded run, or several runs with nothing to report that were merged.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRow {
    /// Start of the run. Of merged runs, the start of the first and the id of the last.
    pub start: Start,
    /// End of the run; of merged runs, the last. `None` if it is in progress or was killed.
    pub ended: Option<Timestamp>,
    pub outcome: Option<OutcomeKind>,
    /// Freed bytes; negative if other processes wrote more. Of a run that did not end, the sum of its deletions up to
    /// now.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks that were deleted along with its deletions.
    pub byproduct_bytes: u64,
    /// Errors; of merged runs, those of the last.
    pub errors: Vec<RunError>,
    /// Events that the kubelet would have reported; of merged runs, those of the last.
    pub events: Vec<Event>,
    /// The run did not end, and a later run that is not a scan began, so it was killed: only one run at a time may
    /// delete.
    pub killed: bool,
    /// Number of runs that this row represents.
    pub runs: u64,
    /// The run had nothing to report.
    pub quiet: bool,
    pub deletions: Vec<DeletionRow>,
}

/// Runs with nothing to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "QuietDoc"))]
pub struct Quiet {
    /// Number of scans.
    pub scans: u64,
    /// Number of scans, among these, that could not read everything.
    pub incomplete_scans: u64,
    /// Number of runs of other commands that had nothing to do.
    pub other_runs: u64,
    /// Start of the first.
    pub first_at: Option<Timestamp>,
    /// Start of the last; of merged runs, the end.
    pub last_at: Option<Timestamp>,
}

/// Selects a run with values from other rows.
const RUN: &str = "SELECT *,
        (SELECT coalesce(sum(byproduct_bytes), 0) FROM deletions WHERE run = runs.id) AS byproduct_bytes,
        iif(ended IS NULL, (SELECT sum(measured_bytes) FROM deletions WHERE run = runs.id), measured_bytes)
            AS measured,
        ended IS NULL AND EXISTS (
            SELECT 1 FROM runs AS later WHERE later.id > runs.id AND later.started > runs.started
                AND later.command <> 'scan') AS killed
    FROM runs";

/// Returns runs, the newest first, and whether there are more than the limit.
pub fn list(connection: &Connection, query: &Query) -> rusqlite::Result<(Vec<RunRow>, bool)> {
    let limit = match query.limit {
        0 => -1,
        limit => signed(limit).saturating_add(1),
    };
    let mut found = connection
        .prepare_cached(&format!(
            "{RUN}
             WHERE (?1 IS NULL OR coalesce(ended, started) >= ?1)
               AND (?2 OR quiet = 0)
               AND (?3 IS NULL OR EXISTS (SELECT 1 FROM deletions WHERE run = runs.id AND kind = ?3))
             ORDER BY started DESC, id DESC LIMIT ?4",
        ))?
        .query_map(params![query.since.map(micros), query.quiet, query.kind, limit], |row| {
            Ok((row.get::<_, i64>("id")?, run(row)?))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let has_more = query.limit > 0 && found.len() > query.limit;
    if has_more {
        found.truncate(query.limit);
    }
    let mut deletions = connection.prepare_cached(
        "SELECT * FROM deletions WHERE run = ?1 AND (?2 IS NULL OR kind = ?2) ORDER BY position",
    )?;
    let mut runs = Vec::with_capacity(found.len());
    for (id, mut run) in found {
        run.deletions = deletions.query_map(params![id, query.kind], deletion)?.collect::<Result<_, _>>()?;
        runs.push(run);
    }
    Ok((runs, has_more))
}

/// Returns the sums of the quiet runs since a time.
pub fn quiet(connection: &Connection, since: Option<Timestamp>) -> rusqlite::Result<Quiet> {
    connection
        .prepare_cached(
            "SELECT coalesce(sum(summed) FILTER (WHERE command = 'scan'), 0) AS scans,
                    coalesce(sum(summed) FILTER (WHERE outcome = 'incomplete'), 0) AS incomplete,
                    coalesce(sum(summed) FILTER (WHERE command <> 'scan'), 0) AS others,
                    min(started) AS first,
                    max(iif(summed > 1, coalesce(ended, started), started)) AS last
             FROM runs WHERE quiet = 1 AND (?1 IS NULL OR coalesce(ended, started) >= ?1)",
        )?
        .query_row([since.map(micros)], |row| {
            Ok(Quiet {
                scans: unsigned(row, "scans")?,
                incomplete_scans: unsigned(row, "incomplete")?,
                other_runs: unsigned(row, "others")?,
                first_at: maybe_time(row, "first")?,
                last_at: maybe_time(row, "last")?,
            })
        })
}

/// Returns the runs since a time that deleted something successfully, the oldest first, without their deletions. They
/// are the markers of the usage chart.
pub fn that_deleted(connection: &Connection, since: Option<Timestamp>) -> rusqlite::Result<Vec<RunRow>> {
    connection
        .prepare_cached(&format!(
            "{RUN}
             WHERE deletions > 0 AND (?1 IS NULL OR coalesce(ended, started) >= ?1)
               AND EXISTS (SELECT 1 FROM deletions WHERE run = runs.id AND error IS NULL)
             ORDER BY started, id",
        ))?
        .query_map([since.map(micros)], run)?
        .collect()
}

/// Returns the bytes that deletions have freed since a time: time, root of the store, and number of bytes; the predicted
/// one if other processes spoiled the measurement.
pub fn freed(connection: &Connection, since: Timestamp) -> rusqlite::Result<Vec<(Timestamp, PathBuf, u64)>> {
    connection
        .prepare_cached(
            "SELECT at, root, byproduct_bytes
                 + max(iif(others_wrote, predicted_bytes, coalesce(measured_bytes, 0)), 0) AS bytes
             FROM deletions
             WHERE error IS NULL AND root IS NOT NULL AND at >= ?1
               AND run IN (SELECT id FROM runs WHERE coalesce(ended, started) >= ?1)
             ORDER BY at",
        )?
        .query_map([micros(since)], |row| {
            let root = path_text::from_text(&row.get::<_, String>("root")?);
            Ok((time(row, "at")?, root, unsigned(row, "bytes")?))
        })?
        .collect()
}

fn run(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    Ok(RunRow {
        start: Start {
            run_id: row.get("run_id")?,
            command: row.get("command")?,
            started: time(row, "started")?,
            policy: row.get("policy")?,
            via: row.get("via")?,
            trigger_space: row.get("trigger_space")?,
            trigger_age: row.get("trigger_age")?,
            usage: from_json(row, "filesystems")?,
            wanted_bytes: maybe_unsigned(row, "wanted_bytes")?,
            predicted_bytes: maybe_unsigned(row, "predicted_bytes")?,
        },
        ended: maybe_time(row, "ended")?,
        outcome: row.get("outcome")?,
        measured_bytes: row.get("measured")?,
        byproduct_bytes: unsigned(row, "byproduct_bytes")?,
        errors: from_json(row, "errors")?,
        events: from_json(row, "events")?,
        killed: row.get("killed")?,
        runs: unsigned(row, "summed")?,
        quiet: row.get("quiet")?,
        deletions: Vec::new(),
    })
}

pub(in crate::history) fn deletion(row: &Row<'_>) -> rusqlite::Result<DeletionRow> {
    Ok(DeletionRow {
        at: time(row, "at")?,
        kind: row.get("kind")?,
        store: match row.get::<_, Option<String>>("store_kind")? {
            Some(_) => Some(store(row, "store_kind")?),
            None => None,
        },
        id: row.get("object_id")?,
        names: from_json(row, "names")?,
        layers: from_json(row, "layers")?,
        reason: row.get("reason")?,
        predicted_bytes: unsigned(row, "predicted_bytes")?,
        measured_bytes: row.get("measured_bytes")?,
        byproduct_bytes: unsigned(row, "byproduct_bytes")?,
        others_wrote: row.get("others_wrote")?,
        usage_after_percent: row.get("usage_after_percent")?,
        error: row.get("error")?,
        certainty: row.get("outcome")?,
    })
}
