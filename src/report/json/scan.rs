//! The documents of a scan.

use super::omitted::Listed;
use super::{
    ExplainDoc, Header, ImageDoc, ImagesDoc, LayerDoc, LayersDoc, ScanDoc, container, fair, filesystem,
    layer, leak, store, totals,
};
use crate::app::explain::Explanation;
use crate::app::scan::ScanResult;
use crate::model::plan::Target;
use crate::model::refs::Fair;
use crate::model::{ImageIx, NodeIx, StoreIx};
use crate::stores::Scan;
use crate::stores::lookup::Subject;
use rayon::prelude::*;
use serde::ser::{Error, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

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
    let Explanation { result, subject, owned, image, containers } = explanation;
    let mut document = super::explain(&result.scan, *subject, owned.as_ref());
    if let (Some(Subject::Image(at)), Some(image)) = (subject, image) {
        document.remember(result.ages.of(*at), &image.lives);
        let target = Target::image(&result.scan.inventory, *at);
        document.judge(&target, image.rulings.clone(), &image.plan, &image.reach);
    }
    if let Some(plan) = containers {
        document.judge_container(plan);
    }
    document
}

/// All images, with what the database knows of them.
pub fn known_images(result: &ScanResult, fair: &Fair) -> Vec<ImageDoc> {
    each_known((0..result.scan.inventory.images.len()).map(ImageIx::from).collect(), result, fair)
}

fn each_known(images: Vec<ImageIx>, result: &ScanResult, fair: &Fair) -> Vec<ImageDoc> {
    let (scan, ages) = (&result.scan, &result.ages);
    let known = |at| {
        let mut document = super::image(scan, fair, at);
        document.remember(ages.of(at));
        document
    };
    images.into_par_iter().map(known).collect()
}

/// How many layers are made at once.
const BATCH: usize = 4096;

/// The layers of a scan, each made when it is written, on a line of its own: a large store has 100,000.
#[derive(Clone, Debug)]
pub struct EachLayer<'a> {
    scan: &'a Scan,
    layers: Vec<NodeIx>,
}

impl EachLayer<'_> {
    pub(super) fn iter(&self) -> impl Iterator<Item = LayerDoc> + '_ {
        self.layers.iter().filter_map(|at| layer(self.scan, *at))
    }
}

impl Serialize for EachLayer<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // Into one buffer a thread: a text that grows on its own waits for the allocator at each step.
        let line = |buffer: &mut Vec<u8>, at: &NodeIx| {
            buffer.clear();
            let written = serde_json::to_writer(&mut *buffer, &layer(self.scan, *at)?);
            Some(written.and_then(|()| RawValue::from_string(String::from_utf8_lossy(buffer).into_owned())))
        };
        let mut list = to.serialize_seq(None)?;
        for batch in self.layers.chunks(BATCH) {
            let lines: Result<Vec<_>, _> = batch.par_iter().map_init(Vec::new, line).flatten_iter().collect();
            lines.map_err(Error::custom)?.iter().try_for_each(|line| list.serialize_element(line))?;
        }
        list.end()
    }
}

/// The document of `scan`.
pub fn scan(result: &ScanResult) -> ScanDoc<EachLayer<'_>> {
    scan_with(result, Listed::all(&result.scan.inventory), |layers| layers)
}

/// The document of `scan`, with these objects only; its sums are of all.
pub(super) fn scan_with<'a, L>(
    result: &'a ScanResult,
    listed: Listed,
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
        images: each_known(listed.images, result, &fair),
        layers: layers(EachLayer { scan, layers: listed.layers }),
        containers: listed.containers.into_iter().map(|at| container(scan, &fair, at)).collect(),
        leaks: listed.leaks.into_iter().map(|at| leak(scan, at)).collect(),
        totals: totals(scan),
        fair_bytes: (&fair).into(),
        scan: scan.effort,
        warnings: scan.inventory.findings.clone(),
    }
}
