//! containers/storage: which graphroots there are, and what is read of each.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::lenders::{Own, Unread};
use super::reading::{Filling, Guest, Reading, UnitView};
use super::{Error, Request, Weigh};
use crate::graphroot::committed;
use crate::graphroot::config::{self, Discovery, Pin, StoreConfig, pin_matches_image};
use crate::graphroot::doubt::doubt;
use crate::graphroot::fill;
use crate::graphroot::inspect::{Closeness, inspect};
use crate::graphroot::leftovers;
use crate::graphroot::snapshot::{self, Places, Snapshot};
use crate::graphroot::units::{self, Unit, What};
use crate::inventory::{Consistency, FilesystemIx, Finding, NodeIx, Store, StoreIx, StoreKind};
use crate::sys::mounts;
use crate::sys::quiet::{self, Facts};
use crate::usage::filesystem::CostModel;
use crate::usage::{Fingerprint, Tally};

/// A graphroot, read with one driver.
#[derive(Clone, Debug)]
struct Graphroot {
    snapshot: Snapshot,
    units: Vec<Unit>,
    origin: String,
    /// Graphroots of the additional image stores that it reads from.
    additional: Vec<PathBuf>,
}

impl Reading for Graphroot {
    fn store(&self, filesystem: FilesystemIx) -> Store {
        Store {
            kind: StoreKind::ContainersStorage,
            root: self.snapshot.places.graphroot.clone(),
            driver: self.snapshot.places.driver.clone(),
            filesystem,
            read_only: self.snapshot.places.read_only,
            origin: self.origin.clone(),
            consistency: self.snapshot.consistency,
        }
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.snapshot.places.roots()
    }

    fn borrows_from(&self) -> Vec<PathBuf> {
        self.additional.iter().chain(&self.snapshot.places.imagestores).cloned().collect()
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        let units = self.units.iter();
        units.map(|unit| UnitView { tag: unit.what.tag(), id: &unit.id, parts: &unit.parts }).collect()
    }

    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        committed::fingerprints(&self.snapshot, &self.units)
    }

    fn places(&self) -> Option<&Places> {
        Some(&self.snapshot.places)
    }

    /// The vfs driver copies a whole root filesystem for each layer, by reflink where it can.
    fn copies_by_reflink(&self) -> bool {
        self.snapshot.places.driver == "vfs"
    }

    /// The symlinks in the overlay driver's directory `l` are bookkeeping, but each goes
    /// with its layer, and was made with it, among the layer's inodes.
    fn guests(&self) -> Vec<Guest> {
        if self.snapshot.places.driver != "overlay" {
            return Vec::new();
        }
        let layers = self.units.iter().enumerate().filter(|(_, unit)| matches!(unit.what, What::Layer(_)));
        let guests = layers.filter_map(|(at, unit)| {
            let facts = short_name(&unit.path)?;
            Some(Guest { device: facts.device, inode: facts.inode, unit: at })
        });
        guests.collect()
    }

    fn moved(&self) -> bool {
        snapshot::moved(&self.snapshot).unwrap_or(true)
    }

    fn read_again(&mut self, request: &Request) -> io::Result<()> {
        self.snapshot = read(&self.snapshot.places, request)?;
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
        let graphroot = &self.snapshot.places.graphroot;
        let driver = &self.snapshot.places.driver;
        let additional: Vec<_> = self
            .additional
            .iter()
            .filter_map(|path| filling.ids.get(&(path.clone(), driver.clone())))
            .collect();
        let areas_of_store: Vec<_> = self.snapshot.places.areas().map(Path::to_path_buf).collect();
        let leaks = filling.request.weigh.finds_leaks();
        // Only containers and leaks are ever in use by a mount.
        let mounts = match leaks || !self.snapshot.containers.is_empty() {
            true => mounts::below_in_all_namespaces(&areas_of_store),
            false => Ok(Vec::new()),
        };
        let mounts = mounts.unwrap_or_else(|error| {
            // Then anything may be mounted, and nothing is called reclaimable.
            filling.inventory.findings.push(Finding {
                path: PathBuf::from("/proc/self/mountinfo"),
                message: format!("cannot be read: {error}; everything counts as mounted"),
                incomplete: false,
            });
            self.units.iter().map(|unit| unit.path.clone()).collect()
        });
        let context = fill::Context {
            store,
            areas,
            additional: &additional,
            pinned_by: &|names, digests| pinned_by(filling.pins, names, digests),
            mounts: &mounts,
            leaks,
            labels: &filling.request.labels,
            present: filling.present,
        };
        let filled = fill::fill(filling.inventory, &self.snapshot, &self.units, tallies, &context);
        filling.ids.insert((graphroot.clone(), driver.clone()), filled.ids);
        filled.nodes
    }
}

