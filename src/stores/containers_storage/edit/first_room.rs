//! The layers that a session may empty for want of room; plain data of [`super::full_disk`].

use std::time::Duration;

use super::to_delete::LayerToDelete;

#[derive(Default)]
pub(super) struct FirstRoom {
    /// In the order of their turn: the layers first that all images have, the topmost before the others.
    pub(super) offered: Vec<LayerToDelete>,
    /// Positions of the record files of the images.
    pub(super) image_files: Vec<usize>,
    pub(super) next: usize,
    /// Tells the images that are deleted: `quarantine_name::group_of`.
    pub(super) group: String,
    /// How long this session has waited for the room.
    pub(super) waited: Duration,
    /// Places and new names of the layers' directories that were renamed to be emptied.
    pub(super) quarantined: Vec<(usize, String)>,
}

impl FirstRoom {
    /// Positions of the record files that are written anew: those of the images and of the layers.
    pub(super) fn files(&self) -> impl Iterator<Item = usize> {
        self.image_files.iter().copied().chain(self.offered.iter().map(|layer| layer.file))
    }
}
