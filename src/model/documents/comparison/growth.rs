//! Growth between two scans, divided among the containers and images that grew.
//!
//! The rows of a filesystem add up to its used bytes, before and after. A container has its own files and its writable
//! layer. A layer that images reach counts for the first of them. If both scans contain a layer or container, it is in
//! the row of its present user in both: so a row grows only by bytes that came, not because a pod began to use an image
//! that was there, and not because a tag moved. Outside the stores, and for volumes, the rows are the largest paths.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use serde::Serialize;

use crate::model::documents::comparison::changes::{BytesChange, ScanComparison};
use crate::model::documents::scan_summary::{
    ContainerUser, Key, ScanSummary, SummaryEntry, SummaryKind, mount_above, pod_container, split_layer_name,
    split_names,
};
use crate::model::refs::GroupBy;
use crate::model::space::INODES_HIGH_PERCENT;
use crate::model::store::tool_of;
use crate::model::text::display::short_reference;
use crate::model::text::names::names;
use crate::model::text::reference::{registry, repository};

names! {
    /// Kind of a row of growth, or of a row of fair shares by group.
    GrowthKind {
        /// A container; its earlier containers, before it was restarted, count with it.
        Container = "container",
        /// Images of a repository, in a grouping by container.
        Images = "images",
        Group = "group",
        /// Images without a name; or containers in no namespace, and their images.
        Unnamed = "unnamed",
        /// Images that several groups use, in a grouping by namespace or owner.
        Several = "several",
        /// Images that no container uses, in a grouping by namespace or owner.
        Unused = "unused",
        /// Containers and images of a scan of an earlier version, which does not contain their group.
        Unknown = "unknown",
        BuildCache = "build_cache",
        Leaks = "leaks",
        /// The stores' own bookkeeping.
        Metadata = "metadata",
        /// Everything else below the roots of the stores.
        Other = "store_other",
        /// A volume of podman.
        Volume = "volume",
        /// Logs of a pod or container, outside the stores.
        PodLog = "pod_log",
        /// Volume or other data of a pod, outside the stores.
        PodVolume = "pod_volume",
        /// Another directory or file outside the stores.
        Path = "path",
        /// All other used bytes outside the stores.
        Outside = "not_in_store",
        /// Bytes that shared extents and compression save in the stores, below 0.
        Saved = "saved",
        /// Records of images, and files that several layers share.
        Rest = "rest",
    }
}

impl GrowthKind {
    /// Returns true for bytes outside the stores.
    #[must_use]
    pub fn is_outside(self) -> bool {
        matches!(self, Self::PodLog | Self::PodVolume | Self::Path | Self::Outside)
    }
}

/// Minimum time between two scans for a rate.
const RATE_SECONDS: i64 = 3600;
const DAY_SECONDS: i64 = 86_400;

/// Row of a filesystem's growth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "GrowthRowDoc"))]
pub struct GrowthRow {
    /// `container` (its own files and writable layer) and `images` of a repository, by container; `group`
    /// with a name; `none` for images without a name, and for containers without a namespace; `several` for
    /// images that several groups use, and `unused` for those that no container uses, by namespace and owner;
    /// `unknown` for what only a scan of an earlier version contains, which has no groups; `build_cache`,
    /// `leaks`, `metadata` and `store_other` in the stores; `rest` for records of images and for files that
    /// several layers share. By container also `volume` (of podman or Docker, in the store) and, outside the stores,
    /// `pod_log`, `pod_volume` and `path`: the largest directories and files, each without those that have rows of
    /// their own; `not_in_store` is the rest outside the stores. `saved` is what the stores use less than their rows say,
    /// because files share extents or are compressed: its bytes are below 0, and fall when files are deduplicated.
    pub kind: GrowthKind,
    /// Name of the container (`POD/CONTAINER`), repository, group or volume, or the path; null for other kinds,
    /// and for images without a name.
    pub name: Option<String>,
    /// Namespace of a container, or of the pod of logs and volumes; null for other kinds.
    pub namespace: Option<String>,
    /// Path of a volume, log or other path in the last scan that contains it; null for other kinds.
    pub path: Option<String>,
    /// Name of a container's image; null for other kinds.
    pub image: Option<String>,
    /// Program that made a container, for example `podman` or `buildah`, or a volume of Docker; null for other kinds, and if
    /// it is unknown.
    pub owner: Option<String>,
    /// Bytes in the first scan. Like `after_bytes`, below 0 only in the rows `saved`, `not_in_store` and `rest`, if
    /// files share extents or inodes, or if a store is on several filesystems.
    pub before_bytes: i64,
    /// Bytes in the second scan.
    pub after_bytes: i64,
    /// Second minus first.
    pub change_bytes: i64,
    /// Change in a day at this rate; null for scans within an hour.
    pub bytes_per_day: Option<i64>,
    /// Change of the number of inodes; null if `change_inodes` of the filesystem is.
    pub change_inodes: Option<i64>,
}

