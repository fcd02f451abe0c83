//! JSON document of `layersweep report`: the users of a node's disk.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use serde::Serialize;

use super::scan::{Listed, scan_with};
use super::{DocumentKind, FilesystemDoc, ForecastDoc, Header, RunDoc, ScanDoc, SeriesDoc};
use crate::app::report::{Changes, Report};
use crate::app::waste::StoreWaste;
use crate::model::Finding;
use crate::model::refs::{Refs, Root};
use crate::model::text::names::names;
use crate::policy::thresholds::{Counted, DiskThreshold, ThresholdName};
use crate::services::diagnosis::{Advice, Cause, Part, StoppedHolders};
use crate::stores::Scan;
use crate::stores::other_usage::{OtherUserKind, OtherUsers};
use crate::sys::sysroot::Sysroot;

/// Document of `layersweep report`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportDoc {
    /// Common fields of all documents; the kind is `report`.
    #[serde(flatten)]
    pub header: Header,
    /// Version of layersweep.
    pub program_version: &'static str,
    /// True if everything was read and the figures are exact. If false, they are lower bounds.
    pub complete: bool,
    /// True if all existing records were read. If false, `usage` and `runs` miss a part of the past.
    pub history_complete: bool,
    /// Mounted root that was read; null for the running system.
    pub sysroot: Option<String>,
    /// Name of the node: `LAYERSWEEP_NODE_NAME` of the environment, or else the kernel's host name, or else that in
    /// `/etc/hostname`, which alone names a disk that is mounted elsewhere; null if it has none.
    pub host: Option<String>,
    /// Summary: how full the disk is, its largest users, and possible actions.
    pub verdict: VerdictDoc,
    /// Stopped containers: those that are worth it are causes of the kind `dead-container`. Empty in the document of a
    /// page.
    pub stopped: StoppedHolders,
    /// Stores in which hidden or equal files take more than 1 % of the filesystem, as in the document of `waste`. Of
    /// layers with a tar-split alone; empty if the tar-splits are longer than 64 MiB together.
    pub waste: Vec<StoreWaste>,
    /// Changes of the filesystems since the newest kept scan, and since the newest that is a day older. Empty if no
    /// scan is kept.
    pub changes: Vec<Changes>,
    /// Content of the stores: the document of `layersweep scan`.
    pub scan: ScanDoc,
    /// Filesystems that contain a store, each with all of its users.
    pub filesystems: Vec<ReportFilesystemDoc>,
    /// Usage of the filesystems over time, from the records.
    pub usage: Vec<SeriesDoc>,
    /// Runs of layersweep and their deletions, the newest first, from the records.
    pub runs: Vec<RunDoc>,
    /// Largest objects of each kind.
    pub top: TopDoc,
    /// Method of measurement, and its gaps.
    pub measured: MeasuredDoc,
    /// Sums of the objects that the lists of `scan` omit, one row a kind. The document of a page lists the largest
    /// 1,000 images, containers and leaks and the largest 5,000 layers, so that a browser can show the page of a large
    /// store. Empty if the lists are complete, as they always are with `--format json`.
    pub others: Vec<OthersDoc>,
}

/// Summary: how full the disk is, its largest users, and possible actions.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VerdictDoc {
    #[serde(flatten)]
    pub advice: Advice,
    /// Three sentences about the fullest filesystem.
    pub sentences: Vec<String>,
    /// Users of the filesystems. The fullest filesystem comes first; on each filesystem, the least risk: deletions by
    /// layersweep, what can be made again, stopped containers, what only a person can judge, and data that is not deleted
    /// now; the largest first in each group.
    pub causes: Vec<Cause>,
}

