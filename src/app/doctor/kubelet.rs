//! The kubelet's settings files, and the filesystems that its settings apply to.

use std::path::PathBuf;

use super::check::Check;
use super::node::{CheckedSettings, Node};
use crate::app::report::thresholds::kubelets_stores;
use crate::disk::filesystem;
use crate::model::FilesystemIx;
use crate::node::places::KubeletPlaces;
use crate::node::thresholds;
use crate::policy::thresholds::Disk;
use crate::stores::Scan;
use crate::stores::other_usage::filesystem_of;

pub(super) fn files(node: &Node<'_>) -> Vec<Check> {
    let kubelet = &node.kubelet;
    let mut checks: Vec<_> =
        kubelet.unreadable.iter().map(|(path, error)| Check::unread(path, error)).collect();
    let embedded =
        node.processes().and_then(|processes| processes.running(&["k3s", "rke2", "k0s", "kubelite"]));
    if let Some(embedded) = &embedded {
        let message = format!(
            "{} contains a kubelet: settings that it passes on by its own arguments and defaults are not known here",
            embedded.describe()
        );
        checks.push(Check::note("", message));
    }
    if !kubelet.is_here() {
        if embedded.is_none() {
            checks.push(Check::note("", "no kubelet settings found: eviction was not checked"));
        }
        return checks;
    }
    let (_, problems) = thresholds::read(kubelet);
    for (path, why) in kubelet.misread.iter().chain(&problems) {
        let message = format!("{why}; it is ignored here, and the kubelet may not start with it");
        checks.push(Check::warning(path, message, "fix the kubelet's setting"));
    }
    let files: Vec<_> = kubelet
        .configs_in_effect()
        .chain(&kubelet.running)
        .map(|file| file.path.display().to_string())
        .collect();
    checks.push(if files.is_empty() {
        Check::ok("", "no kubelet configuration file, only flags")
    } else {
        Check::ok("", format!("settings from {}", files.join(", ")))
    });
    checks
}

pub(super) fn settings<'a>(node: &Node<'a>) -> Option<CheckedSettings<'a>> {
    let disks = match node.scan() {
        _ if !node.kubelet.is_here() => return None,
        Some(scan) => disks(node, scan),
        None => nodefs_alone(node).into_iter().collect(),
    };
    let containers = &node.config.containers;
    Some(CheckedSettings {
        kubelet: thresholds::read(&node.kubelet).0,
        images: &node.config.images,
        containers: containers.enabled.then_some(&containers.policy),
        disks,
    })
}

fn disks(node: &Node<'_>, scan: &Scan) -> Vec<Disk> {
    let inventory = &scan.inventory;
    let mut filesystems: Vec<FilesystemIx> = Vec::new();
    let stores = node.runtime.store.map_or_else(|| kubelets_stores(inventory), |store| vec![store]);
    for store in stores.into_iter().map(|store| &inventory[store]) {
        if !filesystems.contains(&store.filesystem) {
            filesystems.push(store.filesystem);
        }
    }
    let nodefs = nodefs(node).and_then(|path| filesystem_of(scan, &path));
    let disks = filesystems.into_iter().map(|ix| Disk {
        mount: node.shown(&inventory[ix].mount),
        has_images: true,
        is_imagefs: true,
        is_nodefs: nodefs == Some(ix),
        ..Disk::of(&inventory[ix])
    });
    disks.collect()
}

/// Returns the filesystem of the kubelet, for a node without a store.
fn nodefs_alone(node: &Node<'_>) -> Option<Disk> {
    let (facts, _) = filesystem::of(&nodefs(node)?).ok()?;
    let mount = node.shown(&facts.mount);
    Some(Disk { mount, has_images: true, is_imagefs: true, is_nodefs: true, ..Disk::of(&facts) })
}

fn nodefs(node: &Node<'_>) -> Option<PathBuf> {
    KubeletPlaces::find(&node.config.kubelet, &node.kubelet).nodefs(&node.stores.sysroot)
}
