//! Images and layers that a store takes from another store.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::PathBuf;

use crate::model::text::reference::may_be;
use crate::model::{ImageIx, Inventory, NodeIx};

/// Images and layers that a user needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The user, for messages: `the podman container web`.
    pub by: String,
    pub layers: Vec<String>,
    /// Ids of images, or other references to them ([`may_be`]).
    pub images: Vec<String>,
    /// Ids of top layers. Any image with one of them may be needed.
    pub tops: Vec<String>,
    /// The images are not known, so any image may be needed.
    pub any_image: bool,
}

impl Need {
    pub(super) fn is_nothing(&self) -> bool {
        self.layers.is_empty() && self.images.is_empty() && self.tops.is_empty() && !self.any_image
    }
}

/// A store that may take images from others.
#[derive(Debug)]
pub(super) struct Borrower {
    /// Position among the stores shown; `None` if the store was not requested.
    pub(super) position: Option<usize>,
    pub(super) root: PathBuf,
    /// Storage driver; `None` if the store could not be read, so that it may have any.
    pub(super) driver: Option<String>,
    pub(super) is_damaged: bool,
    /// Roots of the stores that it takes images from.
    pub(super) borrows_from: Vec<PathBuf>,
    pub(super) needs: Vec<Need>,
}

/// Ids of the layers and images of one store, for the stores that use them.
#[derive(Clone, Debug, Default)]
pub(super) struct LentObjects {
    layers: Vec<NodeIx>,
    /// Built at the first use, since few stores are used by others.
    layers_by_id: OnceCell<HashMap<String, NodeIx>>,
    images: HashMap<String, ImageIx>,
    /// Directories of layers without a record.
    strays: HashMap<String, NodeIx>,
}

impl LentObjects {
    pub(super) fn new(
        layers: Vec<NodeIx>,
        images: HashMap<String, ImageIx>,
        strays: HashMap<String, NodeIx>,
    ) -> Self {
        Self { layers, layers_by_id: OnceCell::new(), images, strays }
    }

    /// Returns the node of the layer with this id, which may lack a record.
    pub(super) fn layer(&self, inventory: &Inventory, id: &str) -> Option<NodeIx> {
        self.recorded_layer(inventory, id).or_else(|| self.strays.get(id).copied())
    }

    pub(super) fn recorded_layer(&self, inventory: &Inventory, id: &str) -> Option<NodeIx> {
        let by_id = self
            .layers_by_id
            .get_or_init(|| self.layers.iter().map(|node| (inventory[*node].id.clone(), *node)).collect());
        by_id.get(id).copied()
    }

    pub(super) fn images(&self) -> &HashMap<String, ImageIx> {
        &self.images
    }

    pub(super) fn images_of(&self, inventory: &Inventory, reference: &str) -> Vec<ImageIx> {
        images_of(&self.images, inventory, reference)
    }
}

/// Returns those of `images`, by id, that `reference` may mean.
pub(super) fn images_of(
    images: &HashMap<String, ImageIx>,
    inventory: &Inventory,
    reference: &str,
) -> Vec<ImageIx> {
    if let Some(image) = images.get(reference) {
        return vec![*image];
    }
    let possible = images.values().copied().filter(|image_ix| {
        let image = &inventory[*image_ix];
        may_be(reference, &image.id, &image.names, &image.digests)
    });
    possible.collect()
}
