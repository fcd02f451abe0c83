//! Age of an object without a record. The scan and the proof before a deletion use the same rule.

use std::path::Path;

use jiff::Timestamp;

use crate::model::Orphan;
use crate::sys::quiet::{Times, Within};

/// Maximum number of files in a tree; the age of a larger tree is unknown.
const MOST_FILES: usize = 100_000;

/// Returns the last modification time: of a file's content, or of a directory's entries.
pub(super) fn changed(within: &Within, path: &Path) -> Option<Timestamp> {
    within.facts(path).ok().and_then(|facts| facts.modified)
}

/// Returns the newest of these times at or below `path`, or `None` if it is unknown.
fn newest(within: &Within, path: &Path, times: Times) -> Option<Timestamp> {
    within.newest_below(path, times, MOST_FILES).ok().flatten()
}

fn born(within: &Within, path: &Path) -> Option<Timestamp> {
    within.born(path).ok().flatten()
}

/// Returns the time from which the age of an object without a record counts, or `None` if it is unknown.
///
/// Modification times can be older than the file: unpacking an archive or restoring a store sets them back. If the age
/// is the proof that an object is unused, the creation time on this filesystem counts as well.
pub(crate) fn of_orphan(within: &Within, orphan: Orphan, path: &Path) -> Option<Timestamp> {
    match orphan {
        // Processes write deep inside these trees, which does not change the times of the top directory.
        Orphan::Staging | Orphan::ContainerDirectory => newest(within, path, Times::Modified)
            .map(|newest| newest.max(born(within, path).unwrap_or(newest))),
        // Any user may have copied files here with their times: `cp -a` preserves modification times.
        Orphan::GraphrootTmp | Orphan::VarTmp => newest(within, path, Times::All),
        Orphan::Volume => newest(within, path, Times::Modified),
        Orphan::TempDirectory => changed(within, path).max(born(within, path)),
        // Processes change these only under the store's locks.
        Orphan::LayerDirectory | Orphan::ImageDirectory | Orphan::LayerData | Orphan::TempRecord => {
            changed(within, path)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn old_modification_time_does_not_make_orphan_old() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("2222222222");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("file"), "x").unwrap();
        let within = Within::at([dir.path()]);
        if within.born(&tree).unwrap().is_none() {
            return; // This filesystem has no creation times.
        }
        let long_ago = SystemTime::now() - Duration::from_secs(9 * 86_400);
        for path in [tree.join("file"), tree.clone()] {
            std::fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        for (orphan, expected) in [
            (Orphan::Staging, 0),
            (Orphan::ContainerDirectory, 0),
            (Orphan::TempDirectory, 0),
            (Orphan::GraphrootTmp, 0),
            (Orphan::VarTmp, 0),
            (Orphan::LayerDirectory, 9 * 24),
            (Orphan::ImageDirectory, 9 * 24),
            (Orphan::Volume, 9 * 24),
        ] {
            let since = of_orphan(&within, orphan, &tree).unwrap();
            assert_eq!(Timestamp::now().duration_since(since).as_hours(), expected, "{orphan:?}");
        }
    }

    #[test]
    fn copy_of_old_file_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("docker-tar1175831575");
        std::fs::write(&file, "x").unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(9 * 86_400);
        std::fs::File::open(&file).unwrap().set_modified(long_ago).unwrap();
        let within = Within::at([dir.path()]);
        let since = of_orphan(&within, Orphan::VarTmp, &file).unwrap();
        assert_eq!(Timestamp::now().duration_since(since).as_hours(), 0);
    }
}
