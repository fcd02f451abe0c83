//! Paths inside a mounted root: the place of `/var/lib/containers` on another system's disk.
//!
//! Following a symlink updates its access time unless the filesystem is mounted with `noatime`. A disk that must
//! not change at all should be mounted read-only or with `noatime`. Only symlinks on the path *to* a directory are
//! followed here, none inside a store.

mod lookup;
mod ostree;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode};

use super::beneath;
use super::quiet::{self, DirectoryEntry, FileKind};
use super::root::{self, OpenedDirectories, Root};
use super::users;
use ostree::Ostree;

const MAX_ENTRIES: usize = 200_000;

/// Root of all configured paths: `/`, or a mounted disk.
#[derive(Clone, Debug)]
pub struct Sysroot {
    /// Canonical, if it exists.
    root: PathBuf,
    /// Parts of an ostree system, if this is the disk of one that is not running.
    ostree: Option<Ostree>,
    /// Directories that the lookups of one moment share; `None`: each lookup is by itself.
    opened: Option<Arc<OpenedDirectories>>,
}

impl Sysroot {
    #[must_use]
    pub fn live() -> Self {
        Self { root: PathBuf::from("/"), ostree: None, opened: None }
    }

    /// Returns the same root as it is now: on the running system, no directory is opened twice by this value and its
    /// clones, and changes are not seen. It is for one look at the configuration, and dropped afterwards.
    #[must_use]
    pub fn at_once(&self) -> Self {
        Self { opened: (!self.is_foreign()).then(Arc::default), ..self.clone() }
    }

