//! The documents of `layersweep history`.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::Serialize;

use super::parts::Header;
use crate::app::history::{HistoryOrigin, KeptScans, PastRuns, PastUsage};
use crate::history::kept_scans::KeptScan;
use crate::history::runs::{Certainty, DeletionRow, Event, OutcomeKind, Quiet, RunError, RunRow};
use crate::history::usage::{KnownFilesystem, Point, Range, Series};
use crate::model::display::two_decimals;
use crate::model::outcome::differs;
use crate::model::plan::Trigger;

/// `layersweep history`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryDoc {
    /// What every document begins with; its kind is `history`.
    #[serde(flatten)]
    pub header: Header,
    /// Where it is from.
    #[serde(flatten)]
    pub origin: HistoryOrigin,
    /// Runs, the newest first.
    pub runs: Vec<RunDoc>,
    /// There are older runs, which the limit leaves out.
    pub more: bool,
    /// Runs with nothing to report, summed up, whether `runs` has them or not.
    pub quiet: Quiet,
}

/// A run, or all runs of a day with the same command and outcome that deleted nothing.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunDoc {
    /// Its id; of several, the last one's.
    pub run_id: String,
    /// `scan`, `gc`, `sweep` or `rm`.
    pub command: &'static str,
    /// How many runs this stands for.
    pub runs: u64,
    /// When it began; of several, the first.
    pub started_at: Timestamp,
    /// When it ended; of several, the last. Null while it is under way, or if it was killed.
    pub ended_at: Option<Timestamp>,
    /// `done`, `incomplete`, `not_needed`, `reached`, `not_reached`, `failed` or `refused`;
    /// null as above.
    pub outcome: Option<&'static str>,
    /// It only showed what it would do.
    pub dry_run: bool,
    /// Name of the policy.
    pub policy: Option<String>,
    /// How it deleted.
    pub via: Option<String>,
    /// What set it off.
    pub trigger: Trigger,
    /// Mount point of the filesystem that the percents are of.
    pub filesystem: Option<String>,
    /// Percent used before.
    pub usage_before_percent: Option<f64>,
    /// Percent used after.
    pub usage_after_percent: Option<f64>,
    /// Bytes predicted to be freed.
    pub wanted_bytes: Option<u64>,
    /// Bytes that the plan promised.
    pub predicted_bytes: Option<u64>,
    /// Bytes freed; negative where others wrote more meanwhile. Of a run
    /// that did not end: the bytes its deletions freed so far.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks that went along; not part of the measured ones.
    pub byproduct_bytes: u64,
    /// What was deleted, in order, with the tries that failed.
    pub deleted: Vec<DeletionDoc>,
    /// What failed.
    pub errors: Vec<RunError>,
    /// Events that the kubelet would have recorded.
    pub events: Vec<Event>,
    /// It did not end, and another run that could delete came after it: it was killed.
    pub killed: bool,
    /// Its record, or some of it, waits in a file to be saved in the database. Never set for
    /// scans.
    pub unsaved: bool,
}

/// A deletion, or the try.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeletionDoc {
    /// `image`, `container`, `sandbox`, `log` or `leak`.
    pub kind: &'static str,
    /// The object's id.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// Root of its store; empty for what lies in none.
    pub store: String,
    /// `space`, `age`, `limit`, `leak` or `request`.
    pub reason: &'static str,
    /// Bytes predicted to be freed.
    pub predicted_bytes: u64,
    /// Bytes that did; negative where others wrote more meanwhile; null if not measured.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks that went along; not part of the measured ones.
    pub byproduct_bytes: u64,
    /// The two differ by more than the filesystem's own noise.
    pub differs: bool,
    /// Percent used after it.
    pub usage_after_percent: Option<f64>,
    /// When.
    pub at: Timestamp,
    /// `gone`; `failed`: it is still there; `unknown`: the run ended, or was killed, before that was
    /// known, and no scan has looked since.
    pub outcome: &'static str,
    /// The run could not tell, and a later scan did.
    pub confirmed: bool,
    /// Why it failed, or why its outcome is unknown; null where it went well.
    pub error: Option<String>,
}

/// `layersweep history usage`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryUsageDoc {
    /// What every document begins with; its kind is `history-usage`.
    #[serde(flatten)]
    pub header: Header,
    /// Where it is from.
    #[serde(flatten)]
    pub origin: HistoryOrigin,
    /// A series each.
    pub filesystems: Vec<SeriesDoc>,
    /// Runs that deleted something, the oldest first.
    pub runs: Vec<RunDoc>,
}

/// A filesystem with its points.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SeriesDoc {
    /// The filesystem.
    #[serde(flatten)]
    pub filesystem: KnownFilesystem,
    /// The oldest first.
    pub points: Vec<PointDoc>,
}

/// `layersweep history --scans`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryScansDoc {
    /// What every document begins with; its kind is `history-scans`.
    #[serde(flatten)]
    pub header: Header,
    /// Where it is from.
    #[serde(flatten)]
    pub origin: HistoryOrigin,
    /// Scans that `layersweep diff` can compare, the newest first.
    pub scans: Vec<KeptScanDoc>,
}

