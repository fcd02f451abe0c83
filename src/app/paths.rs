//! Paths of a scanned disk, as its own node names them.

use std::path::{Path, PathBuf};

use crate::model::Inventory;
use crate::stores::Survey;

/// A path of the disk that is looked at, as the node itself names it.
pub fn own_path(survey: &Survey, path: &Path) -> PathBuf {
    survey.sysroot.display(path)
}

/// The inventory with the stores where the node itself has them: that is how its records
/// name them.
pub fn own_paths(survey: &Survey) -> Inventory {
    let mut inventory = survey.inventory.clone();
    for store in &mut inventory.stores {
        store.root = own_path(survey, &store.root);
    }
    inventory
}
