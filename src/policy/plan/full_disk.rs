//! The first deletion on a disk that is too full to write a record file.
//!
//! An image that is deleted first must make that room with its own layers. The other images of its store follow, in
//! the order of the policy. If no image has enough layers of its own, the store stays as it is.

use crate::model::refs::{Live, Root};
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, ImageIx, NodeKind, Size};
use crate::policy::input::{FullFilesystem, Input};

#[derive(Clone, Copy)]
pub(super) struct FirstDeletion<'a> {
    pub(super) full: &'a [FullFilesystem],
    pub(super) input: &'a Input<'a>,
    pub(super) live: &'a Live<'a>,
}

impl FirstDeletion<'_> {
    /// Returns whether the image's store has room, or deleting the image makes enough.
    pub(super) fn is_possible(&self, image: ImageIx) -> bool {
        let store = self.input.inventory[image].store;
        let mut full = self.full.iter().filter(|full| full.store == store);
        full.all(|full| self.gain(image, full.filesystem).covers(full.to_free))
    }

    /// Returns the room on a filesystem that emptying the image's own layers makes; its record is deleted later.
    /// The result is slightly too large, because the size of a layer contains its tar-split data, which is deleted
    /// later too. The editor measures the directories themselves, and refuses if they are too small.
    fn gain(&self, image: ImageIx, filesystem: FilesystemIx) -> BytesAndInodes {
        let inventory = self.input.inventory;
        let exclusive = self
            .live
            .last_held(Root::Image(image))
            .filter(|node| self.input.refs.use_of(inventory, *node).is_none())
            .map(|node| &inventory[node]);
        let freed =
            exclusive.filter(|node| node.filesystem == filesystem && node.kind != NodeKind::ImageMetadata);
        freed.map(|node| node.size).sum::<Size>().into()
    }
}
