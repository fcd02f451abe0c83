//! Paths inside a mounted root: what `/var/lib/containers` means on another system's disk.
//!
//! Following a symlink updates its access time unless the filesystem is mounted with `noatime`,
//! so mount a disk that must not change at all read-only or `noatime`. Only symlinks *on the way to* a
//! path are followed here, none inside a store.

mod lookup;
mod ostree;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

use super::beneath;
use super::quiet::{self, DirectoryEntry, FileKind};
use super::root::{self, Root};
use ostree::Ostree;

/// Maximum number of entries of a directory that is listed.
const MOST_ENTRIES: usize = 200_000;

/// The root below which every configured path is taken: `/`, or a mounted disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysroot {
    /// Canonical, if it exists.
    root: PathBuf,
    /// Where the parts of an ostree system lie, if this is the disk of one that is not running.
    ostree: Option<Ostree>,
}

impl Sysroot {
    #[must_use]
    pub fn live() -> Self {
        Self { root: PathBuf::from("/"), ostree: None }
    }

    /// A mounted root at `root`: post-mortem. `/` in any spelling is the running system.
    ///
    /// The root partition of an ostree system (RHEL `CoreOS`, Fedora `CoreOS`) does not look
    /// like a root while it is not running: `/var` is in `ostree/deploy/<stateroot>/var`, and
    /// everything else in a deployment, `ostree/deploy/<stateroot>/deploy/<name>`. So:
    ///
    /// * if the disk has no `/var/lib/containers`, everything below `/var` is taken from the
    ///   stateroot's `var`; of several stateroots the one that has `var/lib/containers` counts
    ///   (of several such, the first by name);
    /// * if the disk has no `/etc`, everything else is taken from the newest deployment of that
    ///   stateroot that has an `etc` (newest by change time, since ostree resets modification
    ///   times; then by name), and what is not found there from the disk itself.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let root = std::fs::canonicalize(root)
            .or_else(|_| std::path::absolute(root))
            .unwrap_or_else(|_| root.to_path_buf());
        let plain = Self { root, ostree: None };
        if !plain.is_foreign() {
            return plain;
        }
        let ostree = find_ostree(&plain);
        Self { ostree, ..plain }
    }

    /// Where it is mounted; `/` for the running system.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is another system's disk: read-only, no sockets, no locks.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Resolves `path`, absolute inside the root, to a path on this system. Symlinks are followed inside
    /// the root and never lead out of it; an absolute one starts again at the root, and `..`
    /// at the root stays there. Mounts below the root are entered.
    ///
    /// On the running system only symlinks of root's own are followed ([`Root::open`]): a user's
    /// could be another one the next moment.
    ///
    /// # Errors
    /// When it does not exist, cannot be examined, or goes through too many symlinks; on the running
    /// system also as [`Root::open`].
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        if !self.is_foreign() {
            return root::find(&std::path::absolute(path)?).map(|(_, path)| path);
        }
        let plain = || lookup::by_components(path, |inside| lookup::below(&self.root, inside));
        let Some(ostree) = &self.ostree else { return plain() };
        match lookup::by_components(path, |inside| ostree.place(&self.root, inside)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => plain(),
            other => other,
        }
    }

    /// Opens the directory that [`Self::resolve`] finds.
    pub fn open(&self, path: &Path) -> io::Result<Root> {
        if !self.is_foreign() {
            return Root::open(&std::path::absolute(path)?);
        }
        let placed = self.resolve(path)?;
        let inside = placed.strip_prefix(&self.root).unwrap_or(&placed);
        Root::open_in(&self.root, &Path::new("/").join(inside))
    }

    /// The path inside the root of something that [`Self::resolve`] placed for us; `host_path`
    /// itself if it is not in the root.
    #[must_use]
    pub fn display(&self, host_path: &Path) -> PathBuf {
        if !self.is_foreign() {
            return host_path.to_path_buf();
        }
        if let Some(inside) = self.ostree.as_ref().and_then(|ostree| ostree.display(host_path)) {
            return inside;
        }
        match host_path.strip_prefix(&self.root) {
            Ok(rest) => lookup::join(Path::new("/"), rest),
            Err(_) => host_path.to_path_buf(),
        }
    }

    /// The same as text.
    #[must_use]
    pub fn shown(&self, host_path: &Path) -> String {
        self.display(host_path).to_string_lossy().into_owned()
    }

    /// The text of a file inside the root, UTF-8, at most `limit_bytes` long. `/dev/null`
    /// reads as empty, since people name it to mean "no configuration".
    ///
    /// # Errors
    /// When it cannot be found or read, is not a regular file, is longer, or is not UTF-8.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> io::Result<String> {
        String::from_utf8(self.read_bytes(path, limit_bytes)?).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            io::Error::new(io::ErrorKind::InvalidData, format!("not valid UTF-8 at byte {at} on"))
        })
    }

    /// The bytes of a file inside the root, at most `limit_bytes` of them.
    pub fn read_bytes(&self, path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let (handle, placed) = self.handle(path)?;
        // Looked at before it is opened: opening a device or a FIFO can have effects.
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode);
        if kind == FileType::CharacterDevice && placed == Path::new("/dev/null") {
            return Ok(Vec::new());
        }
        match kind {
            FileType::RegularFile => {
                quiet::read_whole(File::from(beneath::reopen(handle.as_fd())?), limit_bytes)
            }
            FileType::Directory => {
                Err(io::Error::new(io::ErrorKind::IsADirectory, "a directory, not a file"))
            }
            _ => Err(quiet::not_regular()),
        }
    }

    /// What a path leads to, opened only to be examined, and where that is.
    fn handle(&self, path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
        if !self.is_foreign() {
            return root::find(&std::path::absolute(path)?);
        }
        let placed = self.resolve(path)?;
        Ok((rustix::fs::openat(CWD, &placed, beneath::HANDLE, Mode::empty())?, placed))
    }

    /// What is in a directory inside the root, sorted by name as bytes.
    ///
    /// # Errors
    /// When it cannot be found or listed, is not a directory, or holds more than 200,000 entries: a user may have
    /// made it.
    pub fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let root = self.open(path)?;
        let mut listed = 0_usize;
        let admit = || {
            listed += 1;
            let too_many = || io::Error::other(format!("holds more than {MOST_ENTRIES} entries"));
            if listed > MOST_ENTRIES { Err(too_many()) } else { Ok(()) }
        };
        quiet::entries(root.directory()?, admit, |name| quiet::kind_in(root.fd(), name))
    }
}

