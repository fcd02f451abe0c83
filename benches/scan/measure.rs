//! Only the walker, on the trees that a scan of a graphroot measures: each layer is a unit, and everything else is
//! another one.

use std::path::Path;

use layersweep::disk::ExtentOptions;
use layersweep::disk::inode_chunks::InodeChunks;
use layersweep::disk::{Tree, TreeScope, WalkOptions, filesystem, measure};
use layersweep::sys::quiet::Within;

/// Prints the sum of all that `measure` finds below `graphroot`.
pub fn graphroot(graphroot: &Path) {
    let tree = |path: &Path, unit, scope| Tree { root: 0, path: path.to_path_buf().into(), unit, scope };
    let mut trees = vec![
        tree(Path::new(""), 0, TreeScope::EntryOnly),
        tree(Path::new("overlay"), 0, TreeScope::EntryOnly),
    ];
    fn names(path: &Path) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    }
    for name in names(graphroot).into_iter().filter(|name| name != "overlay") {
        trees.push(tree(Path::new(&name), 0, TreeScope::Whole));
    }
    for (number, name) in names(&graphroot.join("overlay")).into_iter().enumerate() {
        trees.push(tree(&Path::new("overlay").join(name), number + 1, TreeScope::Whole));
    }
    let cost = filesystem::of(graphroot).map(|(_, cost)| cost).unwrap_or_default();
    let roots = [graphroot.to_path_buf()];
    let chunks = InodeChunks::on(&roots, &Within::default());
    let options = WalkOptions {
        extents: cost.reflinks.then_some(ExtentOptions { from_bytes: 1, seed: 0 }),
        threads: std::env::var("BENCH_THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(0),
        inode_chunks: Some(&chunks),
        ..WalkOptions::default()
    };
    let measured = measure(&roots, &trees, &options);
    let shared = measured.shared_inodes.iter().map(|group| &group.tally);
    let tallies: Vec<_> = measured.units.iter().chain(shared).collect();
    let inodes: u64 = tallies.iter().map(|tally| tally.inodes).sum();
    let bytes: u64 = tallies.iter().map(|tally| tally.bytes).sum();
    println!("{bytes} bytes, {inodes} inodes, {} errors", measured.errors.len());
}
