//! The document of `usage`.

use serde::Serialize;

use super::build::{filesystem, totals, usage_store};
use super::parts::{FilesystemDoc, ForecastDoc, Header, TotalsDoc, UsageStoreDoc};
use crate::app::diagnosis::Part;
use crate::app::usage::{DiskUsage, Grouped, Usage};
use crate::model::refs::{GroupBy, GroupKind, Line, LineKind};
use crate::model::{Filesystem, Finding, StoreIx};
use crate::policy::forecast::Forecast;

/// `layersweep usage`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageDoc {
    /// What every document begins with; its kind is `usage`.
    #[serde(flatten)]
    pub header: Header,
    /// Everything was read.
    pub complete: bool,
    /// What the groups are: `repository`, `registry`, `namespace` or `owner`; null without `--by`.
    pub by: Option<&'static str>,
    /// Filesystems that hold a store, with all that uses them.
    pub filesystems: Vec<UsageFilesystemDoc>,
    /// Stores with rows of their own, which overlap.
    pub stores: Vec<UsageStoreDoc>,
    /// Why `layersweep gc` would be refused now; null where it would not.
    pub gc_refused: Option<String>,
    /// Sums over all stores.
    pub totals: TotalsDoc,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<Finding>,
}

/// A filesystem, and what uses it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageFilesystemDoc {
    /// The filesystem.
    #[serde(flatten)]
    pub filesystem: FilesystemDoc,
    /// When it is full, where that can be said.
    pub forecast: Option<ForecastDoc>,
    /// Every used byte in one row: their `bytes` add up to `used_bytes`.
    pub rows: Vec<ShareRowDoc>,
    /// Bytes freed if all unused images and artifacts and all reclaimable leaks were deleted together.
    pub reclaimable_bytes: u64,
    /// Used bytes that are in no store.
    pub not_in_store_bytes: u64,
    /// With `--by`: the fair shares of images and containers by group, and what has none of either. Their
    /// `fair_bytes` add up to `used_bytes`.
    pub groups: Vec<GroupDoc>,
}

/// A row of a column that adds up: what holds bytes of a filesystem, or of what is at a path.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ShareRowDoc {
    /// In a store: `images_in_use`, `images_pinned`, `images_out_of_reach` (unused, and not to be deleted here: a
    /// row a reason), `images_unused`, `artifacts`, `snapshotter` (what
    /// images have in a snapshotter of containerd beside the usual one), `containers_running`,
    /// `containers_exited`, `containers_other` (created, or the disk does not tell), `build_cache`
    /// (of Docker or BuildKit), `leaks`, `metadata`, `store_other`; in `explain`, `image` or `artifact` for one of these. In no store: the kinds of parts in
    /// `report`, for example `core-dumps`, `journal`, `logs`, `directory`; the last row is `rest`.
    pub kind: &'static str,
    /// For people; of an image, snapshotter or directory its name.
    pub label: String,
    /// Id of a single image.
    pub id: Option<String>,
    /// Root of its store.
    pub store: Option<String>,
    /// Its path, of what is in no store and in one place.
    pub path: Option<String>,
    /// Whether it is in a store.
    pub in_store: bool,
    /// Number of objects; null where they are not counted.
    pub count: Option<usize>,
    /// Its bytes. In `usage`, layers of images count with the first row of images that reaches them, and
    /// containers with their writable layers and own files; in `explain`, layers are divided equally among the
    /// images and containers that use them, as `fair_bytes` are.
    pub bytes: u64,
    /// Bytes freed if that part of the row that can be deleted were, and nothing else; null in `explain`.
    pub reclaimable_bytes: Option<u64>,
}

impl ShareRowDoc {
    /// Of what is in no store and has no path.
    pub(super) fn new(kind: &'static str, label: impl Into<String>, bytes: u64) -> Self {
        Self {
            kind,
            label: label.into(),
            id: None,
            store: None,
            path: None,
            in_store: false,
            count: None,
            bytes,
            reclaimable_bytes: None,
        }
    }

    pub(super) fn outside(part: &Part) -> Self {
        Self { path: part.path.clone(), ..Self::new(part.kind.as_str(), &*part.label, part.bytes) }
    }
}

/// Images and containers of one group, or what no image or container reaches.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupDoc {
    /// `group`; `none` for images without a name, and for containers in no namespace with their images;
    /// `unused` for images that no container uses, by namespace and owner; `build_cache`, `leaks`,
    /// `metadata`, `store_other` and `not_in_store` for what no image or container reaches.
    pub kind: &'static str,
    /// Name of the group; null for all other kinds. A container of containerd that is in no pod is in the
    /// namespace `containerd:NAME`.
    pub name: Option<String>,
    /// Number of images, also of those that are in other groups besides.
    pub images: usize,
    /// Number of containers.
    pub containers: usize,
    /// The sum of their fair shares; what is in several groups is divided equally among these.
    pub fair_bytes: u64,
}