/// Growth of a filesystem. Bytes and changes of the rows add up to those in `used`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "FilesystemGrowthDoc"))]
pub struct FilesystemGrowth {
    /// Mount point.
    pub mount: String,
    /// Used bytes of the filesystem.
    pub used: BytesChange,
    /// Change of the used bytes in a day at this rate; null for scans within an hour.
    pub bytes_per_day: Option<i64>,
    /// Change of the number of used inodes; null if the filesystem has no fixed number of inodes, or a scan is a document.
    /// Those of the rows add up to it.
    pub change_inodes: Option<i64>,
    /// True if the inodes are short, or are scarcer than the bytes and grew more: each as a part of what the filesystem
    /// has.
    pub by_inodes: bool,
    /// Rows, also those without a change: the largest growth first (of inodes, if `by_inodes`), the largest decrease
    /// last, then `rest`.
    pub rows: Vec<GrowthRow>,
}

type RowKey = (GrowthKind, String, Option<String>);
/// Name and namespace of a container.
type ContainerKey<'a> = (&'a str, Option<&'a str>);

fn key(kind: GrowthKind, name: &str) -> RowKey {
    (kind, name.to_owned(), None)
}

impl ScanComparison {
    /// Divides the growth of each filesystem that both scans contain. A store counts on the filesystem of its root.
    #[must_use]
    pub fn growth(&self, by: GroupBy) -> Vec<FilesystemGrowth> {
        let summaries = [&self.before.summary, &self.after.summary];
        let per_day = |change_bytes| per_day(change_bytes, self.seconds());
        let scans = summaries.map(Indexed::new);
        let division = Division::new(&scans[0], &scans[1], by);
        let used = summaries.map(filesystems);
        let mounts: BTreeSet<&str> = used.iter().flat_map(|used| used.keys().copied()).collect();
        let mut rows: BTreeMap<(&str, RowKey), [SignedSize; 2]> = BTreeMap::new();
        let mut paths: HashMap<(&str, RowKey), &str> = HashMap::new();
        let mut tools: HashMap<(&str, RowKey), &str> = HashMap::new();
        for (position, scan) in scans.iter().enumerate() {
            let own_mounts = used[position].keys().copied().collect();
            let mut add = |mount, key, size: SignedSize| {
                let sum = &mut rows.entry((mount, key)).or_default()[position];
                sum.bytes = sum.bytes.saturating_add(size.bytes);
                sum.inodes = sum.inodes.saturating_add(size.inodes);
            };
            for (mount, filesystem) in &used[position] {
                let inodes = filesystem.inodes.map_or(0, |entry| entry.inodes);
                let size = SignedSize { bytes: signed(filesystem.bytes.bytes), inodes: signed(inodes) };
                add(*mount, key(GrowthKind::Outside, ""), size);
            }
            for (entry_key, entry) in &scan.summary.entries {
                let size = SignedSize { bytes: signed(entry.bytes), inodes: signed(entry.inodes) };
                if matches!(entry_key.kind, SummaryKind::Filesystem | SummaryKind::Inodes) {
                    continue;
                }
                if entry_key.kind == SummaryKind::Saved {
                    // A document of a scan has no such entry: then the saved bytes stay in the rest of both.
                    if summaries[1 - position].entries.contains_key(entry_key) {
                        add(&entry_key.id, key(GrowthKind::Saved, ""), -size);
                        add(&entry_key.id, key(GrowthKind::Outside, ""), size);
                    }
                    continue;
                }
                let (mount, whole) = if entry_key.is_path() {
                    (mount_above(&own_mounts, &entry_key.id), GrowthKind::Outside)
                } else {
                    (mount_above(&mounts, &entry_key.place.root), GrowthKind::Other)
                };
                let Some(mount) = mount else { continue };
                if let Some(row) = division.of_path(summaries[1 - position], mount, entry_key, entry) {
                    paths.insert((mount, row.clone()), &entry_key.id);
                    let tool = tool_of(&entry_key.place.kind).map(|tool| ((mount, row.clone()), tool));
                    tools.extend(tool);
                    add(mount, row, size);
                    add(mount, key(whole, ""), -size);
                } else if entry_key.kind == SummaryKind::Share {
                    add(mount, key(share(&entry_key.id), ""), size);
                    add(mount, key(GrowthKind::Outside, ""), -size);
                } else if let Some(row) = division.row(scan, entry_key, entry) {
                    add(mount, row, size);
                    // The parts of the shares of images and containers that remain.
                    add(mount, key(GrowthKind::Rest, ""), -size);
                }
            }
        }
        let containers = containers(&scans);
        let both =
            used[0].iter().filter_map(|(mount, before)| Some((*mount, [*before, *used[1].get(mount)?])));
        let grown = both.map(|(mount, filesystem)| {
            let [used_before, used_after] = filesystem.map(|filesystem| filesystem.bytes.bytes);
            let change_inodes = change_inodes(filesystem);
            let by_inodes = is_by_inodes(filesystem);
            let of_mount = rows.iter().filter(|((row_mount, _), sizes)| {
                let has_some = sizes.iter().any(|size| size.bytes != 0 || by_inodes && size.inodes != 0);
                *row_mount == mount && has_some
            });
            let of_mount = of_mount.map(|(row, [before, after])| {
                let (_, (kind, name, namespace)) = row;
                let container = containers
                    .get(&(name.as_str(), namespace.as_deref()))
                    .filter(|_| *kind == GrowthKind::Container);
                // Smaller paths may count with the path of the row.
                let path =
                    if *kind == GrowthKind::Path { Some(name.as_str()) } else { paths.get(row).copied() };
                let change_bytes = after.bytes.saturating_sub(before.bytes);
                GrowthRow {
                    kind: *kind,
                    name: Some(name.clone()).filter(|name| !name.is_empty()),
                    namespace: namespace.clone(),
                    path: path.map(str::to_owned),
                    image: container.and_then(|(_, image)| image.map(str::to_owned)),
                    owner: container
                        .map(|(user, _)| user.owner.clone())
                        .or_else(|| tools.get(row).map(|tool| (*tool).to_owned())),
                    before_bytes: before.bytes,
                    after_bytes: after.bytes,
                    change_bytes,
                    bytes_per_day: per_day(change_bytes),
                    change_inodes: change_inodes.map(|_| after.inodes.saturating_sub(before.inodes)),
                }
            });
            let mut of_mount: Vec<_> = of_mount.collect();
            of_mount.sort_by_key(|row| {
                let inodes = row.change_inodes.filter(|_| by_inodes);
                let change = (Reverse(inodes), Reverse(row.change_bytes));
                (row.kind == GrowthKind::Rest, change, Reverse(row.after_bytes))
            });
            let used = BytesChange::new(used_before, used_after);
            let bytes_per_day = per_day(used.change_bytes);
            FilesystemGrowth {
                mount: mount.to_owned(),
                used,
                bytes_per_day,
                change_inodes,
                by_inodes,
                rows: of_mount,
            }
        });
        grown.collect()
    }
}

