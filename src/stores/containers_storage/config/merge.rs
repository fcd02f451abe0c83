//! Merges candidates into stores: each graphroot once.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::files::Files;
use super::types::StoreConfig;

/// The same directory has the same device and inode, whatever it is called.
type Identity = (u64, u64);

/// The stores found so far.
#[derive(Debug)]
pub(super) struct Stores<'a> {
    files: Rc<Files<'a>>,
    found: Vec<NamedStore>,
}

#[derive(Debug)]
struct NamedStore {
    store: StoreConfig,
    /// `None` if there is no such directory.
    identity: Option<Identity>,
    /// Every driver that was named for it.
    drivers: Vec<String>,
}

impl<'a> Stores<'a> {
    pub(super) fn new(files: &Rc<Files<'a>>) -> Self {
        Self { files: Rc::clone(files), found: Vec::new() }
    }

    /// Adds a store, or what it says of a graphroot that is known already.
    pub(super) fn add(&mut self, store: StoreConfig) {
        match self.position(&store.graphroot) {
            Some(index) => self.found[index].unite(store),
            None => self.push(store),
        }
    }

    /// Adds a store unless its graphroot is known already: for what a user may have written.
    pub(super) fn add_new(&mut self, store: StoreConfig) {
        if self.position(&store.graphroot).is_none() {
            self.push(store);
        }
    }

    /// The store with this graphroot.
    pub(super) fn get(&self, graphroot: &Path) -> Option<&StoreConfig> {
        self.position(graphroot).map(|index| &self.found[index].store)
    }

    /// The first that was added.
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
    /// Takes in what another candidate says of the same graphroot.
    fn unite(&mut self, other: StoreConfig) {
        self.drivers.extend(other.driver.clone());
        unite(&mut self.store, other);
        // Two drivers may both have been used: then the graphroot has to show which.
        let first = self.drivers.first();
        self.store.driver = first.filter(|first| self.drivers.iter().all(|one| one == *first)).cloned();
    }
}

/// Puts together what two candidates say of one graphroot. Nothing that either names is lost,
/// since a container or an image that is overlooked is taken for a leak.
fn unite(store: &mut StoreConfig, other: StoreConfig) {
    if store.runroot != other.runroot {
        add_once(&mut store.other_runroots, other.runroot);
    }
    match (&store.imagestore, other.imagestore) {
        (None, imagestore) => store.imagestore = imagestore,
        (Some(one), Some(two)) if *one != two => add_once(&mut store.other_imagestores, two),
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
    let writable =
        |path: &PathBuf| Some(path) == store.imagestore.as_ref() || store.other_imagestores.contains(path);
    store.additional_image_stores.retain(|path| !writable(path));
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
    fn every_directory_of_podman_is_kept_once() {
        let store = |podman_dirs: &[&str]| StoreConfig {
            podman_dirs: podman_dirs.iter().map(PathBuf::from).collect(),
            ..StoreConfig::default()
        };
        let mut one = store(&["/a", "/b"]);
        unite(&mut one, store(&["/b", "/c"]));
        assert_eq!(one.podman_dirs, store(&["/a", "/b", "/c"]).podman_dirs);
    }
}
