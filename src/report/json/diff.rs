//! JSON document of `layersweep diff`.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::model::ARTIFACTS;
use crate::model::documents::comparison::{BytesChange, Change, ChangeKind, ScanComparison, StoreBytes};
use crate::model::documents::scan_summary::{
    ComparedScan, ScanSummary, SummaryKind, SummaryStore, split_layer_name, split_names,
};
use crate::model::text::display::short_reference;

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
    pub totals: BytesChange,
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
    pub bytes: BytesChange,
}

/// Filesystem with changed numbers.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesystemDiffDoc {
    /// Mount point.
    pub mount: String,
    /// `added`, `removed`, `grew`, `shrank` (its used bytes) or `altered` (its size).
    pub change: ChangeKind,
    /// Bytes that are not free.
    pub used: BytesChange,
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
    pub total: BytesChange,
    /// Bytes by user: `images`, `containers`, `build_cache`, `leaks`, `metadata` and `other`. Their changes
    /// add up to the change of the store.
    pub shares: Vec<ShareDoc>,
    /// Bytes of layers, snapshots and blobs. With the rest, they add up to the store as well.
    pub layers: BytesChange,
    /// Change of the bytes outside of layers; can be negative because layers that share files by hard links
    /// count the same bytes.
    pub rest_change_bytes: i64,
}

/// Part of a store's bytes by user.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ShareDoc {
    /// `images`, `containers`, `build_cache`, `leaks`, `metadata` or `other`.
    pub kind: &'static str,
    /// Bytes in both scans.
    #[serde(flatten)]
    pub bytes: BytesChange,
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
    pub change: ChangeKind,
    /// Names in the first scan.
    pub names_before: Vec<String>,
    /// Names in the second scan.
    pub names_after: Vec<String>,
    /// Bytes of everything that the image reaches.
    pub total: BytesChange,
    /// Bytes that only this image reaches. They change when other images are added or removed, so they do not
    /// add up.
    pub exclusive: BytesChange,
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
    pub change: ChangeKind,
    /// Name of a container, or class of a leak; for layers `layer`, `snapshot` or `blob`.
    pub name: String,
    /// Beginning of the id of the first image that reaches a layer; null for other objects and layers of none.
    pub image: Option<String>,
    /// Bytes in both scans.
    #[serde(flatten)]
    pub bytes: BytesChange,
}

impl TakenDoc {
    pub(super) fn of(scan: &ComparedScan) -> Self {
        Self { id: scan.id.clone(), taken_at: scan.taken_at, complete: scan.summary.complete }
    }
}

pub fn diff(now: Timestamp, compared: &ScanComparison) -> DiffDoc {
    let ScanComparison { before, after } = compared;
    let changes = compared.changes();
    let of_images = disk_changes(&changes);
    let mut images: Vec<_> =
        of_kind(&changes, SummaryKind::Image).map(|change| image(change, &of_images)).collect();
    images.sort_by_key(|image| std::cmp::Reverse(image.disk_change_bytes.unsigned_abs()));
    // A changed reference count of a layer follows from the changes of images.
    let layers = of_kind(&changes, SummaryKind::Layer).filter(|change| change.kind != ChangeKind::Changed);
    DiffDoc {
        header: Header::new(DocumentKind::Diff, now),
        complete: compared.is_complete(),
        before: TakenDoc::of(before),
        after: TakenDoc::of(after),
        totals: BytesChange::new(before.summary.bytes(), after.summary.bytes()),
        artifacts: artifacts(&before.summary, &after.summary),
        filesystems: of_kind(&changes, SummaryKind::Filesystem).map(filesystem).collect(),
        stores: compared.stores().into_iter().map(|(place, bytes)| store(place, &bytes)).collect(),
        images_disk_change_bytes: images
            .iter()
            .fold(0, |sum, image| sum.saturating_add(image.disk_change_bytes)),
        images,
        layers: layers.map(change).collect(),
        containers: of_kind(&changes, SummaryKind::Container).map(change).collect(),
        leaks: of_kind(&changes, SummaryKind::Leak).map(change).collect(),
    }
}

