//! JSON document of `usage`.

use serde::Serialize;

use super::build::{filesystem, totals, usage_store};
use super::parts::{DocumentKind, FilesystemDoc, ForecastDoc, Header, TotalsDoc, UsageStoreDoc};
use crate::app::usage::{DiskUsage, Grouped, Usage};
use crate::model::deletion::plan::TargetKind;
use crate::model::documents::comparison::GrowthKind;
use crate::model::refs::{GroupBy, GroupKind, Line, LineKind};
use crate::model::text::names::string_schema;
use crate::model::{Filesystem, Finding, Inventory, StoreIx};
use crate::policy::forecast::Forecast;
use crate::services::diagnosis::{Part, PartKind, StoppedHolders};

/// Document of `layersweep usage`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageDoc {
    /// Common fields of all documents; the kind is `usage`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read.
    pub complete: bool,
    /// Kind of groups: `repository`, `registry`, `namespace`, `owner` or `container`; null without `--by`.
    pub by: Option<GroupBy>,
    /// Filesystems that contain a store, then those of the kubelet, the pods' logs and layersweep's records, each with all
    /// of its users.
    pub filesystems: Vec<UsageFilesystemDoc>,
    /// Stores, each with rows that may overlap.
    pub stores: Vec<UsageStoreDoc>,
    /// Stopped containers, with the images that only they keep and the commands that remove them.
    pub stopped: StoppedHolders,
    /// Reason why `layersweep gc` would be refused now; null if it would not.
    pub gc_refused: Option<String>,
    /// Sums over all stores.
    pub totals: TotalsDoc,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

/// Filesystem with all of its users.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageFilesystemDoc {
    /// Facts about the filesystem.
    #[serde(flatten)]
    pub filesystem: FilesystemDoc,
    /// Time until the filesystem is full; null if there is no forecast.
    pub forecast: Option<ForecastDoc>,
    /// Users of the filesystem, each used byte in one row: the rows add up to `used_bytes`.
    pub rows: Vec<ShareRowDoc>,
    /// Bytes freed if all unused images and artifacts and all reclaimable leaks were deleted together; a lower bound if
    /// that of a row is null.
    pub reclaimable_bytes: u64,
    /// Used bytes outside the stores.
    pub not_in_store_bytes: u64,
    /// Bytes by which the stores use less than `du` counts: extents that files share, and compression.
    pub saved_bytes: u64,
    /// Places outside the stores, containers and volumes with at least a tenth of the inodes, the largest first.
    pub inode_users: Vec<Part>,
    /// With `--by`: fair shares of images and containers by group, and the bytes that no image or container
    /// reaches. Their `fair_bytes` add up to `used_bytes`.
    pub groups: Vec<GroupDoc>,
}

/// Kind of a row: data of a store, data outside the stores, a single object, or the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareKind {
    InStore(LineKind),
    Outside(PartKind),
    Object(TargetKind),
    Rest,
}

impl ShareKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::InStore(kind) => kind.as_str(),
            Self::Outside(kind) => kind.as_str(),
            Self::Object(kind) => kind.as_str(),
            Self::Rest => "rest",
        }
    }
}

impl Serialize for ShareKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

string_schema!(ShareKind);

/// Row of a column that adds up: a user of a filesystem, or of the bytes below a path.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ShareRowDoc {
    /// In a store: `images_in_use`, `images_pinned`, `images_out_of_reach` (unused and cannot be deleted
    /// here, one row for each reason), `images_unused`, `artifacts`, `snapshotter` (copies of images in
    /// another snapshotter of containerd than the usual one), `containers_running`, `containers_exited`,
    /// `containers_other` (created, or the disk does not record the state), `build_cache` (Docker or
    /// BuildKit), `leaks`, `unknown` (in `usage`: records or a layout could not be read), `metadata`,
    /// `store_other`; in `explain`, `image` or `artifact` for a single one.
    /// Outside the stores: the kinds of parts in `report`, for example `core-dumps`, `journal`, `logs`,
    /// `directory`; the last row is `rest`.
    pub kind: ShareKind,
    /// Description for people; the name of an image, snapshotter or directory.
    pub label: String,
    /// Id of a single image or artifact; null for other rows.
    pub id: Option<String>,
    /// Root of the store of a single object; null for other rows.
    pub store: Option<String>,
    /// Path of a single place outside the stores; null for other rows.
    pub path: Option<String>,
    /// True for bytes in a store.
    pub in_store: bool,
    /// Number of objects; null if they are not counted.
    pub count: Option<usize>,
    /// Bytes of the row. In `usage`, a layer of several images counts with the first row of images that
    /// reaches it, and a container with its writable layer and own files. In `explain`, a layer is divided
    /// equally among the images and containers that reach it, like `fair_bytes`.
    pub bytes: u64,
    /// Files and directories of the row, counted like `bytes`; null for `rest` if the filesystem does not report its
    /// inodes.
    pub inodes: Option<u64>,
    /// Bytes freed if only the deletable part of the row were deleted; null in `explain`, and if layers of it are not
    /// measured.
    pub reclaimable_bytes: Option<u64>,
}

