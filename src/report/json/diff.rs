//! The document of `layersweep diff`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::parts::Header;
use crate::model::ARTIFACTS;
use crate::model::scan_summary::{
    Change, ChangeKind, ComparedScan, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, Sums, compare,
    difference, split_names,
};

/// `layersweep diff`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiffDoc {
    /// What every document begins with; its kind is `diff`.
    #[serde(flatten)]
    pub header: Header,
    /// Both scans could read everything: figures are exact.
    pub complete: bool,
    /// The earlier scan, or what was named first.
    pub before: TakenDoc,
    /// The later scan, or what was named second.
    pub after: TakenDoc,
    /// All stores together.
    pub totals: SumDoc,
    /// OCI artifacts of all stores, part of that.
    pub artifacts: ArtifactsDiffDoc,
    /// Filesystems whose numbers changed.
    pub filesystems: Vec<FilesystemDiffDoc>,
    /// All stores of both scans.
    pub stores: Vec<StoreDiffDoc>,
    /// Images that changed, the largest change first.
    pub images: Vec<ImageDiffDoc>,
    /// Layers, snapshots and blobs that came, went, grew or shrank.
    pub layers: Vec<ChangeDoc>,
    /// Containers that did.
    pub containers: Vec<ChangeDoc>,
    /// Leaks that did.
    pub leaks: Vec<ChangeDoc>,
}

/// A scan.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TakenDoc {
    /// Id of the scan in the records, or the file.
    pub id: String,
    /// When.
    pub at: Timestamp,
    /// Everything could be read.
    pub complete: bool,
}

/// Bytes then and now.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SumDoc {
    /// In the first scan.
    pub before_bytes: u64,
    /// In the second scan.
    pub after_bytes: u64,
    /// The difference.
    pub change_bytes: i64,
}

/// OCI artifacts then and now.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArtifactsDiffDoc {
    /// How many in the first scan.
    pub before: usize,
    /// How many in the second scan.
    pub after: usize,
    /// What they hold, each byte once.
    #[serde(flatten)]
    pub bytes: SumDoc,
}

/// A filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesystemDiffDoc {
    /// Where it was mounted.
    pub mount: String,
    /// `came`, `went`, `grew`, `shrank` (its used bytes) or `altered` (its size).
    pub change: &'static str,
    /// Bytes used.
    pub used: SumDoc,
    /// Its size; 0 where it was not there.
    pub capacity_before_bytes: u64,
    /// The same in the second scan.
    pub capacity_after_bytes: u64,
}

/// A store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoreDiffDoc {
    #[serde(flatten)]
    pub place: SummaryStore,
    /// `both`, `came` (only the second scan has it) or `went` (only the first has it).
    pub seen: &'static str,
    /// All of it.
    pub total: SumDoc,
    /// By who holds the bytes: `images`, `containers`, `leaks`, `metadata` and `other`. Their changes
    /// add up to that of the store.
    pub shares: Vec<ShareDoc>,
    /// The same by layers: layers, snapshots and blobs, and the rest. They add up as well.
    pub layers: SumDoc,
    /// What is in no layer; below 0 where hard links make several layers count the same bytes.
    pub rest_change_bytes: i64,
}

/// A share of a store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ShareDoc {
    /// `images`, `containers`, `leaks`, `metadata` or `other`.
    pub kind: String,
    /// Its bytes.
    #[serde(flatten)]
    pub bytes: SumDoc,
}

/// An image that changed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImageDiffDoc {
    /// Image id.
    pub id: String,
    /// `image` or `artifact`.
    pub kind: &'static str,
    /// Root of its store.
    pub store: String,
    /// `came`, `went`, `grew`, `shrank` or `altered` (a name, or who else holds its layers).
    pub change: &'static str,
    /// Its names in the first scan.
    pub names_before: Vec<String>,
    /// Its names in the second scan.
    pub names_after: Vec<String>,
    /// All that it reaches.
    pub total: SumDoc,
    /// What only it reaches. It changes with what comes and goes beside it, so these do not add up.
    pub exclusive: SumDoc,
}

/// Something that changed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangeDoc {
    /// Its id; of a leak, its class and id.
    pub id: String,
    /// Root of its store.
    pub store: String,
    /// `came`, `went`, `grew`, `shrank` or `altered`.
    pub change: &'static str,
    /// A container's name, a leak's class; of layers `layer`, `snapshot` or `blob`.
    pub name: String,
    /// Its bytes.
    #[serde(flatten)]
    pub bytes: SumDoc,
}

