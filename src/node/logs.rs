//! Logs of pods and the symlinks to them: their sizes, and the processes that read them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use walkdir::WalkDir;

use super::places::KubeletPlaces;
use crate::sys::processes::Processes;
use crate::sys::quiet::FileKind;
use crate::sys::readlink::Untraced;
use crate::sys::sysroot::Sysroot;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDirectory {
    /// `<namespace>_<pod>_<uid>`.
    pub name: OsString,
    /// Path on this system, not inside the root.
    pub path: PathBuf,
    pub size: LogSize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSize {
    /// Allocated bytes that their deletion frees. Files with hard links outside of the tree are not included.
    pub bytes: u64,
    pub inodes: u64,
    /// Latest modification time in the tree; `None` if an entry could not be examined.
    pub newest: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: OsString,
    /// Path on this system, not inside the root.
    pub path: PathBuf,
    /// Target as written, unresolved.
    pub target: PathBuf,
    pub dangling: bool,
}

/// Lists the directories of logs with their sizes, sorted by name. The list is empty if the directory that contains
/// them does not exist.
pub fn directories(root: &Sysroot, places: &KubeletPlaces) -> io::Result<Vec<LogDirectory>> {
    let Some(place) = resolved(root, &places.pod_logs)? else { return Ok(Vec::new()) };
    let mut directories = Vec::new();
    for entry in root.list(&places.pod_logs)? {
        if entry.kind == FileKind::Directory {
            let path = place.join(&entry.name);
            let size = measure(&path);
            directories.push(LogDirectory { name: entry.name, path, size });
        }
    }
    Ok(directories)
}

/// Lists the symlinks to logs, sorted by name. The list is empty if their directory does not exist.
pub fn links(root: &Sysroot, places: &KubeletPlaces) -> io::Result<Vec<Link>> {
    let Some(place) = resolved(root, &places.container_logs)? else { return Ok(Vec::new()) };
    let untraced = std::fs::File::open(&place).and_then(|open| {
        use std::os::fd::AsFd;
        Untraced::of(open.as_fd())
    });
    let entries = root.list(&places.container_logs)?.into_iter();
    let mut links = Vec::new();
    for entry in entries.filter(|entry| entry.kind == FileKind::Symlink) {
        let path = place.join(&entry.name);
        let target = match &untraced {
            Ok(untraced) => untraced.target(&entry.name).map(PathBuf::from),
            Err(_) => std::fs::read_link(&path),
        };
        match target {
            Ok(target) => links.push(Link { dangling: is_dangling(&path), name: entry.name, path, target }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
    Ok(links)
}

#[must_use]
pub fn is_dangling(path: &Path) -> bool {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|facts| facts.is_symlink());
    is_link && std::fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the real path of `path`, without symlinks, or `None` if it does not exist.
fn resolved(root: &Sysroot, path: &Path) -> io::Result<Option<PathBuf>> {
    match root.resolve(path) {
        Ok(path) => Ok(Some(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Measures a tree or a single file, on one filesystem.
#[must_use]
pub fn measure(path: &Path) -> LogSize {
    let mut size = LogSize::default();
    let mut newest = None;
    let mut is_complete = true;
    // Files with several hard links, by device and inode: total links, bytes, links found in the tree. A file is freed
    // only if all its links are in the tree.
    let mut linked: HashMap<(u64, u64), (u64, u64, u64)> = HashMap::new();
    for entry in WalkDir::new(path).same_file_system(true) {
        let Ok(facts) = entry.and_then(|entry| entry.metadata()) else {
            is_complete = false;
            continue;
        };
        let bytes = facts.blocks() * 512;
        let nanoseconds = i32::try_from(facts.mtime_nsec()).unwrap_or(0);
        newest = newest.max(Timestamp::new(facts.mtime(), nanoseconds).ok());
        if facts.is_dir() || facts.nlink() == 1 {
            size.bytes += bytes;
            size.inodes += 1;
        } else {
            linked.entry((facts.dev(), facts.ino())).or_insert((facts.nlink(), bytes, 0)).2 += 1;
        }
    }
    for (links, bytes, found) in linked.into_values() {
        if found >= links {
            size.bytes += bytes;
            size.inodes += 1;
        }
    }
    size.newest = newest.filter(|_| is_complete);
    size
}

/// Returns the process that has a file of a log directory open, or the log file `path`.
///
/// A process in a container knows a log file by another path, so the last three components of its path are compared.
///
/// # Errors
/// If not all processes can be inspected, because a process that has the file open may be missed.
pub fn reader(processes: &Processes, path: &Path) -> Result<Option<String>, String> {
    let parts: Vec<_> = path.components().collect();
    let tail: PathBuf = parts.iter().rev().take(3).rev().collect();
    let found = if is_log_file(path) { processes.holding_tail(&tail) } else { processes.holding(path) };
    match found {
        Some(process) => Ok(Some(process.describe())),
        None => processes.doubt(path).map_or(Ok(None), Err),
    }
}

fn is_log_file(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.ends_with(".log") || name.contains(".log.")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sys::processes::Process;

    fn node() -> (tempfile::TempDir, KubeletPlaces) {
        let top = tempfile::tempdir().unwrap();
        let places = KubeletPlaces {
            pod_logs: top.path().join("pods"),
            container_logs: top.path().join("containers"),
            ..KubeletPlaces::default()
        };
        (top, places)
    }

    #[test]
    fn directory_size_excludes_files_linked_elsewhere() {
        let (top, places) = node();
        let live = Sysroot::live();
        assert_eq!(directories(&live, &places).unwrap(), []);
        let web = places.pod_logs.join("ns_web_1/app");
        fs::create_dir_all(&web).unwrap();
        fs::write(web.join("0.log"), [b'x'; 20_000]).unwrap();
        fs::write(web.join("1.log"), [b'x'; 20_000]).unwrap();
        fs::hard_link(web.join("1.log"), web.join("1.copy")).unwrap();
        fs::write(web.join("2.log"), [b'x'; 20_000]).unwrap();
        fs::hard_link(web.join("2.log"), top.path().join("elsewhere")).unwrap();
        symlink("/etc", web.join("link")).unwrap();
        fs::write(places.pod_logs.join("a-file"), b"x").unwrap();
        symlink("/etc", places.pod_logs.join("a_b_link")).unwrap();
        let found = directories(&live, &places).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let parts = [
            web.parent().unwrap().into(),
            web.clone(),
            web.join("0.log"),
            web.join("1.log"),
            web.join("link"),
        ];
        let expected: u64 =
            parts.iter().map(|path: &PathBuf| fs::symlink_metadata(path).unwrap().blocks() * 512).sum();
        assert_eq!((found[0].size.bytes, found[0].size.inodes), (expected, 5), "2.log stays elsewhere");
        assert!(found[0].size.newest.is_some());
        assert_eq!(found[0].path, fs::canonicalize(&places.pod_logs).unwrap().join("ns_web_1"));
    }

    #[test]
    fn dangling_links_are_recognised() {
        let (_top, places) = node();
        let live = Sysroot::live();
        assert_eq!(links(&live, &places).unwrap(), []);
        fs::create_dir_all(&places.container_logs).unwrap();
        fs::create_dir_all(&places.pod_logs).unwrap();
        fs::write(places.pod_logs.join("there"), b"x").unwrap();
        symlink(places.pod_logs.join("there"), places.container_logs.join("b")).unwrap();
        symlink(places.pod_logs.join("gone"), places.container_logs.join("a")).unwrap();
        symlink("c", places.container_logs.join("c")).unwrap();
        fs::write(places.container_logs.join("d"), b"x").unwrap();
        let found = links(&live, &places).unwrap();
        let found: Vec<_> = found.iter().map(|link| (link.name.to_str().unwrap(), link.dangling)).collect();
        assert_eq!(found, [("a", true), ("b", false), ("c", false)], "a loop is not a missing log");
        assert!(!is_dangling(&places.container_logs.join("none")));
    }

    #[test]
    fn reader_is_found_by_end_of_path() {
        let process = Process {
            id: 7,
            name: "fluent-bit".into(),
            holds: vec!["/host/var/log/pods/ns_web_1/app/0.log".into()],
            ..Process::default()
        };
        let processes = Processes::of(vec![process], true);
        let read = |path: &str| reader(&processes, Path::new(path));
        assert_eq!(read("/var/log/pods/ns_web_1"), Ok(Some("fluent-bit (pid 7)".into())));
        assert_eq!(read("/var/log/pods/ns_web_1/app/0.log"), Ok(Some("fluent-bit (pid 7)".into())));
        assert_eq!(read("/var/log/pods/ns_web_1/app/1.log"), Ok(None));
        assert_eq!(read("/var/log/pods/ns_web_1/other/0.log"), Ok(None));
        assert_eq!(read("/var/log/pods/ns_web_2"), Ok(None));
        let hidden = Processes::of(vec![], false);
        assert!(reader(&hidden, Path::new("/var/log/pods/ns_web_1")).is_err());
    }
}
