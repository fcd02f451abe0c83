//! Paths of a scanned disk, as the node of that disk names them.

use std::path::{Path, PathBuf};

use crate::model::{Inventory, OwnersStore, StoreIx};
use crate::stores::Scan;
use crate::sys::quiet;

/// Returns a path of the scanned disk as the node itself names it, without the sysroot.
pub fn node_path(scan: &Scan, path: &Path) -> PathBuf {
    scan.sysroot.display(path)
}

/// Returns the inventory with the roots of the stores as the node itself names them: its records use those names.
pub fn with_node_paths(scan: &Scan) -> Inventory {
    let mut inventory = scan.inventory.clone();
    for store in &mut inventory.stores {
        store.root = node_path(scan, &store.root);
    }
    inventory
}

/// Returns a store as the commands of its owner name it.
pub fn owners_store(scan: &Scan, store: StoreIx) -> OwnersStore {
    let graphroot = node_path(scan, &scan.inventory[store].root);
    let caller = rustix::process::geteuid().as_raw();
    let opened = scan.sysroot.open(&graphroot).map(|root| (root.owner(), root.way().is_trusted()));
    let facts =
        opened.or_else(|_| quiet::facts(&scan.inventory[store].root).map(|facts| (facts.owner, false)));
    let user = match facts {
        _ if scan.inventory.out_of_tool.contains_key(&store) => Some("its owner".to_owned()),
        Ok((owner, _)) if ![0, caller].contains(&owner) => Some(scan.sysroot.user_name(owner)),
        Ok((_, true)) => None,
        // The commands must not be root's: a user may replace the directory.
        Ok((_, false)) | Err(_) => Some("its owner".to_owned()),
    };
    OwnersStore { graphroot, user }
}
