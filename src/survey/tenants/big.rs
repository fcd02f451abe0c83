//! The largest log files, by name: the one that runs away fills a disk alone.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::TenantKind;
use super::places::{Place, pod_name};
use crate::inventory::FilesystemIx;
use crate::node::places::Places;
use crate::sys::quiet;
use crate::sys::sysroot::Sysroot;

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigFile {
    /// Its filesystem.
    pub filesystem: FilesystemIx,
    /// Where it lies for us.
    pub path: PathBuf,
    /// Allocated bytes.
    pub bytes: u64,
    /// The pod that it belongs to, `<namespace>/<name>`.
    pub pod: Option<String>,
    /// The container of that pod.
    pub container: Option<String>,
}

/// So many are named.
const MOST: usize = 20;

/// The largest log files on the filesystems of a survey, the journal's left out: its size is its
/// own to keep.
pub(super) fn logs(sysroot: &Sysroot, places: &[Place], known: &Places) -> Vec<BigFile> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    let journal: Vec<_> =
        places.iter().filter(|place| place.kind == TenantKind::Journal).map(|place| &place.path).collect();
    let logs = |place: &&Place| matches!(place.kind, TenantKind::PodLogs | TenantKind::Logs);
    for place in places.iter().filter(logs) {
        let Some(filesystem) = place.filesystem else { continue };
        for (path, inode) in files(&place.path, &journal) {
            // What is gone meanwhile holds nothing; what cannot be read the walk tells of.
            let Ok((bytes, _)) = quiet::weight(&path) else { continue };
            if seen.insert(inode) {
                found.push(BigFile { filesystem, path, bytes, pod: None, container: None });
            }
        }
    }
    found.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    found.truncate(MOST);
    for file in &mut found {
        let inside = sysroot.display(&file.path);
        if let Ok(below) = inside.strip_prefix(&known.pod_logs) {
            let mut names = below.iter();
            file.pod = names.next().map(pod_name);
            file.container = names.next().map(|name| name.to_string_lossy().into_owned());
        }
    }
    found
}

/// The regular files below a directory, on its own filesystem, with what tells their inodes.
fn files(top: &Path, without: &[&PathBuf]) -> Vec<(PathBuf, (u64, u64))> {
    let Ok(device) = quiet::facts(top).map(|facts| facts.device) else { return Vec::new() };
    let mut directories = vec![top.to_path_buf()];
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in quiet::list(&directory).unwrap_or_default() {
            let path = directory.join(&entry.name);
            let Ok(facts) = quiet::facts(&path) else { continue };
            match facts.kind {
                _ if facts.device != device => {}
                quiet::Kind::Directory if !without.contains(&&path) => directories.push(path),
                quiet::Kind::File => files.push((path, (facts.device, facts.inode))),
                _ => {}
            }
        }
    }
    files
}
