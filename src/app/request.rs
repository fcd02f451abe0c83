//! What every use case is asked to look at.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::error::Error;
use super::running;
use crate::stores::containers_storage::config::Environment;
use crate::stores::{self, RunningPrograms};
use crate::sys::ioprio::IoPriority;
use crate::sys::sysroot::Sysroot;

/// The stores, the state directory, and how to measure.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Graphroots of containers/storage. No store named: those that are found.
    pub graphroots: Vec<PathBuf>,
    /// The runroot that belongs to the graphroot.
    pub runroot: Option<PathBuf>,
    /// Roots of containerd.
    pub containerd_roots: Vec<PathBuf>,
    /// Somebody named these stores for this run: they may not be all that the node has.
    pub names_stores: bool,
    /// The runtime's socket, for example `unix:///run/crio/crio.sock`.
    pub cri_endpoint: Option<String>,
    /// Every path is taken inside this mounted root, and nothing is written.
    pub sysroot: Option<PathBuf>,
    /// Where the database is; `None`: the default of the user and the sysroot.
    pub state_dir: Option<PathBuf>,
    /// The kubelet's own directory, where it is configured for us.
    pub kubelet_root: Option<PathBuf>,
    /// All processes that can use the stores are in our PID namespace, though it is not the machine's
    /// first.
    pub trust_pid_namespace: bool,
    /// Distrust sizes of earlier scans.
    pub full: bool,
    /// Threads that read directories; `None`: as many as suit a disk that is not in the cache.
    pub threads: Option<u16>,
    /// Priority of our disk reads.
    pub io_priority: IoPriority,
    /// Stores that programs on this node report: asked once.
    pub running: Arc<OnceLock<Arc<RunningPrograms>>>,
}

impl Request {
    /// Whether stores are named, by the request or by the configuration.
    pub fn has_stores(&self) -> bool {
        !self.graphroots.is_empty() || !self.containerd_roots.is_empty()
    }

    /// Where paths are taken.
    pub fn root(&self) -> Sysroot {
        self.sysroot.as_deref().map_or_else(Sysroot::live, Sysroot::at)
    }

    /// What the stores are asked for: everything measured, no labels, nothing cached.
    ///
    /// # Errors
    /// When the sysroot is no directory, or a path cannot be made absolute.
    pub fn stores(&self) -> Result<stores::ScanRequest, Error> {
        if let Some(path) = self.sysroot.as_ref().filter(|path| !path.is_dir()) {
            return Err(Error::usage(format!("--sysroot {}: not a directory", path.display()))
                .hint("name the directory where the disk is mounted"));
        }
        let sysroot = self.root();
        Ok(stores::ScanRequest {
            environment: Environment::of_process(&sysroot),
            running: self.running(&sysroot),
            graphroots: self.inside(absolute(&self.graphroots)?),
            containerd_roots: self.inside(absolute(&self.containerd_roots)?),
            runroot: absolute(self.runroot.as_slice())?.into_iter().next(),
            threads: self.threads.map_or(0, usize::from),
            full: self.full,
            ..stores::ScanRequest::of(sysroot)
        })
    }

    fn running(&self, sysroot: &Sysroot) -> Arc<RunningPrograms> {
        let read = || match sysroot.is_foreign() {
            true => Arc::default(),
            false => Arc::new(running::read(self.cri_endpoint.as_deref())),
        };
        Arc::clone(self.running.get_or_init(read))
    }

    /// Paths are taken inside the sysroot; one that was given with it in front means the same.
    fn inside(&self, paths: Vec<PathBuf>) -> Vec<PathBuf> {
        let sysroot = self.sysroot.as_deref().and_then(|path| std::path::absolute(path).ok());
        let Some(sysroot) = sysroot.filter(|path| path != Path::new("/")) else { return paths };
        let inside = |path: PathBuf| match path.strip_prefix(&sysroot) {
            Ok(below) => Path::new("/").join(below),
            Err(_) => path,
        };
        paths.into_iter().map(inside).collect()
    }
}

/// Relative paths count from the working directory, not from where a store's configuration is.
fn absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|error| Error::usage(format!("{}: {error}", path.display())))
    };
    paths.iter().map(absolute).collect()
}
