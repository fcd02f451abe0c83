//! Uses of images and layers from outside the inventory's images and containers. Pure.

use super::ids::{ImageIx, NodeIx};

/// Something that needs images or layers of a store and is no image or container of that store: a
/// container of another store, one that only podman's database knows, a mount of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The user, for messages: `the podman container web in the store
    /// /home/a/.local/share/containers/storage`.
    pub by: String,
    /// The images that it names.
    pub images: Vec<ImageIx>,
    /// The nodes that it cannot do without.
    pub holds: Vec<NodeIx>,
    /// An image or container of the inventory holds these nodes for it already, in another store.
    pub is_listed: bool,
}
