//! The request of a scan, and its errors.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::Finding;
use crate::stores::environment::Environment;
use crate::stores::read_cache::ReadCache;
use crate::stores::running::RunningPrograms;
use crate::sys::clock::Leap;
use crate::sys::sysroot::Sysroot;

#[derive(Clone, Debug)]
pub struct ScanRequest {
    pub sysroot: Sysroot,
    /// Named graphroots. If no store of any kind is named, all stores are found.
    pub graphroots: Vec<PathBuf>,
    pub containerd_roots: Vec<PathBuf>,
    /// Data roots of Docker.
    pub docker_roots: Vec<PathBuf>,
    /// Runroots that override the configured ones of the named graphroots, in their order; if no graphroot is named, one
    /// for all stores.
    pub runroots: Vec<PathBuf>,
    /// Directories whose filesystems are listed after those of the stores, inside the sysroot.
    pub places: Vec<PathBuf>,
    /// The relevant part of the process's environment.
    pub environment: Environment,
    /// Stores that programs on this node report; empty for another system's disk.
    pub running: Arc<RunningPrograms>,
    /// Number of walker threads; 0 for the default.
    pub threads: usize,
    pub measure: Measure,
    /// Read the labels of images: one or two files for each image.
    pub labels: bool,
    /// The only image whose files are read; `None`: those of all images.
    pub image: Option<String>,
    pub blobs: bool,
    /// Read the origins of images even if nothing is measured.
    pub origins: bool,
    /// Time that ages refer to.
    pub now: Timestamp,
    /// Leaps of the wall clock, by which dates on the disk are corrected.
    pub leaps: Vec<Leap>,
    /// Measure everything, even if sizes are cached.
    pub full: bool,
    /// Knowledge that scans with a clone of this share.
    pub read_cache: ReadCache,
    /// Keep the trees of all units, to attribute a directory's bytes to them.
    pub keep_trees: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    #[default]
    Everything,
    /// Measure nothing: every size is 0, and leaks are not searched. Users and references come from the records and
    /// the mounts alone, in milliseconds, so that they can be read again right before a deletion.
    RecordsAndMounts,
    /// Measure nothing and read no mounts: the state of a container is that in its records. This is sufficient for
    /// images, which a container uses in every state.
    Records,
}

impl Measure {
    pub(super) fn finds_leaks(self) -> bool {
        self == Self::Everything
    }

    pub(super) fn reads_mounts(self) -> bool {
        self != Self::Records
    }
}

impl ScanRequest {
    /// A plan needs the origins of images. What was planned is proven without them.
    pub(super) fn reads_origins(&self) -> bool {
        self.origins || self.measure == Measure::Everything
    }

    #[must_use]
    pub fn of(sysroot: Sysroot) -> Self {
        Self {
            environment: Environment::default(),
            running: Arc::default(),
            sysroot,
            graphroots: Vec::new(),
            containerd_roots: Vec::new(),
            docker_roots: Vec::new(),
            runroots: Vec::new(),
            places: Vec::new(),
            threads: 0,
            measure: Measure::Everything,
            labels: false,
            image: None,
            blobs: false,
            origins: false,
            now: Timestamp::now(),
            leaps: Vec::new(),
            full: false,
            read_cache: ReadCache::default(),
            keep_trees: false,
        }
    }

    /// Returns true if the caller is not root, and `error` shows that the caller has no permission to read a directory of
    /// another user (root or any other). Such a caller does not expect to read other users' stores: that is not reported.
    pub(super) fn is_denied_by_owner(&self, path: &Path, error: &io::Error) -> bool {
        let uid = rustix::process::geteuid().as_raw();
        let mut found = path.ancestors().filter_map(|path| self.sysroot.open(path).ok());
        self.environment.uid != 0
            && error.kind() == ErrorKind::PermissionDenied
            && found.next().is_some_and(|nearest| nearest.owner() != uid)
    }

    /// Returns true if a named path exists, or if this cannot be determined.
    pub(super) fn exists(&self, path: &Path) -> bool {
        !self.sysroot.open(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// Returns true if any store is named, which disables discovery.
    #[must_use]
    pub fn names_stores(&self) -> bool {
        let named = [&self.graphroots, &self.containerd_roots, &self.docker_roots];
        named.iter().any(|roots| !roots.is_empty())
    }
}

/// Effort of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "EffortDoc"))]
pub struct Effort {
    /// Duration, to the millisecond.
    pub seconds: f64,
    /// Inodes examined.
    pub inodes: u64,
    /// Layers whose size came from an earlier scan.
    pub cached_layers: usize,
    /// Layers measured on the disk.
    pub measured_layers: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    #[error("{} {}", path.display(), if *exists { "contains no image store" } else { "does not exist, or is not mounted" })]
    NotAStore {
        path: PathBuf,
        exists: bool,
        /// Advice on the path to name instead.
        hint: &'static str,
    },
    #[error("reading the store {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("no image store found{}; looked in {}", below(sysroot.as_deref()), join(looked))]
    NoneFound {
        /// The mounted root that was searched; `None` for the running system.
        sysroot: Option<PathBuf>,
        /// Configured paths, inside the root; none of them contains a store.
        looked: Vec<PathBuf>,
        findings: Vec<Finding>,
    },
}

fn below(sysroot: Option<&Path>) -> String {
    sysroot.map_or_else(String::new, |path| format!(" inside of --sysroot {}", path.display()))
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
