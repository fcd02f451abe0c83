//! Uses that no image or container of the inventory stands for. Pure.

use super::{Image, ImageIx, Inventory, NodeIx, NodeKind};

/// Something that needs images or layers of a store and is no image or container of that store: a
/// container of another store, one that only podman's database knows, a mount of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Who, in words: `the podman container web in the store /home/a/.local/share/containers/storage`.
    pub by: String,
    /// The images that it names.
    pub images: Vec<ImageIx>,
    /// The nodes that it cannot do without.
    pub holds: Vec<NodeIx>,
    /// An image or container of the inventory holds these nodes for it already, in another store.
    pub is_listed: bool,
}

impl Inventory {
    /// Who names an image from elsewhere.
    pub fn uses_of(&self, image: ImageIx) -> impl Iterator<Item = &Use> {
        self.uses.iter().filter(move |one| one.images.contains(&image))
    }

    /// Whether a node is one that stores share: another store's layer can lie on it. Shared inodes
    /// and extents are a matter of the filesystem, and nobody needs them.
    pub(super) fn is_lendable(&self, node: NodeIx) -> bool {
        matches!(
            self.nodes[node.get()].kind,
            NodeKind::Layer | NodeKind::Snapshot | NodeKind::Blob | NodeKind::Debris
        )
    }

    /// Whether a node is in the image's own store.
    pub(super) fn is_own(&self, image: &Image, node: NodeIx) -> bool {
        self.nodes[node.get()].store == image.store
    }
}
