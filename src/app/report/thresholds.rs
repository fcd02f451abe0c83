//! Thresholds of the filesystems in a report.

use crate::config::Config;
use crate::model::{FilesystemIx, Finding, Inventory, StoreIx};
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
    let (all, of_kubelet) = (writable_stores(&scan.inventory), kubelets_stores(&scan.inventory));
    let filesystems = (0..scan.inventory.filesystems.len()).map(FilesystemIx::from);
    let thresholds = filesystems.map(|ix| {
        let disk = Disk {
            has_images: are_on(scan, &all, ix),
            is_imagefs: are_on(scan, &of_kubelet, ix),
            is_nodefs: nodefs == Some(ix),
            ..Disk::of(&scan.inventory[ix])
        };
        thresholds::all(&config.images.targets, settings.as_ref(), &disk)
    });
    thresholds.collect()
}

/// Returns a finding for each filesystem with images for which a configured threshold is impossible.
pub(in crate::app) fn impossible(config: &Config, scan: &Scan) -> Vec<Finding> {
    let stores = writable_stores(&scan.inventory);
    let filesystems = scan.inventory.filesystems.iter().enumerate();
    let findings = filesystems.filter_map(|(ix, filesystem)| {
        let message = thresholds::impossible(&config.images.targets, filesystem.capacity_bytes)
            .filter(|_| are_on(scan, &stores, ix.into()))?;
        Some(Finding::new(&filesystem.mount, message))
    });
    findings.collect()
}

/// Returns the stores of the kubelet's runtime, whose filesystems it watches as those of its images: not podman's beside
/// a runtime. If no store is known to be a runtime's, any may be.
pub(in crate::app) fn kubelets_stores(inventory: &Inventory) -> Vec<StoreIx> {
    let stores = writable_stores(inventory);
    let (of_runtimes, others): (Vec<_>, Vec<_>) =
        stores.into_iter().partition(|store| inventory.is_of_runtime(*store));
    if of_runtimes.is_empty() { others } else { of_runtimes }
}

fn writable_stores(inventory: &Inventory) -> Vec<StoreIx> {
    (0..inventory.stores.len()).map(StoreIx::from).filter(|store| !inventory[*store].read_only).collect()
}

/// Returns true if one of the stores has its records or layers on a filesystem.
fn are_on(scan: &Scan, stores: &[StoreIx], ix: FilesystemIx) -> bool {
    let inventory = &scan.inventory;
    let mut layers = inventory.nodes.iter().filter(|node| node.filesystem == ix && node.kind.is_layer());
    stores.iter().any(|store| inventory[*store].filesystem == ix)
        || layers.any(|node| stores.contains(&node.store))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Store, StoreKind, samples};

    #[test]
    fn podmans_disk_beside_a_runtime_is_no_imagefs() {
        let podman = samples::store();
        let additional = Store { read_only: true, ..podman.clone() };
        let containerd = Store { kind: StoreKind::Containerd, ..podman.clone() };
        for (stores, expected) in [
            (vec![podman.clone(), containerd.clone()], &[1][..]),
            (vec![additional.clone(), podman.clone(), podman.clone()], &[1, 2]),
            (vec![additional, containerd], &[1]),
            (vec![podman], &[0]),
        ] {
            let inventory = Inventory { stores, ..Inventory::default() };
            let found: Vec<_> = kubelets_stores(&inventory).into_iter().map(StoreIx::get).collect();
            assert_eq!(found, expected, "{:?}", inventory.stores);
        }
    }
}
