//! The documents of a scan.

use super::{
    ImageDoc, SCHEMA_VERSION, ScanDoc, container, effort, filesystem, layer, leak, store, totals, warnings,
};
use crate::app::scan::ScanResult;
use crate::model::{ContainerIx, ImageIx, LeakIx, NodeIx, StoreIx};

/// An image, with what the database knows of it.
#[must_use]
pub fn known_image(result: &ScanResult, at: ImageIx) -> ImageDoc {
    let mut document = super::image(&result.survey, at);
    document.remember(result.ages.of(at));
    document
}

/// All images, with what the database knows of them.
pub fn known_images(result: &ScanResult) -> impl Iterator<Item = ImageDoc> + '_ {
    (0..result.survey.inventory.images.len()).map(|at| known_image(result, ImageIx::from(at)))
}

/// The document of `scan`.
#[must_use]
pub fn scan(result: &ScanResult) -> ScanDoc {
    let survey = &result.survey;
    let inventory = &survey.inventory;
    ScanDoc {
        schema_version: SCHEMA_VERSION,
        kind: "scan",
        generated_at: survey.taken_at,
        complete: survey.is_complete(),
        sysroot: survey.sysroot.is_foreign().then(|| survey.sysroot.root().to_string_lossy().into_owned()),
        filesystems: inventory.filesystems.iter().map(filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|at| store(survey, StoreIx::from(at))).collect(),
        images: known_images(result).collect(),
        layers: (0..inventory.nodes.len()).filter_map(|at| layer(survey, NodeIx::from(at))).collect(),
        containers: (0..inventory.containers.len())
            .map(|at| container(survey, ContainerIx::from(at)))
            .collect(),
        leaks: (0..inventory.leaks.len()).map(|at| leak(survey, LeakIx::from(at))).collect(),
        totals: totals(survey),
        scan: effort(survey),
        warnings: warnings(survey),
    }
}