/// Filesystem with all of its users.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportFilesystemDoc {
    /// Facts about the filesystem.
    #[serde(flatten)]
    pub filesystem: FilesystemDoc,
    /// Users of the filesystem: their bytes add up to `used_bytes`. `other` is the last.
    pub parts: Vec<Part>,
    /// Actions of the kubelet, the runtime and layersweep as the filesystem fills.
    pub thresholds: Vec<DiskThreshold>,
    /// Time until the filesystem is full; null if there is no forecast.
    pub forecast: Option<ForecastDoc>,
    /// Resource that is short, and that `used_after_percent` of the causes counts: `bytes` or `inodes`.
    pub scarce: Counted,
    /// Bytes by which the stores use less than `du` counts: extents that files share, and compression.
    pub saved_bytes: u64,
}

impl ReportFilesystemDoc {
    /// Returns the low threshold of the scarce resource if more is used.
    #[must_use]
    pub fn low(&self) -> Option<f64> {
        let facts = &self.filesystem;
        let (name, used) = match self.scarce {
            Counted::Bytes => (ThresholdName::GcLow, facts.used_percent?),
            Counted::Inodes => (ThresholdName::GcInodesLow, 100.0),
        };
        let low = self.thresholds.iter().find(|threshold| threshold.name == name)?.percent;
        (low < used).then_some(low)
    }
}

/// Largest objects of each kind, by bytes; `scan` contains all facts about them.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TopDoc {
    /// Layers, snapshots and blobs.
    pub layers: Vec<TopObjectDoc>,
    /// Images, by exclusive bytes.
    pub images: Vec<TopObjectDoc>,
    pub containers: Vec<TopObjectDoc>,
    pub leaks: Vec<TopObjectDoc>,
    /// Log files, of pods and of the node.
    pub logs: Vec<LogDoc>,
    /// Pods, by bytes outside the stores.
    pub pods: Vec<PodDoc>,
}

/// Object in a list of `scan`. Several stores may have objects with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TopObjectDoc {
    /// Root of its store.
    pub store: String,
    pub id: String,
}

/// Log file of a pod or of the node.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LogDoc {
    /// Path as the node itself names it.
    pub path: String,
    /// Pod in the form `<namespace>/<name>`; null for other logs.
    pub pod: Option<String>,
    /// Container of the pod; null for other logs.
    pub container: Option<String>,
    /// Allocated bytes.
    pub bytes: u64,
}

names! {
    /// Kind of a pod's data outside the stores.
    PodDataKind {
        Logs = "logs",
        Volumes = "volumes",
    }
}

/// Logs or volumes of a pod, outside the stores.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PodDoc {
    /// Pod in the form `<namespace>/<name>`, or its uid.
    pub pod: String,
    /// `logs` or `volumes`.
    pub kind: PodDataKind,
    /// Path as the node itself names it.
    pub path: String,
    /// Allocated bytes.
    pub bytes: u64,
}

/// Method of measurement, and its gaps.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MeasuredDoc {
    /// Method in sentences.
    pub how: Vec<String>,
    /// Files that could not be read: figures are lower bounds because of them.
    pub skipped: Vec<Finding>,
    /// Other findings.
    pub warnings: Vec<Finding>,
}

/// Omitted objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OthersDoc {
    /// `images`, `layers`, `containers` or `leaks`.
    pub kind: &'static str,
    /// Number of objects.
    pub count: usize,
    /// Sum of their bytes: of images, of the exclusive bytes.
    pub bytes: u64,
}

/// Maximum number of images on a page, and of containers and of leaks.
const OBJECTS: usize = 1_000;
/// Maximum number of layers on a page, besides those of listed leaks.
const LAYERS: usize = 5_000;
/// Maximum number of images named by a layer of a page, and of containers.
const USERS: usize = 20;

/// Number of objects in each list of [`TopDoc`].
const TOP: usize = 20;

/// Part of a scan that a report lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Everything,
    /// The largest objects, and sums of the rest.
    Largest,
}

