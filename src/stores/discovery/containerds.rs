//! Finds and reads containerd roots.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::{Finding, Image};
use crate::stores::containerd::config::{self, RootConfig};
use crate::stores::containerd::fill::unqualified;
use crate::stores::containerd::places::{ConfiguredPin, ContainerdPlaces, is_root};
use crate::stores::containerd::store::Containerd;
use crate::stores::containerd::{read, units};
use crate::stores::request::{Error, ScanRequest};
use crate::stores::store::Store;
use crate::sys::quiet::is_absent;
use crate::sys::root::Root;

/// containerd roots that have been read.
#[derive(Debug, Default)]
pub(crate) struct ContainerdRoots {
    stores: Vec<Containerd>,
    pub(crate) findings: Vec<Finding>,
    /// Configured places, whether or not there is a store.
    pub(crate) looked: Vec<PathBuf>,
    /// The first store that could not be read.
    unreadable: Option<Error>,
}

impl ContainerdRoots {
    /// The stores, and why the first of the others could not be read.
    pub(crate) fn into_stores(self) -> (Vec<Box<dyn Store>>, Option<Error>) {
        let stores = self.stores.into_iter();
        (stores.map(|store| Box::new(store) as Box<dyn Store>).collect(), self.unreadable)
    }

    /// The same directory may be configured twice, and be mounted in two places.
    fn knows(&self, root: &Path) -> bool {
        let identity = |path: &Path| Root::open(path).map(|root| root.identity()).ok();
        let wanted = identity(root);
        let mut roots = self.stores.iter().map(|known| &known.snapshot.places.root);
        roots.any(|known| known == root || (wanted.is_some() && identity(known) == wanted))
    }

    /// Leaves to `places` only directories outside of its root that no root before it has: a file may be
    /// about several roots, and the snapshots in a directory are recorded in one of them.
    fn claim(&self, places: &mut ContainerdPlaces) {
        for known in self.stores.iter().map(|known| &known.snapshot.places) {
            places.snapshotters.retain(|(_, path)| known.snapshotters.iter().all(|(_, taken)| taken != path));
            places
                .proxies
                .retain(|proxy| known.proxies.iter().all(|taken| taken.directory != proxy.directory));
            places.layer_caches.retain(|path| !known.layer_caches.contains(path));
        }
    }

    /// Reads a root, whose images `pins` keep; `false` if it does not exist.
    fn store(
        &mut self,
        request: &ScanRequest,
        config: &RootConfig,
        pins: &[ConfiguredPin],
    ) -> Result<bool, Error> {
        let unreadable = |source| Error::Unreadable { path: config.root.clone(), source };
        let mut places: ContainerdPlaces = match config.places(&request.sysroot) {
            Ok(places) => places,
            Err(error) if is_absent(&error) => return Ok(false),
            Err(error) => return Err(unreadable(error)),
        };
        if self.knows(&places.root) {
            return Ok(true);
        }
        if !is_root(&places.root).map_err(unreadable)? {
            return Ok(false);
        }
        self.claim(&mut places);
        places.pins = pins.to_vec();
        // Without leaks nothing has to be seen twice.
        let patience = read::ReadPatience::default();
        let confirm = patience.confirm.filter(|_| request.measure.finds_leaks());
        let snapshot = read::read(&places, read::ReadPatience { confirm, ..patience }, &request.read_cache);
        let snapshot = snapshot.map_err(unreadable)?;
        self.stores.push(Containerd {
            units: units::sort(&snapshot),
            snapshot,
            origin: config.origin.clone(),
        });
        Ok(true)
    }
}

/// Whether the store still has `image` of an earlier reading: one of its names, or what they led to.
/// `None` where it is not found and the records are damaged.
pub(in crate::stores) fn has_image(
    request: &ScanRequest,
    root: &Path,
    image: &Image,
) -> io::Result<Option<bool>> {
    // Snapshotters may lie elsewhere, but `meta.db` alone is read.
    let places = ContainerdPlaces::at(root, false);
    let (namespace, hex) = unqualified(&image.id);
    // CRI makes a name of the configuration's digest.
    let is_digest = |text: &str| text.split_once(':').is_some_and(|(_, digest)| digest == hex);
    read::has_image(&places, &request.read_cache, namespace, |name, target| {
        is_digest(name) || is_digest(target) || image.digests.iter().any(|digest| digest == target)
    })
}

/// The containerds of a node, by running programs and configuration alone.
#[derive(Debug, Default)]
pub(super) struct Containerds {
    /// The roots that a scan looks at. They need not exist.
    pub(super) roots: Vec<RootConfig>,
    /// The sandbox images of all containerds that have a root here, and of those named: each of them keeps
    /// images of every root.
    pub(super) pins: Vec<ConfiguredPin>,
    /// The first file of one of these that could not be read or understood, and why.
    pub(super) problem: Option<(PathBuf, String)>,
    /// Files that could not be read or understood, of whatever containerd.
    pub(super) problems: Vec<(PathBuf, String)>,
}

impl Containerds {
    pub(super) fn of(request: &ScanRequest) -> Self {
        let sysroot = &request.sysroot;
        let discovery = config::discover(sysroot, &request.running);
        let named = request.containerd_roots.iter().map(|root| discovery.named(sysroot, root));
        let named: Vec<_> = named.collect();
        let is_here = |config: &&RootConfig| {
            // A root that cannot be examined may be there.
            config.places(sysroot).is_ok_and(|places| is_root(&places.root).unwrap_or(true))
        };
        let mut all = RootConfig::default();
        for config in named.iter().chain(discovery.roots.iter().filter(is_here)) {
            match config.pins.is_empty() {
                true => all.add_pins(&config::default_sandboxes()),
                false => all.add_pins(&config.pins),
            }
            all.problem = all.problem.or_else(|| config.problem.clone());
        }
        let names_stores = request.names_stores();
        Self {
            roots: if names_stores { named } else { discovery.roots },
            pins: all.pins,
            problem: all.problem,
            problems: if names_stores { Vec::new() } else { discovery.problems },
        }
    }
}

/// Reads the roots that the request names; without any name (of whatever kind of store), those that are
/// found.
///
/// # Errors
/// When a named root is none or cannot be read.
pub(crate) fn find(request: &ScanRequest) -> Result<ContainerdRoots, Error> {
    let mut found = ContainerdRoots::default();
    let Containerds { roots, pins, problems, .. } = Containerds::of(request);
    for (path, message) in problems {
        found.findings.push(Finding::new(path, message));
    }
    let is_named = request.names_stores();
    for config in roots {
        match found.store(request, &config, &pins) {
            Ok(true) => {}
            Ok(false) if is_named => {
                return Err(Error::NotAStore {
                    exists: request.exists(&config.root),
                    path: config.root,
                    hint: "pass the directory that contains `io.containerd.metadata.v1.bolt`",
                });
            }
            Ok(false) => {}
            Err(Error::Unreadable { path, source }) if !is_named => {
                found.findings.push(Finding::incomplete(&path, format!("cannot be read: {source}")));
                found.unreadable.get_or_insert(Error::Unreadable { path, source });
            }
            Err(error) => return Err(error),
        }
        found.looked.push(config.root);
    }
    Ok(found)
}
