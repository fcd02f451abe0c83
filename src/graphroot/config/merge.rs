//! Candidates become stores: each graphroot once.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::StoreConfig;
use crate::sys::sysroot::Sysroot;

/// The same directory has the same device and inode, whatever it is called.
type Identity = (u64, u64);

/// The stores found so far.
#[derive(Debug)]
pub(super) struct Stores<'a> {
    sysroot: &'a Sysroot,
    found: Vec<(StoreConfig, Option<Identity>)>,
}

impl<'a> Stores<'a> {
    pub(super) fn new(sysroot: &'a Sysroot) -> Self {
        Self { sysroot, found: Vec::new() }
    }

    /// Adds a store, or what it says of a graphroot that is known already.
    pub(super) fn add(&mut self, store: StoreConfig) {
        match self.position(&store.graphroot) {
            Some(index) => unite(&mut self.found[index].0, store),
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
        self.position(graphroot).map(|index| &self.found[index].0)
    }

    pub(super) fn into_list(self) -> Vec<StoreConfig> {
        self.found.into_iter().map(|(store, _)| store).collect()
    }

    fn push(&mut self, store: StoreConfig) {
        let identity = self.identity(&store.graphroot);
        self.found.push((store, identity));
    }

    fn position(&self, graphroot: &Path) -> Option<usize> {
        let identity = self.identity(graphroot);
        self.found.iter().position(|(store, known)| {
            store.graphroot == graphroot || (identity.is_some() && identity == *known)
        })
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        let placed = self.sysroot.resolve(path).ok()?;
        let metadata = std::fs::symlink_metadata(placed).ok()?;
        Some((metadata.dev(), metadata.ino()))
    }
}

/// Puts together what two candidates say of one graphroot. Nothing that either names is lost,
/// since a container or an image that is overlooked is taken for a leak.
fn unite(store: &mut StoreConfig, other: StoreConfig) {
    // Two drivers may both have been used: then the graphroot shows which.
    match (&store.driver, &other.driver) {
        (Some(one), Some(two)) if one != two => store.driver = None,
        (None, Some(_)) => store.driver = other.driver,
        _ => {}
    }
    if store.runroot != other.runroot {
        add_once(&mut store.other_runroots, other.runroot);
    }
    match (&store.imagestore, other.imagestore) {
        (None, imagestore) => store.imagestore = imagestore,
        (Some(one), Some(two)) if *one != two => add_once(&mut store.other_imagestores, two),
        _ => {}
    }
    other.other_runroots.into_iter().for_each(|path| add_once(&mut store.other_runroots, path));
    for path in other.other_imagestores {
        add_once(&mut store.other_imagestores, path);
    }
    for path in other.additional_image_stores {
        add_once(&mut store.additional_image_stores, path);
    }
    for path in other.additional_layer_stores {
        add_once(&mut store.additional_layer_stores, path);
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
