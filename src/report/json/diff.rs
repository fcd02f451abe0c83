//! JSON document of `layersweep diff`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::model::ARTIFACTS;
use crate::model::display::short_reference;
use crate::model::scan_summary::{
    Change, ChangeKind, ComparedScan, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, Sums, compare,
    difference, split_layer_name, split_names,
};

/// Document of `layersweep diff`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiffDoc {
    /// Common fields of all documents; the kind is `diff`.
    #[serde(flatten)]
    pub header: Header,
    /// True if both scans read everything and the figures are exact.
    pub complete: bool,
    /// First scan, normally the earlier one.
    pub before: TakenDoc,
    /// Second scan, normally the later one.
    pub after: TakenDoc,
    /// Sum of all stores.
    pub totals: SumDoc,
    /// OCI artifacts of all stores, part of `totals`.
    pub artifacts: ArtifactsDiffDoc,
    /// Filesystems with changed numbers.
    pub filesystems: Vec<FilesystemDiffDoc>,
    /// All stores of both scans.
    pub stores: Vec<StoreDiffDoc>,
    /// Changed images, the largest change on the disk first.
    pub images: Vec<ImageDiffDoc>,
    /// Sum of `disk_change_bytes` of `images`.
    pub images_disk_change_bytes: i64,
    /// Layers, snapshots and blobs that were added or removed, or whose size changed.
    pub layers: Vec<ChangeDoc>,
    /// Containers that were added or removed, or changed.
    pub containers: Vec<ChangeDoc>,
    /// Leaks that were added or removed, or changed.
    pub leaks: Vec<ChangeDoc>,
}

/// Identity of a scan.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TakenDoc {
    /// Id of the scan in the records, or name of the file.
    pub id: String,
    /// Time of the scan.
    #[serde(rename = "at")]
    pub taken_at: Timestamp,
    /// True if everything was read.
    pub complete: bool,
}

/// Bytes in both scans.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SumDoc {
    /// Bytes in the first scan.
    pub before_bytes: u64,
    /// Bytes in the second scan.
    pub after_bytes: u64,
    /// Second minus first.
    pub change_bytes: i64,
}

/// OCI artifacts in both scans.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArtifactsDiffDoc {
    /// Number in the first scan.
    pub before: usize,
    /// Number in the second scan.
    pub after: usize,
    /// Bytes that the artifacts reach, each byte once.
    #[serde(flatten)]
    pub bytes: SumDoc,
}

/// Filesystem with changed numbers.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesystemDiffDoc {
    /// Mount point.
    pub mount: String,
    /// `added`, `removed`, `grew`, `shrank` (its used bytes) or `altered` (its size).
    pub change: &'static str,
    /// Bytes that are not free.
    pub used: SumDoc,
    /// Size in the first scan; 0 if the filesystem is not in it.
    pub capacity_before_bytes: u64,
    /// Size in the second scan; 0 if the filesystem is not in it.
    pub capacity_after_bytes: u64,
}

/// Store of one or both scans.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoreDiffDoc {
    #[serde(flatten)]
    pub place: SummaryStore,
    /// `both`, `added` (only in the second scan) or `removed` (only in the first scan).
    pub seen: &'static str,
    /// All bytes of the store.
    pub total: SumDoc,
    /// Bytes by user: `images`, `containers`, `build_cache`, `leaks`, `metadata` and `other`. Their changes
    /// add up to the change of the store.
    pub shares: Vec<ShareDoc>,
    /// Bytes of layers, snapshots and blobs. With the rest, they add up to the store as well.
    pub layers: SumDoc,
    /// Change of the bytes outside of layers; can be negative because layers that share files by hard links
    /// count the same bytes.
    pub rest_change_bytes: i64,
}

/// Part of a store's bytes by user.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ShareDoc {
    /// `images`, `containers`, `build_cache`, `leaks`, `metadata` or `other`.
    pub kind: String,
    /// Bytes in both scans.
    #[serde(flatten)]
    pub bytes: SumDoc,
}

