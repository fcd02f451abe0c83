//! Finds and reads containers/storage graphroots.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::{Consistency, Finding, StoreKind};
use crate::stores::additional::{self, RealDirectory, Unread, WrittenDirectories};
use crate::stores::containers_storage::artifacts;
use crate::stores::containers_storage::artifacts::store::Artifacts;
use crate::stores::containers_storage::blob_cache;
use crate::stores::containers_storage::config::{self, GraphrootDiscovery, Pin, StoreConfig};
use crate::stores::containers_storage::needs;
use crate::stores::containers_storage::outside::{OutsideNeeds, WatchedFiles};
use crate::stores::containers_storage::places::{self, StorePlaces};
use crate::stores::containers_storage::store::{self, Graphroot, read};
use crate::stores::containers_storage::temporary_files;
use crate::stores::discovery::found::ReadStores;
use crate::stores::lending::Need;
use crate::stores::request::{Measure, ScanError, ScanRequest};
use crate::sys::allowance::{self, Allowance};
use crate::sys::quiet::{Within, is_absent};
use crate::sys::root::Root;

/// Graphroots that have been read. Additional image stores come before the stores that read from them.
#[derive(Debug, Default)]
struct Graphroots {
    stores: Vec<Graphroot>,
    /// Stores that were not requested but use images of the requested ones; only their records are read.
    others: Vec<Graphroot>,
    artifacts: Vec<Artifacts>,
    pins: Arc<[Pin]>,
    unread: Vec<Unread>,
    temporary: Vec<PathBuf>,
    /// Limits for reading all stores of other users together.
    allowance: Allowance,
    findings: Vec<Finding>,
}

impl Graphroots {
    fn move_to(self, found: &mut ReadStores) {
        for store in self.stores {
            let places = store.snapshot.places.clone();
            found.push(store, Some(places));
        }
        for store in self.artifacts {
            let places = store.places().clone();
            found.push(store, Some(places));
        }
        found.findings.extend(self.findings);
        found.borrowers.extend(self.others.iter().map(|other| other.borrower(None)));
        found.borrowers.extend(self.unread.iter().map(Unread::borrower));
    }
}

/// Reads the graphroots that the request names; if it names no store of any kind, those that the configuration names.
/// Other stores are read as well if they take images from these. A named store limits which stores are shown. It does
/// not limit the search for users of an image: users in stores that are not shown still protect it.
///
/// # Errors
/// If a named directory is not a store or cannot be read.
pub(crate) fn find(request: &ScanRequest) -> Result<ReadStores, ScanError> {
    let named = request.names_stores();
    let discovery = if named {
        config::named(&request.sysroot, &request.environment, &request.running, &request.graphroots)
    } else {
        config::discover(&request.sysroot, &request.environment, &request.running)
    };
    let GraphrootDiscovery {
        stores,
        others,
        pins,
        artifact_stores,
        problems,
        temporary,
        unread: unread_configs,
    } = discovery;
    let reported =
        request.running.stores.iter().filter(|store| store.kind == StoreKind::ContainersStorage).filter_map(
            |store| {
                Some(Pin {
                    pattern: store.sandbox_image.clone()?,
                    origin: store.origin.clone(),
                    is_of_sandboxes: true,
                })
            },
        );
    let pins = pins.into_iter().chain(reported).collect();
    let allowance = Allowance::limited(allowance::OF_OTHER_USERS);
    let mut graphroots = Graphroots { pins, temporary, allowance, ..Graphroots::default() };
    let mut found = ReadStores { unread_configs, ..ReadStores::new() };
    for (path, message) in problems {
        graphroots.findings.push(Finding::new(path, message));
    }
    let requested = stores.len();
    let mut all = [with_runroots(request, stores), others].concat();
    let bootc = bootc(request);
    if request.environment.uid == 0 {
        // Quadlets name it on podman's command line, which no configuration contains. Only root can read it.
        let of_root = all.iter_mut().filter(|store| placed_owner(request, store) == 0);
        of_root.for_each(|store| store.additional_image_stores.extend(bootc.clone()));
    }
    found.layer_stores = all.iter().flat_map(|store| store.additional_layer_stores.clone()).collect();
    let written = WrittenDirectories::new(&request.sysroot, &all);
    let known = Configured { all: &all, requested, written: &written };
    for position in written.additional_first(&request.sysroot, &all) {
        if position >= requested {
            continue;
        }
        let store = &all[position];
        let (before, beside) = (graphroots.stores.len(), graphroots.artifacts.len());
        match graphroots.store(request, position, known) {
            Ok(()) => {}
            Err(ScanError::Unreadable { path, source }) if !named => {
                graphroots.unread.push(unread(request, store, position));
                if !request.is_denied_by_owner(&path, &source) {
                    graphroots.findings.push(Finding::incomplete(&path, format!("cannot be read: {source}")));
                }
                found.unreadable.get_or_insert(ScanError::Unreadable { path, source });
            }
            Err(error) => return Err(error),
        }
        let nothing = graphroots.stores.len() == before && graphroots.artifacts.len() == beside;
        if named && nothing && !graphroots.knows(request, &store.graphroot) {
            return Err(ScanError::NotAStore {
                path: store.graphroot.clone(),
                exists: request.exists(&store.graphroot),
                hint: "pass the directory that contains `overlay-layers` or `vfs-layers` (graphRoot in \
                       `podman info`)",
            });
        }
        found.looked.push(store.graphroot.clone());
    }
    if !named {
        graphroots.additional_artifacts(request, &artifact_stores);
    }
    for position in requested..all.len() {
        graphroots.other(request, position, known);
    }
    graphroots.move_to(&mut found);
    Ok(found)
}

