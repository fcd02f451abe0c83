//! `mountpoints.json` in the runroot: the library's count of mounts of each layer (container-libs, `storage/layers.go`,
//! `saveMounts`).
//!
//! The library mounts and unmounts under `mountpoints.lock`, and rewrites the file before it releases the lock.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::model::Finding;
use crate::stores::containers_storage::locks::LockFile;
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::inventory_writer::report_unknown;
use crate::sys::namespaces::Mounts;
use crate::sys::quiet::{InodeFacts, Within, if_present};

/// Maximum size of the file. Many times the size for a node with a thousand containers and every layer mounted.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// Maximum number of attempts to read a table that keeps changing.
const TRIES: u32 = 20;

const PAUSE: Duration = Duration::from_millis(10);

/// Entry of the file (`layerMountPoint`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Mounted {
    #[serde(rename = "id")]
    pub(crate) layer: String,
    pub(crate) path: PathBuf,
    count: i64,
    #[serde(skip)]
    pub(crate) file: PathBuf,
    /// The layer is mounted at `path`, or an overlay at any path has it as upper or lower directory. Set only in
    /// [`MountTables`].
    #[serde(skip)]
    pub(crate) is_mounted: bool,
}

/// Mounts according to the library and according to the kernel, at the same moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountTables {
    /// Entries with a count above 0; `None` if there is no such file, or if not all mounts are known.
    pub(crate) recorded: Option<Vec<Mounted>>,
    /// Mount points below the store and its runroots, in all mount namespaces that this process can inspect.
    pub(crate) mounts: Vec<PathBuf>,
}

/// Returns the mounts according to the library.
///
/// # Errors
/// When a file cannot be read or parsed. Then the mounts are unknown.
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

/// Reads both tables. Returns `None` if the library kept changing its mounts, if a table cannot be read, or if the driver
/// does not mount layers. Adds a finding if the mounts of other processes are unknown.
pub(crate) fn read(places: &StorePlaces, findings: &mut Vec<Finding>) -> Option<MountTables> {
    if places.foreign || places.driver != "overlay" {
        return None;
    }
    for _ in 0..TRIES {
        match read_once(places) {
            Ok(Some((mut tables, mounts))) => {
                report_unknown(&mounts, findings);
                if !mounts.unknown_views().is_empty() {
                    // A layer that is recorded as mounted may be mounted there.
                    tables.recorded = None;
                }
                return Some(tables);
            }
            Ok(None) => std::thread::sleep(PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// Reads both tables once. Returns `None` if the library has mounted or unmounted a layer in the meantime: then the file
/// was rewritten, or the lock is still held.
fn read_once(places: &StorePlaces) -> io::Result<Option<(MountTables, Mounts)>> {
    let within = places.within();
    let files = places.mountpoint_files();
    let before = identities(&within, &files)?;
    let mut tables = MountTables::default();
    for file in &files {
        if let Some(entries) = of_file(&within, file)? {
            tables.recorded.get_or_insert_default().extend(entries);
        }
    }
    // Layers of an imagestore are mounted below the runroot (container-libs, `drivers/overlay/overlay.go`, `get`).
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
    Ok((identities(&within, &files)? == before).then_some((tables, mounts)))
}

fn identities(within: &Within, files: &[PathBuf]) -> io::Result<Vec<Option<InodeFacts>>> {
    files.iter().map(|file| if_present(within.facts(file))).collect()
}

/// Returns true if the layer is mounted in any mount namespace.
///
/// A container's mount namespace may show the mount only as `/`, so the options of overlay mounts are compared with the
/// layer's id and short name, too.
fn is_mounted(places: &StorePlaces, within: &Within, mounts: &Mounts, entry: &Mounted) -> bool {
    if mounts.user(&entry.path, &[&entry.layer]).is_some() {
        return true;
    }
    places.areas().any(|area| {
        let link = within.read(&places.layer_directories(area).join(&entry.layer).join("link"), 4096);
        let name = link.ok().and_then(|text| String::from_utf8(text).ok());
        name.is_some_and(|name| mounts.user(&entry.path, &[name.trim()]).is_some())
    })
}

/// Parses the file and returns the entries with a count above 0.
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
    fn entries_with_a_count_are_parsed() {
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
