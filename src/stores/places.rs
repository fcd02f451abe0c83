//! Where a survey would look, without reading any store.

use std::path::PathBuf;

use super::{Request, sandboxes};
use crate::stores::containers_storage::config as graphroot;

/// Directories that a survey of `request` reads as stores and as their runtime state: what is written
/// for people has no place in them. Paths inside the root, as configured; they need not exist.
#[must_use]
pub fn directories(request: &Request) -> Vec<PathBuf> {
    let mut found = request.graphroots.clone();
    found.extend(request.runroot.clone());
    found.extend(request.containerd_roots.iter().cloned());
    let configured = match (request.names_stores(), request.graphroots.is_empty()) {
        (false, _) => graphroot::discover(&request.sysroot, &request.environment).stores,
        (true, true) => Vec::new(),
        (true, false) => graphroot::named(&request.sysroot, &request.environment, &request.graphroots).stores,
    };
    for store in configured {
        found.extend([store.graphroot, store.runroot]);
        found.extend(store.imagestore);
        found.extend([store.other_runroots, store.other_imagestores].concat());
        found.extend([store.additional_image_stores, store.additional_layer_stores].concat());
    }
    for root in sandboxes::containerds(request) {
        found.extend([root.root, root.state]);
        found.extend(root.snapshotters.into_iter().chain(root.proxies).map(|(_, directory)| directory));
        found.extend(root.layer_caches);
    }
    found.retain(|path| path.is_absolute());
    found.sort();
    found.dedup();
    found
}