/// The document of `usage`.
pub fn usage(usage: &Usage) -> UsageDoc {
    let scan = &usage.result.scan;
    let inventory = &scan.inventory;
    let filesystems = inventory.filesystems.iter().zip(&usage.disks).zip(&usage.forecasts);
    let stores = (0..inventory.stores.len()).map(StoreIx::from);
    UsageDoc {
        header: Header::new("usage", scan.taken_at),
        complete: scan.is_complete(),
        by: usage.by.map(GroupBy::as_str),
        filesystems: filesystems
            .map(|((facts, disk), forecast)| of_filesystem(facts, disk, forecast.as_ref()))
            .collect(),
        stores: stores.map(|at| usage_store(scan, at)).collect(),
        gc_refused: usage.refused.clone(),
        totals: totals(scan),
        warnings: inventory.findings.iter().chain(&usage.findings).cloned().collect(),
    }
}

fn of_filesystem(facts: &Filesystem, disk: &DiskUsage, forecast: Option<&Forecast>) -> UsageFilesystemDoc {
    let large = disk.large.iter().map(|part| ShareRowDoc {
        kind: LineKind::Other.as_str(),
        label: format!("Other files in stores: {}, {}", part.label, part.path.as_deref().unwrap_or_default()),
        store: part.store.clone(),
        in_store: true,
        reclaimable_bytes: Some(0),
        ..ShareRowDoc::outside(part)
    });
    let in_stores = disk.lines.iter().map(in_store).chain(large);
    let rest = ShareRowDoc::new("rest", "everything else, and overhead", disk.rest_bytes);
    let outside = disk.outside.iter().map(ShareRowDoc::outside).chain([rest]);
    let outside = outside.map(|row| ShareRowDoc { reclaimable_bytes: Some(0), ..row });
    let rows: Vec<_> = in_stores.chain(outside).collect();
    UsageFilesystemDoc {
        filesystem: filesystem(facts),
        forecast: forecast.map(|forecast| ForecastDoc::new(facts, forecast)),
        not_in_store_bytes: rows.iter().filter(|row| !row.in_store).map(|row| row.bytes).sum(),
        rows,
        reclaimable_bytes: disk.reclaimable_bytes,
        groups: disk.grouped.as_ref().map(groups).unwrap_or_default(),
    }
}

fn in_store(line: &Line) -> ShareRowDoc {
    let label = label(line.kind);
    let label = line.name.as_ref().map_or_else(|| label.to_owned(), |name| format!("{label} {name}"));
    let counted = !matches!(line.kind, LineKind::Metadata | LineKind::Other);
    ShareRowDoc {
        in_store: true,
        count: counted.then_some(line.count),
        reclaimable_bytes: Some(line.reclaimable_bytes),
        ..ShareRowDoc::new(line.kind.as_str(), label, line.bytes)
    }
}

/// For people.
pub(super) fn label(kind: LineKind) -> &'static str {
    match kind {
        LineKind::ImagesInUse => "Images in use",
        LineKind::ImagesPinned => "Images pinned, not in use",
        LineKind::ImagesOutOfReach => "Images out of reach,",
        LineKind::ImagesUnused => "Images not in use",
        LineKind::Artifacts => "Artifacts",
        LineKind::Snapshotter => "Snapshotter",
        LineKind::ContainersRunning => "Containers running",
        LineKind::ContainersExited => "Containers exited",
        LineKind::ContainersOther => "Containers, created or unknown",
        LineKind::BuildCache => "Build cache",
        LineKind::Leaks => "Leaks",
        LineKind::Metadata => "Store metadata",
        LineKind::Other => "Other files in stores",
    }
}

fn groups(grouped: &Grouped) -> Vec<GroupDoc> {
    let groups = grouped.groups.iter().map(|group| GroupDoc {
        kind: group.kind.as_str(),
        name: (group.kind == GroupKind::Named).then(|| group.name.clone()),
        images: group.images,
        containers: group.containers,
        fair_bytes: group.bytes,
    });
    let closing = [
        ("build_cache", grouped.build_cache),
        ("leaks", grouped.leaks),
        ("metadata", grouped.metadata),
        ("store_other", grouped.other),
        ("not_in_store", grouped.outside_bytes),
    ];
    let closing = closing.map(|(kind, bytes)| GroupDoc {
        kind,
        name: None,
        images: 0,
        containers: 0,
        fair_bytes: bytes,
    });
    groups.chain(closing).collect()
}