/// Directories in which bootc stores the images of its deployments (bootc `crates/lib/src/podstorage.rs`): the link
/// that quadlets use, then those of the ostree and the composefs backend.
const BOOTC: [&str; 3] =
    ["/usr/lib/bootc/storage", "/sysroot/ostree/bootc/storage", "/sysroot/composefs/bootc/storage"];

/// Returns bootc's own stores, each directory once. bootc itself prunes them, according to its deployments.
fn bootc(request: &ScanRequest) -> Vec<PathBuf> {
    let mut found: Vec<(PathBuf, Root)> = Vec::new();
    for path in BOOTC {
        let Ok(root) = request.sysroot.open(Path::new(path)) else { continue };
        if found.iter().all(|(_, known)| known.identity() != root.identity()) {
            found.push((path.into(), root));
        }
    }
    found.into_iter().map(|(path, _)| path).collect()
}

/// Returns the owner of the directory that is, or will be, a store's graphroot.
fn placed_owner(request: &ScanRequest, store: &StoreConfig) -> u32 {
    let placed = placed(request, store);
    let inside = |path: &Path| Path::new("/").join(path.strip_prefix(request.sysroot.root()).unwrap_or(path));
    let mut opened = placed.ancestors().filter_map(|path| request.sysroot.open(&inside(path)).ok());
    opened.next().map_or(0, |root| root.owner())
}

/// Replaces the configured runroots of the requested stores by those that the request names.
fn with_runroots(request: &ScanRequest, mut stores: Vec<StoreConfig>) -> Vec<StoreConfig> {
    for (position, store) in stores.iter_mut().enumerate() {
        let position = if request.graphroots.is_empty() { 0 } else { position };
        if let Some(runroot) = request.runroots.get(position) {
            store.runroot.clone_from(runroot);
            store.other_runroots.clear();
        }
    }
    stores
}