/// A scan that is kept.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptScanDoc {
    /// What `diff` calls it besides its id: `last`, `last~1`.
    pub name: String,
    /// The scan.
    #[serde(flatten)]
    pub scan: KeptScan,
}

/// The document of kept scans; they come the oldest first.
pub fn history_scans(now: Timestamp, past: KeptScans) -> HistoryScansDoc {
    let KeptScans { origin, scans: kept } = past;
    let name = |back: usize| if back == 0 { "last".into() } else { format!("last~{back}") };
    let scans = kept.into_iter().rev().enumerate();
    let scans = scans.map(|(back, scan)| KeptScanDoc { name: name(back), scan });
    HistoryScansDoc {
        header: Header::new("history-scans", now),
        scans: scans.filter(|one| origin.since.is_none_or(|since| one.scan.at >= since)).collect(),
        origin,
    }
}

/// A point: one reading, or all of an hour or day.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PointDoc {
    /// When it was read, or when its hour or day begins.
    pub at: Timestamp,
    /// How long it stands for: 0 for a single reading, 3600 or 86400.
    pub span_seconds: i64,
    /// How many readings it is made of.
    pub readings: u64,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// Bytes that were not free.
    pub used_bytes: Range,
    /// Bytes that an unprivileged user could still write.
    pub available_bytes: Range,
    /// Percent of the capacity that was not available (the kubelet's measure).
    pub used_percent: PercentRangeDoc,
    /// Inodes in all; 0 where there is no fixed number.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: Range,
}

/// The least, the mean and the greatest of the readings, two decimals.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PercentRangeDoc {
    /// The least.
    pub min: f64,
    /// The mean.
    pub avg: f64,
    /// The greatest.
    pub max: f64,
}

/// The document of runs.
pub fn history(now: Timestamp, past: PastRuns) -> HistoryDoc {
    let PastRuns { origin, runs, more, quiet } = past;
    HistoryDoc {
        header: Header::new("history", now),
        runs: runs.into_iter().map(|act| run(act, &origin.unsaved)).collect(),
        origin,
        more,
        quiet,
    }
}

/// The document of the usage series.
pub fn history_usage(now: Timestamp, past: PastUsage) -> HistoryUsageDoc {
    let PastUsage { origin, series, runs: acts } = past;
    let of =
        |Series { filesystem, points }| SeriesDoc { filesystem, points: points.iter().map(point).collect() };
    HistoryUsageDoc {
        header: Header::new("history-usage", now),
        filesystems: series.into_iter().map(of).collect(),
        runs: acts.into_iter().map(|row| run(row, &origin.unsaved)).collect(),
        origin,
    }
}

fn run(row: RunRow, unsaved: &HashSet<String>) -> RunDoc {
    let start = row.start;
    RunDoc {
        unsaved: unsaved.contains(&start.run_id),
        run_id: start.run_id,
        command: start.command.as_str(),
        runs: row.runs,
        started_at: start.started,
        ended_at: row.ended,
        outcome: row.outcome.map(OutcomeKind::as_str),
        // Those are not recorded.
        dry_run: false,
        policy: start.policy,
        via: start.via,
        trigger: Trigger { space: start.trigger_space, age: start.trigger_age },
        filesystem: start.mount,
        usage_before_percent: start.usage_before_percent.map(two_decimals),
        usage_after_percent: row.usage_after_percent.map(two_decimals),
        wanted_bytes: start.wanted_bytes,
        predicted_bytes: start.predicted_bytes,
        measured_bytes: row.measured_bytes,
        byproduct_bytes: row.byproduct_bytes,
        deleted: row.deletions.into_iter().map(deletion).collect(),
        errors: row.errors,
        events: row.events,
        killed: row.killed,
    }
}

fn deletion(deletion: DeletionRow) -> DeletionDoc {
    DeletionDoc {
        kind: deletion.kind.as_str(),
        id: deletion.id,
        names: deletion.names,
        store: deletion.store.map(|store| store.root().to_string_lossy().into_owned()).unwrap_or_default(),
        reason: deletion.reason.as_str(),
        predicted_bytes: deletion.predicted_bytes,
        measured_bytes: deletion.measured_bytes,
        byproduct_bytes: deletion.byproduct_bytes,
        differs: deletion.error.is_none()
            && deletion.measured_bytes.is_some_and(|measured| differs(deletion.predicted_bytes, measured)),
        usage_after_percent: deletion.usage_after_percent.map(two_decimals),
        at: deletion.at,
        outcome: match (deletion.certainty, &deletion.error) {
            (Certainty::Unknown, _) => "unknown",
            (_, None) => "gone",
            (_, Some(_)) => "failed",
        },
        confirmed: deletion.certainty == Certainty::Confirmed,
        error: deletion.error,
    }
}

fn point(point: &Point) -> PointDoc {
    let [min, avg, max] = point.used_percent().map(two_decimals);
    PointDoc {
        at: point.at,
        span_seconds: point.span.seconds(),
        readings: point.readings,
        capacity_bytes: point.capacity_bytes,
        used_bytes: point.used,
        available_bytes: point.available,
        used_percent: PercentRangeDoc { min, avg, max },
        inodes: point.inodes,
        inodes_free: point.inodes_free,
    }
}