impl ShareRowDoc {
    /// Builds a row for bytes outside the stores, without a path.
    pub(super) fn new(kind: ShareKind, label: impl Into<String>, bytes: u64) -> Self {
        Self {
            kind,
            label: label.into(),
            id: None,
            store: None,
            path: None,
            in_store: false,
            count: None,
            bytes,
            inodes: None,
            reclaimable_bytes: None,
        }
    }

    /// Builds a row of several places outside the stores.
    pub(in crate::report) fn of_label(label: String, bytes: u64) -> Self {
        Self::new(ShareKind::Outside(PartKind::Other), label, bytes)
    }

    pub(super) fn outside(part: &Part) -> Self {
        Self {
            path: part.path.clone(),
            inodes: Some(part.inodes),
            ..Self::new(ShareKind::Outside(part.kind), &*part.label, part.bytes)
        }
    }
}

/// Images and containers of one group, or bytes that no image or container reaches.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupDoc {
    /// `group`; `unnamed` for images without a name, and for containers without a namespace and their images;
    /// `unused` for images that no container uses, by namespace, owner and container; `build_cache`, `leaks`,
    /// `metadata`, `store_other` and `not_in_store` for bytes that no image or container reaches.
    pub kind: GrowthKind,
    /// Name of the group; null for all other kinds. A container of containerd outside of a pod is in the
    /// namespace `containerd:NAME`.
    pub name: Option<String>,
    /// Number of images, including those that belong to other groups too.
    pub images: usize,
    /// Number of containers.
    pub containers: usize,
    /// Sum of the fair shares; an object in several groups is divided equally among them.
    pub fair_bytes: u64,
}

pub fn usage(usage: &Usage) -> UsageDoc {
    let scan = &usage.result.scan;
    let inventory = &scan.inventory;
    let stores = (0..inventory.stores.len()).map(StoreIx::from);
    UsageDoc {
        header: Header::new(DocumentKind::Usage, scan.taken_at),
        complete: usage.is_complete(),
        by: usage.by,
        filesystems: usage_filesystems(inventory, &usage.disks, &usage.forecasts),
        stores: stores.map(|store_ix| usage_store(scan, store_ix)).collect(),
        stopped: usage.stopped.clone(),
        gc_refused: usage.refused.clone(),
        totals: totals(scan),
        warnings: inventory.findings.iter().chain(&usage.findings).cloned().collect(),
    }
}

/// Builds the objects of all filesystems. `forecasts` may be shorter than `disks`.
pub fn usage_filesystems(
    inventory: &Inventory,
    disks: &[DiskUsage],
    forecasts: &[Option<Forecast>],
) -> Vec<UsageFilesystemDoc> {
    let filesystems = inventory.filesystems.iter().zip(disks).enumerate();
    let documents = filesystems.map(|(position, (facts, disk))| {
        let forecast = forecasts.get(position).and_then(Option::as_ref);
        let saved_bytes = inventory.saved_bytes.get(&position.into()).copied().unwrap_or(0);
        UsageFilesystemDoc { saved_bytes, ..of_filesystem(facts, disk, forecast) }
    });
    documents.collect()
}

fn of_filesystem(facts: &Filesystem, disk: &DiskUsage, forecast: Option<&Forecast>) -> UsageFilesystemDoc {
    let large = disk.large.iter().map(|part| ShareRowDoc {
        kind: ShareKind::InStore(LineKind::Other),
        label: label_of_large(part, &disk.large),
        store: part.store.clone(),
        in_store: true,
        reclaimable_bytes: Some(0),
        ..ShareRowDoc::outside(part)
    });
    let in_stores = disk.lines.iter().map(in_store).chain(large);
    let rest = ShareRowDoc {
        inodes: disk.rest_inodes,
        ..ShareRowDoc::new(ShareKind::Rest, label_of_rest(disk), disk.rest_bytes)
    };
    let outside = disk
        .outside
        .iter()
        .map(ShareRowDoc::outside)
        .chain([rest])
        .map(|row| ShareRowDoc { reclaimable_bytes: Some(0), ..row });
    let rows: Vec<_> = in_stores.chain(outside).collect();
    UsageFilesystemDoc {
        filesystem: filesystem(facts),
        forecast: forecast.map(|forecast| ForecastDoc::new(facts, forecast)),
        saved_bytes: 0,
        not_in_store_bytes: rows.iter().filter(|row| !row.in_store).map(|row| row.bytes).sum(),
        rows,
        inode_users: disk.inode_users.clone(),
        reclaimable_bytes: disk.reclaimable_bytes,
        groups: disk.grouped.as_ref().map(groups).unwrap_or_default(),
    }
}