    /// Creates a sysroot for a mounted root at `root` (post-mortem). `/` in any spelling is the running system.
    ///
    /// The root partition of an ostree system (RHEL `CoreOS`, Fedora `CoreOS`) does not look like a root while it
    /// is not running: `/var` is in `ostree/deploy/<stateroot>/var`, and everything else in a deployment,
    /// `ostree/deploy/<stateroot>/deploy/<name>`. Therefore:
    ///
    /// * If the disk has no `/var/lib/containers`, everything below `/var` is taken from the
    ///   stateroot's `var`. If there are several stateroots, the first by name that has
    ///   `var/lib/containers` is used.
    /// * If the disk has no `/etc`, everything else is taken from the newest deployment of that
    ///   stateroot that has an `etc` (newest by change time, since ostree resets modification
    ///   times; then by name), and anything that is missing there from the disk itself.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let root = std::fs::canonicalize(root)
            .or_else(|_| std::path::absolute(root))
            .unwrap_or_else(|_| root.to_path_buf());
        let plain = Self { root, ostree: None, opened: None };
        if !plain.is_foreign() {
            return plain;
        }
        let ostree = find_ostree(&plain);
        Self { ostree, ..plain }
    }

    /// Returns the mount point; `/` for the running system.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns whether this is another system's disk: read-only, no sockets, no locks.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Resolves `path`, absolute inside the root, to a path on this system. Symlinks are followed inside the root
    /// and never lead out of it: an absolute one starts again at the root, and `..` at the root has no effect.
    /// Mounts below the root are entered.
    ///
    /// On the running system only root's own symlinks are followed ([`Root::open`]), because a user could replace
    /// another one at any time.
    ///
    /// # Errors
    /// If it does not exist, cannot be examined, or contains too many symlinks; on the running system also the
    /// errors of [`Root::open`].
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        if !self.is_foreign() {
            return self.find(path).map(|(_, path)| path);
        }
        if let Some(ostree) = &self.ostree {
            match lookup::by_components(path, |inside| ostree.place(&self.root, inside)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
        }
        lookup::by_components(path, |inside| lookup::below(&self.root, inside))
    }

    /// Opens the directory that [`Self::resolve`] returns.
    pub fn open(&self, path: &Path) -> io::Result<Root> {
        if !self.is_foreign() {
            let path = std::path::absolute(path)?;
            return match &self.opened {
                Some(opened) => Root::open_once(opened, &path),
                None => Root::open(&path),
            };
        }
        let placed = self.resolve(path)?;
        let inside = placed.strip_prefix(&self.root).unwrap_or(&placed);
        Root::open_in(&self.root, &Path::new("/").join(inside))
    }

    /// Returns the path inside the root for a path that [`Self::resolve`] returned; `host_path` itself if it is not
    /// in the root.
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

    #[must_use]
    pub fn shown(&self, host_path: &Path) -> String {
        self.display(host_path).to_string_lossy().into_owned()
    }

    /// Returns the name of a user from its `/etc/passwd` alone; `uid N` if it has none.
    #[must_use]
    pub fn user_name(&self, uid: u32) -> String {
        /// Maximum size of the file; a larger one is not read.
        const MAX_BYTES: u64 = 16 << 20;
        users::find(&self.read(Path::new("/etc/passwd"), MAX_BYTES).unwrap_or_default(), uid)
    }

    /// Reads a text file inside the root: UTF-8, at most `limit_bytes` long. `/dev/null` reads as empty, since
    /// users name it to mean "no configuration".
    ///
    /// # Errors
    /// If it cannot be found or read, is not a regular file, is longer, or is not UTF-8.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> io::Result<String> {
        String::from_utf8(self.read_bytes(path, limit_bytes)?).map_err(|error| {
            let position = error.utf8_error().valid_up_to();
            io::Error::new(io::ErrorKind::InvalidData, format!("not valid UTF-8 at byte {position} on"))
        })
    }

    /// Reads a file inside the root of at most `limit_bytes` bytes.
    pub fn read_bytes(&self, path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let (handle, placed) = self.handle(path)?;
        // The kind is checked before opening, since opening a device or a FIFO can have effects.
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

    fn handle(&self, path: &Path) -> io::Result<(Arc<OwnedFd>, PathBuf)> {
        if !self.is_foreign() {
            return self.find(path);
        }
        let placed = self.resolve(path)?;
        Ok((Arc::new(rustix::fs::openat(CWD, &placed, beneath::HANDLE, Mode::empty())?), placed))
    }

    fn find(&self, path: &Path) -> io::Result<(Arc<OwnedFd>, PathBuf)> {
        let path = std::path::absolute(path)?;
        match &self.opened {
            Some(opened) => root::find_once(opened, &path),
            None => root::find(&path),
        }
    }

    /// Lists a directory inside the root, sorted by name as bytes.
    ///
    /// # Errors
    /// If it cannot be found or listed, is not a directory, or contains more than 200,000 entries, as a user may
    /// have created.
    pub fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let root = self.open(path)?;
        let mut listed = 0_usize;
        quiet::entries(
            root.directory()?,
            || {
                listed += 1;
                if listed > MAX_ENTRIES {
                    Err(io::Error::other(format!("holds more than {MAX_ENTRIES} entries")))
                } else {
                    Ok(())
                }
            },
            |name| quiet::kind_in(root.fd(), name),
        )
    }
}

/// Finds the ostree layout of a disk; `None` if the disk has or needs none.
fn find_ostree(disk: &Sysroot) -> Option<Ostree> {
    let needs_var = disk.resolve(Path::new("/var/lib/containers")).is_err();
    let needs_etc = disk.resolve(Path::new("/etc")).is_err();
    if !needs_var && !needs_etc {
        return None;
    }
    let stateroots = directories(disk, Path::new("/ostree/deploy"));
    let has = |stateroot: &Path, inside: &str| disk.resolve(&stateroot.join(inside)).is_ok();
    let stateroot = (stateroots.iter().find(|stateroot| has(stateroot, "var/lib/containers")))
        .or_else(|| stateroots.iter().find(|stateroot| has(stateroot, "var")))
        .or_else(|| stateroots.first())?;
    let var = if needs_var { disk.resolve(&stateroot.join("var")).ok() } else { None };
    let deployment = if needs_etc { newest_deployment(disk, stateroot) } else { None };
    (var.is_some() || deployment.is_some()).then_some(Ostree { var, deployment })
}

/// Returns the newest deployment of a stateroot that has an `etc`.
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

/// Returns the directories (no symlinks) in a directory, by name. Empty if it cannot be listed: then the disk is
/// not recognised as one of ostree.
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