pub fn report(report: &Report, extent: Extent) -> ReportDoc {
    let mut listed = Listed::all(&report.result.scan.inventory);
    let others = match extent {
        Extent::Everything => Vec::new(),
        Extent::Largest => shorten_all(&report.result.scan, &mut listed),
    };
    let mut document = scan_with(&report.result, listed, |layers| layers.iter().collect());
    if !others.is_empty() {
        shorten_users(&mut document);
    }
    let how = how(report);
    let scan = &report.result.scan;
    let filesystems = document
        .filesystems
        .iter()
        .zip(&report.disks)
        .zip(&report.forecasts)
        .enumerate()
        .map(|(position, ((filesystem, disk), forecast))| ReportFilesystemDoc {
            saved_bytes: scan.inventory.saved_bytes.get(&position.into()).copied().unwrap_or(0),
            forecast: forecast.as_ref().map(|forecast| ForecastDoc::new(&disk.filesystem, forecast)),
            filesystem: filesystem.clone(),
            parts: disk.parts.clone(),
            thresholds: disk.thresholds.clone(),
            scarce: disk.scarce(),
        })
        .collect();
    let all = document.warnings.iter().cloned().chain(report.findings.iter().cloned());
    let (skipped, warnings) = all.partition(|warning| warning.incomplete);
    let logs = logs(&report.other_users, &scan.sysroot);
    let pods = pods(&report.other_users, &scan.sysroot);
    let now = document.header.generated_at;
    ReportDoc {
        header: Header::new(DocumentKind::Report, now),
        program_version: env!("CARGO_PKG_VERSION"),
        complete: report.complete,
        history_complete: report.unread.is_none(),
        sysroot: report.sysroot.as_ref().map(|path| path.to_string_lossy().into_owned()),
        host: report.result.node.clone(),
        verdict: VerdictDoc {
            advice: report.advice.clone(),
            sentences: report.sentences.clone().into(),
            causes: report.causes.clone(),
        },
        stopped: match extent {
            Extent::Everything => report.stopped.clone(),
            Extent::Largest => StoppedHolders::default(),
        },
        waste: report.waste.clone(),
        changes: report.changes.clone(),
        filesystems,
        usage: report.usage.series.iter().map(SeriesDoc::new).collect(),
        runs: super::history(now, report.runs.clone()).runs,
        top: top(&document, logs, pods),
        measured: MeasuredDoc { how, skipped, warnings },
        scan: document,
        others,
    }
}

/// Shortens the lists of a page to the largest objects, and returns the sums of the others.
fn shorten_all(scan: &Scan, lists: &mut Listed) -> Vec<OthersDoc> {
    let (inventory, refs) = (&scan.inventory, &scan.refs);
    let leaks = shorten("leaks", &mut lists.leaks, OBJECTS, &[], |leak_ix| {
        Refs::held_bytes(inventory, &inventory[leak_ix].holds)
    });
    // The page draws a leak that is a layer as that layer.
    let leaked: Vec<_> = lists
        .leaks
        .iter()
        .flat_map(|leak_ix| &inventory[*leak_ix].holds)
        .copied()
        .filter(|node_ix| inventory[*node_ix].layer.is_some())
        .collect();
    let layers = shorten("layers", &mut lists.layers, LAYERS, &leaked, |node_ix| {
        Refs::alone(inventory, node_ix).bytes
    });
    let images = shorten("images", &mut lists.images, OBJECTS, &[], |image_ix| {
        refs.sizes(inventory, Root::Image(image_ix)).exclusive.bytes
    });
    let containers = shorten("containers", &mut lists.containers, OBJECTS, &[], |container_ix| {
        Refs::held_bytes(inventory, &inventory[container_ix].holds)
    });
    [images, layers, containers, leaks].into_iter().flatten().collect()
}

