//! Merges the candidates for stores, so that each graphroot appears once.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::files::Files;
use super::types::StoreConfig;

/// Device and inode of a graphroot. Two paths with the same identity lead to the same directory.
type Identity = (u64, u64);

#[derive(Debug)]
pub(super) struct MergedStores<'a> {
    files: Rc<Files<'a>>,
    found: Vec<NamedStore>,
}

#[derive(Debug)]
struct NamedStore {
    store: StoreConfig,
    /// `None` if the directory does not exist.
    identity: Option<Identity>,
    /// Drivers that any candidate names.
    drivers: Vec<String>,
}

impl<'a> MergedStores<'a> {
    pub(super) fn new(files: &Rc<Files<'a>>) -> Self {
        Self { files: Rc::clone(files), found: Vec::new() }
    }

    /// Adds a store, or merges it into the known store with the same graphroot.
    pub(super) fn add(&mut self, store: StoreConfig) {
        match self.position(&store.graphroot) {
            Some(index) => self.found[index].unite(store),
            None => self.push(store),
        }
    }

    /// Adds a store unless its graphroot is already known. Used for untrusted configuration, which must not change a
    /// known store.
    pub(super) fn add_new(&mut self, store: StoreConfig) {
        if self.position(&store.graphroot).is_none() {
            self.push(store);
        }
    }

    pub(super) fn get(&self, graphroot: &Path) -> Option<&StoreConfig> {
        self.position(graphroot).map(|index| &self.found[index].store)
    }

    /// Returns the store that was added first.
    pub(super) fn first(&self) -> Option<&StoreConfig> {
        self.found.first().map(|found| &found.store)
    }

    pub(super) fn into_list(self) -> Vec<StoreConfig> {
        self.found.into_iter().map(|found| found.store).collect()
    }

    fn push(&mut self, store: StoreConfig) {
        let identity = self.identity(&store.graphroot);
        let drivers = store.driver.iter().cloned().collect();
        self.found.push(NamedStore { store, identity, drivers });
    }

    fn position(&self, graphroot: &Path) -> Option<usize> {
        let identity = self.identity(graphroot);
        self.found.iter().position(|found| {
            let same = identity.is_some() && identity == found.identity;
            same || found.store.graphroot == graphroot
        })
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        let metadata = self.files.metadata(path)?;
        Some((metadata.dev(), metadata.ino()))
    }
}

impl NamedStore {
    /// Merges another candidate with the same graphroot.
    fn unite(&mut self, other: StoreConfig) {
        self.drivers.extend(other.driver.clone());
        unite(&mut self.store, other);
        // If the candidates disagree, both drivers may have been used: the driver is then detected in the graphroot.
        let first = self.drivers.first();
        self.store.driver = first.filter(|first| self.drivers.iter().all(|driver| driver == *first)).cloned();
    }
}

/// Merges `other`, which has the same graphroot, into `store`. Keeps every path that either of them names: layersweep
/// would report a container or an image that it does not find as a leak.
fn unite(store: &mut StoreConfig, other: StoreConfig) {
    if store.runroot != other.runroot {
        add_once(&mut store.other_runroots, other.runroot);
    }
    match (&store.imagestore, other.imagestore) {
        (None, imagestore) => store.imagestore = imagestore,
        (Some(known), Some(new)) if *known != new => add_once(&mut store.other_imagestores, new),
        _ => {}
    }
    for (paths, more) in [
        (&mut store.other_runroots, other.other_runroots),
        (&mut store.other_imagestores, other.other_imagestores),
        (&mut store.podman_dirs, other.podman_dirs),
        (&mut store.additional_image_stores, other.additional_image_stores),
        (&mut store.additional_layer_stores, other.additional_layer_stores),
    ] {
        more.into_iter().for_each(|path| add_once(paths, path));
    }
    store
        .additional_image_stores
        .retain(|path| store.imagestore.as_ref() != Some(path) && !store.other_imagestores.contains(path));
    store.transient |= other.transient;
    if !store.origin.split(", ").any(|origin| origin == other.origin) {
        store.origin = format!("{}, {}", store.origin, other.origin);
    }
}

fn add_once(paths: &mut Vec<PathBuf>, path: PathBuf) {
    if !paths.contains(&path) {
        paths.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podman_directories_are_kept_once() {
        fn dirs(dirs: [&str; 2]) -> Vec<PathBuf> {
            dirs.map(PathBuf::from).to_vec()
        }
        let mut store = StoreConfig { podman_dirs: dirs(["/a", "/b"]), ..StoreConfig::default() };
        unite(&mut store, StoreConfig { podman_dirs: dirs(["/b", "/c"]), ..StoreConfig::default() });
        assert_eq!(store.podman_dirs, ["/a", "/b", "/c"].map(PathBuf::from));
    }
}
