//! The runtime and the disk as the kubelet sees them.

use std::collections::HashMap;

use crate::model::{ImageId, ImageIx, Inventory, StoreId, StoreIx};

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
    /// The runtime's store in an inventory.
    #[must_use]
    pub fn store_in(&self, inventory: &Inventory) -> Option<StoreIx> {
        inventory.stores.iter().position(|store| StoreId::of(store) == self.store).map(StoreIx::from)
    }

    /// Its images, and their places in an inventory.
    #[must_use]
    pub fn images_in(&self, inventory: &Inventory) -> Vec<(ListedImage, Option<ImageIx>)> {
        let keys: Vec<_> = inventory.stores.iter().map(StoreId::of).collect();
        let known = inventory.images.iter().enumerate();
        let known =
            known.map(|(at, image)| ((&keys[image.store.get()], image.id.as_str()), ImageIx::from(at)));
        let known: HashMap<_, _> = known.collect();
        let place = |(store, id): &(StoreId, ImageId)| known.get(&(store, id.as_str())).copied();
        self.images.iter().map(|(image, on_disk)| (image.clone(), on_disk.as_ref().and_then(place))).collect()
    }
}

/// What the kubelet knows of the image filesystem; a number may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStats {
    pub capacity_bytes: Option<u64>,
    /// What an unprivileged user can still write.
    pub available_bytes: Option<u64>,
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
