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
            let inner = identity_of(&places.containerd());
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
