//! Copies a captured or hand-made graphroot of `fixtures/graphroot` to the disk.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::tree;

/// Copies the fixture `name` to `to/NAME` and creates the directories that git does not keep.
pub fn place(name: &str, to: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/graphroot");
    tree::copy(&from.join(name), to);
    let placed = to.join(name);
    complete(&placed);
    placed
}

/// Creates the missing directories. Every directory with a `link` file is a layer of the overlay driver; every
/// layer that was pulled as a tar has a tar-split file.
fn complete(dir: &Path) {
    let records = fs::read(dir.join("layers.json")).unwrap_or_default();
    let records: Value = serde_json::from_slice(&records).unwrap_or_default();
    for record in records.as_array().into_iter().flatten() {
        if let (Some(id), Some(_)) = (record["id"].as_str(), record.get("diff-digest")) {
            fs::write(dir.join(format!("{id}.tar-split.gz")), "").expect("completing a layer");
        }
    }
    for entry in fs::read_dir(dir).expect("reading a fixture") {
        let path = entry.expect("reading a fixture").path();
        if !path.is_symlink() && path.is_dir() {
            complete(&path);
        }
    }
    if dir.join("link").is_file() {
        let base = (!dir.join("lower").exists()).then_some("empty");
        for name in ["diff", "work", "merged"].into_iter().chain(base) {
            fs::create_dir_all(dir.join(name)).expect("completing a layer");
        }
        fs::write(dir.join("diff/file"), "content\n").expect("completing a layer");
    }
}
