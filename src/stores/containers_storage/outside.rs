//! Users of images and layers that are not in the store's records: other stores that use images of this one, podman's
//! database, and mounts that only the library counts.

use std::path::{Path, PathBuf};

use super::places::StorePlaces;
use super::records::ImageRecord;
use crate::model::text::reference::may_be;
use crate::stores::lending::Need;
use crate::sys::quiet::InodeFacts;
use crate::sys::root::Root;

/// Needs of these users, and the files to watch for changes.
#[derive(Clone, Debug, Default)]
pub struct OutsideNeeds {
    needs: Vec<Need>,
    /// A store that may need any image, because its records could not be read completely.
    unknown: Option<PathBuf>,
    watch: Vec<WatchedFiles>,
}

/// State of a store's files before the store was read.
#[derive(Clone, Debug)]
pub struct WatchedFiles {
    places: Option<StorePlaces>,
    files: Vec<(PathBuf, Option<InodeFacts>)>,
    /// Path at which a store may be created.
    absent: Option<PathBuf>,
}

impl WatchedFiles {
    /// Watches all files of a store. Has to be called before the store is read, so that later writes are noticed.
    #[must_use]
    pub fn new(places: &StorePlaces) -> Self {
        Self::of(places, places.watched_files())
    }

    /// Watches only the files that the store's locks do not protect.
    #[must_use]
    pub fn beside_records(places: &StorePlaces) -> Self {
        Self::of(places, places.files_beside_records())
    }

    fn of(places: &StorePlaces, files: Vec<PathBuf>) -> Self {
        let within = places.within();
        let mut watched = Vec::with_capacity(files.len());
        for path in files {
            let facts = within.facts(&path).ok();
            watched.push((path, facts));
        }
        Self { files: watched, places: Some(places.clone()), absent: None }
    }

    /// Watches for the creation of a store at `graphroot`.
    #[must_use]
    pub fn absent(graphroot: &Path) -> Self {
        Self { files: Vec::new(), places: None, absent: Some(graphroot.to_path_buf()) }
    }

    fn moved(&self) -> bool {
        // A plain lookup of the path could hang: a user may have mounted a filesystem there that never answers.
        // `Root::open` refuses such mounts.
        if self.absent.as_ref().is_some_and(|path| Root::open(path).is_ok()) {
            return true;
        }
        let Some(places) = &self.places else { return false };
        let within = places.within();
        self.files.iter().any(|(path, before)| within.facts(path).ok() != *before)
    }
}

impl OutsideNeeds {
    /// Adds the needs of a store. They were read after `watch` was created.
    pub fn add(&mut self, watch: WatchedFiles, needs: Vec<Need>) {
        self.watch.push(watch);
        self.needs.extend(needs);
    }

    /// Adds a store with unknown needs.
    pub fn add_unknown(&mut self, root: PathBuf) {
        self.unknown.get_or_insert(root);
    }

    /// Returns the first store that may need any image, because its records could not be read.
    #[must_use]
    pub fn unknown(&self) -> Option<&Path> {
        self.unknown.as_deref()
    }

    #[must_use]
    pub fn of_image(&self, image: &ImageRecord) -> Option<&Need> {
        self.needs.iter().find(|need| needs_image(need, image))
    }

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

/// Returns true if this image is needed, or may be needed.
fn needs_image(need: &Need, image: &ImageRecord) -> bool {
    need.any_image
        || need.images.iter().any(|needed| may_be(needed, &image.id, &image.names, &image.digests))
        || image.tops().any(|top| need.tops.contains(top))
}
