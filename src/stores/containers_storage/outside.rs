//! Users of images and layers outside a store's own records: other stores that use images of this one,
//! podman's database, mounts that only the library counts.

use std::path::{Path, PathBuf};

use super::needs::Need;
use super::places::StorePlaces;
use super::records::ImageRecord;
use crate::sys::quiet::InodeFacts;
use crate::sys::root::Root;

/// Needs of other users of a store, and the files to watch for changes.
#[derive(Clone, Debug, Default)]
pub struct OutsideNeeds {
    needs: Vec<Need>,
    /// A store that may need anything here, because its records could not be read completely.
    unknown: Option<PathBuf>,
    watch: Vec<WatchedFiles>,
}

/// Files of a store as they were before it was read.
#[derive(Clone, Debug)]
pub struct WatchedFiles {
    places: Option<StorePlaces>,
    files: Vec<(PathBuf, Option<InodeFacts>)>,
    /// Where a store may come.
    absent: Option<PathBuf>,
}

impl WatchedFiles {
    /// Called before the store is read, so that later writes are noticed.
    #[must_use]
    pub fn new(places: &StorePlaces) -> Self {
        Self::of(places, places.watched_files())
    }

    /// The same for what the locks of the store itself do not guard.
    #[must_use]
    pub fn beside_records(places: &StorePlaces) -> Self {
        Self::of(places, places.files_beside_records())
    }

    fn of(places: &StorePlaces, files: Vec<PathBuf>) -> Self {
        let within = places.within();
        let files = files.into_iter();
        let files = files.map(|path| (within.facts(&path).ok(), path)).map(|(facts, path)| (path, facts));
        Self { files: files.collect(), places: Some(places.clone()), absent: None }
    }

    /// For the place of a store that has no records yet.
    #[must_use]
    pub fn absent(graphroot: &Path) -> Self {
        Self { files: Vec::new(), places: None, absent: Some(graphroot.to_path_buf()) }
    }

    fn moved(&self) -> bool {
        // Never by the path alone: a user may have mounted there what never answers.
        let has_come = self.absent.as_ref().is_some_and(|path| Root::open(path).is_ok());
        let within = self.places.as_ref().map(StorePlaces::within);
        let facts = |path: &Path| within.as_ref()?.facts(path).ok();
        has_come || self.files.iter().any(|(path, before)| facts(path) != *before)
    }
}

impl OutsideNeeds {
    /// Adds what was read of one store after `watch` was taken.
    pub fn add(&mut self, watch: WatchedFiles, needs: Vec<Need>) {
        self.watch.push(watch);
        self.needs.extend(needs);
    }

    /// Adds a store with unknown needs.
    pub fn add_unknown(&mut self, root: PathBuf) {
        self.unknown.get_or_insert(root);
    }

    /// Returns the first store that may need anything here, because its records could not be read.
    #[must_use]
    pub fn unknown(&self) -> Option<&Path> {
        self.unknown.as_deref()
    }

    /// Returns the first need that `image` meets.
    #[must_use]
    pub fn of_image(&self, image: &ImageRecord) -> Option<&Need> {
        self.needs.iter().find(|need| need.needs_image(image))
    }

    /// Returns the first need of the layer `id`.
    #[must_use]
    pub fn of_layer(&self, id: &str) -> Option<&Need> {
        self.needs.iter().find(|need| need.layers.iter().any(|layer| layer == id))
    }

    /// Returns true if a watched file has changed since it was read.
    #[must_use]
    pub fn moved(&self) -> bool {
        self.watch.iter().any(WatchedFiles::moved)
    }
}