fn label_of_rest(disk: &DiskUsage) -> &'static str {
    if disk.has_unread {
        "everything else, overhead, and what could not be read"
    } else {
        "everything else, and overhead"
    }
}

/// Returns the label of a large directory in a store. Volumes have their path only if there are several of them.
fn label_of_large(part: &Part, all: &[Part]) -> String {
    let same = all.iter().filter(|other| other.kind == part.kind).count();
    let path = part.path.as_deref().unwrap_or_default();
    let tool = part.tool.unwrap_or("podman");
    match part.kind {
        PartKind::Volumes if same == 1 => format!("Volumes ({tool})"),
        PartKind::Volumes => format!("Volumes ({tool}), {path}"),
        PartKind::OtherStore => format!("Another store, {path}"),
        _ => format!("Other files in stores, {path}"),
    }
}

fn in_store(line: &Line) -> ShareRowDoc {
    let label = label(line.kind);
    // The first clause: the remedy and the consequence do not fit.
    let name = line.name.as_ref().and_then(|name| name.split("; ").next()?.split(", and ").next());
    let label = name.map_or_else(|| label.to_owned(), |name| format!("{label} {name}"));
    let counted = !matches!(line.kind, LineKind::Unknown | LineKind::Metadata | LineKind::Other);
    ShareRowDoc {
        in_store: true,
        count: counted.then_some(line.count),
        inodes: Some(line.inodes),
        reclaimable_bytes: line.is_measured.then_some(line.reclaimable_bytes),
        ..ShareRowDoc::new(ShareKind::InStore(line.kind), label, line.bytes)
    }
}

/// Returns the kind of a row for people.
pub(super) fn label(kind: LineKind) -> &'static str {
    match kind {
        LineKind::ImagesInUse => "Images in use",
        LineKind::ImagesPinned => "Images kept by a rule, not in use",
        LineKind::ImagesOutOfReach => "Images out of reach,",
        LineKind::ImagesUnused => "Images not in use",
        LineKind::Artifacts => "Artifacts",
        LineKind::Snapshotter => "Snapshotter",
        LineKind::ContainersRunning => "Containers running",
        LineKind::ContainersExited => "Containers exited",
        LineKind::ContainersOther => "Containers, created or unknown",
        LineKind::BuildCache => "Build cache",
        LineKind::Leaks => "Leaks",
        LineKind::Unknown => "Unknown, see the warnings",
        LineKind::Metadata => "Store metadata",
        LineKind::Other => "Other files in stores",
    }
}

fn groups(grouped: &Grouped) -> Vec<GroupDoc> {
    let groups = grouped.groups.iter().map(|group| GroupDoc {
        kind: match group.kind {
            GroupKind::Group => GrowthKind::Group,
            GroupKind::Unnamed => GrowthKind::Unnamed,
            GroupKind::Unused => GrowthKind::Unused,
        },
        name: (group.kind == GroupKind::Group).then(|| group.name.clone()),
        images: group.images,
        containers: group.containers,
        fair_bytes: group.bytes,
    });
    let closing = [
        (GrowthKind::BuildCache, grouped.build_cache),
        (GrowthKind::Leaks, grouped.leaks),
        (GrowthKind::Metadata, grouped.metadata),
        (GrowthKind::Other, grouped.other),
        (GrowthKind::Outside, grouped.outside_bytes),
    ]
    .map(|(kind, bytes)| GroupDoc { kind, name: None, images: 0, containers: 0, fair_bytes: bytes });
    groups.chain(closing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_of_unreachable_images_ends_with_the_reason() {
        let line = |name: &str| Line {
            kind: LineKind::ImagesOutOfReach,
            name: Some(name.into()),
            count: 1,
            bytes: 1,
            inodes: 1,
            reclaimable_bytes: 0,
            is_measured: true,
        };
        for (name, label) in [
            ("/s belongs to alice; run as that user: podman unshare layersweep", "/s belongs to alice"),
            (
                "not all processes are visible, and any may use it; run it elsewhere",
                "not all processes are visible",
            ),
        ] {
            assert_eq!(in_store(&line(name)).label, format!("Images out of reach, {label}"));
        }
    }
}