/// Returns the change in a day at the rate of a change in `seconds`; `None` if they are too few.
fn per_day(change_bytes: i64, seconds: i64) -> Option<i64> {
    let per_day = i128::from(change_bytes) * i128::from(DAY_SECONDS) / i128::from(seconds.max(1));
    (seconds >= RATE_SECONDS).then(|| i64::try_from(per_day).unwrap_or(i64::MAX))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Bytes and inodes, also below 0.
#[derive(Clone, Copy, Debug, Default)]
struct SignedSize {
    bytes: i64,
    inodes: i64,
}

impl std::ops::Neg for SignedSize {
    type Output = Self;

    fn neg(self) -> Self {
        Self { bytes: -self.bytes, inodes: -self.inodes }
    }
}

/// Entries of a filesystem in a scan.
#[derive(Clone, Copy)]
struct FilesystemEntries<'a> {
    bytes: &'a SummaryEntry,
    /// `None` in a document, and for a filesystem without a fixed number of inodes.
    inodes: Option<&'a SummaryEntry>,
}

fn filesystems(summary: &ScanSummary) -> BTreeMap<&str, FilesystemEntries<'_>> {
    let entries = summary.entries.iter().filter(|(key, _)| key.kind == SummaryKind::Filesystem);
    let filesystems = entries.map(|(filesystem, bytes)| {
        let inodes = summary.entries.get(&Key::outside(SummaryKind::Inodes, filesystem.id.clone()));
        (filesystem.id.as_str(), FilesystemEntries { bytes, inodes })
    });
    filesystems.collect()
}

