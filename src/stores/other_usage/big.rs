//! The largest log files by name: a single log that grows without limit can fill a disk.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::places::pod_name;
use super::types::{BigFile, KnownUse, OtherUserKind};
use crate::node::places::KubeletPlaces;
use crate::sys::quiet;
use crate::sys::sysroot::Sysroot;

/// Maximum number of files that are named.
const MOST: usize = 20;

/// Returns the largest log files on the filesystems of a scan. The journal's are left out: systemd limits their
/// size.
pub(super) fn logs(sysroot: &Sysroot, places: &[KnownUse], known: &KubeletPlaces) -> Vec<BigFile> {
    let mut largest = Largest::default();
    let journal: Vec<_> =
        places.iter().filter(|place| place.kind == OtherUserKind::Journal).map(|place| &place.path).collect();
    for place in places {
        if !matches!(place.kind, OtherUserKind::PodLogs | OtherUserKind::Logs) {
            continue;
        }
        let Some(filesystem) = place.filesystem else { continue };
        let is_journal = |path: &Path| journal.iter().any(|journal| *journal == path);
        let found = quiet::files_below(&place.path, &is_journal, &mut |path, facts, bytes| {
            let inode = (facts.device, facts.inode);
            largest.add(inode, BigFile { filesystem, path, bytes, pod: None, container: None });
        });
        // The walk of the same place reports what cannot be read.
        if let Err(error) = found {
            tracing::debug!("looking for log files in {}: {error}", place.path.display());
        }
    }
    let mut found = largest.sorted();
    for file in &mut found {
        let inside = sysroot.display(&file.path);
        let below = known.log_directories().find_map(|directory| inside.strip_prefix(directory).ok());
        if let Some(below) = below {
            let mut names = below.iter();
            file.pod = names.next().map(pod_name);
            file.container = names.next().map(|name| name.to_string_lossy().into_owned());
        }
    }
    found
}

/// The largest [`MOST`] of many files, each inode once.
#[derive(Debug, Default)]
struct Largest(BTreeMap<(Reverse<u64>, PathBuf), (Inode, BigFile)>);

/// Device and inode number.
type Inode = (u64, u64);

impl Largest {
    fn add(&mut self, inode: Inode, file: BigFile) {
        // A file that was dropped before was smaller than all files here, and is dropped again.
        if self.0.values().any(|(known, _)| *known == inode) {
            return;
        }
        self.0.insert((Reverse(file.bytes), file.path.clone()), (inode, file));
        if self.0.len() > MOST {
            self.0.pop_last();
        }
    }

    /// Returns the files, the largest first.
    fn sorted(self) -> Vec<BigFile> {
        self.0.into_values().map(|(_, file)| file).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FilesystemIx;

    #[test]
    fn only_largest_files_are_kept_once() {
        let mut largest = Largest::default();
        fn file(bytes: u64, path: String) -> BigFile {
            BigFile {
                filesystem: FilesystemIx::from(0),
                path: path.into(),
                bytes,
                pod: None,
                container: None,
            }
        }
        for number in 0..1000_u64 {
            // In mixed order, each under two names.
            let bytes = number * 7919 % 1000;
            largest.add((1, bytes), file(bytes, format!("/a/{bytes}")));
            largest.add((1, bytes), file(bytes, format!("/b/{bytes}")));
            assert!(largest.0.len() <= MOST);
        }
        let found: Vec<_> = largest.sorted().into_iter().map(|file| (file.bytes, file.path)).collect();
        let expected: Vec<_> =
            (980..1000).rev().map(|bytes| (bytes, PathBuf::from(format!("/a/{bytes}")))).collect();
        assert_eq!(found, expected);
    }
}
