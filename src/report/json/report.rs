//! The document of `layersweep report`: the whole story of a node's disk.

use jiff::Timestamp;
use serde::Serialize;

use super::{FilesystemDoc, HistoryDoc, RangeDoc, RunDoc, SCHEMA_VERSION, ScanDoc, SeriesDoc, WarningDoc};
use crate::app::diagnosis::{Cause, Disk, Hands, Part};

/// `layersweep report`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportDoc {
    /// Version of this document's shape.
    pub schema_version: u32,
    /// `report`.
    pub kind: &'static str,
    /// When the document was made, RFC 3339 UTC.
    #[cfg_attr(test, schemars(with = "String"))]
    pub generated_at: Timestamp,
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
    /// What is full, who holds it, what can be done.
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
}

/// What is full, who holds it, what can be done.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerdictDoc {
    /// Three sentences, of the fullest filesystem.
    pub sentences: Vec<String>,
    /// What fills the filesystems, the largest first.
    pub causes: Vec<CauseDoc>,
}

/// Something that fills a filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CauseDoc {
    /// `leak`, `pinned-image`, `dead-container`, `container`, `log`, `unused-images`, `journal`,
    /// `kubelet-volume`, `var-tmp`, `core-dumps`, `deleted-open` or `other`.
    pub kind: &'static str,
    /// A name for it, in a few words.
    pub title: String,
    /// What it is, in words.
    pub text: String,
    /// What to do about it, in words; empty where there is nothing to do.
    pub remedy: String,
    /// What the filesystem is expected to give back if it goes; for what lies in no store, its
    /// allocated bytes.
    pub bytes: u64,
    /// Mount point of its filesystem.
    pub filesystem: String,
    /// Id of the object in the store, or the pod; null for the rest.
    pub id: Option<String>,
    /// Where it lies, as the node itself names it; null where it is in many places.
    pub path: Option<String>,
    /// Who takes it away: `layersweep` (as its policy says), `operator` (a person has to decide) or
    /// `nobody` (it is in use, or no container's and not looked into).
    pub taken_by: &'static str,
}

/// A filesystem with all of its users.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportFilesystemDoc {
    /// Its numbers.
    #[serde(flatten)]
    pub filesystem: FilesystemDoc,
    /// Bytes that are free for root alone.
    pub reserved_bytes: u64,
    /// Who holds `used_bytes`: their bytes add up to it. `other` comes last.
    pub parts: Vec<PartDoc>,
    /// What happens when it fills.
    pub marks: Vec<MarkDoc>,
}

/// A user of a filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PartDoc {
    /// `images` (in use), `images-pinned`, `images-unused`, `containers`, `leaks`, `metadata`,
    /// `store-other`, `logs`, `journal`, `kubelet-volumes`, `var-tmp`, `layersweep`, `core-dumps`,
    /// `swap`, `deleted-open`, `directory` (another top-level directory of at least 1 %) or `other`.
    pub kind: &'static str,
    /// For people.
    pub label: String,
    /// Where it lies, as the node itself names it.
    pub path: Option<String>,
    /// Its share of the filesystem's used bytes.
    pub bytes: u64,
    /// Allocated bytes as measured; more than `bytes` only where the parts exceed what is used (a
    /// filesystem that compresses, or that was written to meanwhile), which a warning then says.
    pub measured_bytes: u64,
    /// Root of its store; null for what lies in none.
    pub store: Option<String>,
}

/// A share in use at which something happens.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MarkDoc {
    /// What happens: `image GC high`.
    pub name: String,
    /// From this percentage on: of the capacity that is not available (`used_percent`), or of the
    /// inodes that are used.
    pub percent: f64,
    /// Who goes by it: `layersweep`, `kubelet` or `eviction`.
    pub source: &'static str,
    /// What it counts: `bytes` or `inodes`.
    pub of: &'static str,
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
    #[cfg_attr(test, schemars(with = "String"))]
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
    /// Percent of the capacity that was not available, the mean (the measure of the marks).
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
    /// Where it lies, as the node itself names it.
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
    /// Where that lies, as the node itself names it.
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
    pub skipped: Vec<WarningDoc>,
    /// What else is worth knowing.
    pub warnings: Vec<WarningDoc>,
}