impl SumDoc {
    fn new(before_bytes: u64, after_bytes: u64) -> Self {
        Self { before_bytes, after_bytes, change_bytes: difference(before_bytes, after_bytes) }
    }
}

/// The document.
pub fn diff(now: Timestamp, before: &ComparedScan, after: &ComparedScan) -> DiffDoc {
    let mut changes = compare(&before.summary, &after.summary);
    changes.sort_by_key(|change| std::cmp::Reverse(change.bytes().unsigned_abs()));
    let of = |what: SummaryKind| changes.iter().filter(move |change| change.key.kind == what);
    let (old, new) = (before.summary.sums(), after.summary.sums());
    let places: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
    let taken = |taken: &ComparedScan| TakenDoc {
        id: taken.id.clone(),
        at: taken.taken_at,
        complete: taken.summary.complete,
    };
    // Reference counts of layers follow from the images; alone they are no news.
    let news = |change: &&Change| change.kind != ChangeKind::Changed;
    DiffDoc {
        header: Header::new("diff", now),
        complete: before.summary.complete && after.summary.complete,
        before: taken(before),
        after: taken(after),
        totals: SumDoc::new(before.summary.bytes(), after.summary.bytes()),
        artifacts: artifacts(&before.summary, &after.summary),
        filesystems: of(SummaryKind::Filesystem).map(filesystem).collect(),
        stores: places.into_iter().map(|place| store(place, &old, &new)).collect(),
        images: of(SummaryKind::Image).map(image).collect(),
        layers: of(SummaryKind::Layer).filter(news).map(change).collect(),
        containers: of(SummaryKind::Container).map(change).collect(),
        leaks: of(SummaryKind::Leak).map(change).collect(),
    }
}

fn artifacts(before: &ScanSummary, after: &ScanSummary) -> ArtifactsDiffDoc {
    let of = |summary: &ScanSummary| {
        let all = || summary.entries.iter().filter(|(key, _)| key.place.driver == ARTIFACTS);
        let count = all().filter(|(key, _)| key.kind == SummaryKind::Image).count();
        let shares = all().filter(|(key, _)| key.kind == SummaryKind::Share && key.id == "images");
        (count, shares.fold(0_u64, |sum, (_, entry)| sum.saturating_add(entry.bytes)))
    };
    let (before, after) = (of(before), of(after));
    ArtifactsDiffDoc { before: before.0, after: after.0, bytes: SumDoc::new(before.1, after.1) }
}

fn get(change: &Change, of: impl Fn(&SummaryEntry) -> u64) -> SumDoc {
    SumDoc::new(change.before.as_ref().map_or(0, &of), change.after.as_ref().map_or(0, &of))
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
    let both = |of: &dyn Fn(&Sums<'_>) -> u64| SumDoc::new(old.map_or(0, of), new.map_or(0, of));
    let share = |kind: &str| both(&|sums| sums.shares.get(kind).copied().unwrap_or(0));
    let kinds = ["images", "containers", "build_cache", "leaks", "metadata", "other"];
    let (total, layers) = (both(&|sums| sums.total), both(&|sums| sums.layers));
    StoreDiffDoc {
        place: place.clone(),
        seen: match (old, new) {
            (Some(_), Some(_)) => "both",
            (None, _) => "came",
            (Some(_), None) => "went",
        },
        total,
        shares: kinds.map(|kind| ShareDoc { kind: kind.into(), bytes: share(kind) }).into(),
        layers,
        rest_change_bytes: total.change_bytes.saturating_sub(layers.change_bytes),
    }
}

fn image(change: &Change) -> ImageDiffDoc {
    let names = |entry: &Option<SummaryEntry>| {
        entry.as_ref().map(|entry| split_names(&entry.name)).unwrap_or_default()
    };
    ImageDiffDoc {
        id: change.key.id.clone(),
        kind: if change.key.place.driver == ARTIFACTS { "artifact" } else { "image" },
        store: change.key.place.root.clone(),
        change: change.kind.as_str(),
        names_before: names(&change.before),
        names_after: names(&change.after),
        total: get(change, |entry| entry.bytes),
        exclusive: get(change, |entry| entry.extra),
    }
}

fn change(change: &Change) -> ChangeDoc {
    let name = change.after.as_ref().or(change.before.as_ref()).map(|entry| entry.name.clone());
    ChangeDoc {
        id: change.key.id.clone(),
        store: change.key.place.root.clone(),
        change: change.kind.as_str(),
        name: name.unwrap_or_default(),
        bytes: get(change, |entry| entry.bytes),
    }
}
