//! Summaries of scans for `diff` and `usage --since`.

use std::sync::Arc;

use crate::history::Error;
use crate::history::figures::{self, MAX_PLACES, PlaceFigures};
use crate::history::kept_scans::{self, Packed, Scanned};
use crate::model::documents::scan_summary::{
    ContainerUser, Key, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, mount_above,
};
use crate::model::{FilesystemIx, Inventory, Size, StoreId};
use crate::services::database::Database;
use crate::services::paths::{node_path, with_node_paths};
use crate::services::request::Request;
use crate::stores::Scan;
use crate::stores::other_usage::{self, LargePath, LargePathKind, VolumeUse};

/// Maximum number of volumes with names in a summary.
const MOST_VOLUMES: usize = 200;

/// Places with names outside the images and containers of a scan: what grows there has a name.
pub(crate) struct Places {
    pub(crate) volumes: Vec<VolumeUse>,
    pub(crate) paths: Vec<LargePath>,
}

impl Places {
    /// Reads the volumes, and the directories outside the stores.
    pub(crate) fn measure(request: &Request, scan: &Scan) -> Self {
        let known = super::outside::known_to_scan(request, scan);
        let mut volumes = other_usage::podman_volumes(scan, known.threads);
        volumes.truncate(MOST_VOLUMES);
        Self { volumes, paths: other_usage::largest_paths(scan, &known) }
    }

    /// Returns the largest places of a filesystem, containers among them, for the metrics.
    pub(crate) fn figures(&self, scan: &Scan, filesystem: FilesystemIx) -> Vec<PlaceFigures> {
        let inventory = &scan.inventory;
        let mut all = Vec::new();
        for (container, user) in inventory.containers.iter().zip(ContainerUser::all(inventory)) {
            let nodes = container.holds.iter().map(|node| &inventory[*node]);
            let size: Size = nodes.filter(|node| node.filesystem == filesystem).map(|node| node.size).sum();
            let namespace = user.namespace.unwrap_or_default();
            let (bytes, inodes) = (size.bytes, size.inodes);
            all.push(PlaceFigures { kind: "container".into(), namespace, name: user.name, bytes, inodes });
        }
        for volume in self.volumes.iter().filter(|volume| volume.filesystem == filesystem) {
            let VolumeUse { name, bytes, inodes, .. } = volume.clone();
            let namespace = String::new();
            all.push(PlaceFigures { kind: "volume".into(), namespace, name, bytes, inodes });
        }
        for path in self.paths.iter().filter(|path| path.filesystem == filesystem) {
            let (kind, name) = match &path.kind {
                LargePathKind::Plain => ("path", path.path.to_string_lossy().into_owned()),
                LargePathKind::PodLog(name) => ("pod_log", name.clone()),
                LargePathKind::PodVolume(name) => ("pod_volume", name.clone()),
                LargePathKind::Rest { .. } => continue,
            };
            let of_pod = name.split_once('/').filter(|_| kind != "path");
            let (namespace, name) = of_pod
                .map_or((String::new(), name.clone()), |(namespace, name)| (namespace.into(), name.into()));
            let LargePath { bytes, inodes, .. } = *path;
            all.push(PlaceFigures { kind: kind.into(), namespace, name, bytes, inodes });
        }
        all.retain(|place| place.bytes > 0);
        figures::largest_places(all, MAX_PLACES)
    }

    /// Returns the summary of a scan with these places. `inventory`: that of the scan, with the paths that the node
    /// itself uses.
    pub(crate) fn summary(&self, scan: &Scan, inventory: &Inventory) -> ScanSummary {
        let mut summary = ScanSummary::of(inventory, &scan.refs, scan.is_complete());
        let mut places = Vec::new();
        for volume in &self.volumes {
            let place = Arc::new(SummaryStore::of(&StoreId::of(&inventory[volume.store])));
            let id = node_path(scan, &volume.path).to_string_lossy().into_owned();
            let entry = SummaryEntry {
                bytes: volume.bytes,
                inodes: volume.inodes,
                extra: 0,
                name: volume.name.clone(),
            };
            places.push((Key { place, kind: SummaryKind::Volume, id }, entry));
        }
        let mounts = summary.mounts();
        for path in &self.paths {
            let id = node_path(scan, &path.path).to_string_lossy().into_owned();
            // The node may see the path below another mount point.
            let mount = inventory[path.filesystem].mount.to_str();
            if mount_above(&mounts, &id) != mount {
                continue;
            }
            let (kind, name, extra) = match &path.kind {
                LargePathKind::Plain => (SummaryKind::Path, String::new(), 0),
                LargePathKind::PodLog(name) => (SummaryKind::PodLog, name.clone(), 0),
                LargePathKind::PodVolume(name) => (SummaryKind::PodVolume, name.clone(), 0),
                LargePathKind::Rest { least } => (SummaryKind::Path, String::new(), *least),
            };
            places.push((
                Key::outside(kind, id),
                SummaryEntry { bytes: path.bytes, inodes: path.inodes, extra, name },
            ));
        }
        summary.entries.extend(places);
        summary
    }
}

/// Returns the summary of a scan. Paths are those that the node itself uses, without the sysroot.
pub fn of(request: &Request, scan: &Scan) -> ScanSummary {
    let mut inventory = with_node_paths(scan);
    for filesystem in &mut inventory.filesystems {
        filesystem.mount = node_path(scan, &filesystem.mount);
    }
    Places::measure(request, scan).summary(scan, &inventory)
}

/// Saves the summary of a recorded scan. Returns a message if that fails.
pub(crate) fn keep(
    open: &mut Database,
    scan: &Scanned<'_>,
    packed: rusqlite::Result<Packed>,
) -> Option<String> {
    let packed = packed.map_err(Error::from);
    let kept = packed.and_then(|packed| open.records.write(|tx| kept_scans::store(tx, scan, &packed)));
    kept.err().map(|error| format!("this scan is not kept for `diff`: {error}"))
}