/// Returns the needs of other stores, and those outside all records, for the store at `places`. Read right before a
/// deletion; the result contains the files to watch for changes.
#[must_use]
pub fn outside(request: &ScanRequest, places: &StorePlaces) -> OutsideNeeds {
    let mut outside = OutsideNeeds::default();
    let allowance = Allowance::limited(allowance::OF_OTHER_USERS);
    let found = match request.graphroots.as_slice() {
        [] => config::discover(&request.sysroot, &request.environment, &request.running),
        named => config::named(&request.sysroot, &request.environment, &request.running, named),
    };
    let others = found
        .others
        .into_iter()
        .filter(|other| !found.stores.iter().any(|store| store.graphroot == other.graphroot))
        .collect();
    // The store itself comes first, with the directories that were read: it owns a shared imagestore.
    let this = StoreConfig {
        graphroot: places.graphroot.to_path_buf(),
        imagestore: places.imagestores.first().map(|path| path.to_path_buf()),
        ..StoreConfig::default()
    };
    let all = [vec![this], with_runroots(request, found.stores.clone()), others].concat();
    let written = WrittenDirectories::new(&request.sysroot, &all);
    let known = Configured { all: &all, requested: 1, written: &written };
    outside.add(WatchedFiles::beside_records(places), needs::beside(places));
    let request = &records_of_another(request, places);
    let areas: Vec<_> = places.areas().map(RealDirectory::opened).collect();
    for unread in found.unread {
        let mut readable = areas.iter();
        if readable
            .any(|area| additional::can_read(&request.sysroot, unread.uid, (area.path(), &places.driver)))
        {
            outside.add_unknown(unread.file);
        }
    }
    for (position, store) in all.iter().enumerate().skip(1) {
        if written.find_graphroot(&areas[0], position)
            || !known.takes_from(request, position, &areas, &places.driver)
        {
            continue;
        }
        let mut found = Graphroots { allowance: allowance.clone(), ..Graphroots::default() };
        let absent = WatchedFiles::absent(&placed(request, store));
        match found.drivers(request, position, known) {
            Ok(()) if found.stores.is_empty() => outside.add(absent, Vec::new()),
            Ok(()) => {}
            Err(_) => outside.add_unknown(store.graphroot.clone()),
        }
        for store in found.stores.into_iter().filter(|store| store.snapshot.places.driver == places.driver) {
            let places = &store.snapshot.places;
            if !needs::knows_all(&store.snapshot) {
                outside.add_unknown(places.graphroot.to_path_buf());
            }
            let needs = needs::elsewhere(&store.snapshot).into_iter();
            let root = places.graphroot.display();
            let needs = needs.map(|need| Need { by: format!("{} in the store {root}", need.by), ..need });
            outside.add(store.watch, needs.collect());
        }
    }
    outside
}

/// Returns true if the store at `places` contains the image; `None` if it is not found and the records are damaged.
/// Reads no other store and does not search for stores.
///
/// # Errors
/// If the records cannot be read at all.
pub fn has_image(request: &ScanRequest, places: &StorePlaces, id: &str) -> io::Result<Option<bool>> {
    // A store that was moved or replaced says nothing about the images that the runtime finds.
    if !places.areas().all(|root| Root::open(root).is_ok_and(|now| now.identity() == root.identity())) {
        return Err(io::Error::other("it is no longer at its path"));
    }
    store::has_image(places, request, id)
}

/// Returns the request for a store that was not requested: flags do not apply to it.
fn records_of_another(request: &ScanRequest, requested: &StorePlaces) -> ScanRequest {
    let graphroots = vec![requested.graphroot.to_path_buf()];
    ScanRequest { graphroots, runroots: Vec::new(), measure: Measure::RecordsAndMounts, ..request.clone() }
}

/// All stores that the configuration names: first the requested ones, then the others.
#[derive(Clone, Copy, Debug)]
struct Configured<'a> {
    all: &'a [StoreConfig],
    requested: usize,
    written: &'a WrittenDirectories,
}

impl Configured<'_> {
    /// Returns the imagestores to which the store at `position` writes and no earlier store does.
    fn imagestores(&self, request: &ScanRequest, position: usize) -> Vec<Root> {
        let store = &self.all[position];
        let mut found = opened(request, store.imagestore.iter().chain(&store.other_imagestores));
        found.retain(|root| {
            let written = self.written.find(&RealDirectory::opened(root));
            written.is_none_or(|(owner, _)| owner == position)
        });
        found
    }

    /// Returns the directories of other stores from which its images may come, as configured. Missing directories are
    /// skipped.
    fn borrowed_as_named(&self, request: &ScanRequest, position: usize) -> Vec<(&PathBuf, Root)> {
        let imagestores = self.imagestores(request, position);
        let named = additional::borrowed(&self.all[position]);
        let placed = named.filter_map(|path| Some((path, request.sysroot.open(path).ok()?)));
        let foreign = placed.filter(|(_, placed)| {
            imagestores.iter().all(|imagestore| imagestore.identity() != placed.identity())
        });
        foreign.collect()
    }

    /// Same as [`Self::borrowed_as_named`], without the configured paths.
    fn borrowed(&self, request: &ScanRequest, position: usize) -> Vec<Root> {
        self.borrowed_as_named(request, position).into_iter().map(|(_, placed)| placed).collect()
    }

    /// Returns true if the store takes images from a store in `areas`, and its owner can reach them.
    fn takes_from(
        &self,
        request: &ScanRequest,
        position: usize,
        areas: &[RealDirectory],
        driver: &str,
    ) -> bool {
        let borrowed: Vec<_> = self.borrowed(request, position).iter().map(RealDirectory::opened).collect();
        let graphroot = placed(request, &self.all[position]);
        areas
            .iter()
            .filter(|area| borrowed.iter().any(|place| place.is(area)))
            .any(|area| additional::may_reach(&request.sysroot, &graphroot, (area.path(), driver)))
    }
}

