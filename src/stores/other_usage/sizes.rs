//! Sizes of the units of a walk.

use std::path::PathBuf;

use crate::disk::{Measured, Tree, TreeScope};

pub(super) fn tree(root: usize, path: PathBuf, unit: usize, scope: TreeScope) -> Tree<'static> {
    Tree { root, path: path.into(), unit, scope }
}

/// Returns the bytes of each unit. Inodes and extents that several units share count once, with the first of them.
/// Those that are also shared with a file outside the units (in a store) are not counted.
pub(super) fn bytes_by_unit(measured: &Measured, units: usize) -> Vec<u64> {
    let mut bytes: Vec<u64> = measured.units.iter().map(|tally| tally.bytes).collect();
    bytes.resize(units, 0);
    for shared in measured.shared_inodes.iter().filter(|shared| !shared.outside) {
        if let Some(first) = shared.units.first().and_then(|first| bytes.get_mut(*first)) {
            *first += shared.tally.bytes;
        }
    }
    for shared in &measured.shared_extents {
        let mut left = if shared.outside { 0 } else { shared.physical_bytes };
        for (unit, counted) in &shared.counted {
            let kept = left.min(*counted);
            left -= kept;
            if let Some(bytes) = bytes.get_mut(*unit) {
                *bytes = bytes.saturating_sub(counted - kept);
            }
        }
    }
    bytes
}
