//! Evidence of use: mounts on, from or below a path to delete, in any namespace, and processes that use it.
//!
//! Any user can create enough mounts and processes to make reading them slow. So they are read before the store's locks
//! are taken. Under the locks only two small things are compared with their state before: this process's own mount
//! table, and the library's mount counts, which it updates on every mount.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::directory::Directory;
use super::error::{Fault, Refusal};
use super::store_directory::StoreDirectory;
use crate::stores::containers_storage::inspect::mountpoints::{self, Mounted};
use crate::stores::containers_storage::places::RecordKind;
use crate::sys::beneath::AS_IT_IS;
use crate::sys::namespaces::Mounts;
use crate::sys::users;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Mounts,
    /// Mounts, and the files that processes and the kernel have open.
    Processes,
}

/// The mounts and processes of the machine as of one moment.
#[derive(Debug)]
pub(super) struct UseEvidence {
    mounts: Mounts,
    /// Mount table of this process, before the others were read.
    own_table: Vec<u8>,
    /// Mount counts of the library, before the mount tables were read.
    counts: Vec<Count>,
    /// Layers that the library has mounted since, or may have mounted.
    since: HashSet<String>,
}

impl UseEvidence {
    /// Reads the mounts and processes that may use a store's directories.
    pub(super) fn of_store(
        directories: &[StoreDirectory],
        read: Read,
        trusts_namespace: bool,
    ) -> Result<Self, Refusal> {
        let paths = directories.iter().flat_map(|directory| {
            let records = RecordKind::ALL.into_iter().filter_map(|kind| directory.records(kind));
            directory.driver.iter().chain(records).map(|directory| directory.path().to_path_buf())
        });
        let counts = Count::of(directories)?;
        let evidence = Self::of_directories(&paths.collect::<Vec<_>>(), read, trusts_namespace)?;
        Ok(Self { counts, ..evidence })
    }

    /// Reads the mounts and processes that may use directories that no lock guards.
    pub(super) fn of_directories(
        directories: &[PathBuf],
        read: Read,
        trusts_namespace: bool,
    ) -> Result<Self, Refusal> {
        let own_table = std::fs::read(OWN_MOUNT_TABLE).map_err(mounts_unknown)?;
        let mounts = match read {
            Read::Mounts => Mounts::read(directories),
            Read::Processes => Mounts::read_with_processes(directories),
        };
        let mounts = mounts.map_err(mounts_unknown)?;
        if read == Read::Processes {
            // The index is built now, since it must not be built under the locks.
            let _ = mounts.processes().by_name();
        }
        if !mounts.sees_all() && !trusts_namespace {
            return Err(Refusal::ProcessesHidden);
        }
        if let Some(unknown) = mounts.unknown_views().first() {
            return Err(Refusal::MountsUnknown(unknown.to_string()));
        }
        Ok(Self { mounts, own_table, counts: Vec::new(), since: HashSet::new() })
    }

    /// Adds the mounts that this process's namespace and the library got since. Returns false if they cannot be
    /// determined. To be called under the locks: the library mounts a layer only under the same lock, so its counts do
    /// not grow any more.
    pub(super) fn is_current(&mut self, directories: &[StoreDirectory]) -> Result<bool, Refusal> {
        for (before, now) in self.counts.iter().zip(Count::of(directories)?) {
            if *before == now {
                continue;
            }
            let Some(mounted) = &now.mounted else { return Ok(false) };
            let known = before.mounted.as_deref().unwrap_or_default();
            let new = mounted.iter().filter(|mount| !known.contains(mount));
            self.since.extend(new.map(|mount| mount.layer.clone()));
        }
        let own_table = std::fs::read(OWN_MOUNT_TABLE).map_err(mounts_unknown)?;
        if own_table != self.own_table {
            self.mounts.add_own(&new_lines(&self.own_table, &own_table)).map_err(mounts_unknown)?;
            self.own_table = own_table;
        }
        Ok(true)
    }

    /// Refuses if anything is mounted on, from or below `path`, which is absolute. `words` refer to it in an overlay's
    /// options: a layer's id, the names of its links.
    pub(super) fn prove_unmounted(&self, path: &Path, words: &[&str]) -> Result<(), Refusal> {
        let name = path.file_name().and_then(|name| name.to_str());
        if words.iter().copied().chain(name).any(|word| self.since.contains(word)) {
            let why = "it has just been mounted".to_owned();
            return Err(Refusal::Busy { path: path.to_path_buf(), why });
        }
        match self.mounts.user(path, words) {
            None => Ok(()),
            Some(user) => Err(Refusal::Mounted {
                path: path.to_path_buf(),
                mount_point: user.mount.mount_point.clone(),
                pid: user.pid,
            }),
        }
    }

    /// Refuses if the directory in `layers` of a layer with these short names is mounted.
    pub(super) fn prove_layer_unmounted(
        &self,
        layers: &Directory,
        id: &str,
        links: &BTreeSet<String>,
    ) -> Result<(), Refusal> {
        let words: Vec<_> = std::iter::once(id).chain(links.iter().map(String::as_str)).collect();
        self.prove_unmounted(&layers.path().join(id), &words)
    }