/// Looks for the layout on a disk; `None` if it is not there or not needed.
fn find_ostree(disk: &Sysroot) -> Option<Ostree> {
    let needs_var = disk.resolve(Path::new("/var/lib/containers")).is_err();
    let needs_etc = disk.resolve(Path::new("/etc")).is_err();
    if !needs_var && !needs_etc {
        return None;
    }
    let stateroots = directories(disk, Path::new("/ostree/deploy"));
    let with_var = |stateroot: &&PathBuf| disk.resolve(&stateroot.join("var")).is_ok();
    let with_containers = |stateroot: &&PathBuf| disk.resolve(&stateroot.join("var/lib/containers")).is_ok();
    let stateroot = (stateroots.iter().find(with_containers))
        .or_else(|| stateroots.iter().find(with_var))
        .or_else(|| stateroots.first())?;
    let var = if needs_var { disk.resolve(&stateroot.join("var")).ok() } else { None };
    let deployment = if needs_etc { newest_deployment(disk, stateroot) } else { None };
    (var.is_some() || deployment.is_some()).then_some(Ostree { var, deployment })
}

/// The newest deployment of a stateroot that has an `etc`.
fn newest_deployment(disk: &Sysroot, stateroot: &Path) -> Option<PathBuf> {
    directories(disk, &stateroot.join("deploy"))
        .into_iter()
        .filter(|deployment| disk.resolve(&deployment.join("etc")).is_ok())
        .filter_map(|deployment| {
            let placed = disk.resolve(&deployment).ok()?;
            let metadata = std::fs::symlink_metadata(&placed).ok()?;
            Some(((metadata.ctime(), metadata.ctime_nsec(), deployment), placed))
        })
        .max_by(|left, right| left.0.cmp(&right.0))
        .map(|(_, placed)| placed)
}

/// The directories (no symlinks) in a directory, by name. What cannot be listed has none: then
/// the disk is simply not recognised as one of ostree's.
fn directories(disk: &Sysroot, inside: &Path) -> Vec<PathBuf> {
    let entries = disk.list(inside).unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| entry.kind == FileKind::Directory)
        .map(|entry| inside.join(entry.name))
        .collect()
}

#[cfg(test)]
mod tests;
