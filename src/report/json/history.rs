//! JSON documents of `layersweep history`.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use super::{DeletionDoc, StoryDoc};
use crate::app::history::{HistoryOrigin, KeptScans, PastImages, PastRuns, PastUsage};
use crate::history::kept_scans::KeptScan;
use crate::history::runs::{Command, Event, OutcomeKind, Quiet, RunError, RunRow};
use crate::history::usage::{KnownFilesystem, Point, Range, Series};
use crate::model::deletion::outcome::UsageChange;
use crate::model::deletion::plan::Trigger;
use crate::model::text::display::two_decimals;

/// Document of `layersweep history`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryDoc {
    /// Common fields of all documents; the kind is `history`.
    #[serde(flatten)]
    pub header: Header,
    /// Source of the records.
    #[serde(flatten)]
    pub origin: HistoryOrigin,
    /// Runs, the newest first.
    pub runs: Vec<RunDoc>,
    /// True if older runs exist that the limit excludes.
    pub more: bool,
    /// Sums of the runs without a deletion or failure, including those in `runs`.
    pub quiet: Quiet,
    /// Images that `history IMAGE` names, the latest first; `runs` contains only their deletions then. Empty
    /// without an image.
    pub images: Vec<StoryDoc>,
}

/// Run, or all runs of a day with the same command and outcome that deleted nothing.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunDoc {
    /// Id of the run; for several, the id of the last one.
    pub run_id: String,
    /// `scan`, `gc`, `sweep` or `rm`.
    pub command: Command,
    /// Number of runs in this entry.
    pub runs: u64,
    /// Start of the run; for several, of the first.
    pub started_at: Timestamp,
    /// End of the run; for several, of the last. Null while it is running, or if it was killed.
    pub ended_at: Option<Timestamp>,
    /// `done`, `incomplete`, `not_needed`, `reached`, `not_reached`, `failed` or `refused`; null without an
    /// end.
    pub outcome: Option<OutcomeKind>,
    /// The outcome in words: `low threshold reached`, `refused: pinned`, `killed`.
    pub outcome_text: String,
    /// True if it only printed a plan.
    pub dry_run: bool,
    /// Name of the policy, `exact` or `kubelet`; null for runs without one.
    pub policy: Option<String>,
    /// Backend of the deletions, `cri` or `direct`; null for runs without one.
    pub via: Option<String>,
    /// Thresholds and limits that caused deletions.
    pub trigger: Trigger,
    /// Filesystems of the run, before and after.
    pub filesystems: Vec<UsageChange>,
    /// Bytes missing to reach the targets.
    pub wanted_bytes: Option<u64>,
    /// Bytes that the deletions were predicted to free.
    pub predicted_bytes: Option<u64>,
    /// Bytes freed; negative if other processes wrote more meanwhile. For a run without an end, the bytes
    /// that its deletions have freed so far.
    pub measured_bytes: Option<i64>,
    /// Bytes of leaks deleted along with the images; not part of `measured_bytes`.
    pub byproduct_bytes: u64,
    /// True if other processes spoiled the measurement of a deletion: the freed bytes of the run are unknown.
    pub disturbed: bool,
    /// Deletions in order, including failed attempts.
    pub deleted: Vec<DeletionDoc>,
    /// Failures during the run.
    pub errors: Vec<RunError>,
    /// Events that the kubelet would have recorded.
    pub events: Vec<Event>,
    /// True if it did not end and another run that could delete followed: it was killed.
    pub killed: bool,
    /// True if a part of its record waits in a file to be saved in the database. Never true for scans.
    pub unsaved: bool,
}

/// Document of `layersweep history usage`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryUsageDoc {
    /// Common fields of all documents; the kind is `history-usage`.
    #[serde(flatten)]
    pub header: Header,
    /// Source of the records.
    #[serde(flatten)]
    pub origin: HistoryOrigin,
    /// Filesystems, each with its usage over time.
    pub filesystems: Vec<SeriesDoc>,
    /// Runs that deleted something, the oldest first.
    pub runs: Vec<RunDoc>,
}

/// Filesystem with its usage over time.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SeriesDoc {
    /// Facts about the filesystem.
    #[serde(flatten)]
    pub filesystem: KnownFilesystem,
    /// Points in time, the oldest first.
    pub points: Vec<PointDoc>,
}

/// Document of `layersweep history --scans`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryScansDoc {
    /// Common fields of all documents; the kind is `history-scans`.
    #[serde(flatten)]
    pub header: Header,
    /// Source of the records.
    #[serde(flatten)]
    pub origin: HistoryOrigin,
    /// Scans that `layersweep diff` can compare, the newest first.
    pub scans: Vec<KeptScanDoc>,
}

/// Recorded scan.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptScanDoc {
    /// Short name for `diff` besides the id: `last`, `last~1`.
    pub name: String,
    /// Facts about the scan.
    #[serde(flatten)]
    pub scan: KeptScan,
}