/// Returns the path of a store's graphroot on this system; a guess if it does not exist.
fn placed(request: &ScanRequest, store: &StoreConfig) -> PathBuf {
    request.sysroot.resolve(&store.graphroot).unwrap_or_else(|_| {
        let below = store.graphroot.strip_prefix("/").unwrap_or(&store.graphroot);
        request.sysroot.root().join(below)
    })
}

fn unread(request: &ScanRequest, store: &StoreConfig, position: usize) -> Unread {
    Unread {
        position,
        graphroot: placed(request, store),
        borrows_from: paths(opened(request, additional::borrowed(store))),
    }
}

impl Graphroots {
    /// Returns the store that has this directory. The same directory may be named twice, and may be another store's
    /// imagestore.
    fn known(&self, wanted: &RealDirectory) -> Option<&Graphroot> {
        self.stores
            .iter()
            .find(|known| known.snapshot.places.areas().any(|area| RealDirectory::opened(area).is(wanted)))
    }

    fn knows(&self, request: &ScanRequest, graphroot: &Path) -> bool {
        request.sysroot.resolve(graphroot).is_ok_and(|path| self.known(&RealDirectory::of(path)).is_some())
    }

    /// Checks that an additional image store of `store` was read.
    ///
    /// # Errors
    /// If the store at position `additional_store` could not be read.
    fn readable(&self, store: &StoreConfig, additional_store: usize) -> Result<(), ScanError> {
        let Some(unread) = self.unread.iter().find(|unread| unread.position == additional_store) else {
            return Ok(());
        };
        let unread = unread.graphroot.display();
        let source = io::Error::other(format!("its additional image store {unread} could not be read"));
        Err(ScanError::Unreadable { path: store.graphroot.clone(), source })
    }

    /// Reads the store at `position`, and stores that were not requested whose images it uses.
    fn store(
        &mut self,
        request: &ScanRequest,
        position: usize,
        known: Configured<'_>,
    ) -> Result<(), ScanError> {
        let store = &known.all[position];
        let mut additional = Vec::new();
        for (named, path) in known.borrowed_as_named(request, position) {
            let place = RealDirectory::opened(&path);
            match known.written.find(&place) {
                // The library writes to its own graphroot, even if it is also configured as an additional store.
                Some((same, _)) if same == position => continue,
                // Another process writes to this store: it is read as that process's store.
                Some((additional_store, _)) if additional_store < known.requested => {
                    self.readable(store, additional_store)?
                }
                _ => {
                    let config = StoreConfig {
                        graphroot: named.clone(),
                        imagestore: None,
                        other_imagestores: Vec::new(),
                        additional_image_stores: Vec::new(),
                        driver: None,
                        origin: format!("additional image store of {}", store.graphroot.display()),
                        ..store.clone()
                    };
                    self.drivers_of(request, &config, Vec::new(), true)?;
                }
            }
            // In a cycle it has not been read yet.
            let graphroot = self.known(&place).map_or(&path, |known| &known.snapshot.places.graphroot);
            additional.push(graphroot.to_path_buf());
        }
        let first = self.stores.len();
        self.drivers(request, position, known)?;
        for store in &mut self.stores[first..] {
            let StorePlaces { graphroot, driver, .. } = &store.snapshot.places;
            let reachable = additional
                .iter()
                .filter(|path| additional::may_reach(&request.sysroot, graphroot, (*path, driver)));
            store.additional = reachable.cloned().collect();
        }
        Ok(())
    }

