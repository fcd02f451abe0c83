//! Finds and reads containerd roots.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::{Finding, Image};
use crate::stores::containerd::config::{self, RootConfig};
use crate::stores::containerd::fill::unqualified;
use crate::stores::containerd::places::{ContainerdPlaces, is_root};
use crate::stores::containerd::store::Containerd;
use crate::stores::containerd::{read, units};
use crate::stores::request::{Error, ScanRequest};
use crate::stores::store::Store;
use crate::sys::quiet::is_absent;

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

    /// The same directory may be configured twice.
    fn knows(&self, root: &Path) -> bool {
        self.stores.iter().any(|known| known.snapshot.places.root == root)
    }

    /// Reads a root; `false` where there is none.
    fn store(&mut self, request: &ScanRequest, config: &RootConfig) -> Result<bool, Error> {
        let unreadable = |source| Error::Unreadable { path: config.root.clone(), source };
        let places: ContainerdPlaces = match config.places(&request.sysroot) {
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

/// Reads the roots that the request names; without any name (of whatever kind of store),
/// those that the configuration names and those in the usual places.
///
/// # Errors
/// When a named root is none or cannot be read.
pub(crate) fn find(request: &ScanRequest) -> Result<ContainerdRoots, Error> {
    let mut found = ContainerdRoots::default();
    if request.names_stores() {
        for root in &request.containerd_roots {
            if !found.store(request, &config::named(&request.sysroot, root))? {
                return Err(Error::NotAStore {
                    path: root.clone(),
                    exists: request.exists(root),
                    hint: "pass the directory that contains `io.containerd.metadata.v1.bolt`",
                });
            }
        }
        return Ok(found);
    }
    let discovery = config::discover(&request.sysroot);
    for (path, message) in discovery.problems {
        found.findings.push(Finding::new(path, message));
    }
    for config in discovery.roots {
        match found.store(request, &config) {
            Ok(_) => {}
            Err(Error::Unreadable { path, source }) => {
                found.findings.push(Finding::incomplete(&path, format!("cannot be read: {source}")));
                found.unreadable.get_or_insert(Error::Unreadable { path, source });
            }
            Err(error) => return Err(error),
        }
        found.looked.push(config.root);
    }
    Ok(found)
}
