//! Paths of a scanned disk, as its own node names them.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::model::Inventory;
use crate::node::kubelet::Kubelet;
use crate::node::places;
use crate::stores::Scan;
use crate::sys::sysroot::Sysroot;

/// A path of the disk that is looked at, as the node itself names it.
pub fn own_path(scan: &Scan, path: &Path) -> PathBuf {
    scan.sysroot.display(path)
}

/// The inventory with the stores where the node itself has them: that is how its records
/// name them.
pub fn own_paths(scan: &Scan) -> Inventory {
    let mut inventory = scan.inventory.clone();
    for store in &mut inventory.stores {
        store.root = own_path(scan, &store.root);
    }
    inventory
}

/// Where the kubelet's own directory is, or would be: what exists of it.
pub(super) fn nodefs(config: &Config, kubelet: &Kubelet, sysroot: &Sysroot) -> Option<PathBuf> {
    let said = kubelet.flag_in_effect("--root-dir").map(|setting| PathBuf::from(setting.value));
    let root = config.kubelet.root_dir.clone().or(said).unwrap_or_else(|| places::ROOT.into());
    root.ancestors().find_map(|path| sysroot.resolve(path).ok())
}