/// What a report is made of besides the scan.
#[derive(Clone, Debug)]
pub struct ReportFacts {
    /// The mounted root, as it was named.
    pub sysroot: Option<String>,
    /// The node's name.
    pub host: Option<String>,
    /// Everything was read.
    pub complete: bool,
    /// Three sentences.
    pub sentences: [String; 3],
    /// What fills the filesystems.
    pub causes: Vec<Cause>,
    /// The filesystems, as in the scan.
    pub disks: Vec<Disk>,
    /// Their readings.
    pub series: Vec<SeriesDoc>,
    /// Past runs.
    pub history: HistoryDoc,
    /// The records could be read, if there are any.
    pub history_complete: bool,
    /// Log files.
    pub logs: Vec<LogDoc>,
    /// Pods.
    pub pods: Vec<PodDoc>,
    /// How it was measured.
    pub how: Vec<String>,
    /// What is wrong besides what the scan says.
    pub warnings: Vec<WarningDoc>,
}

/// So many of the largest things are named.
const TOP: usize = 20;

/// The document. `inside` turns a path of ours into the node's own.
#[must_use]
pub fn report(scan: ScanDoc, facts: ReportFacts, inside: &dyn Fn(&std::path::Path) -> String) -> ReportDoc {
    let root = |store: usize| scan.stores.get(store).map(|store| store.root.clone());
    let mounts: Vec<_> = scan.filesystems.iter().map(|filesystem| filesystem.mount.clone()).collect();
    let filesystems = scan.filesystems.iter().zip(&facts.disks);
    let filesystems = filesystems.map(|(filesystem, disk)| ReportFilesystemDoc {
        reserved_bytes: filesystem
            .capacity_bytes
            .saturating_sub(filesystem.used_bytes)
            .saturating_sub(filesystem.available_bytes),
        filesystem: filesystem.clone(),
        parts: disk.parts.iter().map(|part| part_doc(part, root, inside)).collect(),
        marks: disk
            .marks
            .iter()
            .map(|mark| MarkDoc {
                name: mark.name.clone(),
                percent: mark.percent,
                source: mark.source,
                of: mark.of.word(),
            })
            .collect(),
    });
    let filesystems = filesystems.collect();
    let all = scan.warnings.iter().chain(&facts.warnings).cloned();
    let (skipped, warnings) = all.partition(|warning| warning.incomplete);
    ReportDoc {
        schema_version: SCHEMA_VERSION,
        kind: "report",
        generated_at: scan.generated_at,
        program_version: env!("CARGO_PKG_VERSION"),
        complete: facts.complete,
        history_complete: facts.history_complete,
        sysroot: facts.sysroot,
        host: facts.host,
        verdict: VerdictDoc {
            sentences: facts.sentences.into(),
            causes: facts.causes.into_iter().map(|cause| cause_doc(cause, &mounts)).collect(),
        },
        filesystems,
        usage: facts.series.into_iter().map(series).collect(),
        runs: facts.history.runs,
        top: top(&scan, facts.logs, facts.pods),
        measured: MeasuredDoc { how: facts.how, skipped, warnings },
        scan,
    }
}

fn part_doc(
    part: &Part,
    root: impl Fn(usize) -> Option<String>,
    inside: &dyn Fn(&std::path::Path) -> String,
) -> PartDoc {
    PartDoc {
        kind: part.kind.word(),
        label: part.label.clone(),
        path: part.path.as_deref().map(inside),
        bytes: part.bytes,
        measured_bytes: part.measured_bytes,
        store: part.store.and_then(root),
    }
}

fn cause_doc(cause: Cause, mounts: &[String]) -> CauseDoc {
    CauseDoc {
        kind: cause.kind.word(),
        title: cause.title,
        text: cause.text,
        remedy: cause.remedy,
        bytes: cause.bytes,
        filesystem: mounts.get(cause.filesystem.get()).cloned().unwrap_or_default(),
        id: cause.id,
        path: cause.path,
        taken_by: match cause.hands {
            Hands::Ours => "layersweep",
            Hands::Operator => "operator",
            Hands::Nobody => "nobody",
        },
    }
}

fn series(series: SeriesDoc) -> UsageSeriesDoc {
    let point = |point: &super::PointDoc| {
        let RangeDoc { min, avg, max } = point.used_bytes;
        UsagePointDoc {
            at: point.at,
            span_seconds: point.span_seconds,
            used_low_bytes: min,
            used_mean_bytes: avg,
            used_high_bytes: max,
            capacity_bytes: point.capacity_bytes,
            used_percent: point.used_percent.avg,
        }
    };
    UsageSeriesDoc {
        filesystem: series.mount,
        device: series.device,
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