    /// Reads the store at `position`, which was not requested, if it takes images from a requested store. Problems of
    /// this store are not reported, except that its needs are unknown.
    fn other(&mut self, request: &ScanRequest, position: usize, known: Configured<'_>) {
        let wanted = RealDirectory::of(placed(request, &known.all[position]));
        let is_read = self.stores.iter().any(|store| {
            let places = &store.snapshot.places;
            !places.read_only && RealDirectory::opened(&places.graphroot).is(&wanted)
        });
        if is_read {
            return;
        }
        let takes = self.stores.iter().find(|additional_store| {
            let places = &additional_store.snapshot.places;
            let areas: Vec<_> = places.areas().map(RealDirectory::opened).collect();
            known.takes_from(request, position, &areas, &places.driver)
        });
        let Some(additional_store) = takes else { return };
        let request = &records_of_another(request, &additional_store.snapshot.places);
        let mut found = Self { allowance: self.allowance.clone(), ..Self::default() };
        if found.drivers(request, position, known).is_err() {
            self.unread.push(unread(request, &known.all[position], position));
        }
        let additional = paths(known.borrowed(request, position));
        for store in &mut found.stores {
            store.additional.clone_from(&additional);
        }
        self.others.append(&mut found.stores);
    }

    /// Returns the directories with temporary files of the tools. They belong to no particular store: they are read if
    /// the request names no stores, and are counted with the first writable store.
    fn temporary(&self, request: &ScanRequest, graphroot: &Root, read_only: bool) -> Vec<Root> {
        let first = self.stores.iter().all(|store| store.snapshot.places.read_only);
        if request.names_stores() || read_only || !first {
            return Vec::new();
        }
        let named = request.environment.tmpdir.clone();
        let usual = named.unwrap_or_else(|| PathBuf::from(TEMPORARY));
        let mut found = opened(request, std::iter::once(&usual).chain(&self.temporary));
        // Files in the graphroot are counted with it.
        found.retain(|directory| !directory.starts_with(graphroot.path()));
        found.retain(|directory| {
            let entries = Within::new([directory]).list(directory).unwrap_or_default();
            entries.iter().any(temporary_files::is_temporary)
        });
        found
    }

    /// Reads the store at `position` once for each driver that has records in it.
    fn drivers(
        &mut self,
        request: &ScanRequest,
        position: usize,
        known: Configured<'_>,
    ) -> Result<(), ScanError> {
        self.drivers_of(request, &known.all[position], known.imagestores(request, position), false)
    }

