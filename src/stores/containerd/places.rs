//! Paths below containerd's root. The directory of a plugin is named after its type and id.

use std::io;
use std::path::{Path, PathBuf};

use crate::sys::quiet::{self, Within};
use crate::sys::root::Root;

pub const CONTENT: &str = "io.containerd.content.v1.content";
pub const META_DB: &str = "io.containerd.metadata.v1.bolt/meta.db";
/// Start of the name of a snapshotter's directory; the snapshotter's name follows.
pub const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1.";
/// Directory of CRI; its name has not changed in containerd 2.
pub const CRI: &str = "io.containerd.grpc.v1.cri";
/// Working directories of the runtime, normally empty.
pub const TASKS: &str = "io.containerd.runtime.v2.task";
pub const TMP_MOUNTS: &str = "tmpmounts";
/// Snapshotters that store each snapshot in a directory or file of its own: [`Backend::place`].
///
/// [`Backend::place`]: super::snapshot::Backend::place
pub const PLAIN: [&str; 5] = ["overlayfs", "native", "blockfile", "erofs", "btrfs"];
/// Directories of a snapshotter that contain one entry for each snapshot. Only btrfs has the last two, for writable and
/// for read-only snapshots.
pub const OF_SNAPSHOTS: [&str; 3] = ["snapshots", "active", "view"];

/// An image that the configuration protects, and the file that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredPin {
    pub image: String,
    pub origin: String,
}

/// A snapshotter that runs beside containerd (proxy plugin), and its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    pub name: String,
    pub directory: PathBuf,
    /// Directory in it that contains `metadata.db` and `snapshots`, if there is one.
    pub data: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerdPlaces {
    pub root: PathBuf,
    /// State directory, if it is known and belongs to the running system.
    pub state: Option<PathBuf>,
    /// Snapshotters with a configured directory: name and directory.
    pub snapshotters: Vec<(String, PathBuf)>,
    pub proxies: Vec<Proxy>,
    /// Directories with layers for the erofs snapshotter, to which containerd never writes.
    pub layer_caches: Vec<PathBuf>,
    /// Data root of the Docker that uses this containerd.
    pub docker_data: Option<PathBuf>,
    pub pins: Vec<ConfiguredPin>,
    /// True for a store on another system's disk, to which no process writes.
    pub foreign: bool,
}

impl ContainerdPlaces {
    /// Returns the default locations below `root`.
    #[must_use]
    pub fn at(root: &Path, foreign: bool) -> Self {
        Self { root: root.to_path_buf(), foreign, ..Self::default() }
    }

    /// Returns access to the root and the snapshotters' directories that does not follow symlinks.
    #[must_use]
    pub fn within(&self) -> Within {
        let configured = self.snapshotters.iter().map(|(_, directory)| directory.as_path());
        let proxies = self.proxies.iter().map(|proxy| proxy.directory.as_path());
        let caches = self.layer_caches.iter().map(PathBuf::as_path);
        Within::at(std::iter::once(self.root.as_path()).chain(configured).chain(proxies).chain(caches))
    }

    #[must_use]
    pub fn content(&self) -> PathBuf {
        self.root.join(CONTENT)
    }

    #[must_use]
    pub fn meta_db(&self) -> PathBuf {
        self.root.join(META_DB)
    }
}

/// Returns true if containerd has ever run with this root. Its database may be lost: then content is left.
///
/// # Errors
/// If this cannot be examined, for example without privileges.
pub fn is_root(root: &Path) -> io::Result<bool> {
    let within = match Root::open_in(root, Path::new("/")) {
        Ok(root) => Within::new([&root]),
        Err(error) if quiet::is_absent(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    for path in [root.join(META_DB), root.join(CONTENT).join("blobs")] {
        match within.facts(&path) {
            Ok(_) => return Ok(true),
            // A store was here; reading it reports the symlink.
            Err(error) if quiet::is_symlink(&error) => return Ok(true),
            Err(error) if quiet::is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns the digest of a blob by the name of its file; `None` for any other name.
///
/// The specification allows any algorithm. containerd supports these three; its deletion of blobs stops at any other
/// name, whether or not it is a digest of another algorithm.
pub fn digest(algorithm: &str, name: &str) -> Option<String> {
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return None,
    };
    let is_digest = name.len() == length && name.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    is_digest.then(|| format!("{algorithm}:{name}"))
}

/// Returns the diffID of a layer in a cache of the erofs snapshotter, by the path of its file:
/// `<cache>/<algorithm>/<first two digits>/<hex>.erofs` (containerd 2.4, `plugins/snapshots/erofs`).
pub fn digest_of_cached(path: &Path) -> Option<String> {
    let hex = path.file_name()?.to_str()?.strip_suffix(".erofs")?;
    let prefix = path.parent()?;
    let algorithm = prefix.parent()?.file_name()?.to_str()?;
    digest(algorithm, hex).filter(|_| prefix.file_name().is_some_and(|name| name.to_str() == hex.get(..2)))
}
