//! The request of a scan, and its errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::{Finding, LabelsOf};
use crate::stores::containerd::ReadCache;
use crate::stores::containers_storage::config::Environment;
use crate::stores::containers_storage::snapshot::{BusyStores, Patience};
use crate::stores::running::RunningPrograms;
use crate::sys::clock::Leap;
use crate::sys::sysroot::Sysroot;

/// What to scan.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// The root that every path is taken in.
    pub sysroot: Sysroot,
    /// Graphroots by name; no name of any kind means: find all stores.
    pub graphroots: Vec<PathBuf>,
    /// containerd roots by name.
    pub containerd_roots: Vec<PathBuf>,
    /// A runroot that overrides the configured one.
    pub runroot: Option<PathBuf>,
    /// The relevant part of the process's environment.
    pub environment: Environment,
    /// Stores that programs on this node report; empty for another system's disk.
    pub running: Arc<RunningPrograms>,
    /// Walker threads; 0 for the default.
    pub threads: usize,
    /// How long to wait for writers.
    pub patience: Patience,
    /// Whom not to wait for again.
    pub busy_stores: BusyStores,
    /// Whether to measure at all.
    pub measure: Measure,
    /// Whose labels to read: a file or two for every image.
    pub labels: LabelsOf,
    /// The time that ages are counted to.
    pub now: Timestamp,
    /// Leaps of the wall clock, which dates on the disk are corrected by.
    pub leaps: Vec<Leap>,
    /// Measure everything, whatever is cached.
    pub full: bool,
    /// What was read of containerd's already, by whatever scan has a clone of this.
    pub read_cache: ReadCache,
    /// Keep the trees of all units, to divide a directory by them.
    pub keep_trees: bool,
}

/// How much a scan measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Everything: who holds how many bytes.
    Everything,
    /// Nothing: every size is 0, and no leaks are looked for. Who uses and keeps what comes
    /// from the records alone, in milliseconds, and can be asked right before a deletion.
    RecordsAndMounts,
    /// Nothing, and no mounts are read either: a container's state is what its records say. That is enough
    /// for images, which a container uses in every state.
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
    /// To find all stores of a root and measure everything.
    #[must_use]
    pub fn of(sysroot: Sysroot) -> Self {
        Self {
            environment: Environment::default(),
            running: Arc::default(),
            sysroot,
            graphroots: Vec::new(),
            containerd_roots: Vec::new(),
            runroot: None,
            threads: 0,
            patience: Patience::default(),
            busy_stores: BusyStores::default(),
            measure: Measure::Everything,
            labels: LabelsOf::None,
            now: Timestamp::now(),
            leaps: Vec::new(),
            full: false,
            read_cache: ReadCache::default(),
            keep_trees: false,
        }
    }

    /// Whether there is anything at a path that was named.
    pub(super) fn exists(&self, path: &Path) -> bool {
        !self.sysroot.open(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// Naming any store switches discovery off.
    pub(super) fn names_stores(&self) -> bool {
        !self.graphroots.is_empty() || !self.containerd_roots.is_empty()
    }
}

/// How the scan was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "EffortDoc"))]
pub struct Effort {
    /// How long it took, to the millisecond.
    pub seconds: f64,
    /// Inodes examined.
    pub inodes: u64,
    /// Layers whose size came from an earlier scan.
    pub cached_layers: usize,
    /// Layers measured on the disk.
    pub measured_layers: usize,
}

/// Why a scan has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A named path is not a store.
    #[error("{} {}", path.display(), if *exists { "contains no image store" } else { "does not exist, or is not mounted" })]
    NotAStore {
        path: PathBuf,
        exists: bool,
        /// What to name instead.
        hint: &'static str,
    },
    /// A named store cannot be read.
    #[error("reading the store {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// No store was found.
    #[error("no image store found{}; looked in {}", below(sysroot.as_deref()), join(looked))]
    NoneFound {
        /// The mounted root that was searched; `None` for the running system.
        sysroot: Option<PathBuf>,
        /// The configured paths, none of which has a store; inside the root.
        looked: Vec<PathBuf>,
        /// Problems of the configuration.
        findings: Vec<Finding>,
    },
}

fn below(sysroot: Option<&Path>) -> String {
    sysroot.map_or_else(String::new, |path| format!(" inside of --sysroot {}", path.display()))
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
