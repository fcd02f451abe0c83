//! The layers that a session may empty for want of room; plain data of [`super::emptied`].

use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Emptied {
    /// In the order of their turn: the image's top layer first.
    pub(super) offered: Vec<Offered>,
    pub(super) next: usize,
    /// Tells the images that are deleted: `emptied::group_of`.
    pub(super) group: String,
    /// How long this session has waited for the room.
    pub(super) waited: Duration,
    /// Place and name of the directories that were emptied.
    pub(super) directories: Vec<(usize, String)>,
}

#[derive(Clone)]
pub(super) struct Offered {
    pub(super) id: String,
    /// Position of the place that has its directory.
    pub(super) place: usize,
    /// Its short names there.
    pub(super) links: BTreeSet<String>,
    /// Positions of the record files of the images and of the layer.
    pub(super) files: Vec<usize>,
}
