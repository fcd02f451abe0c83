//! The thresholds of the disks that a report is about.

use crate::config::Config;
use crate::model::{FilesystemIx, Finding, NodeKind};
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::node::thresholds as kubelet_thresholds;
use crate::policy::thresholds::{self, Disk, DiskThreshold};
use crate::stores::Scan;
use crate::stores::other_usage::filesystem_of;

/// By filesystem, the lowest first.
pub(in crate::app) fn all(config: &Config, scan: &Scan) -> Vec<Vec<DiskThreshold>> {
    let kubelet = Kubelet::read_now(&scan.sysroot);
    let settings = kubelet.is_here().then(|| kubelet_thresholds::read(&kubelet).0);
    let places = KubeletPlaces::find(&config.kubelet, &kubelet);
    let nodefs = settings.as_ref().and_then(|_| places.nodefs(&scan.sysroot));
    let nodefs = nodefs.and_then(|path| filesystem_of(scan, &path));
    let of = |at: usize| {
        let at = FilesystemIx::from(at);
        let disk = Disk {
            has_images: has_images(scan, at),
            is_nodefs: nodefs == Some(at),
            ..Disk::of(&scan.inventory[at])
        };
        thresholds::all(&config.images.targets, settings.as_ref(), &disk)
    };
    (0..scan.inventory.filesystems.len()).map(of).collect()
}

/// A finding for each filesystem that one of our thresholds cannot be meant for.
pub(super) fn impossible(config: &Config, scan: &Scan) -> Vec<Finding> {
    let filesystems = scan.inventory.filesystems.iter().enumerate();
    let finding = |(at, filesystem): (usize, &crate::model::Filesystem)| {
        let message = thresholds::impossible(&config.images.targets, filesystem.capacity_bytes)
            .filter(|_| has_images(scan, at.into()))?;
        Some(Finding::new(&filesystem.mount, message))
    };
    filesystems.filter_map(finding).collect()
}

fn has_images(scan: &Scan, at: FilesystemIx) -> bool {
    let inventory = &scan.inventory;
    let is_layer = |kind| matches!(kind, NodeKind::Layer | NodeKind::Snapshot | NodeKind::Blob);
    let mut layers = inventory.nodes.iter().filter(|node| node.filesystem == at && is_layer(node.kind));
    inventory.stores.iter().any(|store| store.filesystem == at && !store.read_only)
        || layers.any(|node| !inventory[node.store].read_only)
}
