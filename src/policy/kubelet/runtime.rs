//! Lists and numbers that the kubelet gets from the runtime.

use std::collections::HashMap;

use crate::model::{FilesystemIx, ImageId, ImageIx, Inventory, StoreId};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedImage {
    pub id: String,
    /// Size that the runtime reports; its meaning differs between runtimes.
    pub size_bytes: u64,
    pub pinned: bool,
    /// Runtime handler that it was pulled for; empty for none.
    pub handler: String,
}

impl ListedImage {
    /// Returns whether a removal of that id refers to this image; without a handler, it refers to the images of all
    /// handlers.
    #[must_use]
    pub fn is(&self, id: &str, handler: &str) -> bool {
        self.id == id && (handler.is_empty() || self.handler == handler)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedContainer {
    pub image_id: String,
    /// Runtime handler of its pod; empty for none.
    pub handler: String,
    /// References of the images that it has mounted as volumes.
    pub mounted_images: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub store: StoreId,
    /// Images with their store and id on the disk; `None` if no store contains the image.
    pub images: Vec<(ListedImage, Option<(StoreId, ImageId)>)>,
    pub containers: Vec<ListedContainer>,
}

impl Listing {
    #[must_use]
    pub fn filesystem_in(&self, inventory: &Inventory) -> Option<FilesystemIx> {
        inventory.find_store(&self.store).map(|store| inventory[store].filesystem)
    }

    #[must_use]
    pub fn images_in(&self, inventory: &Inventory) -> Vec<(ListedImage, Option<ImageIx>)> {
        let stores = inventory.store_ids();
        let known: HashMap<_, _> = (0..)
            .map(ImageIx::from)
            .zip(&inventory.images)
            .map(|(ix, image)| ((&stores[image.store.get()], image.id.as_str()), ix))
            .collect();
        let images = self.images.iter().map(|(image, on_disk)| {
            let ix = on_disk.as_ref().and_then(|(store, id)| known.get(&(store, id.as_str())).copied());
            (image.clone(), ix)
        });
        images.collect()
    }
}

/// Numbers of the image filesystem that the kubelet gets; each may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStats {
    pub capacity_bytes: Option<u64>,
    /// Bytes that an unprivileged user can still write.
    pub available_bytes: Option<u64>,
}

/// Runtime and disk, as the algorithm uses them. Errors are in words.
pub trait Runtime {
    /// Lists all images.
    ///
    /// # Errors
    /// If the listing fails or may be incomplete.
    fn list_images(&mut self) -> Result<Vec<ListedImage>, String>;

    /// Lists all containers, in every state.
    ///
    /// # Errors
    /// If the listing fails or may be incomplete, or the mounts of a container cannot be listed.
    fn list_containers(&mut self) -> Result<Vec<ListedContainer>, String>;

    /// Returns the numbers of the image filesystem.
    ///
    /// # Errors
    /// If they are not available.
    fn image_filesystem(&mut self) -> Result<FsStats, String>;

    /// Removes an image.
    ///
    /// # Errors
    /// If the runtime refuses or fails.
    fn remove_image(&mut self, id: &str, handler: &str) -> Result<(), String>;
}