    fn drivers_of(
        &mut self,
        request: &ScanRequest,
        store: &StoreConfig,
        imagestores: Vec<Root>,
        read_only: bool,
    ) -> Result<(), ScanError> {
        if self.knows(request, &store.graphroot) {
            return Ok(());
        }
        let unreadable = |source| ScanError::Unreadable { path: store.graphroot.clone(), source };
        let graphroot = match request.sysroot.open(&store.graphroot) {
            Ok(root) => root,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        let bootc = opened(request, &bootc(request));
        let is_bootc = bootc.iter().any(|root| root.identity() == graphroot.identity());
        // Only bootc deletes from its stores, whatever configuration names them.
        let read_only = read_only || is_bootc;
        let origin = if is_bootc { "bootc".to_owned() } else { store.origin.clone() };
        let allowance = if is_of_another_user(request, store, &graphroot) {
            self.allowance.clone()
        } else {
            Allowance::default()
        };
        let drivers = match places::drivers_in(&graphroot, &allowance) {
            Ok(drivers) => drivers,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(unreadable(error)),
        };
        let first = store.driver.as_ref().filter(|driver| drivers.contains(driver)).or(drivers.first());
        for driver in &drivers {
            let runroots = if read_only {
                Vec::new()
            } else {
                opened(request, std::iter::once(&store.runroot).chain(&store.other_runroots))
            };
            let blind = store.transient && runroots.is_empty() && !read_only;
            let mut places = StorePlaces {
                graphroot: graphroot.clone(),
                imagestores: imagestores.clone(),
                runroots,
                databases: if read_only { Vec::new() } else { opened(request, &store.podman_dirs) },
                temporary: self.temporary(request, &graphroot, read_only),
                caches: if read_only { Vec::new() } else { caches(request, &graphroot) },
                driver: driver.clone(),
                other_drivers: drivers.iter().filter(|other| *other != driver).cloned().collect(),
                primary: Some(driver) == first,
                read_only,
                foreign: request.sysroot.is_foreign(),
                allowance: allowance.for_store(),
            };
            if artifacts::exists(&places) {
                // Counted as a store of its own.
                places.other_drivers.push(artifacts::DRIVER.into());
            }
            let watch = WatchedFiles::new(&places);
            let mut snapshot = read(&places, request).map_err(unreadable)?;
            if blind {
                snapshot.consistency = Consistency::Damaged;
                let message =
                    "the store is transient and this runroot does not exist: its containers are unknown";
                snapshot.findings.push(Finding::incomplete(&store.runroot, message));
            }
            self.stores.push(Graphroot::new(snapshot, origin.clone(), watch, Arc::clone(&self.pins)));
        }
        self.artifacts_of(request, &graphroot, &origin, (read_only, &allowance));
        Ok(())
    }

    /// Reads the artifacts in a graphroot. If they cannot be read, the images still are.
    fn artifacts_of(
        &mut self,
        request: &ScanRequest,
        graphroot: &Root,
        origin: &str,
        (read_only, allowance): (bool, &Allowance),
    ) {
        let foreign = request.sysroot.is_foreign();
        let allowance = allowance.for_store();
        let places = StorePlaces::new(graphroot.clone(), artifacts::DRIVER);
        let places = StorePlaces { read_only, foreign, allowance, ..places };
        match Artifacts::find(&places, origin, Arc::clone(&self.pins)) {
            Ok(found) => self.artifacts.extend(found),
            Err(error) => {
                let message = format!("cannot be read: {error}");
                self.findings.push(Finding::incomplete(artifacts::directory(graphroot), message));
            }
        }
    }

    /// Adds read-only artifact stores of CRI-O.
    fn additional_artifacts(&mut self, request: &ScanRequest, named: &[Pin]) {
        let artifacts = std::mem::take(&mut self.artifacts);
        for Pin { pattern: path, origin, .. } in named {
            let Ok(root) = request.sysroot.open(Path::new(path)) else { continue };
            let place = RealDirectory::of(artifacts::directory(&root));
            let mut known = artifacts.iter().chain(&self.artifacts);
            if !known.any(|known| RealDirectory::of(known.directory()).is(&place)) {
                self.artifacts_of(request, &root, origin, (true, &Allowance::default()));
            }
        }
        // CRI-O lists these first, and uses the first store that contains a name.
        self.artifacts =
            std::mem::take(&mut self.artifacts).into_iter().map(Artifacts::into_additional).collect();
        self.artifacts.extend(artifacts);
    }
}

/// Returns true if another user than root and the caller writes the records of a store, or configures its location.
fn is_of_another_user(request: &ScanRequest, store: &StoreConfig, graphroot: &Root) -> bool {
    let caller = rustix::process::geteuid().as_raw();
    store.of_another_user || ![0, caller, request.environment.uid].contains(&graphroot.owner())
}

/// Returns the directories that may contain the blob-info cache of the graphroot's tools: those of its owner.
fn caches(request: &ScanRequest, graphroot: &Root) -> Vec<Root> {
    let of_root = (graphroot.owner() == 0).then(|| PathBuf::from(blob_cache::OF_ROOT));
    let mut found = opened(request, &of_root);
    if let Some(Ok(beside)) =
        graphroot.parent().map(|parent| Root::open(&parent.join(blob_cache::BESIDE_GRAPHROOT)))
        && beside.owner() == graphroot.owner()
        && found.iter().all(|known| known.identity() != beside.identity())
    {
        found.push(beside);
    }
    found
}

/// Directory of big temporary files of the containers tools, unless `TMPDIR` names another.
const TEMPORARY: &str = "/var/tmp";

/// Opens those of `paths` that exist, each directory once.
fn opened<'a>(request: &ScanRequest, paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<Root> {
    let roots = paths.into_iter().filter_map(|path| request.sysroot.open(path).ok());
    let mut found: Vec<Root> = Vec::new();
    for root in roots {
        if found.iter().all(|known| known.identity() != root.identity()) {
            found.push(root);
        }
    }
    found
}

fn paths(roots: impl IntoIterator<Item = Root>) -> Vec<PathBuf> {
    roots.into_iter().map(|root| root.to_path_buf()).collect()
}