fn of_kind<'a>(changes: &'a [Change<'a>], kind: SummaryKind) -> impl Iterator<Item = &'a Change<'a>> {
    changes.iter().filter(move |change| change.key.kind == kind)
}

fn artifacts(before: &ScanSummary, after: &ScanSummary) -> ArtifactsDiffDoc {
    let (before, before_bytes) = count_artifacts(before);
    let (after, after_bytes) = count_artifacts(after);
    ArtifactsDiffDoc { before, after, bytes: BytesChange::new(before_bytes, after_bytes) }
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

fn filesystem(change: &Change<'_>) -> FilesystemDiffDoc {
    let capacity = change.of(|entry| entry.extra);
    FilesystemDiffDoc {
        mount: change.key.id.clone(),
        change: change.kind,
        used: change.bytes(),
        capacity_before_bytes: capacity.before_bytes,
        capacity_after_bytes: capacity.after_bytes,
    }
}

fn store(place: &SummaryStore, scans: &[Option<StoreBytes<'_>>; 2]) -> StoreDiffDoc {
    let sum = |bytes: &dyn Fn(&StoreBytes<'_>) -> u64| {
        let [before, after] = scans.each_ref().map(|store| store.as_ref().map_or(0, bytes));
        BytesChange::new(before, after)
    };
    let (total, layers) = (sum(&|store| store.total), sum(&|store| store.layers));
    let kinds = ["images", "containers", "build_cache", "leaks", "metadata", "other"];
    let shares = kinds
        .map(|kind| ShareDoc { kind, bytes: sum(&|store| store.shares.get(kind).copied().unwrap_or(0)) });
    StoreDiffDoc {
        place: place.clone(),
        seen: match scans {
            [Some(_), Some(_)] => "both",
            [None, _] => "added",
            [Some(_), None] => "removed",
        },
        total,
        shares: shares.into(),
        layers,
        rest_change_bytes: total.change_bytes.saturating_sub(layers.change_bytes),
    }
}

/// Returns the change of the bytes in layers by store and by the beginning of the id of their first image.
fn disk_changes<'a>(changes: &'a [Change<'a>]) -> HashMap<(&'a SummaryStore, &'a str), i64> {
    let mut of_images: HashMap<_, i64> = HashMap::new();
    for change in of_kind(changes, SummaryKind::Layer) {
        if let Some(image) = split_layer_name(change.name()).1 {
            let sum = of_images.entry((&*change.key.place, image)).or_default();
            *sum = sum.saturating_add(change.bytes().change_bytes);
        }
    }
    of_images
}

fn image(change: &Change<'_>, of_images: &HashMap<(&SummaryStore, &str), i64>) -> ImageDiffDoc {
    let short_id = short_reference(&change.key.id);
    let [names_before, names_after] = [change.before, change.after]
        .map(|entry| entry.map(|entry| split_names(&entry.name)).unwrap_or_default());
    ImageDiffDoc {
        disk_change_bytes: of_images.get(&(&*change.key.place, short_id.as_str())).copied().unwrap_or(0),
        id: change.key.id.clone(),
        kind: if change.key.place.driver == ARTIFACTS { "artifact" } else { "image" },
        store: change.key.place.root.clone(),
        change: change.kind,
        names_before,
        names_after,
        total: change.bytes(),
        exclusive: change.of(|entry| entry.extra),
    }
}

fn change(change: &Change<'_>) -> ChangeDoc {
    let (name, image) = match change.key.kind {
        SummaryKind::Layer => split_layer_name(change.name()),
        _ => (change.name(), None),
    };
    ChangeDoc {
        id: change.key.id.clone(),
        store: change.key.place.root.clone(),
        change: change.kind,
        name: name.to_owned(),
        image: image.map(str::to_owned),
        bytes: change.bytes(),
    }
}
