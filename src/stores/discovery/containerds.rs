//! Finds and reads containerd roots.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::{Finding, Image};
use crate::stores::containerd::config::{self, RootConfig};
use crate::stores::containerd::fill::unqualified;
use crate::stores::containerd::places::{ConfiguredPin, ContainerdPlaces, is_root};
use crate::stores::containerd::store::Containerd;
use crate::stores::containerd::{read, units};
use crate::stores::discovery::found::ReadStores;
use crate::stores::request::{ScanError, ScanRequest};
use crate::sys::quiet::is_absent;
use crate::sys::root::Root;

/// Returns true if the root was already read. The same directory may be configured twice, and be mounted twice.
fn is_among(stores: &[Containerd], root: &Path) -> bool {
    let wanted = identity_of(root);
    let mut roots = stores.iter().map(|known| &known.snapshot.places.root);
    roots.any(|known| known == root || (wanted.is_some() && identity_of(known) == wanted))
}

/// Removes directories outside its root from `places` that an earlier root already has: a configuration file may
/// be about several roots, but the snapshots in a directory are recorded in only one of them.
fn claim(stores: &[Containerd], places: &mut ContainerdPlaces) {
    for known in stores.iter().map(|known| &known.snapshot.places) {
        places.snapshotters.retain(|(_, path)| known.snapshotters.iter().all(|(_, taken)| taken != path));
        places.proxies.retain(|proxy| known.proxies.iter().all(|taken| taken.directory != proxy.directory));
        places.layer_caches.retain(|path| !known.layer_caches.contains(path));
    }
}

/// Reads a root whose images `pins` protect, and adds it to `stores`; returns false if it does not exist.
fn read_root(
    stores: &mut Vec<Containerd>,
    request: &ScanRequest,
    config: &RootConfig,
    pins: &[ConfiguredPin],
) -> Result<bool, ScanError> {
    let unreadable = |source| ScanError::Unreadable { path: config.root.clone(), source };
    let mut places: ContainerdPlaces = match config.places(&request.sysroot) {
        Ok(places) => places,
        Err(error) if is_absent(&error) => return Ok(false),
        Err(error) => return Err(unreadable(error)),
    };
    if is_among(stores, &places.root) {
        return Ok(true);
    }
    if !is_root(&places.root).map_err(unreadable)? {
        return Ok(false);
    }
    claim(stores, &mut places);
    places.pins = pins.to_vec();
    // Without a search for leaks, the records need not be confirmed by a second reading.
    let patience = read::ReadPatience::default();
    let confirm = patience.confirm.filter(|_| request.measure.finds_leaks());
    let snapshot = read::read(&places, read::ReadPatience { confirm, ..patience }, &request.read_cache)
        .map_err(unreadable)?;
    stores.push(Containerd { units: units::sort(&snapshot), snapshot, origin: config.origin.clone() });
    Ok(true)
}

fn identity_of(path: &Path) -> Option<(u64, u64)> {
    Root::open(path).map(|root| root.identity()).ok()
}

/// Returns true if the store still contains `image` of an earlier reading, by one of its names or their targets.
/// Returns `None` if it is not found and the records are damaged.
pub(in crate::stores) fn has_image(
    request: &ScanRequest,
    root: &Path,
    image: &Image,
) -> io::Result<Option<bool>> {
    // Snapshotters may be at other paths, but only `meta.db` is read.
    let places = ContainerdPlaces::at(root, false);
    let (namespace, hex) = unqualified(&image.id);
    read::has_image(&places, &request.read_cache, namespace, |name, target| {
        // CRI uses the digest of the configuration as a name.
        let mut texts = [name, target].into_iter().filter_map(|text| text.split_once(':'));
        texts.any(|(_, digest)| digest == hex) || image.digests.iter().any(|digest| digest == target)
    })
}

/// The containerds of a node, according to running programs and configuration.
#[derive(Debug, Default)]
pub(super) struct Containerds {
    /// Roots that a scan reads. They need not exist.
    pub(super) roots: Vec<RootConfig>,
    /// Sandbox images of all containerds that have a root here, and of those named. Each of them protects images of
    /// every root.
    pub(super) pins: Vec<ConfiguredPin>,
    /// First file of one of these containerds that could not be read or parsed, and the reason.
    pub(super) problem: Option<(PathBuf, String)>,
    /// Files of any containerd that could not be read or parsed.
    pub(super) problems: Vec<(PathBuf, String)>,
}

impl Containerds {
    pub(super) fn of(request: &ScanRequest) -> Self {
        let sysroot = &request.sysroot;
        let discovery = config::discover(sysroot, &request.running);
        let named: Vec<_> =
            request.containerd_roots.iter().map(|root| discovery.named(sysroot, root)).collect();
        let found = discovery.roots.iter().filter(|config| {
            // A root that cannot be examined may exist.
            config.places(sysroot).is_ok_and(|places| is_root(&places.root).unwrap_or(true))
        });
        let mut all = RootConfig::default();
        for config in named.iter().chain(found) {
            if config.pins.is_empty() {
                all.add_pins(&config::default_sandboxes())
            } else {
                all.add_pins(&config.pins)
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

/// Reads the roots that the request names; if it names no store of any kind, those that are found.
///
/// # Errors
/// If a named root is not a root of containerd or cannot be read.
pub(crate) fn find(request: &ScanRequest) -> Result<ReadStores, ScanError> {
    let (mut stores, mut found) = (Vec::new(), ReadStores::new());
    let Containerds { roots, pins, problems, .. } = Containerds::of(request);
    for (path, message) in problems {
        found.findings.push(Finding::new(path, message));
    }
    let is_named = request.names_stores();
    for config in roots {
        match read_root(&mut stores, request, &config, &pins) {
            Ok(true) => {}
            Ok(false) if is_named => {
                return Err(ScanError::NotAStore {
                    exists: request.exists(&config.root),
                    path: config.root,
                    hint: "pass the directory that contains `io.containerd.metadata.v1.bolt`",
                });
            }
            Ok(false) => {}
            Err(ScanError::Unreadable { path, source }) if !is_named => {
                if !request.is_denied_by_owner(&path, &source) {
                    found.findings.push(Finding::incomplete(&path, format!("cannot be read: {source}")));
                }
                found.unreadable.get_or_insert(ScanError::Unreadable { path, source });
            }
            Err(error) => return Err(error),
        }
        found.looked.push(config.root);
    }
    stores.into_iter().for_each(|store| found.push(store, None));
    Ok(found)
}
