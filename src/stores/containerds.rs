//! containerd: which roots there are, and what is read of each.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use jiff::SignedDuration;

use super::reading::{Filling, Reading, UnitView};
use super::{Error, Request};
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Tally};
use crate::model::{FilesystemIx, Finding, NodeIx, Store, StoreIx, StoreKind};
use crate::stores::containerd::committed;
use crate::stores::containerd::config::{self, RootConfig};
use crate::stores::containerd::fill;
use crate::stores::containerd::places::{Places, is_root};
use crate::stores::containerd::snapshot::{self, Snapshot};
use crate::stores::containerd::units::{self, Unit};
use crate::sys::namespaces;

/// What changed more recently than this is work in progress: containerd writes files before
/// records and deletes them after.
const IN_FLIGHT: SignedDuration = SignedDuration::from_mins(5);

/// A containerd root.
#[derive(Clone, Debug)]
struct Containerd {
    snapshot: Snapshot,
    units: Vec<Unit>,
    origin: String,
}

impl Reading for Containerd {
    fn store(&self, filesystem: FilesystemIx) -> Store {
        Store {
            kind: StoreKind::Containerd,
            root: self.snapshot.places.root.clone(),
            driver: self.snapshot.driver().to_owned(),
            filesystem,
            read_only: false,
            origin: self.origin.clone(),
            consistency: self.snapshot.consistency,
        }
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.snapshot.areas()
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        let units = self.units.iter();
        units.map(|unit| UnitView { tag: unit.what.tag(), id: &unit.id, parts: &unit.parts }).collect()
    }

    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        committed::fingerprints(&self.snapshot, &self.units)
    }

    fn snapshotters(&self) -> Vec<(String, PathBuf)> {
        let proxies = self.snapshot.places.proxies.iter().filter(|proxy| proxy.data.is_none());
        proxies.map(|proxy| (proxy.name.clone(), proxy.directory.clone())).collect()
    }

    /// The native snapshotter copies a whole root filesystem for each snapshot.
    fn copies_by_reflink(&self) -> bool {
        self.snapshot.backends.iter().any(|backend| backend.name == "native" && !backend.snapshots.is_empty())
    }

    fn moved(&self) -> bool {
        snapshot::moved(&self.snapshot).unwrap_or(true)
    }

    fn read_again(&mut self, _request: &Request) -> io::Result<()> {
        self.snapshot = snapshot::read(&self.snapshot.places, snapshot::Patience::default())?;
        self.units = units::sort(&self.snapshot);
        Ok(())
    }

    fn fill(
        &self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        areas: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx> {
        // Bundles are mounted below the state directory, wherever that is.
        let leaks = filling.request.weigh.finds_leaks();
        // Only containers and leaks are ever in use by a mount.
        let mut namespaces = self.snapshot.metadata.namespaces.iter();
        let mounts = match leaks || namespaces.any(|one| !one.containers.is_empty()) {
            true => namespaces::points_below(&[PathBuf::from("/")]),
            false => Ok(Vec::new()),
        };
        let mounts = mounts.unwrap_or_else(|error| {
            filling.inventory.findings.push(Finding {
                path: PathBuf::from("/proc/self/mountinfo"),
                message: format!("cannot be read: {error}; everything counts as mounted"),
                incomplete: false,
            });
            self.units.iter().map(|unit| unit.path.clone()).collect()
        });
        // On somebody else's disk, our own containers' mounts below /run mean nothing.
        let mounts: Vec<_> = match filling.request.sysroot.is_foreign() {
            true => mounts.into_iter().filter(|at| at.starts_with(&self.snapshot.places.root)).collect(),
            false => mounts,
        };
        let context = fill::Context {
            store,
            areas,
            mounts: &mounts,
            platform: &platform(),
            labels: &filling.request.labels,
            present: filling.present,
            leaks,
            in_flight: IN_FLIGHT,
        };
        fill::fill(filling.inventory, &self.snapshot, &self.units, tallies, &context)
    }
}

/// The node's platform as image indexes name it.
fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    };
    format!("linux/{architecture}")
}

/// containerd roots that have been read.
#[derive(Debug, Default)]
pub(super) struct Found {
    stores: Vec<Containerd>,
    pub(super) findings: Vec<Finding>,
    /// Configured places, whether or not there is a store.
    pub(super) looked: Vec<PathBuf>,
    /// The first store that could not be read.
    unreadable: Option<Error>,
}

impl Found {
    /// The stores, and why the first of the others could not be read.
    pub(super) fn into_readings(self) -> (Vec<Box<dyn Reading>>, Option<Error>) {
        let stores = self.stores.into_iter();
        (stores.map(|store| Box::new(store) as Box<dyn Reading>).collect(), self.unreadable)
    }

    /// The same directory may be configured twice.
    fn knows(&self, root: &Path) -> bool {
        self.stores.iter().any(|known| known.snapshot.places.root == root)
    }

    /// Reads a root; `false` where there is none.
    fn store(&mut self, request: &Request, config: &RootConfig) -> Result<bool, Error> {
        let unreadable = |source| Error::Unreadable { path: config.root.clone(), source };
        let places: Places = match config.places(&request.sysroot) {
            Ok(places) => places,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(false);
            }
            Err(error) => return Err(unreadable(error)),
        };
        if self.knows(&places.root) {
            return Ok(true);
        }
        if !is_root(&places.root).map_err(unreadable)? {
            return Ok(false);
        }
        let snapshot = snapshot::read(&places, snapshot::Patience::default()).map_err(unreadable)?;
        self.stores.push(Containerd {
            units: units::sort(&snapshot),
            snapshot,
            origin: config.origin.clone(),
        });
        Ok(true)
    }
}

/// Reads the roots that the request names; without any name (of whatever kind of store),
/// those that the configuration names and those in the usual places.
///
/// # Errors
/// When a named root is none or cannot be read.
pub(super) fn find(request: &Request) -> Result<Found, Error> {
    let mut found = Found::default();
    if request.names_stores() {
        for root in &request.containerd_roots {
            if !found.store(request, &config::named(&request.sysroot, root))? {
                return Err(Error::NotAStore {
                    path: root.clone(),
                    hint: "name the directory that holds `io.containerd.metadata.v1.bolt`",
                });
            }
        }
        return Ok(found);
    }
    let discovery = config::discover(&request.sysroot);
    for (path, message) in discovery.problems {
        found.findings.push(Finding { path, message, incomplete: false });
    }
    for config in discovery.roots {
        match found.store(request, &config) {
            Ok(_) => {}
            Err(Error::Unreadable { path, source }) => {
                let message = format!("cannot be read: {source}");
                found.findings.push(Finding { path: path.clone(), message, incomplete: true });
                found.unreadable.get_or_insert(Error::Unreadable { path, source });
            }
            Err(error) => return Err(error),
        }
        found.looked.push(config.root);
    }
    Ok(found)
}
