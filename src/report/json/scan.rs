//! The documents of a scan.

use super::{
    ExplainDoc, Header, ImageDoc, ImagesDoc, LayerDoc, LayersDoc, ScanDoc, container, effort, fair,
    filesystem, layer, leak, store, totals,
};
use crate::app::explain::Explanation;
use crate::app::scan::ScanResult;
use crate::model::plan::Target;
use crate::model::refs::Fair;
use crate::model::{ContainerIx, ImageIx, LeakIx, NodeIx, StoreIx};
use crate::stores::Scan;
use crate::stores::lookup::Subject;
use serde::{Serialize, Serializer};

/// The document of `images`, with these of them.
pub fn images(result: &ScanResult, fair: &Fair, images: Vec<ImageDoc>) -> ImagesDoc {
    let scan = &result.scan;
    ImagesDoc {
        header: Header::new("images", scan.taken_at),
        complete: scan.is_complete(),
        images,
        fair_bytes: fair.into(),
        warnings: scan.inventory.findings.clone(),
    }
}

/// The document of `layers`; the largest come first.
pub fn layers(result: &ScanResult) -> LayersDoc {
    let scan = &result.scan;
    let mut layers: Vec<LayerDoc> = EachLayer(scan).iter().collect();
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

/// All images, with what the database knows of them.
pub fn known_images(result: &ScanResult, fair: &Fair) -> Vec<ImageDoc> {
    let known = |at: ImageIx| {
        let mut document = super::image(&result.scan, fair, at);
        document.remember(result.ages.of(at));
        document
    };
    (0..result.scan.inventory.images.len()).map(|at| known(at.into())).collect()
}

/// The layers of a scan, each made when it is written: a large store has 100,000.
#[derive(Clone, Copy, Debug)]
pub struct EachLayer<'a>(&'a Scan);

impl<'a> EachLayer<'a> {
    pub(super) fn iter(self) -> impl Iterator<Item = LayerDoc> + 'a {
        (0..self.0.inventory.nodes.len()).filter_map(move |at| layer(self.0, NodeIx::from(at)))
    }
}

impl Serialize for EachLayer<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

/// The document of `scan`.
pub fn scan(result: &ScanResult) -> ScanDoc<EachLayer<'_>> {
    scan_with(result, |layers| layers)
}

pub(super) fn scan_with<'a, L>(
    result: &'a ScanResult,
    layers: impl FnOnce(EachLayer<'a>) -> L,
) -> ScanDoc<L> {
    let scan = &result.scan;
    let inventory = &scan.inventory;
    let fair = fair(scan);
    ScanDoc {
        header: Header::new("scan", scan.taken_at),
        complete: scan.is_complete(),
        sysroot: scan.sysroot.is_foreign().then(|| scan.sysroot.root().to_string_lossy().into_owned()),
        filesystems: inventory.filesystems.iter().map(filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|at| store(scan, StoreIx::from(at))).collect(),
        images: known_images(result, &fair),
        layers: layers(EachLayer(scan)),
        containers: (0..inventory.containers.len())
            .map(|at| container(scan, &fair, ContainerIx::from(at)))
            .collect(),
        leaks: (0..inventory.leaks.len()).map(|at| leak(scan, LeakIx::from(at))).collect(),
        totals: totals(scan),
        fair_bytes: (&fair).into(),
        scan: effort(scan),
        warnings: scan.inventory.findings.clone(),
    }
}
