//! `mountpoints.json` in the runroot: which layers the library has mounted, and how often
//! (container-libs, `storage/layers.go`, `saveMounts`). The library mounts and unmounts
//! under `mountpoints.lock` and rewrites the file before it releases the lock.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::stores::containers_storage::locks::LockFile;
use crate::stores::containers_storage::places::StorePlaces;
use crate::sys::namespaces::Mounts;
use crate::sys::quiet::{InodeFacts, Within, if_present};
use crate::sys::root::Root;

/// A mount of every layer of a node that runs a thousand containers fits many times.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// How often a table that keeps changing is read again.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// One entry of the file (`layerMountPoint`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Mounted {
    #[serde(rename = "id")]
    pub(crate) layer: String,
    /// Where it is said to be mounted.
    pub(crate) path: PathBuf,
    count: i64,
    /// The file that says so.
    #[serde(skip)]
    pub(crate) file: PathBuf,
    /// Whether it is mounted there, or an overlay anywhere has the layer as upper or lower directory; only of
    /// [`MountTables`].
    #[serde(skip)]
    pub(crate) is_mounted: bool,
}

/// What the library says and what the kernel says, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountTables {
    /// Entries with a count above 0; `None` where the library keeps no such file.
    pub(crate) recorded: Option<Vec<Mounted>>,
    /// Mount points below the store and its runroots, of all mount namespaces that we may look into.
    pub(crate) mounts: Vec<PathBuf>,
}

/// Only the library's own word.
///
/// # Errors
/// When a file cannot be read or understood: then what is mounted is unknown.
pub(crate) fn counted(places: &StorePlaces) -> io::Result<Vec<Mounted>> {
    let within = places.within();
    let mut found = Vec::new();
    for file in places.mountpoint_files() {
        found.extend(of_file(&within, &file)?.into_iter().flatten());
    }
    Ok(found)
}

fn of_file(within: &Within, file: &Path) -> io::Result<Option<Vec<Mounted>>> {
    let Some(content) = if_present(within.read_dense(file, MOST_BYTES))? else { return Ok(None) };
    let mut entries = parse(&content)?;
    entries.iter_mut().for_each(|entry| entry.file = file.to_path_buf());
    Ok(Some(entries))
}

/// Reads both; `None` where the library kept mounting, something cannot be read, or it mounts nothing here.
pub(crate) fn read(places: &StorePlaces) -> Option<MountTables> {
    if places.foreign || places.driver != "overlay" {
        return None;
    }
    for _ in 0..TRIES {
        match read_once(places) {
            Ok(Some(tables)) => return Some(tables),
            Ok(None) => std::thread::sleep(PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// A mount or unmount that ended meanwhile has rewritten the file, and one that has not
/// ended holds the lock.
fn read_once(places: &StorePlaces) -> io::Result<Option<MountTables>> {
    let within = places.within();
    let files = places.mountpoint_files();
    let identities = || -> io::Result<Vec<Option<InodeFacts>>> {
        files.iter().map(|file| if_present(within.facts(file))).collect()
    };
    let before = identities()?;
    let mut tables = MountTables::default();
    for file in &files {
        if let Some(entries) = of_file(&within, file)? {
            tables.recorded.get_or_insert_default().extend(entries);
        }
    }
    // The library mounts layers of an imagestore below the runroot (container-libs, `drivers/overlay/overlay.go`, `get`).
    let directories: Vec<_> = places.areas().chain(&places.runroots).map(|root| root.to_path_buf()).collect();
    let mounts = Mounts::read(&directories)?;
    for entry in tables.recorded.iter_mut().flatten() {
        entry.is_mounted = is_mounted(places, &within, &mounts, entry);
    }
    tables.mounts = mounts.points_below();
    for file in &files {
        let lock = LockFile::open(&within, &file.with_file_name("mountpoints.lock"))?;
        if lock.is_some_and(|lock| lock.has_writer().unwrap_or(true)) {
            return Ok(None);
        }
    }
    Ok((identities()? == before).then_some(tables))
}

/// A container's own mount namespace may have the layer as `/` alone.
fn is_mounted(places: &StorePlaces, within: &Within, mounts: &Mounts, entry: &Mounted) -> bool {
    let link = |area: &Root| {
        let link = within.read(&places.layer_directories(area).join(&entry.layer).join("link"), 4096);
        link.ok().and_then(|text| String::from_utf8(text).ok())
    };
    mounts.user(&entry.path, &[&entry.layer]).is_some()
        || places.areas().filter_map(link).any(|link| mounts.user(&entry.path, &[link.trim()]).is_some())
}

/// The entries with a count above 0.
pub(crate) fn parse(content: &[u8]) -> io::Result<Vec<Mounted>> {
    if content.is_empty() {
        return Ok(Vec::new());
    }
    let entries: Option<Vec<Mounted>> = serde_json::from_slice(content)?;
    Ok(entries.into_iter().flatten().filter(|entry| entry.count > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_count() {
        let content =
            br#"[{"id":"a","path":"/g/overlay/a/merged","count":2},{"id":"b","path":"/x","count":0},{"id":"c"}]"#;
        let path = PathBuf::from("/g/overlay/a/merged");
        assert_eq!(
            parse(content).unwrap(),
            [Mounted { layer: "a".into(), path, count: 2, ..Mounted::default() }]
        );
        for content in ["", "[]", "null"] {
            assert_eq!(parse(content.as_bytes()).unwrap(), []);
        }
        for content in ["[{", "[7]", "{}", r#"[{"id":7,"count":1}]"#, r#"[{"id":"a","count":"1"}]"#] {
            assert!(parse(content.as_bytes()).is_err(), "{content}: anything may be mounted");
        }
    }
}
