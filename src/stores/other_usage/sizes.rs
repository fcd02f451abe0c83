//! Sizes of the units of a walk.

use std::path::PathBuf;

use crate::disk::sharing::SharedExtents;
use crate::disk::{Measured, Tree, TreeScope};
use crate::model::space::BytesAndInodes;

pub(super) fn tree(root: usize, path: PathBuf, unit: usize, scope: TreeScope) -> Tree<'static> {
    Tree { root, path: path.into(), unit, scope }
}

/// Returns the bytes and inodes of each unit. Inodes and extents that several units share count once, with the first of them.
/// Those that are also shared with a file outside the units (in a store) are not counted.
pub(super) fn by_unit(measured: &Measured, extents: &[SharedExtents], units: usize) -> Vec<BytesAndInodes> {
    let tallies = measured.units.iter();
    let mut sizes: Vec<_> =
        tallies.map(|tally| BytesAndInodes { bytes: tally.bytes, inodes: tally.inodes }).collect();
    sizes.resize(units, BytesAndInodes::default());
    for shared in measured.shared_inodes.iter().filter(|shared| !shared.outside) {
        if let Some(first) = shared.units.first().and_then(|first| sizes.get_mut(*first)) {
            first.bytes += shared.tally.bytes;
            first.inodes += shared.tally.inodes;
        }
    }
    for shared in extents {
        let mut left = if shared.outside { 0 } else { shared.physical_bytes };
        for (unit, counted) in &shared.counted {
            let kept = left.min(*counted);
            left -= kept;
            if let Some(size) = sizes.get_mut(*unit) {
                size.bytes = size.bytes.saturating_sub(counted - kept);
            }
        }
    }
    sizes
}
