//! Finds and reads data roots of Docker.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::{Finding, Image};
use crate::stores::discovery::found::ReadStores;
use crate::stores::docker::places::DockerPlaces;
use crate::stores::docker::store::Docker;
use crate::stores::dockerd;
use crate::stores::request::{ScanError, ScanRequest};
use crate::sys::quiet::{self, Within};
use crate::sys::root::Root;

/// Returns the data roots that a scan reads, with the source of each path. They need not exist.
pub(super) fn roots(request: &ScanRequest) -> Vec<(PathBuf, String)> {
    if request.names_stores() {
        let named = request.docker_roots.iter();
        named.map(|root| (root.clone(), "--docker-root".to_owned())).collect()
    } else {
        dockerd::data_roots(&request.sysroot, &request.running.containerds)
    }
}

/// Returns the reason why the Docker that root's commands reach does not use a data root, as a clause: it is that of a user,
/// or Docker has another one. Without any Docker here, the commands are for the system that the data root came from.
fn out_of_tool(request: &ScanRequest, root: &Path) -> Option<String> {
    let owner = quiet::facts(root).ok()?.owner;
    if ![0, rustix::process::geteuid().as_raw()].contains(&owner) {
        return Some(format!(
            "it belongs to {}, whose own Docker deletes here",
            request.sysroot.user_name(owner)
        ));
    }
    let all = dockerd::data_roots(&request.sysroot, &request.running.containerds);
    let resolved =
        all.into_iter().map(|(path, origin)| (request.sysroot.resolve(&path).unwrap_or(path), origin));
    let all: Vec<_> = resolved.collect();
    let is_running = |origin: &str| origin == dockerd::COMMAND_LINE;
    let running: Vec<_> = all.iter().filter(|(_, origin)| is_running(origin)).collect();
    let used = if running.is_empty() { all.iter().take(1).collect() } else { running };
    // With userns-remap, it is a directory of the data root.
    let places: Vec<_> = [Some(root), root.parent()].into_iter().flatten().map(identity_of).collect();
    let is_used =
        used.iter().any(|(path, _)| identity_of(path).is_some_and(|used| places.contains(&Some(used))));
    let is_none_here =
        used.iter().all(|(path, origin)| origin == dockerd::DEFAULT && identity_of(path).is_none());
    let other = used.first().filter(|_| !is_used && !is_none_here)?;
    Some(format!("Docker's data root is {}, and not this one", request.sysroot.shown(&other.0)))
}

/// Refuses a data root that shares a directory with a store of another kind: their bytes would count twice. The
/// containerd that Docker starts is left out of the data root.
fn check_apart(request: &ScanRequest, places: &DockerPlaces, stores: &[PathBuf]) -> io::Result<()> {
    let root = places.root.as_path();
    let mut shared = stores.iter().filter(|store| {
        let is_around = store.starts_with(root) || root.starts_with(store);
        let is_same = identity_of(store) == identity_of(root);
        (is_around || is_same) && identity_of(store) != identity_of(&places.containerd())
    });
    let Some(store) = shared.next() else { return Ok(()) };
    let store = request.sysroot.shown(store);
    Err(io::Error::other(format!(
        "the store {store} is in the same directory, so bytes would count twice; give each a directory of its own"
    )))
}

fn identity_of(path: &Path) -> Option<(u64, u64)> {
    Root::open(path).map(|root| root.identity()).ok()
}

/// Reads the data roots that the request names; if it names no store of any kind, those that are found. `stores`
/// are the roots of the stores of other kinds that are read.
///
/// # Errors
/// If a named root is not a data root with Docker's own store, or cannot be read.
pub(crate) fn find(request: &ScanRequest, stores: &[PathBuf]) -> Result<ReadStores, ScanError> {
    let mut found = ReadStores::new();
    let is_named = request.names_stores();
    if !is_named && let Err(error) = dockerd::read_configuration(&request.sysroot) {
        let path = Path::new(dockerd::DAEMON_JSON);
        if !request.is_denied_by_owner(path, &error) {
            let message = format!("reading it: {error}; Docker's data root is unknown");
            found.findings.push(Finding::incomplete(path, message));
        }
    }
    let mut known = Vec::new();
    let identities: Vec<_> = stores.iter().filter_map(|root| identity_of(root)).collect();
    for (path, origin) in roots(request) {
        let places = match request.sysroot.resolve(&path) {
            Ok(root) => DockerPlaces::find(&root, request.sysroot.is_foreign()),
            Err(error) if quiet::is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        };
        let read = places.and_then(|places| {
            let Some(mut places) = places else { return Ok(None) };
            let identity = identity_of(&places.root);
            // The same data root may be configured twice.
            if known.contains(&identity) {
                return Ok(Some(None));
            }
            known.push(identity);
            check_apart(request, &places, stores)?;
            let inner = identity_of(&places.containerd());
            places.out_of_tool = out_of_tool(request, &places.root);
            places.is_containerd_read = inner.is_some_and(|inner| identities.contains(&inner));
            Docker::read(&places, origin, request).map(|store| Some(Some(store)))
        });
        match read {
            Ok(Some(store)) => store.into_iter().for_each(|store| found.push(store, None)),
            Ok(None) if is_named => {
                return Err(ScanError::NotAStore {
                    exists: request.exists(&path),
                    path,
                    hint: "pass the directory that contains `image/overlay2`; images in containerd are found with \
                           --containerd-root",
                });
            }
            Ok(None) => {}
            Err(source) if is_named => return Err(ScanError::Unreadable { path, source }),
            Err(source) => {
                if !request.is_denied_by_owner(&path, &source) {
                    found.findings.push(Finding::incomplete(&path, format!("cannot be read: {source}")));
                }
                found.unreadable.get_or_insert(ScanError::Unreadable { path: path.clone(), source });
            }
        }
        found.looked.push(path);
    }
    Ok(found)
}

/// Returns true if the data root still contains `image` of an earlier reading.
pub(in crate::stores) fn has_image(root: &Path, image: &Image) -> io::Result<Option<bool>> {
    let places = DockerPlaces { root: root.to_path_buf(), ..DockerPlaces::default() };
    let record = places.image_records().join("content/sha256").join(image.id.as_str());
    let found = quiet::if_present(Within::at([root]).facts(&record))?;
    Ok(Some(found.is_some()))
}
