//! Sizes of the units of a walk.

use std::path::PathBuf;

use super::types::BigFile;
use crate::disk::sharing::SharedExtents;
use crate::disk::{ExtentOptions, Measured, Tree, TreeScope, WalkOptions, measure};
use crate::model::space::BytesAndInodes;
use crate::sys::quiet::Within;
use crate::sys::sysroot::Sysroot;

/// Minimum bytes of a file outside the stores that is asked for its extents, except on btrfs. Asking costs as much as ten
/// `stat` calls.
pub(super) const BIG: u64 = 1 << 20;

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
    for (unit, not_kept) in not_kept(extents) {
        if let Some(size) = sizes.get_mut(unit) {
            size.bytes = size.bytes.saturating_sub(not_kept);
        }
    }
    sizes
}

/// Returns the bytes of units that `st_blocks` counts, and that count with another unit, with a store, or nowhere since they
/// are compressed.
fn not_kept(extents: &[SharedExtents]) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    for shared in extents {
        let mut left = if shared.outside { 0 } else { shared.physical_bytes };
        for (unit, counted) in &shared.counted {
            let kept = left.min(*counted);
            left -= kept;
            found.push((*unit, counted - kept));
        }
    }
    found
}

/// Takes off the bytes of files that `st_blocks` counts and a deletion of the file does not free.
pub(super) fn take_off_shared(sysroot: &Sysroot, files: &mut [BigFile], threads: usize) {
    let (mut roots, mut trees, mut opened) = (Vec::new(), Vec::new(), Vec::new());
    for (unit, file) in files.iter().enumerate() {
        let (Some(directory), Some(name)) = (file.path.parent(), file.path.file_name()) else { continue };
        // Opened once: a user may replace a directory on the path by a symlink into a mount of his own.
        let Ok(root) = sysroot.open(&sysroot.display(directory)) else { continue };
        opened.push(root);
        trees.push(tree(roots.len(), name.into(), unit, TreeScope::File));
        roots.push(directory.to_path_buf());
    }
    let (extents, within) = (Some(ExtentOptions::default()), Within::new(&opened));
    let options = WalkOptions { threads, extents, within, ..WalkOptions::default() };
    for (unit, not_kept) in not_kept(&measure(&roots, &trees, &options).shared_extents()) {
        files[unit].bytes = files[unit].bytes.saturating_sub(not_kept);
    }
    files.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
}