/// The symlink `l/NAME` of a layer's directory, whose file `link` has the name.
fn short_name(layer: &Path) -> Option<Facts> {
    let name = quiet::read(&layer.join("link"), 64).ok()?;
    let name = std::str::from_utf8(&name).ok()?.trim();
    // 26 letters and digits (container-libs, `storage/drivers/overlay`, `generateID`).
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    quiet::facts(&layer.parent()?.join("l").join(name)).ok()
}

fn pinned_by(pins: &[Pin], names: &[String], digests: &[String]) -> Vec<String> {
    let matching = pins.iter().filter(|pin| pin_matches_image(&pin.pattern, names, digests));
    matching.map(|pin| format!("{:?} in {}", pin.pattern, pin.origin)).collect()
}

/// Graphroots that have been read. Additional image stores come before the stores that
/// read from them.
#[derive(Debug, Default)]
pub(super) struct Found {
    stores: Vec<Graphroot>,
    pub(super) pins: Vec<Pin>,
    pub(super) findings: Vec<Finding>,
    /// Configured places, whether or not there is a store.
    pub(super) looked: Vec<PathBuf>,
    /// The stores that could not be read.
    pub(super) unread: Vec<Unread>,
    /// Why the first of them could not be read.
    unreadable: Option<Error>,
}

impl Found {
    /// The stores, and why the first of the others could not be read.
    pub(super) fn into_readings(self) -> (Vec<Box<dyn Reading>>, Option<Error>) {
        let stores = self.stores.into_iter();
        (stores.map(|store| Box::new(store) as Box<dyn Reading>).collect(), self.unreadable)
    }
}

/// Reads the graphroots that the request names; without any name (of whatever kind of
/// store), those that the configuration names.
///
/// # Errors
/// When a named store is none or cannot be read.
pub(super) fn find(request: &Request) -> Result<Found, Error> {
    let named = request.names_stores();
    let Discovery { stores, pins, problems } = match named {
        true => config::named(&request.sysroot, &request.environment, &request.graphroots),
        false => config::discover(&request.sysroot, &request.environment),
    };
    let mut found = Found { pins, ..Found::default() };
    for (path, message) in problems {
        found.findings.push(Finding { path, message, incomplete: false });
    }
    let own = Own::new(&request.sysroot, &stores);
    for at in own.lenders_first(&request.sysroot, &stores) {
        let store = &stores[at];
        let before = found.stores.len();
        match found.store(request, store, at, &own) {
            Ok(()) => {}
            Err(Error::Unreadable { path, source }) if !named => {
                let lenders = store.additional_image_stores.iter();
                let lenders = lenders.chain(&store.imagestore).chain(&store.other_imagestores);
                found.unread.push(Unread {
                    at,
                    graphroot: store.graphroot.clone(),
                    borrows_from: resolved(request, lenders),
                });
                // Another user's store, say; ours may be readable.
                let message = format!("cannot be read: {source}");
                found.findings.push(Finding { path: path.clone(), message, incomplete: true });
                found.unreadable.get_or_insert(Error::Unreadable { path, source });
            }
            Err(error) => return Err(error),
        }
        if named && found.stores.len() == before && !found.knows(request, &store.graphroot) {
            return Err(Error::NotAStore {
                path: store.graphroot.clone(),
                hint: "name the directory that holds `overlay-layers` or `vfs-layers`; `podman info` calls \
                       it graphRoot",
            });
        }
        found.looked.push(store.graphroot.clone());
    }
    Ok(found)
}

impl Found {
    /// The same directory may be named twice.
    fn knows(&self, request: &Request, graphroot: &Path) -> bool {
        let path = request.sysroot.resolve(graphroot);
        path.is_ok_and(|path| self.stores.iter().any(|known| known.snapshot.places.graphroot == path))
    }

    /// # Errors
    /// When the store at position `lender`, whose images `store` may use, could not be read.
    fn readable(&self, store: &StoreConfig, lender: usize) -> Result<(), Error> {
        let Some(lender) = self.unread.iter().find(|unread| unread.at == lender) else { return Ok(()) };
        let lender = lender.graphroot.display();
        let source = io::Error::other(format!("its additional image store {lender} could not be read"));
        Err(Error::Unreadable { path: store.graphroot.clone(), source })
    }

