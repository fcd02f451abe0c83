//! Thresholds of the filesystems in a report.

use crate::config::Config;
use crate::model::{FilesystemIx, Finding};
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::node::thresholds as kubelet_thresholds;
use crate::policy::thresholds::{self, Disk, DiskThreshold};
use crate::stores::Scan;
use crate::stores::other_usage::filesystem_of;

/// Returns the thresholds of each filesystem, the lowest first.
pub(in crate::app) fn all(config: &Config, scan: &Scan) -> Vec<Vec<DiskThreshold>> {
    let kubelet = Kubelet::read_now(&scan.sysroot);
    let settings = kubelet.is_here().then(|| kubelet_thresholds::read(&kubelet).0);
    let places = KubeletPlaces::find(&config.kubelet, &kubelet);
    let nodefs = settings
        .as_ref()
        .and_then(|_| places.nodefs(&scan.sysroot))
        .and_then(|path| filesystem_of(scan, &path));
    let filesystems = (0..scan.inventory.filesystems.len()).map(FilesystemIx::from);
    let thresholds = filesystems.map(|ix| {
        let disk = Disk {
            has_images: has_images(scan, ix),
            is_nodefs: nodefs == Some(ix),
            ..Disk::of(&scan.inventory[ix])
        };
        thresholds::all(&config.images.targets, settings.as_ref(), &disk)
    });
    thresholds.collect()
}

/// Returns a finding for each filesystem with images for which a configured threshold is impossible.
pub(in crate::app) fn impossible(config: &Config, scan: &Scan) -> Vec<Finding> {
    let filesystems = scan.inventory.filesystems.iter().enumerate();
    let findings = filesystems.filter_map(|(ix, filesystem)| {
        let message = thresholds::impossible(&config.images.targets, filesystem.capacity_bytes)
            .filter(|_| has_images(scan, ix.into()))?;
        Some(Finding::new(&filesystem.mount, message))
    });
    findings.collect()
}

fn has_images(scan: &Scan, ix: FilesystemIx) -> bool {
    let inventory = &scan.inventory;
    let mut layers = inventory.nodes.iter().filter(|node| node.filesystem == ix && node.kind.is_layer());
    inventory.stores.iter().any(|store| store.filesystem == ix && !store.read_only)
        || layers.any(|node| !inventory[node.store].read_only)
}