/// Changed image or artifact.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImageDiffDoc {
    /// Image id; for an artifact, the digest of its manifest.
    pub id: String,
    /// `image` or `artifact`.
    pub kind: &'static str,
    /// Root of its store.
    pub store: String,
    /// `added`, `removed`, `grew`, `shrank` or `altered` (its names, or the other users of its layers).
    pub change: &'static str,
    /// Names in the first scan.
    pub names_before: Vec<String>,
    /// Names in the second scan.
    pub names_after: Vec<String>,
    /// Bytes of everything that the image reaches.
    pub total: SumDoc,
    /// Bytes that only this image reaches. They change when other images are added or removed, so they do not
    /// add up.
    pub exclusive: SumDoc,
    /// Bytes of layers that the disk has more (or, if negative, fewer) than in the first scan. A layer of several
    /// images counts for the first of them. 0 if the layers were there before, or are still used.
    pub disk_change_bytes: i64,
}

/// Changed layer, container or leak.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangeDoc {
    /// Id of the object; for a leak, its class and id.
    pub id: String,
    /// Root of its store.
    pub store: String,
    /// `added`, `removed`, `grew`, `shrank` or `altered`.
    pub change: &'static str,
    /// Name of a container, or class of a leak; for layers `layer`, `snapshot` or `blob`.
    pub name: String,
    /// Beginning of the id of the first image that reaches a layer; null for other objects and layers of none.
    pub image: Option<String>,
    /// Bytes in both scans.
    #[serde(flatten)]
    pub bytes: SumDoc,
}

impl TakenDoc {
    pub(super) fn of(scan: &ComparedScan) -> Self {
        Self { id: scan.id.clone(), taken_at: scan.taken_at, complete: scan.summary.complete }
    }
}

impl SumDoc {
    pub(super) fn new(before_bytes: u64, after_bytes: u64) -> Self {
        Self { before_bytes, after_bytes, change_bytes: difference(before_bytes, after_bytes) }
    }
}

/// Builds the document of `diff`.
pub fn diff(now: Timestamp, before: &ComparedScan, after: &ComparedScan) -> DiffDoc {
    let mut changes = compare(&before.summary, &after.summary);
    changes.sort_by_key(|change| std::cmp::Reverse(change.bytes().unsigned_abs()));
    let (old, new) = (before.summary.sums(), after.summary.sums());
    let places: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    let layers = of_kind(&changes, SummaryKind::Layer);
    let of_images = disk_changes(&changes);
    let mut images: Vec<_> =
        of_kind(&changes, SummaryKind::Image).map(|change| image(change, &of_images)).collect();
    images.sort_by_key(|image| std::cmp::Reverse(image.disk_change_bytes.unsigned_abs()));
    DiffDoc {
        header: Header::new(DocumentKind::Diff, now),
        complete: before.summary.complete && after.summary.complete,
        before: TakenDoc::of(before),
        after: TakenDoc::of(after),
        totals: SumDoc::new(before.summary.bytes(), after.summary.bytes()),
        artifacts: artifacts(&before.summary, &after.summary),
        filesystems: of_kind(&changes, SummaryKind::Filesystem).map(filesystem).collect(),
        stores: places.into_iter().map(|place| store(place, &old, &new)).collect(),
        images_disk_change_bytes: images
            .iter()
            .fold(0, |sum, image| sum.saturating_add(image.disk_change_bytes)),
        images,
        // A changed reference count of a layer follows from the changes of images.
        layers: layers.filter(|change| change.kind != ChangeKind::Changed).map(change).collect(),
        containers: of_kind(&changes, SummaryKind::Container).map(change).collect(),
        leaks: of_kind(&changes, SummaryKind::Leak).map(change).collect(),
    }
}

fn of_kind(changes: &[Change], kind: SummaryKind) -> impl Iterator<Item = &Change> {
    changes.iter().filter(move |change| change.key.kind == kind)
}

fn artifacts(before: &ScanSummary, after: &ScanSummary) -> ArtifactsDiffDoc {
    let (before, before_bytes) = count_artifacts(before);
    let (after, after_bytes) = count_artifacts(after);
    ArtifactsDiffDoc { before, after, bytes: SumDoc::new(before_bytes, after_bytes) }
}

/// Returns the number of artifacts and their bytes.
fn count_artifacts(summary: &ScanSummary) -> (usize, u64) {
    let (mut count, mut bytes) = (0, 0_u64);
    for (key, entry) in summary.entries.iter().filter(|(key, _)| key.place.driver == ARTIFACTS) {
        match key.kind {
            SummaryKind::Image => count += 1,
            SummaryKind::Share if key.id == "images" => bytes = bytes.saturating_add(entry.bytes),
            _ => {}
        }
    }
    (count, bytes)
}