    /// Reads the store at position `at` of those that are somebody's `own`.
    fn store(&mut self, request: &Request, store: &StoreConfig, at: usize, own: &Own) -> Result<(), Error> {
        let mut additional = Vec::new();
        for path in &store.additional_image_stores {
            let config = StoreConfig {
                graphroot: path.clone(),
                imagestore: None,
                other_imagestores: Vec::new(),
                additional_image_stores: Vec::new(),
                driver: None,
                origin: format!("additional image store of {}", store.graphroot.display()),
                ..store.clone()
            };
            // A store that is missing here is one that nothing comes from.
            let Ok(graphroot) = request.sysroot.resolve(path) else { continue };
            match own.find(&graphroot) {
                // The library writes to its own graphroot, whatever else that is called.
                Some((same, _)) if same == at => {}
                // Whoever else names it, somebody writes to it: it is read as that one's.
                Some((lender, graphroot)) => {
                    self.readable(store, lender)?;
                    additional.push(graphroot.to_path_buf());
                }
                None => {
                    self.drivers(request, &config, true)?;
                    additional.push(graphroot);
                }
            }
        }
        let first = self.stores.len();
        self.drivers(request, store, false)?;
        for store in &mut self.stores[first..] {
            store.additional.clone_from(&additional);
        }
        Ok(())
    }

    /// Directories with leftovers of the tools. They are nobody's store in particular, so
    /// they are looked at where all stores are, and belong to the first.
    fn temporary(&self, request: &Request, read_only: bool) -> Vec<PathBuf> {
        let first = self.stores.iter().all(|store| store.snapshot.places.read_only);
        if request.names_stores() || read_only || !first {
            return Vec::new();
        }
        let named = request.environment.tmpdir.clone();
        let directory = named.unwrap_or_else(|| PathBuf::from(TEMPORARY));
        let mut found = resolved(request, [&directory]);
        found.retain(|directory| {
            let entries = quiet::list(directory).unwrap_or_default();
            entries.iter().any(leftovers::is_leftover)
        });
        found
    }

    /// Reads the store once for each driver that has records in it.
    fn drivers(&mut self, request: &Request, store: &StoreConfig, read_only: bool) -> Result<(), Error> {
        if self.knows(request, &store.graphroot) {
            return Ok(());
        }
        let unreadable = |source| Error::Unreadable { path: store.graphroot.clone(), source };
        let graphroot = match request.sysroot.resolve(&store.graphroot) {
            Ok(path) => path,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        let drivers = match snapshot::drivers_in(&graphroot) {
            Ok(drivers) => drivers,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        let first = store.driver.as_ref().filter(|driver| drivers.contains(driver)).or(drivers.first());
        for driver in &drivers {
            let runroots = match (&request.runroot, read_only) {
                (_, true) => Vec::new(),
                (Some(named), false) => resolved(request, [named]),
                (None, false) => {
                    resolved(request, std::iter::once(&store.runroot).chain(&store.other_runroots))
                }
            };
            let blind = store.transient && runroots.is_empty() && !read_only;
            let places = Places {
                graphroot: graphroot.clone(),
                imagestores: resolved(request, store.imagestore.iter().chain(&store.other_imagestores)),
                runroots,
                temporary: self.temporary(request, read_only),
                driver: driver.clone(),
                other_drivers: drivers.iter().filter(|other| *other != driver).cloned().collect(),
                primary: Some(driver) == first,
                read_only,
                foreign: request.sysroot.is_foreign(),
            };
            let mut snapshot = read(&places, request).map_err(unreadable)?;
            if blind {
                let runroot = request.runroot.as_ref().unwrap_or(&store.runroot);
                snapshot.consistency = Consistency::Damaged;
                snapshot.findings.push(Finding {
                    path: runroot.clone(),
                    message: "the store is transient, and this runroot is not there: its containers are \
                              unknown"
                        .into(),
                    incomplete: true,
                });
            }
            self.stores.push(Graphroot {
                units: units::sort(&snapshot),
                snapshot,
                origin: store.origin.clone(),
                additional: Vec::new(),
            });
        }
        Ok(())
    }
}

/// Where the containers tools leave big temporary files unless `TMPDIR` says otherwise.
const TEMPORARY: &str = "/var/tmp";

/// Reads the records, and doubts them where they cannot be all.
fn read(places: &Places, request: &Request) -> io::Result<Snapshot> {
    let mut snapshot = snapshot::read(places, request.patience)?;
    doubt(&mut snapshot);
    let closeness = match request.weigh {
        Weigh::Everything => Closeness::Everything,
        Weigh::Nothing => Closeness::Engine,
    };
    inspect(&mut snapshot, closeness);
    tracing::info!(
        "{}: {} images, {} layers, {} containers ({}, {:?})",
        places.graphroot.display(),
        snapshot.images.len(),
        snapshot.layers.len(),
        snapshot.containers.len(),
        places.driver,
        snapshot.consistency,
    );
    Ok(snapshot)
}

/// Those that exist, each once.
fn resolved<'a>(request: &Request, paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<PathBuf> {
    let paths = paths.into_iter().filter_map(|path| request.sysroot.resolve(path).ok());
    let mut found: Vec<PathBuf> = Vec::new();
    for path in paths {
        if !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
