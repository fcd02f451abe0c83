//! The document of `layersweep report`: what fills a node's disk.

use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;

use super::omitted::{self, Listed};
use super::scan::scan_with;
use super::{FilesystemDoc, ForecastDoc, Header, OmittedDoc, RunDoc, ScanDoc};
use crate::app::diagnosis::{Advice, Cause, Part};
use crate::app::report::Report;
use crate::history::usage::{Point, Series};
use crate::model::Finding;
use crate::model::display::two_decimals;
use crate::policy::thresholds::DiskThreshold;
use crate::stores::other_usage::{self, OtherUserKind, OtherUsers};

/// `layersweep report`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportDoc {
    /// What every document begins with; its kind is `report`.
    #[serde(flatten)]
    pub header: Header,
    /// Version of the program.
    pub program_version: &'static str,
    /// Everything was read: figures are exact. If false, they are lower bounds.
    pub complete: bool,
    /// There are no records that could not be read. If false, what is in `usage` and `runs` is not all
    /// that there was.
    pub history_complete: bool,
    /// The mounted root that was looked in; null for the running system.
    pub sysroot: Option<String>,
    /// The node's name, as its disk says; null where it does not.
    pub host: Option<String>,
    /// How full the disk is, what fills it, what can be done.
    pub verdict: VerdictDoc,
    /// All that the stores hold: the document of `layersweep scan`.
    pub scan: ScanDoc,
    /// Each filesystem with all of its users.
    pub filesystems: Vec<ReportFilesystemDoc>,
    /// How full the filesystems were, from the records.
    pub usage: Vec<UsageSeriesDoc>,
    /// Runs of layersweep and what they deleted, the newest first, from the records.
    pub runs: Vec<RunDoc>,
    /// The largest things.
    pub top: TopDoc,
    /// How it was measured.
    pub measured: MeasuredDoc,
    /// What the document inside a page leaves out of the lists of `scan`, so that the page of a large store
    /// stays small; null if they are complete, as `--format json` always prints them.
    pub omitted: Option<OmittedDoc>,
}

/// How full the disk is, what fills it, what can be done.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerdictDoc {
    #[serde(flatten)]
    pub advice: Advice,
    /// Three sentences, of the fullest filesystem.
    pub sentences: Vec<String>,
    /// What fills the filesystems, the largest first.
    pub causes: Vec<Cause>,
}

/// A filesystem with all of its users.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportFilesystemDoc {
    /// Its numbers.
    #[serde(flatten)]
    pub filesystem: FilesystemDoc,
    /// What uses `used_bytes`: their bytes add up to it. `other` comes last.
    pub parts: Vec<Part>,
    /// What happens when it fills.
    pub marks: Vec<DiskThreshold>,
    /// When it is full; null where that cannot be said.
    pub forecast: Option<ForecastDoc>,
}

/// How full a filesystem was.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageSeriesDoc {
    /// Where it was mounted, as the node itself named it.
    pub filesystem: String,
    /// Its device when last seen.
    pub device: String,
    /// The oldest first.
    pub points: Vec<UsagePointDoc>,
}

/// One reading, or all of an hour or day.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsagePointDoc {
    /// When it was read, or when its hour or day begins.
    pub at: Timestamp,
    /// How long it stands for: 0 for a single reading, 3600 or 86400.
    pub span_seconds: i64,
    /// The least of the readings.
    pub used_low_bytes: u64,
    /// The mean.
    pub used_mean_bytes: u64,
    /// The greatest.
    pub used_high_bytes: u64,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// Percent of the capacity that was not available, the mean (the measure of the thresholds).
    pub used_percent: f64,
}

/// The largest things, by what they hold; the scan has everything about them.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TopDoc {
    /// Ids of layers, snapshots and blobs.
    pub layers: Vec<String>,
    /// Ids of images, by what only they hold.
    pub images: Vec<String>,
    /// Ids of containers.
    pub containers: Vec<String>,
    /// Ids of leaks.
    pub leaks: Vec<String>,
    /// Log files.
    pub logs: Vec<LogDoc>,
    /// Pods, by what they hold outside of the stores.
    pub pods: Vec<PodDoc>,
}

/// A log file.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LogDoc {
    /// Its path, as the node itself names it.
    pub path: String,
    /// Its pod, `<namespace>/<name>`; null for other logs.
    pub pod: Option<String>,
    /// The container in it.
    pub container: Option<String>,
    /// Allocated bytes.
    pub bytes: u64,
}

/// What a pod holds outside of the stores.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PodDoc {
    /// `<namespace>/<name>`, or its uid.
    pub pod: String,
    /// `logs` or `volumes`.
    pub kind: &'static str,
    /// Its path, as the node itself names it.
    pub path: String,
    /// Allocated bytes.
    pub bytes: u64,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MeasuredDoc {
    /// In sentences.
    pub how: Vec<String>,
    /// What could not be read: figures are lower bounds because of it.
    pub skipped: Vec<Finding>,
    /// What else is worth knowing.
    pub warnings: Vec<Finding>,
}

/// So many of the largest things are named.
const TOP: usize = 20;

/// How much of a scan a report lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Everything,
    /// The largest objects, and sums of the rest.
    Largest,
}

