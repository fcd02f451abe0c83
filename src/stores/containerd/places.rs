//! Paths below containerd's root: each plugin has a directory named by its type and
//! id.

use std::io;
use std::path::{Path, PathBuf};

use crate::sys::quiet::{self, Within};
use crate::sys::root::Root;

/// Directory of the content store.
pub const CONTENT: &str = "io.containerd.content.v1.content";
/// The database of all records.
pub const META_DB: &str = "io.containerd.metadata.v1.bolt/meta.db";
/// What the directory of a snapshotter begins with; its name follows.
pub const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1.";
/// CRI's own directory; its name has not changed in containerd 2.
pub const CRI: &str = "io.containerd.grpc.v1.cri";
/// Working directories of the runtime, normally empty.
pub const TASKS: &str = "io.containerd.runtime.v2.task";
/// Mount points for unpacking.
pub const TMP_MOUNTS: &str = "tmpmounts";
/// The snapshotters whose snapshot `<id>` is in `snapshots/<id>`.
pub const PLAIN: [&str; 4] = ["overlayfs", "native", "blockfile", "erofs"];

/// An image that the configuration keeps, and the file that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredPin {
    /// The image as written.
    pub image: String,
    /// Where it stands.
    pub origin: String,
}

/// A snapshotter that runs beside containerd, and its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    pub name: String,
    pub directory: PathBuf,
    /// The directory in it that has `metadata.db` and `snapshots`, if one has.
    pub data: Option<PathBuf>,
}

/// Where one containerd's stores lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerdPlaces {
    /// containerd's root.
    pub root: PathBuf,
    /// Its state directory, where that is known and belongs to the running system.
    pub state: Option<PathBuf>,
    /// Snapshotters whose directory was configured to be elsewhere: name and directory.
    pub snapshotters: Vec<(String, PathBuf)>,
    /// Snapshotters that run beside containerd.
    pub proxies: Vec<Proxy>,
    /// Directories with layers for the erofs snapshotter, which containerd never writes to.
    pub layer_caches: Vec<PathBuf>,
    /// Data root of the Docker that uses this containerd.
    pub docker_data: Option<PathBuf>,
    /// The sandbox image.
    pub pins: Vec<ConfiguredPin>,
    /// On another system's disk: no process writes to it.
    pub foreign: bool,
}

impl ContainerdPlaces {
    /// Everything in its usual place below `root`.
    #[must_use]
    pub fn at(root: &Path, foreign: bool) -> Self {
        Self { root: root.to_path_buf(), foreign, ..Self::default() }
    }

    /// Reading below the root and the snapshotters' directories, through no symlink.
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

    /// The database of all records.
    #[must_use]
    pub fn meta_db(&self) -> PathBuf {
        self.root.join(META_DB)
    }
}

/// Whether containerd has ever run with this root.
///
/// # Errors
/// When that cannot be examined, for lack of privilege for example.
pub fn is_root(root: &Path) -> io::Result<bool> {
    let within = match Root::open_in(root, Path::new("/")) {
        Ok(root) => Within::new([&root]),
        Err(error) if quiet::is_absent(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    match within.facts(&root.join(META_DB)) {
        Ok(_) => Ok(true),
        // Something was here; the reading says what.
        Err(error) if quiet::is_symlink(&error) => Ok(true),
        Err(error) if quiet::is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The digest that a blob's file stands for; `None` for a stray name.
///
/// The specification allows any algorithm; containerd knows these three, and stops at a name of
/// any other as it does at what is not a digest at all.
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

/// The diffID of a layer in a cache of the erofs snapshotter, whose file is
/// `<cache>/<algorithm>/<first two digits>/<hex>.erofs` (containerd 2.4,
/// `plugins/snapshots/erofs`).
pub fn digest_of_cached(path: &Path) -> Option<String> {
    let hex = path.file_name()?.to_str()?.strip_suffix(".erofs")?;
    let prefix = path.parent()?;
    let algorithm = prefix.parent()?.file_name()?.to_str()?;
    digest(algorithm, hex).filter(|_| prefix.file_name().is_some_and(|name| name.to_str() == hex.get(..2)))
}
