//! Deleted files that processes have open, which still use space.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::namespaces::Unknown;
use super::processes::helper;
use super::processes::read::{ProcRecord, ProcessFacts};
pub use super::processes::records::Backing;
use super::processes::{Builder, describe_unknown};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedFile {
    /// Device number as `stat` reports it. The numbers of overlays and subvolumes are not those of a filesystem.
    pub device: u64,
    /// Filesystem that contains its bytes, if the device number is not that of a filesystem.
    pub backing: Option<Backing>,
    pub bytes: u64,
    /// Former name, in the mount namespace of the process.
    pub path: PathBuf,
    /// Process that has it open: `java (pid 17)`.
    pub holder: String,
}

#[derive(Clone, Debug, Default)]
pub struct DeletedFiles {
    /// Each file once, the largest first. Files on filesystems that wait for a server or a process are left out:
    /// querying their size may never return.
    pub files: Vec<DeletedFile>,
    /// Processes whose files are unknown because they do not answer, or because their mounts could not be read.
    pub unknown: Option<String>,
}

pub fn files() -> io::Result<DeletedFiles> {
    let mut deleted = DeletedFiles::default();
    let mut processes = Builder::default();
    let mut unread_mounts = Vec::new();
    let facts = ProcessFacts { deleted: true, files: true, ..ProcessFacts::default() };
    helper::ask(facts, &mut |record, body| match record {
        ProcRecord::Deleted { id, name, device, bytes, backing } => {
            let path = PathBuf::from(OsStr::from_bytes(body));
            let holder = format!("{name} (pid {id})");
            deleted.files.push(DeletedFile { device, backing, bytes, path, holder });
        }
        ProcRecord::Unknown { is_refused: true, .. } => {}
        ProcRecord::Unknown { pid, name, why, is_refused } => {
            unread_mounts.push(Unknown { pid, name, why, is_refused });
        }
        record => processes.take(&record, body),
    })?;
    deleted.unknown = describe_unknown(processes.finish().silent()).or_else(|| {
        describe_unknown(unread_mounts.iter()).map(|why| format!("deleted files are unknown: {why}"))
    });
    deleted.files.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    Ok(deleted)
}

/// Returns true if this process may examine all others (`CAP_SYS_PTRACE`), so that [`files`] misses none.
#[must_use]
pub fn sees_all_processes() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_SYS_PTRACE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn deleted_open_file_is_listed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gone");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let device = file.metadata().unwrap().dev();
        let before = files().unwrap();
        assert!(before.files.iter().all(|file| file.path != path), "it still has its name");
        std::fs::remove_file(&path).unwrap();
        let all = files().unwrap().files;
        let found: Vec<_> = all.iter().filter(|file| file.path == path).collect();
        assert_eq!(found.len(), 1, "{all:?}");
        assert_eq!(found[0].device, device);
        assert!(found[0].bytes >= 1 << 20);
        assert!(found[0].holder.contains(&format!("pid {}", std::process::id())));
    }
}
