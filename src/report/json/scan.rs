//! The documents of a scan.

use super::{
    ExplainDoc, Header, ImageDoc, ImagesDoc, LayerDoc, LayersDoc, ScanDoc, UsageDoc, container, effort,
    filesystem, layer, leak, store, totals, usage_store, warnings,
};
use crate::app::explain::Explanation;
use crate::app::scan::ScanResult;
use crate::model::plan::Target;
use crate::model::{ContainerIx, ImageIx, LeakIx, NodeIx, StoreIx};
use crate::stores::lookup::Subject;

/// The document of `usage`.
#[must_use]
pub fn usage(result: &ScanResult) -> UsageDoc {
    let survey = &result.survey;
    let inventory = &survey.inventory;
    UsageDoc {
        header: Header::new("usage", survey.taken_at),
        complete: survey.is_complete(),
        filesystems: inventory.filesystems.iter().map(filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|at| usage_store(survey, StoreIx::from(at))).collect(),
        totals: totals(survey),
        warnings: warnings(survey),
    }
}

/// The document of `images`, with these of them.
#[must_use]
pub fn images(result: &ScanResult, images: Vec<ImageDoc>) -> ImagesDoc {
    let survey = &result.survey;
    ImagesDoc {
        header: Header::new("images", survey.taken_at),
        complete: survey.is_complete(),
        images,
        warnings: warnings(survey),
    }
}

/// The document of `layers`; the largest come first.
#[must_use]
pub fn layers(result: &ScanResult) -> LayersDoc {
    let survey = &result.survey;
    let nodes = (0..survey.inventory.nodes.len()).map(NodeIx::from);
    let mut layers: Vec<LayerDoc> = nodes.filter_map(|at| layer(survey, at)).collect();
    layers.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    LayersDoc {
        header: Header::new("layers", survey.taken_at),
        complete: survey.is_complete(),
        layers,
        warnings: warnings(survey),
    }
}

/// The document of `explain`.
#[must_use]
pub fn explanation(explanation: &Explanation) -> ExplainDoc {
    let Explanation { result, subject, image, containers } = explanation;
    let mut document = super::explain(&result.survey, *subject);
    if let (Subject::Image(at), Some(image)) = (subject, image) {
        document.remember(result.ages.of(*at), &image.lives);
        let target = Target::image(&result.survey.inventory, *at);
        document.judge(&target, image.rulings.clone(), &image.plan);
    }
    if let Some(plan) = containers {
        document.judge_container(plan);
    }
    document
}

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
        header: Header::new("scan", survey.taken_at),
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