/// Shortens a list to its `count` largest objects, of equal ones the first, and those of `always`. The order remains.
/// Returns the sum of the others; `None` if no object is left out.
fn shorten<T: Copy + Ord>(
    kind: &'static str,
    list: &mut Vec<T>,
    count: usize,
    always: &[T],
    bytes: impl Fn(T) -> u64,
) -> Option<OthersDoc> {
    let mut by_size: Vec<_> = list.iter().map(|object| (Reverse(bytes(*object)), *object)).collect();
    by_size.sort_unstable();
    let largest = by_size.iter().take(count).map(|(_, object)| object);
    let listed: BTreeSet<T> = largest.chain(always).copied().collect();
    list.retain(|object| listed.contains(object));
    by_size.retain(|(_, object)| !listed.contains(object));
    let bytes = by_size.iter().fold(0, |sum: u64, (Reverse(bytes), _)| sum.saturating_add(*bytes));
    (!by_size.is_empty()).then_some(OthersDoc { kind, count: by_size.len(), bytes })
}

/// Shortens the images and containers named by each layer; listed images are first.
fn shorten_users(scan: &mut ScanDoc) {
    let listed: HashSet<_> = scan.images.iter().map(|image| image.id.clone()).collect();
    for layer in &mut scan.layers {
        layer.images.sort_by_key(|id| !listed.contains(id.as_str()));
        layer.images.truncate(USERS);
        layer.containers.truncate(USERS);
    }
}

fn logs(other_users: &OtherUsers, sysroot: &Sysroot) -> Vec<LogDoc> {
    let logs = other_users.logs.iter().filter(|log| log.bytes > 0).map(|log| LogDoc {
        path: sysroot.shown(&log.path),
        pod: log.pod.clone(),
        container: log.container.clone(),
        bytes: log.bytes,
    });
    logs.collect()
}

fn pods(other_users: &OtherUsers, sysroot: &Sysroot) -> Vec<PodDoc> {
    let pods = other_users.pods.iter().filter(|pod| pod.bytes > 0).map(|pod| PodDoc {
        pod: pod.pod.clone(),
        kind: if pod.kind == OtherUserKind::PodLogs { PodDataKind::Logs } else { PodDataKind::Volumes },
        path: sysroot.shown(&pod.path),
        bytes: pod.bytes,
    });
    pods.collect()
}

/// Describes the method of measurement, one sentence an element.
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

fn top(scan: &ScanDoc, logs: Vec<LogDoc>, mut pods: Vec<PodDoc>) -> TopDoc {
    pods.truncate(TOP);
    TopDoc {
        layers: largest(&scan.layers, |layer| (layer.bytes, &layer.store, &layer.id)),
        images: largest(&scan.images, |image| (image.exclusive_bytes, &image.store, &image.id)),
        containers: largest(&scan.containers, |container| (container.bytes, &container.store, &container.id)),
        leaks: largest(&scan.leaks, |leak| (leak.bytes, &leak.store, &leak.id)),
        logs,
        pods,
    }
}

/// Returns the [`TOP`] objects with the most bytes, the largest first.
fn largest<T>(all: &[T], key: impl Fn(&T) -> (u64, &String, &String)) -> Vec<TopObjectDoc> {
    let mut all: Vec<_> = all.iter().map(key).filter(|(bytes, ..)| *bytes > 0).collect();
    all.sort_by(|(a, store_a, id_a), (b, store_b, id_b)| {
        b.cmp(a).then((id_a, store_a).cmp(&(id_b, store_b)))
    });
    let top = all.into_iter().take(TOP);
    top.map(|(_, store, id)| TopObjectDoc { store: store.clone(), id: id.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_objects_are_listed_first_of_equal() {
        let sizes = [5_u64, 9, 5, 1, 5];
        let listed = |count, always: &[usize]| {
            let mut list: Vec<_> = (0..sizes.len()).collect();
            let others = shorten("layers", &mut list, count, always, |position| sizes[position]);
            (list, others.map(|others| (others.count, others.bytes)))
        };
        assert_eq!(listed(3, &[]), (vec![0, 1, 2], Some((2, 6))));
        assert_eq!(listed(2, &[3, 0]), (vec![0, 1, 3], Some((2, 10))));
        assert_eq!(listed(9, &[]), (vec![0, 1, 2, 3, 4], None));
    }
}