fn change_inodes([before, after]: [FilesystemEntries<'_>; 2]) -> Option<i64> {
    Some(signed(after.inodes?.inodes).saturating_sub(signed(before.inodes?.inodes)))
}

/// Returns true if the inodes of a filesystem are short, or if they are scarcer than the bytes, and more of them than a
/// hundredth of all came, and a larger part of all than came of the bytes.
fn is_by_inodes(scans: [FilesystemEntries<'_>; 2]) -> bool {
    let (Some(change), [before, FilesystemEntries { bytes, inodes: Some(inodes) }]) =
        (change_inodes(scans), scans)
    else {
        return false;
    };
    let (all, capacity) = (i128::from(inodes.extra), i128::from(bytes.extra));
    let change_bytes = i128::from(bytes.bytes) - i128::from(before.bytes.bytes);
    let is_short = i128::from(inodes.inodes) * 100 >= i128::from(INODES_HIGH_PERCENT) * all;
    let is_large = i128::from(change) * 100 >= all;
    let is_scarcer = i128::from(inodes.inodes) * capacity > i128::from(bytes.bytes) * all;
    is_short || is_scarcer && is_large && i128::from(change) * capacity > change_bytes * all
}

/// Returns the row of a share of a store. Images and containers are divided further.
fn share(id: &str) -> GrowthKind {
    match id {
        "images" | "containers" => GrowthKind::Rest,
        "build_cache" => GrowthKind::BuildCache,
        "leaks" => GrowthKind::Leaks,
        "metadata" => GrowthKind::Metadata,
        _ => GrowthKind::Other,
    }
}

/// A scan, with its images and their users by the beginning of the image's id.
struct Indexed<'a> {
    summary: &'a ScanSummary,
    names: HashMap<String, Option<String>>,
    users: HashMap<&'a str, Vec<&'a ContainerUser>>,
    has_users: bool,
}

impl<'a> Indexed<'a> {
    fn new(summary: &'a ScanSummary) -> Self {
        let images = summary.entries.iter().filter(|(key, _)| key.kind == SummaryKind::Image);
        let names =
            images.map(|(key, entry)| (short_reference(&key.id), split_names(&entry.name).into_iter().min()));
        let mut users: HashMap<&str, Vec<&ContainerUser>> = HashMap::new();
        for user in summary.users.values() {
            user.images.iter().for_each(|image| users.entry(image).or_default().push(user));
        }
        let mut containers = summary.entries.keys().filter(|key| key.kind == SummaryKind::Container);
        let has_users = !summary.users.is_empty() || containers.next().is_none();
        Self { summary, names: names.collect(), users, has_users }
    }

    fn image_of(&self, user: &ContainerUser) -> Option<&str> {
        self.names.get(user.images.first()?)?.as_deref()
    }
}

/// Returns each container with the name of its last image, by its name and namespace.
fn containers<'a>(
    scans: &'a [Indexed<'_>],
) -> HashMap<ContainerKey<'a>, (&'a ContainerUser, Option<&'a str>)> {
    let mut containers = HashMap::new();
    for scan in scans {
        for user in scan.summary.users.values() {
            let (last, image) =
                containers.entry((user.name.as_str(), user.namespace.as_deref())).or_insert((user, None));
            (*last, *image) = (user, scan.image_of(user).or(*image));
        }
    }
    containers
}

struct Division<'a> {
    before: &'a Indexed<'a>,
    after: &'a Indexed<'a>,
    by: GroupBy,
    /// Row of each image. An image may have hundreds of layers and of users.
    images: HashMap<&'a str, RowKey>,
}

impl<'a> Division<'a> {
    fn new(before: &'a Indexed<'a>, after: &'a Indexed<'a>, by: GroupBy) -> Self {
        let mut division = Self { before, after, by, images: HashMap::new() };
        let images = before.names.keys().chain(after.names.keys());
        division.images = images.map(|image| (image.as_str(), division.of_image(image))).collect();
        division
    }

    /// Returns the row of a container, or of a layer that images reach; `None` for other entries.
    fn row(&self, scan: &Indexed<'_>, key: &Key, entry: &SummaryEntry) -> Option<RowKey> {
        match key.kind {
            SummaryKind::Container => {
                let scans = [self.after, scan];
                let mut users =
                    scans.iter().filter_map(|scan| Some((scan, scan.summary.users.get(&key.id)?)));
                Some(match users.next() {
                    Some((scan, user)) => self.of_container(scan, user),
                    None => self.of_unknown_container(&entry.name),
                })
            }
            SummaryKind::Layer => {
                let (_, image) = split_layer_name(&entry.name);
                let present =
                    self.after.summary.entries.get(key).and_then(|entry| split_layer_name(&entry.name).1);
                let image = present.or(image).filter(|_| image.is_some())?;
                Some(self.images.get(image).cloned().unwrap_or_else(|| self.of_image(image)))
            }
            _ => None,
        }
    }

