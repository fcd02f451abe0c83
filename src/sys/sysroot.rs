//! Paths inside a mounted root: what `/var/lib/containers` means on another system's disk.
//!
//! Following a symlink updates its access time unless the filesystem is mounted with `noatime`,
//! so mount a disk that must not change at all read-only or `noatime`. Only symlinks *on the way to* a
//! path are followed here, none inside a store.

mod at;
mod lookup;
mod ostree;
mod reading;

use std::io;
use std::path::{Path, PathBuf};

use super::root::{self, Root};
use ostree::Ostree;
pub use reading::{EntryKind, SysrootEntry};

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
        let Some(ostree) = &self.ostree else {
            return lookup::in_root(&self.root, path);
        };
        match lookup::by_components(path, |inside| ostree.place(&self.root, inside)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => lookup::in_root(&self.root, path),
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
}

#[cfg(test)]
mod tests;
