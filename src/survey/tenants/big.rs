//! The largest log files, by name: the one that runs away fills a disk alone.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use walkdir::WalkDir;

use super::TenantKind;
use super::places::{Place, pod_name};
use crate::inventory::FilesystemIx;
use crate::node::places::Places;
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
    let journal: Vec<_> = places.iter().filter(|place| place.kind == TenantKind::Journal).collect();
    let logs = |place: &&Place| matches!(place.kind, TenantKind::PodLogs | TenantKind::Logs);
    for place in places.iter().filter(logs) {
        let Some(filesystem) = place.filesystem else { continue };
        let entries = WalkDir::new(&place.path).same_file_system(true).follow_links(false).into_iter();
        let entries = entries.filter_entry(|entry| journal.iter().all(|place| place.path != entry.path()));
        // What cannot be read is told of by the walk that measures.
        for entry in entries.flatten().filter(|entry| entry.file_type().is_file()) {
            let Ok(facts) = entry.metadata() else { continue };
            if seen.insert((facts.dev(), facts.ino())) {
                found.push(BigFile {
                    filesystem,
                    path: entry.into_path(),
                    bytes: facts.blocks().saturating_mul(512),
                    pod: None,
                    container: None,
                });
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
