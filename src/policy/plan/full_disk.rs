//! The first deletion on a disk so full that no record file can be written anew.
//!
//! Its own layers have to make the room for that, so an image that goes first has to have some. The others of its
//! store have their turn after it, in the order of the policy. Where no image has enough, the store stays as it is.

use crate::model::refs::{Live, Root};
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, ImageIx, NodeKind, Size};
use crate::policy::input::{FullFilesystem, Input};

/// Which images can be deleted while stores are full.
#[derive(Clone, Copy)]
pub(super) struct FirstDeletion<'a> {
    pub(super) full: &'a [FullFilesystem],
    pub(super) input: &'a Input<'a>,
    pub(super) live: &'a Live<'a>,
}

impl FirstDeletion<'_> {
    /// Returns true if the image's store has room, or the image makes it.
    pub(super) fn can_be(&self, image: ImageIx) -> bool {
        let store = self.input.inventory[image].store;
        let mut full = self.full.iter().filter(|full| full.store == store);
        full.all(|full| self.gain(image, full.filesystem).covers(full.to_free))
    }

    /// Room that emptying the layers that only this image has makes on a filesystem: its record goes later. Too much,
    /// since a layer's size has its tar-split data, which goes later, too; the editor measures the directories
    /// themselves, and refuses.
    fn gain(&self, image: ImageIx, filesystem: FilesystemIx) -> BytesAndInodes {
        let inventory = self.input.inventory;
        let own = self.live.last_held(Root::Image(image));
        let own = own.filter(|node| self.input.refs.use_of(inventory, *node).is_none());
        let own = own.map(|node| &inventory[node]);
        let freed = own.filter(|node| node.filesystem == filesystem && node.kind != NodeKind::ImageMetadata);
        freed.map(|node| node.size).sum::<Size>().into()
    }
}
