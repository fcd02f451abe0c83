//! Files that processes have open: deleted ones, which still use space, and the names of the others.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::helper;
pub use super::processes::read::Backing;
use super::processes::read::{ProcRecord, ProcessFacts};

/// Deleted file that a process has open.
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

/// Files that processes have open.
#[derive(Clone, Debug, Default)]
pub struct OpenFiles {
    /// Deleted files, each once, the largest first. Files on filesystems that wait for a server or a process are left
    /// out: querying their size may never return.
    pub deleted: Vec<DeletedFile>,
    /// File names without directories: a process in a container sees the file under another path.
    names: HashSet<OsString>,
    /// The files of every process are known.
    is_complete: bool,
}

impl OpenFiles {
    /// Returns true if a process has, or may have, this file open. A false match is safe: no deletion of the file is
    /// suggested.
    #[must_use]
    pub fn may_contain(&self, file: &Path) -> bool {
        !self.is_complete || file.file_name().is_none_or(|name| self.names.contains(name))
    }
}

/// Reads the files that processes, loop devices and the swap have open.
pub fn files() -> io::Result<OpenFiles> {
    let mut open = OpenFiles::default();
    let mut is_hidden = false;
    let facts = ProcessFacts { deleted: true, files: true, ..ProcessFacts::default() };
    helper::ask(facts, &mut |record, body| match record {
        ProcRecord::Begin { sees_all } => is_hidden |= !sees_all,
        ProcRecord::Process { is_hidden: hides, .. } => is_hidden |= hides,
        ProcRecord::Files { is_complete, .. } => {
            is_hidden |= !is_complete;
            open.add_names(body.split(|byte| *byte == 0));
        }
        ProcRecord::Deleted { id, name, device, bytes, backing } => {
            let path = PathBuf::from(OsStr::from_bytes(body));
            let holder = format!("{name} (pid {id})");
            open.deleted.push(DeletedFile { device, backing, bytes, path, holder });
        }
        ProcRecord::End => open.is_complete = !is_hidden,
        _ => {}
    })?;
    // The kernel itself holds these open.
    for device in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = std::fs::read(device.path().join("loop/backing_file")).unwrap_or_default();
        open.add_names(backing.split(|byte| *byte == b'\n'));
    }
    let swaps = std::fs::read("/proc/swaps").unwrap_or_default();
    open.add_names(swaps.split(|byte| byte.is_ascii_whitespace()));
    open.deleted.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    Ok(open)
}

impl OpenFiles {
    fn add_names<'a>(&mut self, paths: impl Iterator<Item = &'a [u8]>) {
        let names = paths.filter_map(|path| Path::new(OsStr::from_bytes(path)).file_name());
        self.names.extend(names.map(OsStr::to_os_string));
    }
}

/// Returns true if this process may examine all others (`CAP_SYS_PTRACE`), so that [`files`] misses none.
#[must_use]
pub fn sees_all_processes() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
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
        assert!(before.deleted.iter().all(|file| file.path != path), "it still has its name");
        // This process itself is no user of a file.
        let mut other = std::process::Command::new("sleep");
        let mut other = other.arg("60").stdin(std::fs::File::open(&path).unwrap()).spawn().unwrap();
        let open = files().unwrap();
        other.kill().and_then(|()| other.wait()).unwrap();
        assert!(open.may_contain(&path), "{open:?}");
        std::fs::remove_file(&path).unwrap();
        let all = files().unwrap().deleted;
        let found: Vec<_> = all.iter().filter(|file| file.path == path).collect();
        assert_eq!(found.len(), 1, "{all:?}");
        assert_eq!(found[0].device, device);
        assert!(found[0].bytes >= 1 << 20);
        assert!(found[0].holder.contains(&format!("pid {}", std::process::id())));
    }
}
