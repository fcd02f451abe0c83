//! What a walk measured, by unit.

use std::path::PathBuf;

use crate::disk::{Measured, Tree, TreeScope};

pub(super) fn tree(root: usize, path: PathBuf, unit: usize, scope: TreeScope) -> Tree<'static> {
    Tree { root, path: path.into(), unit, scope }
}

/// Bytes of each unit: inodes and extents that several share count once, with the first of them;
/// those also shared outside of all units (with a store) are not counted here.
pub(super) fn bytes_by_unit(measured: &Measured, units: usize) -> Vec<u64> {
    let mut bytes: Vec<u64> = measured.units.iter().map(|tally| tally.bytes).collect();
    bytes.resize(units, 0);
    for shared in measured.shared_inodes.iter().filter(|shared| !shared.outside) {
        if let Some(first) = shared.units.first().and_then(|first| bytes.get_mut(*first)) {
            *first += shared.tally.bytes;
        }
    }
    for shared in &measured.shared_extents {
        let mut stays = if shared.outside { 0 } else { shared.physical_bytes };
        for (unit, counted) in &shared.counted {
            let keeps = stays.min(*counted);
            stays -= keeps;
            if let Some(bytes) = bytes.get_mut(*unit) {
                *bytes = bytes.saturating_sub(counted - keeps);
            }
        }
    }
    bytes
}