/// The document.
pub fn report(report: &Report, extent: Extent) -> ReportDoc {
    let listed = match extent {
        Extent::Everything => Listed::all(&report.result.scan.inventory),
        Extent::Largest => Listed::largest(&report.result.scan),
    };
    let omitted = listed.omitted(&report.result.scan);
    let mut document = scan_with(&report.result, listed, |layers| layers.iter().collect());
    if omitted.is_some() {
        omitted::shorten_users(&mut document);
    }
    let how = how(report);
    let scan = &report.result.scan;
    let inside = |path: &Path| scan.sysroot.shown(path);
    let filesystems = document.filesystems.iter().zip(&report.disks).zip(&report.forecasts);
    let filesystems = filesystems.map(|((filesystem, disk), forecast)| ReportFilesystemDoc {
        forecast: forecast.as_ref().map(|forecast| ForecastDoc::new(&disk.filesystem, forecast)),
        filesystem: filesystem.clone(),
        parts: disk.parts.clone(),
        marks: disk.thresholds.clone(),
    });
    let filesystems = filesystems.collect();
    let all = document.warnings.iter().cloned().chain(report.findings.iter().cloned());
    let (skipped, warnings) = all.partition(|warning| warning.incomplete);
    let (logs, pods) = (logs(&report.other_users, &inside), pods(&report.other_users, &inside));
    let now = document.header.generated_at;
    ReportDoc {
        header: Header::new("report", now),
        program_version: env!("CARGO_PKG_VERSION"),
        complete: report.complete,
        history_complete: report.unread.is_none(),
        sysroot: report.sysroot.as_ref().map(|path| path.to_string_lossy().into_owned()),
        host: report.host.clone(),
        verdict: VerdictDoc {
            advice: report.advice.clone(),
            sentences: report.sentences.clone().into(),
            causes: report.causes.clone(),
        },
        filesystems,
        usage: report.usage.series.iter().map(series).collect(),
        runs: super::history(now, report.runs.clone()).runs,
        top: top(&document, logs, pods),
        measured: MeasuredDoc { how, skipped, warnings },
        scan: document,
        omitted,
    }
}

fn logs(other_users: &OtherUsers, inside: &dyn Fn(&Path) -> String) -> Vec<LogDoc> {
    let log = |log: &other_usage::BigFile| LogDoc {
        path: inside(&log.path),
        pod: log.pod.clone(),
        container: log.container.clone(),
        bytes: log.bytes,
    };
    other_users.logs.iter().filter(|log| log.bytes > 0).map(log).collect()
}

fn pods(other_users: &OtherUsers, inside: &dyn Fn(&Path) -> String) -> Vec<PodDoc> {
    let pod = |pod: &other_usage::PodShare| PodDoc {
        pod: pod.pod.clone(),
        kind: if pod.kind == OtherUserKind::PodLogs { "logs" } else { "volumes" },
        path: inside(&pod.path),
        bytes: pod.bytes,
    };
    other_users.pods.iter().filter(|pod| pod.bytes > 0).map(pod).collect()
}

/// How it was measured, in sentences.
fn how(report: &Report) -> Vec<String> {
    let scan = &report.result.scan;
    let effort = &scan.effort;
    let mut how = vec![
        format!(
            "Stores: {} inodes examined; sizes of {} layers measured now, of {} cached from an earlier \
                scan and proven unchanged.",
            effort.inodes, effort.measured_layers, effort.cached_layers
        ),
        format!(
            "Other users of the same filesystems: {} inodes examined, no mount crossed, each hard link once; what \
             a store shares with them counts with the store.",
            report.other_users.inodes
        ),
        "Bytes are allocated ones (512-byte blocks in use). The parts of a filesystem add up to what it says is \
         used; `other` is the rest: small directories, what could not be read, and the filesystem's own."
            .into(),
    ];
    how.push(match (&report.runs.origin.database, &report.unread) {
        (_, Some(unread)) => format!(
            "The records in {unread} cannot be read: ages come from the disk alone, and there is no history."
        ),
        (Some(database), None) => format!("History, ages and uses are from {database}."),
        (None, None) => {
            "There are no layersweep records: ages come from the disk alone, and there is no history.".into()
        }
    });
    if scan.sysroot.is_foreign() {
        how.push("The disk belongs to a node that is not running; nothing was written to it.".into());
    }
    how
}

fn series(series: &Series) -> UsageSeriesDoc {
    let point = |point: &Point| {
        let [_, used_percent, _] = point.used_percent().map(two_decimals);
        UsagePointDoc {
            at: point.at,
            span_seconds: point.span.seconds(),
            used_low_bytes: point.used.low,
            used_mean_bytes: point.used.mean,
            used_high_bytes: point.used.high,
            capacity_bytes: point.capacity_bytes,
            used_percent,
        }
    };
    UsageSeriesDoc {
        filesystem: series.filesystem.mount.clone(),
        device: series.filesystem.device.clone(),
        points: series.points.iter().map(point).collect(),
    }
}

fn top(scan: &ScanDoc, logs: Vec<LogDoc>, mut pods: Vec<PodDoc>) -> TopDoc {
    pods.truncate(TOP);
    TopDoc {
        layers: largest(&scan.layers, |layer| (layer.bytes, &layer.id)),
        images: largest(&scan.images, |image| (image.exclusive_bytes, &image.id)),
        containers: largest(&scan.containers, |container| (container.bytes, &container.id)),
        leaks: largest(&scan.leaks, |leak| (leak.bytes, &leak.id)),
        logs,
        pods,
    }
}

/// Ids of the largest, the largest first.
fn largest<T>(all: &[T], key: impl Fn(&T) -> (u64, &String)) -> Vec<String> {
    let mut all: Vec<_> = all.iter().map(key).filter(|(bytes, _)| *bytes > 0).collect();
    all.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    all.into_iter().take(TOP).map(|(_, id)| id.clone()).collect()
}