fn get(change: &Change, bytes: impl Fn(&SummaryEntry) -> u64) -> SumDoc {
    SumDoc::new(change.before.as_ref().map_or(0, &bytes), change.after.as_ref().map_or(0, &bytes))
}

fn filesystem(change: &Change) -> FilesystemDiffDoc {
    let capacity = get(change, |entry| entry.extra);
    FilesystemDiffDoc {
        mount: change.key.id.clone(),
        change: change.kind.as_str(),
        used: get(change, |entry| entry.bytes),
        capacity_before_bytes: capacity.before_bytes,
        capacity_after_bytes: capacity.after_bytes,
    }
}

fn store(
    place: &SummaryStore,
    before: &BTreeMap<&SummaryStore, Sums<'_>>,
    after: &BTreeMap<&SummaryStore, Sums<'_>>,
) -> StoreDiffDoc {
    let (old, new) = (before.get(place), after.get(place));
    let total = sum(old, new, |sums| sums.total);
    let layers = sum(old, new, |sums| sums.layers);
    let kinds = ["images", "containers", "build_cache", "leaks", "metadata", "other"];
    let shares = kinds.map(|kind| ShareDoc {
        kind: kind.into(),
        bytes: sum(old, new, |sums| sums.shares.get(kind).copied().unwrap_or(0)),
    });
    StoreDiffDoc {
        place: place.clone(),
        seen: match (old, new) {
            (Some(_), Some(_)) => "both",
            (None, _) => "added",
            (Some(_), None) => "removed",
        },
        total,
        shares: shares.into(),
        layers,
        rest_change_bytes: total.change_bytes.saturating_sub(layers.change_bytes),
    }
}

fn sum(old: Option<&Sums<'_>>, new: Option<&Sums<'_>>, bytes: impl Fn(&Sums<'_>) -> u64) -> SumDoc {
    SumDoc::new(old.map_or(0, &bytes), new.map_or(0, &bytes))
}

/// Returns the change of the bytes in layers by store and by the beginning of the id of their first image.
fn disk_changes(changes: &[Change]) -> HashMap<(&SummaryStore, &str), i64> {
    let mut of_images: HashMap<_, i64> = HashMap::new();
    for change in of_kind(changes, SummaryKind::Layer) {
        let entry = change.after.as_ref().or(change.before.as_ref());
        if let Some(image) = entry.and_then(|entry| split_layer_name(&entry.name).1) {
            let sum = of_images.entry((&*change.key.place, image)).or_default();
            *sum = sum.saturating_add(change.bytes());
        }
    }
    of_images
}

fn image(change: &Change, of_images: &HashMap<(&SummaryStore, &str), i64>) -> ImageDiffDoc {
    let short_id = short_reference(&change.key.id);
    ImageDiffDoc {
        disk_change_bytes: of_images.get(&(&*change.key.place, short_id.as_str())).copied().unwrap_or(0),
        id: change.key.id.clone(),
        kind: if change.key.place.driver == ARTIFACTS { "artifact" } else { "image" },
        store: change.key.place.root.clone(),
        change: change.kind.as_str(),
        names_before: names(change.before.as_ref()),
        names_after: names(change.after.as_ref()),
        total: get(change, |entry| entry.bytes),
        exclusive: get(change, |entry| entry.extra),
    }
}

fn names(entry: Option<&SummaryEntry>) -> Vec<String> {
    entry.map(|entry| split_names(&entry.name)).unwrap_or_default()
}

fn change(change: &Change) -> ChangeDoc {
    let entry = change.after.as_ref().or(change.before.as_ref());
    let name = entry.map_or("", |entry| entry.name.as_str());
    let (name, image) = match change.key.kind {
        SummaryKind::Layer => split_layer_name(name),
        _ => (name, None),
    };
    ChangeDoc {
        id: change.key.id.clone(),
        store: change.key.place.root.clone(),
        change: change.kind.as_str(),
        name: name.to_owned(),
        image: image.map(str::to_owned),
        bytes: get(change, |entry| entry.bytes),
    }
}
