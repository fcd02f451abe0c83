//! Unpacked layers of images, beside the blobs of their manifests.

use hashbrown::HashMap;

use super::arrival::LayerBlob;
use super::ids::{NodeIx, StoreIx};
use super::image::Image;
use super::inventory::Inventory;
use super::node::NodeKind;

/// The layers and snapshots of an inventory by store and id.
#[derive(Debug)]
pub struct LayerNodes<'a>(HashMap<(StoreIx, &'a str), NodeIx>);

impl<'a> LayerNodes<'a> {
    #[must_use]
    pub fn of(inventory: &'a Inventory) -> Self {
        let nodes = inventory.nodes.iter().enumerate();
        let layers = nodes.filter(|(_, node)| matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot));
        Self(layers.map(|(ix, node)| ((node.store, node.id.as_str()), ix.into())).collect())
    }

    /// Returns the layers of an image with their blobs, the base first. Empty if a layer is missing, or if the scan has
    /// not read the manifest.
    #[must_use]
    pub fn with_blobs<'i>(&self, image: &'i Image) -> Vec<(&'i LayerBlob, NodeIx)> {
        let layers = image.layers.iter().rev();
        let layers: Vec<_> =
            layers.filter_map(|layer| self.0.get(&(image.store, layer.as_str()))).copied().collect();
        if layers.len() == image.blobs.len() { image.blobs.iter().zip(layers).collect() } else { Vec::new() }
    }
}
