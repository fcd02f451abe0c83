//! `mountpoints.json` in the runroot: which layers the library has mounted, and how often
//! (container-libs, `storage/layers.go`, `saveMounts`). The library mounts and unmounts
//! under `mountpoints.lock` and rewrites the file before it releases the lock.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::stores::containers_storage::locks::LockFile;
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::records::lenient;
use crate::sys::namespaces;
use crate::sys::quiet::{InodeFacts, if_present};

/// A mount of every layer of a node that runs a thousand containers fits many times.
const MOST_BYTES: u64 = 64 << 20;

/// How often a table that keeps changing is read again.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// One entry of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// The file that says so.
    pub(crate) file: PathBuf,
    pub(crate) layer: String,
    /// Where it is said to be mounted.
    pub(crate) path: PathBuf,
}

/// What the library says and what the kernel says, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountTables {
    /// Entries with a count above 0; `None` where the library keeps no such file.
    pub(crate) recorded: Option<Vec<Mounted>>,
    /// Mount points below the store, of all mount namespaces that we may look into.
    pub(crate) mounts: Vec<PathBuf>,
}

/// Only the library's own word, of the files that can be read.
pub(crate) fn counted(places: &StorePlaces) -> Vec<Mounted> {
    let within = places.within();
    let mut found = Vec::new();
    for file in places.mountpoint_files() {
        let entries = within.read(&file, MOST_BYTES).ok().and_then(|content| parse(&content).ok());
        let of_file = |(layer, path)| Mounted { file: file.clone(), layer, path };
        found.extend(entries.into_iter().flatten().map(of_file));
    }
    found
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
        if let Some(content) = if_present(within.read(file, MOST_BYTES))? {
            let entries =
                parse(&content).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let of_file = |(layer, path)| Mounted { file: file.clone(), layer, path };
            tables.recorded.get_or_insert_default().extend(entries.into_iter().map(of_file));
        }
    }
    let areas: Vec<_> = places.areas().map(|root| root.to_path_buf()).collect();
    tables.mounts = namespaces::points_below(&areas)?;
    for file in &files {
        let lock = LockFile::open(&within, &file.with_file_name("mountpoints.lock"))?;
        if lock.is_some_and(|lock| lock.has_writer().unwrap_or(true)) {
            return Ok(None);
        }
    }
    Ok((identities()? == before).then_some(tables))
}

/// Layer and path of each entry that counts.
fn parse(content: &[u8]) -> Result<Vec<(String, PathBuf)>, String> {
    let mut found = Vec::new();
    lenient::each_batch(content, |entries| {
        for entry in entries.iter().filter_map(|entry| lenient::object(entry).ok()) {
            let text = |name| entry.get::<String>(name).ok().flatten();
            let is_mounted = matches!(entry.get("count"), Ok(Some(1_u64..)));
            if let (Some(id), Some(path), true) = (text("id"), text("path"), is_mounted) {
                found.push((id, PathBuf::from(path)));
            }
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_count() {
        let content =
            br#"[{"id":"a","path":"/g/overlay/a/merged","count":2},{"id":"b","path":"/x","count":0},
            {"id":"c","count":1},7,{"path":"/y","count":1}]"#;
        assert_eq!(parse(content).unwrap(), [("a".to_owned(), PathBuf::from("/g/overlay/a/merged"))]);
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(parse(b"[]").unwrap(), []);
        assert!(parse(b"[{").is_err());
    }
}
