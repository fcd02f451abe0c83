//! The part of a request that all use cases share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::node::places::ConfiguredPlaces;
use crate::services::error::Error;
use crate::services::running;
use crate::stores::Environment;
use crate::stores::{self, RunningPrograms};
use crate::sys::ioprio::IoPriority;
use crate::sys::sysroot::Sysroot;

/// The stores, the state directory, and how to measure.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Graphroots of containers/storage. If no store is named, stores are discovered.
    pub graphroots: Vec<PathBuf>,
    /// Runroots of the named graphroots, in their order; those of further graphroots are found.
    pub runroots: Vec<PathBuf>,
    /// Root directories of containerd, for example `/var/lib/containerd`.
    pub containerd_roots: Vec<PathBuf>,
    /// Data roots of Docker, for example `/var/lib/docker`.
    pub docker_roots: Vec<PathBuf>,
    /// The user named these stores for this run: the node may have others.
    pub names_stores: bool,
    /// Socket of the runtime, for example `unix:///run/crio/crio.sock`.
    pub cri_endpoint: Option<String>,
    /// Mounted root of another machine. All paths are resolved inside it, and nothing is written.
    pub sysroot: Option<PathBuf>,
    /// Directory of the database; `None`: the default for the user and the sysroot.
    pub state_dir: Option<PathBuf>,
    /// Directories of the kubelet that are configured for layersweep.
    pub kubelet: ConfiguredPlaces,
    /// All processes that can use the stores are visible in the present PID namespace, although it is not the
    /// initial one of the machine.
    pub trust_pid_namespace: bool,
    /// Measure everything again instead of using cached sizes.
    pub full: bool,
    /// Number of threads that read directories; `None`: a number that suits a disk whose data is not cached.
    pub threads: Option<u16>,
    pub io_priority: IoPriority,
    /// Stores that programs on this node report, read at the first use.
    pub running: Arc<OnceLock<Arc<RunningPrograms>>>,
}

impl Request {
    /// Returns true if stores are named on the command line or in the configuration.
    pub fn has_stores(&self) -> bool {
        let named = [&self.graphroots, &self.containerd_roots, &self.docker_roots];
        named.iter().any(|roots| !roots.is_empty())
    }

    /// Returns true for the root of a store that is named for this run, and for all roots if none is.
    pub fn means(&self, root: &Path) -> bool {
        let named = [&self.graphroots, &self.containerd_roots, &self.docker_roots];
        let paths = named.into_iter().flatten().filter_map(|path| std::path::absolute(path).ok());
        !self.names_stores || self.inside(paths.collect()).iter().any(|path| path == root)
    }

    pub fn root(&self) -> Sysroot {
        self.sysroot.as_deref().map_or_else(Sysroot::live, Sysroot::at)
    }

    /// Returns the request for reading the stores, with all sizes measured and without labels.
    ///
    /// # Errors
    /// When the sysroot is not a directory, or a path cannot be made absolute.
    pub fn stores(&self) -> Result<stores::ScanRequest, Error> {
        if let Some(path) = self.sysroot.as_ref().filter(|path| !path.is_dir()) {
            return Err(Error::usage(format!("--sysroot {}: not a directory", path.display()))
                .hint("name the directory where the disk is mounted"));
        }
        let (runroots, graphroots) = (self.runroots.len(), self.graphroots.len().max(1));
        if runroots > graphroots {
            let message = format!("--runroot is given {runroots} times, for {graphroots} graphroots");
            return Err(Error::usage(message).hint("give it once for each --graphroot, in the same order"));
        }
        let sysroot = self.root();
        Ok(stores::ScanRequest {
            environment: Environment::of_process(&sysroot),
            running: self.running(&sysroot),
            graphroots: self.inside(absolute(&self.graphroots)?),
            containerd_roots: self.inside(absolute(&self.containerd_roots)?),
            docker_roots: self.inside(absolute(&self.docker_roots)?),
            runroots: absolute(&self.runroots)?,
            threads: self.threads.map_or(0, usize::from),
            full: self.full,
            ..stores::ScanRequest::of(sysroot)
        })
    }

    fn running(&self, sysroot: &Sysroot) -> Arc<RunningPrograms> {
        let running = self.running.get_or_init(|| {
            if sysroot.is_foreign() {
                Arc::default()
            } else {
                Arc::new(running::read(self.cri_endpoint.as_deref()))
            }
        });
        Arc::clone(running)
    }

    /// Returns the paths inside the sysroot. A path that begins with the sysroot means the same file.
    fn inside(&self, paths: Vec<PathBuf>) -> Vec<PathBuf> {
        let sysroot = self.sysroot.as_deref().and_then(|path| std::path::absolute(path).ok());
        let Some(sysroot) = sysroot.filter(|path| path != Path::new("/")) else { return paths };
        let paths = paths.into_iter().map(|path| match path.strip_prefix(&sysroot) {
            Ok(below) => Path::new("/").join(below),
            Err(_) => path,
        });
        paths.collect()
    }
}

/// Makes paths absolute. Relative paths begin at the working directory, not at the configuration of a store.
fn absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let paths = paths.iter().map(|path| {
        std::path::absolute(path).map_err(|error| Error::usage(format!("{}: {error}", path.display())))
    });
    paths.collect()
}
