//! The runtime and the disk as the kubelet sees them.

use std::collections::HashMap;

use crate::model::space::Space;
use crate::model::{FilesystemIx, ImageId, ImageIx, Inventory, StoreId};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedImage {
    pub id: String,
    /// The size that the runtime reports; its meaning differs between runtimes.
    pub size_bytes: u64,
    /// The runtime pins it.
    pub pinned: bool,
    /// The runtime handler that it was pulled for; empty for none.
    pub handler: String,
}

impl ListedImage {
    /// Whether a removal of that id means it; without a handler it is for all.
    #[must_use]
    pub fn is(&self, id: &str, handler: &str) -> bool {
        self.id == id && (handler.is_empty() || self.handler == handler)
    }
}

/// A container as the runtime lists it, in whatever state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedContainer {
    pub image_id: String,
    /// The runtime handler of its pod; empty for none.
    pub handler: String,
    /// References of the images that it has mounted as volumes.
    pub mounted_images: Vec<String>,
}

/// Everything that a runtime lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The runtime's own store.
    pub store: StoreId,
    /// Its images, and what they are on the disk: store and id; `None`: nothing that lies in a store.
    pub images: Vec<(ListedImage, Option<(StoreId, ImageId)>)>,
    pub containers: Vec<ListedContainer>,
}

impl Listing {
    /// The runtime's image filesystem in an inventory.
    #[must_use]
    pub fn filesystem_in(&self, inventory: &Inventory) -> Option<FilesystemIx> {
        inventory.find_store(&self.store).map(|store| inventory[store].filesystem)
    }

    /// Its images, and their positions in an inventory.
    #[must_use]
    pub fn images_in(&self, inventory: &Inventory) -> Vec<(ListedImage, Option<ImageIx>)> {
        let keys = inventory.store_ids();
        let known = inventory.images.iter().enumerate();
        let known =
            known.map(|(at, image)| ((&keys[image.store.get()], image.id.as_str()), ImageIx::from(at)));
        let known: HashMap<_, _> = known.collect();
        let index = |(store, id): &(StoreId, ImageId)| known.get(&(store, id.as_str())).copied();
        self.images.iter().map(|(image, on_disk)| (image.clone(), on_disk.as_ref().and_then(index))).collect()
    }
}

/// What the kubelet knows of the image filesystem; a number may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStats {
    pub capacity_bytes: Option<u64>,
    /// What an unprivileged user can still write.
    pub available_bytes: Option<u64>,
}

impl From<Space> for FsStats {
    fn from(space: Space) -> Self {
        let Space { capacity_bytes, available_bytes, .. } = space;
        Self { capacity_bytes: Some(capacity_bytes), available_bytes: Some(available_bytes) }
    }
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuntimeError(pub String);

/// The runtime and the disk, as the algorithm needs them.
pub trait Runtime {
    /// All images.
    ///
    /// # Errors
    /// When the listing fails or may not be whole.
    fn list_images(&mut self) -> Result<Vec<ListedImage>, RuntimeError>;

    /// All containers, in every state.
    ///
    /// # Errors
    /// When the listing fails or may not be whole, or one of them cannot be asked for its mounts.
    fn list_containers(&mut self) -> Result<Vec<ListedContainer>, RuntimeError>;

    /// The numbers of the image filesystem.
    ///
    /// # Errors
    /// When they cannot be had.
    fn image_filesystem(&mut self) -> Result<FsStats, RuntimeError>;

    /// Removes an image.
    ///
    /// # Errors
    /// When the runtime refuses or fails.
    fn remove_image(&mut self, id: &str, handler: &str) -> Result<(), RuntimeError>;
}
