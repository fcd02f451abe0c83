//! Paths of a scanned disk, as its own node names them.

use std::path::{Path, PathBuf};

use crate::model::Inventory;
use crate::stores::Scan;

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
