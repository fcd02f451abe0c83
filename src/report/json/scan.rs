//! The documents of a scan.

use super::omitted::Listed;
use super::{
    ExplainDoc, Header, ImageDoc, ImagesDoc, LayerDoc, LayersDoc, ScanDoc, UsageDoc, container, effort,
    filesystem, layer, leak, store, totals, usage_store,
};
use crate::app::explain::Explanation;
use crate::app::scan::ScanResult;
use crate::model::plan::Target;
use crate::model::{ImageIx, NodeIx, StoreIx};
use crate::stores::lookup::Subject;

/// The document of `usage`.
pub fn usage(result: &ScanResult) -> UsageDoc {
    let scan = &result.scan;
    let inventory = &scan.inventory;
    UsageDoc {
        header: Header::new("usage", scan.taken_at),
        complete: scan.is_complete(),
        filesystems: inventory.filesystems.iter().map(filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|at| usage_store(scan, StoreIx::from(at))).collect(),
        totals: totals(scan),
        warnings: scan.inventory.findings.clone(),
    }
}

/// The document of `images`, with these of them.
pub fn images(result: &ScanResult, images: Vec<ImageDoc>) -> ImagesDoc {
    let scan = &result.scan;
    ImagesDoc {
        header: Header::new("images", scan.taken_at),
        complete: scan.is_complete(),
        images,
        warnings: scan.inventory.findings.clone(),
    }
}

/// The document of `layers`; the largest come first.
pub fn layers(result: &ScanResult) -> LayersDoc {
    let scan = &result.scan;
    let nodes = (0..scan.inventory.nodes.len()).map(NodeIx::from);
    let mut layers: Vec<LayerDoc> = nodes.filter_map(|at| layer(scan, at)).collect();
    layers.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    LayersDoc {
        header: Header::new("layers", scan.taken_at),
        complete: scan.is_complete(),
        layers,
        warnings: scan.inventory.findings.clone(),
    }
}

/// The document of `explain`.
pub fn explanation(explanation: &Explanation) -> ExplainDoc {
    let Explanation { result, subject, image, containers } = explanation;
    let mut document = super::explain(&result.scan, *subject);
    if let (Subject::Image(at), Some(image)) = (subject, image) {
        document.remember(result.ages.of(*at), &image.lives);
        let target = Target::image(&result.scan.inventory, *at);
        document.judge(&target, image.rulings.clone(), &image.plan);
    }
    if let Some(plan) = containers {
        document.judge_container(plan);
    }
    document
}

/// An image, with what the database knows of it.
pub fn known_image(result: &ScanResult, at: ImageIx) -> ImageDoc {
    let mut document = super::image(&result.scan, at);
    document.remember(result.ages.of(at));
    document
}

/// All images, with what the database knows of them.
pub fn known_images(result: &ScanResult) -> impl Iterator<Item = ImageDoc> + '_ {
    (0..result.scan.inventory.images.len()).map(|at| known_image(result, ImageIx::from(at)))
}

/// The document of `scan`.
pub fn scan(result: &ScanResult) -> ScanDoc {
    scan_of_listed(result, Listed::all(&result.scan.inventory))
}

/// The document of `scan`, with these objects only; its sums are of all.
pub(super) fn scan_of_listed(result: &ScanResult, listed: Listed) -> ScanDoc {
    let scan = &result.scan;
    let inventory = &scan.inventory;
    ScanDoc {
        header: Header::new("scan", scan.taken_at),
        complete: scan.is_complete(),
        sysroot: scan.sysroot.is_foreign().then(|| scan.sysroot.root().to_string_lossy().into_owned()),
        filesystems: inventory.filesystems.iter().map(filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|at| store(scan, StoreIx::from(at))).collect(),
        images: listed.images.into_iter().map(|at| known_image(result, at)).collect(),
        layers: listed.layers.into_iter().filter_map(|at| layer(scan, at)).collect(),
        containers: listed.containers.into_iter().map(|at| container(scan, at)).collect(),
        leaks: listed.leaks.into_iter().map(|at| leak(scan, at)).collect(),
        totals: totals(scan),
        scan: effort(scan),
        warnings: scan.inventory.findings.clone(),
    }
}