/// Builds the document of `history --scans` from scans sorted by time, the oldest first.
pub fn history_scans(now: Timestamp, past: KeptScans) -> HistoryScansDoc {
    let KeptScans { origin, scans: kept } = past;
    let mut scans = Vec::new();
    for (position, scan) in kept.into_iter().rev().enumerate() {
        if origin.since.is_none_or(|since| scan.at >= since) {
            let name = if position == 0 { "last".into() } else { format!("last~{position}") };
            scans.push(KeptScanDoc { name, scan });
        }
    }
    HistoryScansDoc { header: Header::new(DocumentKind::HistoryScans, now), origin, scans }
}

/// Usage at a point in time.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PointDoc {
    #[serde(flatten)]
    pub reading: Point,
    /// Percentage of the capacity that was not available (the kubelet's measure), two decimals.
    pub used_percent: Range<f64>,
}

pub fn history(now: Timestamp, past: PastRuns) -> HistoryDoc {
    let PastRuns { origin, runs, more, quiet } = past;
    HistoryDoc {
        header: Header::new(DocumentKind::History, now),
        runs: runs.into_iter().map(|row| run(row, &origin.unsaved)).collect(),
        origin,
        more,
        quiet,
        images: Vec::new(),
    }
}

pub fn history_of_images(now: Timestamp, past: PastImages) -> HistoryDoc {
    let PastImages { runs, stories } = past;
    HistoryDoc { images: stories.iter().map(StoryDoc::recorded).collect(), ..history(now, runs) }
}

pub fn history_usage(now: Timestamp, past: PastUsage) -> HistoryUsageDoc {
    let PastUsage { origin, series, runs } = past;
    HistoryUsageDoc {
        header: Header::new(DocumentKind::HistoryUsage, now),
        filesystems: series.iter().map(SeriesDoc::new).collect(),
        runs: runs.into_iter().map(|row| run(row, &origin.unsaved)).collect(),
        origin,
    }
}

fn run(row: RunRow, unsaved: &HashSet<String>) -> RunDoc {
    let outcome_text = outcome_text(&row);
    let start = row.start;
    RunDoc {
        outcome_text,
        unsaved: unsaved.contains(&start.run_id),
        run_id: start.run_id,
        command: start.command,
        runs: row.runs,
        started_at: start.started,
        ended_at: row.ended,
        outcome: row.outcome,
        // Dry runs are not recorded.
        dry_run: false,
        policy: start.policy,
        via: start.via,
        trigger: Trigger { space: start.trigger_space, age: start.trigger_age },
        filesystems: start.usage,
        wanted_bytes: start.wanted_bytes,
        predicted_bytes: start.predicted_bytes,
        measured_bytes: row.measured_bytes,
        byproduct_bytes: row.byproduct_bytes,
        disturbed: row.deletions.iter().any(|deletion| deletion.others_wrote),
        deleted: row.deletions.iter().map(DeletionDoc::recorded).collect(),
        errors: row.errors,
        events: row.events,
        killed: row.killed,
    }
}

fn outcome_text(row: &RunRow) -> String {
    let Some(outcome) = row.outcome else {
        return if row.killed { "killed" } else { "not ended (still running, or killed)" }.into();
    };
    match (row.start.command, outcome) {
        (Command::Gc, OutcomeKind::Reached) if row.start.trigger_space => "low threshold reached".into(),
        (Command::Gc, OutcomeKind::Reached) => "done".into(),
        (Command::Gc, OutcomeKind::NotReached) => "low threshold not reached".into(),
        (Command::Gc | Command::Rm, OutcomeKind::NotNeeded) => "nothing to do".into(),
        (Command::Rm, OutcomeKind::Reached) => "done".into(),
        (Command::Rm, OutcomeKind::Refused) => {
            let rules: BTreeSet<_> = row.errors.iter().filter_map(|error| error.rule).collect();
            let rules: Vec<_> = rules.iter().map(|rule| rule.as_str().replace('-', " ")).collect();
            let has_deleted = row.deletions.iter().any(|deletion| deletion.error.is_none());
            let refused = if has_deleted { "refused in part" } else { "refused" };
            if rules.is_empty() { refused.into() } else { format!("{refused}: {}", rules.join(", ")) }
        }
        (_, outcome) => outcome.as_str().replace('_', " "),
    }
}

impl RunDoc {
    /// Returns true if the run is one of a filesystem's: it was short of space, or the run freed something there.
    pub fn is_on(&self, mount: &str) -> bool {
        let notable = UsageChange::notable(&self.filesystems);
        notable.is_empty() || notable.iter().any(|change| change.mount == mount)
    }

    /// Returns the bytes that the run freed on a filesystem, as far as they are known.
    pub fn measured_on(&self, mount: &str) -> Option<i64> {
        match self.filesystems.as_slice() {
            [] | [_] => self.measured_bytes,
            several => several.iter().find(|change| change.mount == mount)?.measured_bytes,
        }
    }
}

impl SeriesDoc {
    pub(super) fn new(series: &Series) -> Self {
        let points = series.points.iter().map(|point| {
            let Range { min, avg, max } = point.used_percent();
            let used_percent =
                Range { min: two_decimals(min), avg: two_decimals(avg), max: two_decimals(max) };
            PointDoc { reading: *point, used_percent }
        });
        Self { filesystem: series.filesystem.clone(), points: points.collect() }
    }
}