    /// Returns the row of a volume, or of a path on the filesystem `mount`; `None` for other entries and groupings. `other`
    /// is the other scan. A path that is missing there, because it was too small to have an entry or not all directories
    /// were read, counts with the nearest path above it that both scans contain.
    fn of_path(&self, other: &ScanSummary, mount: &str, path: &Key, entry: &SummaryEntry) -> Option<RowKey> {
        if self.by != GroupBy::Container {
            return None;
        }
        match path.kind {
            SummaryKind::Volume => Some(key(GrowthKind::Volume, &entry.name)),
            SummaryKind::PodLog => Some(of_pod(GrowthKind::PodLog, &entry.name)),
            SummaryKind::PodVolume => Some(of_pod(GrowthKind::PodVolume, &entry.name)),
            SummaryKind::Path if path.id == mount => None,
            SummaryKind::Path => {
                let rest = other.entries.get(&Key::outside(SummaryKind::Path, mount.to_owned()));
                let is_new = rest.is_some_and(|rest| entry.bytes >= rest.extra);
                let above = Path::new(&path.id).ancestors().filter_map(Path::to_str);
                let mut above = above.take_while(|above| *above != mount);
                let nearest = if is_new {
                    above.next()
                } else {
                    let summaries = [self.before.summary, self.after.summary];
                    above.find(|above| {
                        let above = Key::outside(SummaryKind::Path, (*above).to_owned());
                        summaries.iter().all(|summary| summary.entries.contains_key(&above))
                    })
                };
                nearest.map(|path| key(GrowthKind::Path, path))
            }
            _ => None,
        }
    }

    /// Returns the row of a container of `scan`.
    fn of_container(&self, scan: &Indexed<'_>, user: &ContainerUser) -> RowKey {
        match self.by {
            GroupBy::Container => (GrowthKind::Container, user.name.clone(), user.namespace.clone()),
            GroupBy::Namespace => match &user.namespace {
                Some(namespace) => key(GrowthKind::Group, namespace),
                None => key(GrowthKind::Unnamed, ""),
            },
            GroupBy::Owner => key(GrowthKind::Group, &user.owner),
            GroupBy::Repository => group(scan.image_of(user).map(repository)),
            GroupBy::Registry => group(scan.image_of(user).map(registry)),
        }
    }

    /// Returns the row of a container without a user. CRI-O's names contain the namespace.
    fn of_unknown_container(&self, name: &str) -> RowKey {
        match (self.by, pod_container(name)) {
            (GroupBy::Container, Some((name, namespace))) => (GrowthKind::Container, name, Some(namespace)),
            (GroupBy::Container, None) => key(GrowthKind::Container, name),
            (GroupBy::Namespace, Some((_, namespace))) => key(GrowthKind::Group, &namespace),
            _ => key(GrowthKind::Unknown, ""),
        }
    }

    /// Returns the row of the layers of an image: that of its present name or users, or else of its earlier ones.
    fn of_image(&self, image: &str) -> RowKey {
        let scan = if self.after.names.contains_key(image) { self.after } else { self.before };
        let name = scan.names.get(image).and_then(Option::as_deref);
        match self.by {
            GroupBy::Container => key(GrowthKind::Images, name.map_or("", repository)),
            GroupBy::Repository => group(name.map(repository)),
            GroupBy::Registry => group(name.map(registry)),
            GroupBy::Namespace | GroupBy::Owner => {
                let users = scan.users.get(image).into_iter().flatten();
                let rows: BTreeSet<_> = users.map(|user| self.of_container(scan, user)).collect();
                match (rows.len(), rows.into_iter().next()) {
                    (1, Some(row)) => row,
                    (0, _) if scan.has_users => key(GrowthKind::Unused, ""),
                    (0, _) => key(GrowthKind::Unknown, ""),
                    _ => key(GrowthKind::Several, ""),
                }
            }
        }
    }
}

/// Returns the row of `<namespace>/<pod>[/<part>]`, or of the uid of a pod whose name is unknown.
fn of_pod(kind: GrowthKind, name: &str) -> RowKey {
    match name.split_once('/') {
        Some((namespace, name)) => (kind, name.to_owned(), Some(namespace.to_owned())),
        None => key(kind, name),
    }
}

fn group(name: Option<&str>) -> RowKey {
    name.map_or_else(|| key(GrowthKind::Unnamed, ""), |name| key(GrowthKind::Group, name))
}

#[cfg(test)]
mod tests;
