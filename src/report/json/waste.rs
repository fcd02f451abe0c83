//! JSON document of `waste`.

use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::app::waste::{HiddenFileText, ImageWaste, LayerWaste, StoreWaste, Waste};
use crate::model::Finding;

/// Document of `layersweep waste`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WasteDoc {
    /// Common fields of all documents; the kind is `waste`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read. If false, the figures are lower bounds.
    pub complete: bool,
    /// Id of the image that was asked for; null for all images.
    pub image: Option<String>,
    /// Stores with layers. The figures are those of all their images, also if one image was asked for.
    pub stores: Vec<StoreWaste>,
    /// The image, or all images with layers; those that hide most first.
    pub images: Vec<ImageWaste>,
    /// Layers of the image, the base first; or all layers that an image or container reaches, each after its parent.
    pub layers: Vec<LayerWaste>,
    /// Hidden files of the image, the largest first; empty without `--files`.
    pub files: Vec<HiddenFileText>,
    /// Number of hidden files of the image that are not listed; null without `--files`.
    pub omitted_files: Option<usize>,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

pub fn waste(waste: &Waste) -> WasteDoc {
    let scan = &waste.result.scan;
    WasteDoc {
        header: Header::new(DocumentKind::Waste, scan.taken_at),
        complete: scan.is_complete(),
        image: waste.image.map(|image_ix| scan.inventory[image_ix].id.to_string()),
        stores: waste.stores.clone(),
        images: waste.images.clone(),
        layers: waste.layers.clone(),
        files: waste.files.iter().flat_map(|files| files.listed.clone()).collect(),
        omitted_files: waste.files.as_ref().map(|files| files.omitted),
        warnings: scan.inventory.findings.clone(),
    }
}
