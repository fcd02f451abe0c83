//! GNU `du`, the reference for the size of trees.

use std::path::{Path, PathBuf};
use std::process::Command;

use layersweep::disk::inode_chunks::InodeChunks;
use layersweep::disk::{ExtentOptions, Measured, Tree, TreeScope, WalkOptions, measure};
use layersweep::sys::quiet::Within;

/// Allocated bytes of all `paths` together, hard links once. Errors that `du` prints are not checked.
pub fn bytes(paths: &[&Path]) -> u64 {
    run("--block-size=1", paths)
}

/// Inodes of all `paths` together, hard links once.
pub fn inodes(paths: &[&Path]) -> u64 {
    run("--inodes", paths)
}

fn run(flag: &str, paths: &[&Path]) -> u64 {
    let mut command = Command::new("du");
    command.args(["-s", "-c", flag, "--"]).args(paths);
    let output = command.output().expect("running du");
    let text = String::from_utf8_lossy(&output.stdout);
    let total = text.lines().last().and_then(|line| line.split('\t').next()?.parse().ok());
    total.unwrap_or_else(|| panic!("du says {text:?}"))
}

/// Returns the whole tree at `path` below the only root.
pub fn tree(path: &str, unit: usize) -> Tree<'_> {
    Tree { root: 0, path: std::path::Path::new(path).into(), unit, scope: TreeScope::Whole }
}

/// Measures `root` as one unit.
pub fn measure_one(root: &Path) -> Measured {
    measure_trees(root, &[tree("", 0)], false)
}

/// Measures trees below one root.
pub fn measure_trees(root: &Path, trees: &[Tree], asks_for_extents: bool) -> Measured {
    let roots: [PathBuf; 1] = [root.to_path_buf()];
    let chunks = chunks(root, []);
    let extents = asks_for_extents.then(ExtentOptions::default);
    measure(&roots, trees, &WalkOptions { extents, inode_chunks: Some(&chunks), ..WalkOptions::default() })
}

/// Returns the inodes below `root` by chunk, and the users that these walks found for them.
pub fn chunks<'m>(root: &Path, walks: impl IntoIterator<Item = &'m Measured>) -> InodeChunks {
    let mut chunks = InodeChunks::on(&[root.to_path_buf()], &Within::default());
    walks.into_iter().for_each(|walk| chunks.add(walk.inodes.iter().copied()));
    chunks
}

/// Bytes and inodes of everything that was measured, shared inodes once.
pub fn total(measured: &Measured) -> (u64, u64) {
    let tallies = measured.units.iter().chain(measured.shared_inodes.iter().map(|inode| &inode.tally));
    tallies.fold((0, 0), |sum, tally| (sum.0 + tally.bytes, sum.1 + tally.inodes))
}