    /// Names of the directories in `parent` that [`Self::prove_unmounted`] may refuse, and words of overlays' options.
    pub(super) fn names_in_use(&self, parent: &Path) -> impl Iterator<Item = &OsStr> {
        self.mounts.names_below(parent)
    }

    /// Returns true if `word`, a short name, is in an overlay's options.
    pub(super) fn has_overlay_on(&self, word: &str) -> bool {
        self.mounts.has_overlay_on(word)
    }

    /// Refuses if a process belongs to the container, even if the container has no record: conmon, whose working
    /// directory is the container's, and the processes in its control group.
    pub(super) fn prove_no_process(&self, id: &str) -> Result<(), Refusal> {
        match self.mounts.processes().of_container(id) {
            None => Ok(()),
            Some(process) => {
                Err(Refusal::Process { pid: process.id, command: process.name.clone(), id: id.to_owned() })
            }
        }
    }

    /// Refuses if a process or the kernel uses `path` or anything below it, with any way to it, or if that is unknown.
    pub(super) fn prove_not_held(&self, path: &Path) -> Result<(), Refusal> {
        let processes = self.mounts.processes();
        if let Some(process) = processes.holding(path) {
            let why = format!("{} uses it", process.describe());
            return Err(Refusal::Busy { path: path.to_path_buf(), why });
        }
        // A user cannot inspect root's processes: in a store of the user's own, the user's processes decide.
        let is_root = rustix::process::geteuid().is_root() && users::is_first_user_namespace();
        let directory = path.parent().filter(|_| is_root && self.mounts.sees_all());
        let doubt = directory.and_then(|directory| processes.doubt(directory));
        doubt.map_or(Ok(()), |why| Err(Refusal::MountsUnknown(why)))
    }

    /// The processes, if they were read ([`Read::Processes`]).
    pub(super) fn processes(&self) -> &crate::sys::processes::Processes {
        self.mounts.processes()
    }
}

const OWN_MOUNT_TABLE: &str = "/proc/self/mountinfo";

fn mounts_unknown(error: std::io::Error) -> Refusal {
    Refusal::MountsUnknown(format!("mounts of processes are unknown: {error}"))
}

/// Lines that a newer mount table has in addition, with the lines of their parent mounts.
fn new_lines(old: &[u8], new: &[u8]) -> Vec<u8> {
    fn lines(table: &[u8]) -> impl Iterator<Item = &[u8]> {
        table.split_inclusive(|byte| *byte == b'\n')
    }
    fn field(line: &[u8], position: usize) -> Option<&[u8]> {
        line.split(|byte| *byte == b' ').nth(position)
    }
    let known: HashSet<&[u8]> = lines(old).collect();
    let added: Vec<&[u8]> = lines(new).filter(|line| !known.contains(line)).collect();
    let parents: HashSet<_> = added.iter().filter_map(|line| field(line, 1)).collect();
    let below = lines(new).filter(|line| {
        known.contains(line) && field(line, 0).is_some_and(|mount_id| parents.contains(mount_id))
    });
    below.chain(added.iter().copied()).flatten().copied().collect()
}

/// State of the library's `mountpoints.json`: the token that the library writes into the file's lock at every change,
/// and the identity of the file, which it replaces.
#[derive(Debug, PartialEq, Eq)]
struct Count {
    token: Vec<u8>,
    /// Inode number, size, and `st_ctime` in seconds and nanoseconds.
    file: Option<(u64, i64, i64, i64)>,
    /// `None` if the file cannot be parsed.
    mounted: Option<Vec<Mounted>>,
}

impl Count {
    fn of(directories: &[StoreDirectory]) -> Result<Vec<Self>, Refusal> {
        let directories = directories.iter().filter_map(|directory| directory.records(RecordKind::Layers));
        let counts = directories.map(Self::read).collect::<Result<_, Fault>>();
        counts.map_err(|fault| Refusal::MountsUnknown(format!("mounts of the store are unknown: {fault}")))
    }

    fn read(directory: &Directory) -> Result<Self, Fault> {
        let mut token = vec![0; 64];
        let length = directory
            .open("mountpoints.lock", OFlags::RDONLY)?
            .map_or(0, |lock| lock.read_at(&mut token, 0).unwrap_or(0));
        token.truncate(length);
        let stat = rustix::fs::statat(directory.fd(), "mountpoints.json", AS_IT_IS).ok();
        let file = stat.map(|stat| (stat.st_ino, stat.st_size, stat.st_ctime, stat.st_ctime_nsec as i64));
        let content = directory.read("mountpoints.json", mountpoints::MOST_BYTES)?.unwrap_or_default();
        let mounted = mountpoints::parse(&content).ok();
        Ok(Self { token, file, mounted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_mounts_are_found_with_their_parents() {
        let old = b"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /a rw - ext4 b rw\n3 1 8:2 / /b rw - ext4 b rw\n";
        assert_eq!(new_lines(old, old), b"");
        let new = b"1 0 8:1 / / rw - ext4 a rw\n3 1 8:2 / /b rw - ext4 b rw\n9 3 8:2 / /b/c rw - ext4 b rw\n";
        assert_eq!(
            new_lines(old, new),
            b"3 1 8:2 / /b rw - ext4 b rw\n9 3 8:2 / /b/c rw - ext4 b rw\n",
            "with its parent mount"
        );
    }
}
