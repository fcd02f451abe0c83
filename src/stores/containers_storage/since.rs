//! The age of an object without a record: one rule for the scan and for the proof right before an
//! edit.

use std::path::Path;

use jiff::Timestamp;

use crate::model::Orphan;
use crate::sys::quiet::{Times, Within};

/// Files of one tree that are looked at for their age.
const MOST_FILES: usize = 100_000;

/// When something was last changed: a file's content, a directory's entries.
pub(super) fn changed(within: &Within, path: &Path) -> Option<Timestamp> {
    within.facts(path).ok().and_then(|facts| facts.modified)
}

/// The newest of these times of anything at or below `path`; `None` where that is unknown.
fn newest(within: &Within, path: &Path, times: Times) -> Option<Timestamp> {
    within.newest_below(path, times, MOST_FILES).ok().flatten()
}

/// What the age of a thing without a record counts from; `None` where that is unknown.
///
/// Where age is a proof, a thing is no older than its making, whatever time of change it was
/// given: an archive that is being unpacked sets times back, and so does a restored store.
pub(crate) fn of_orphan(within: &Within, what: Orphan, path: &Path) -> Option<Timestamp> {
    let changed = |path: &Path| changed(within, path);
    let newest = |path: &Path, times| newest(within, path, times);
    let born = || within.born(path).ok().flatten();
    match what {
        // Work goes on deep inside of these, where it does not show on the top.
        Orphan::Staging | Orphan::ContainerDirectory => {
            newest(path, Times::Modified).map(|newest| born().map_or(newest, |born| born.max(newest)))
        }
        // Anybody may have put these there, with times of their own: `cp -a` keeps them.
        Orphan::GraphrootTmp | Orphan::VarTmp => newest(path, Times::All),
        Orphan::Volume => newest(path, Times::Modified),
        Orphan::TempDirectory => changed(path).max(born()),
        // Under the locks of the store no process changes these.
        Orphan::LayerDirectory | Orphan::ImageDirectory | Orphan::LayerData | Orphan::TempRecord => {
            changed(path)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// What counts where age is a proof: a time of change that was set back makes nothing old.
    #[test]
    fn nothing_is_older_than_its_making_where_age_is_a_proof() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("2222222222");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("file"), "x").unwrap();
        let within = Within::at([dir.path()]);
        if within.born(&tree).unwrap().is_none() {
            return; // Nothing tells a younger time here.
        }
        let long_ago = SystemTime::now() - Duration::from_secs(9 * 86_400);
        for path in [tree.join("file"), tree.clone()] {
            std::fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let hours =
            |what| Timestamp::now().duration_since(of_orphan(&within, what, &tree).unwrap()).as_hours();
        for what in [
            Orphan::Staging,
            Orphan::ContainerDirectory,
            Orphan::TempDirectory,
            Orphan::GraphrootTmp,
            Orphan::VarTmp,
        ] {
            assert_eq!(hours(what), 0, "{what:?}");
        }
        for what in [Orphan::LayerDirectory, Orphan::ImageDirectory, Orphan::Volume] {
            assert_eq!(hours(what), 9 * 24, "{what:?}");
        }
    }

    /// What `cp -a` brings is new, also in a directory that is not, and as a single file.
    #[test]
    fn a_copy_of_something_old_is_new() {
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
