//! Paths inside a mounted root: what `/var/lib/containers` means on somebody else's disk.
//! (Under construction.)

use std::path::{Path, PathBuf};

/// The root below which every configured path is taken: `/`, or a mounted disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysroot {
    root: PathBuf,
}

impl Sysroot {
    /// The running system.
    #[must_use]
    pub fn live() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// A mounted root at `root`: post-mortem.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Whether this is somebody else's disk: read-only, no sockets, no locks.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.root != Path::new("/")
    }

    /// Where `path`, absolute inside the root, lies for us. Symlinks are followed inside
    /// the root and never lead out of it.
    ///
    /// # Errors
    /// When it does not exist or cannot be examined.
    pub fn resolve(&self, path: &Path) -> std::io::Result<PathBuf> {
        Ok(self.root.join(path.strip_prefix("/").unwrap_or(path)))
    }
}
