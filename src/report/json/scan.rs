//! JSON documents of `scan`, `images`, `layers` and `explain`.

use super::{
    DocumentKind, ExplainDoc, Header, ImageDoc, ImagesDoc, LayerDoc, LayersDoc, ScanDoc, container, fair,
    filesystem, layer, leak, store, totals,
};
use crate::app::explain::Explanation;
use crate::model::deletion::plan::Target;
use crate::model::refs::Fair;
use crate::model::{ContainerIx, ImageIx, Inventory, LeakIx, NodeIx};
use crate::services::scan::ScanResult;
use crate::stores::Scan;
use crate::stores::lookup::Subject;
use rayon::prelude::*;
use serde::ser::{Error, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// Builds the document of `images` from these images.
pub fn images(result: &ScanResult, fair: &Fair, images: Vec<ImageDoc>) -> ImagesDoc {
    let scan = &result.scan;
    ImagesDoc {
        header: Header::new(DocumentKind::Images, scan.taken_at),
        complete: scan.is_complete(),
        images,
        fair_bytes: fair.into(),
        warnings: scan.inventory.findings.clone(),
    }
}

/// Builds the document of `layers`, the largest first.
pub fn layers(result: &ScanResult) -> LayersDoc {
    let scan = &result.scan;
    let nodes = (0..scan.inventory.nodes.len()).map(NodeIx::from);
    let mut layers: Vec<LayerDoc> = nodes.filter_map(|node_ix| layer(scan, node_ix)).collect();
    layers.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
    LayersDoc {
        header: Header::new(DocumentKind::Layers, scan.taken_at),
        complete: scan.is_complete(),
        layers,
        warnings: scan.inventory.findings.clone(),
    }
}

pub fn explanation(explanation: &Explanation) -> ExplainDoc {
    let Explanation {
        result,
        subject,
        owned,
        lost_container,
        image,
        containers,
        absent,
        volume,
        removal,
        stopped,
    } = explanation;
    let mut document = super::explain(&result.scan, *subject, owned.as_ref());
    if let (Some(Subject::Image(image_ix)), Some(image)) = (subject, image) {
        document.age_limits = Some(image.limits.clone());
        document.remember(result.ages.of(*image_ix), &image.story);
        let target = Target::image(&result.scan.inventory, *image_ix);
        document.judge(&target, image.rulings.clone(), &image.plan, &image.reach);
    }
    document.recall(absent, subject.is_none());
    document.volume.clone_from(volume);
    document.command.clone_from(removal);
    document.stopped.clone_from(stopped);
    if let Some(lost) = lost_container {
        document.lose(&result.scan, lost);
    }
    if let Some(plan) = containers {
        document.judge_container(plan);
    }
    document
}

/// Builds all images, with facts from the records.
pub fn known_images(result: &ScanResult, fair: &Fair) -> Vec<ImageDoc> {
    images_with_age((0..result.scan.inventory.images.len()).map(ImageIx::from).collect(), result, fair)
}

fn images_with_age(images: Vec<ImageIx>, result: &ScanResult, fair: &Fair) -> Vec<ImageDoc> {
    let (scan, ages) = (&result.scan, &result.ages);
    let documents = images.into_par_iter().map(|image_ix| {
        let mut document = super::image(scan, fair, image_ix);
        document.remember(ages.of(image_ix));
        document
    });
    documents.collect()
}

/// Number of layers that are serialized in parallel before they are written.
const BATCH: usize = 4096;

/// Layers of a scan, each built when it is serialized, on a line of its own.
///
/// A large store has 100,000 layers: their documents, with the ids of all images that reach each of them,
/// would take more memory than the scan itself.
#[derive(Clone, Debug)]
pub struct LayerList<'a> {
    scan: &'a Scan,
    layers: Vec<NodeIx>,
}

impl LayerList<'_> {
    pub(super) fn iter(&self) -> impl Iterator<Item = LayerDoc> + '_ {
        self.layers.iter().filter_map(|node_ix| layer(self.scan, *node_ix))
    }
}

impl Serialize for LayerList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for batch in self.layers.chunks(BATCH) {
            // One buffer for each thread: a string that grows in each call contends for the allocator.
            let lines: Result<Vec<_>, _> =
                batch
                    .par_iter()
                    .map_init(Vec::new, |buffer, node_ix| {
                        buffer.clear();
                        let written = serde_json::to_writer(&mut *buffer, &layer(self.scan, *node_ix)?);
                        Some(written.and_then(|()| {
                            RawValue::from_string(String::from_utf8_lossy(buffer).into_owned())
                        }))
                    })
                    .flatten_iter()
                    .collect();
            lines.map_err(Error::custom)?.iter().try_for_each(|line| list.serialize_element(line))?;
        }
        list.end()
    }
}

/// Objects that a document lists, each kind in the order of the inventory.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) images: Vec<ImageIx>,
    pub(super) layers: Vec<NodeIx>,
    pub(super) containers: Vec<ContainerIx>,
    pub(super) leaks: Vec<LeakIx>,
}

impl Listed {
    pub(super) fn all(inventory: &Inventory) -> Self {
        let nodes = inventory.nodes.iter().enumerate().filter(|(_, node)| node.layer.is_some());
        Self {
            images: (0..inventory.images.len()).map(ImageIx::from).collect(),
            layers: nodes.map(|(position, _)| NodeIx::from(position)).collect(),
            containers: (0..inventory.containers.len()).map(ContainerIx::from).collect(),
            leaks: (0..inventory.leaks.len()).map(LeakIx::from).collect(),
        }
    }
}

pub fn scan(result: &ScanResult) -> ScanDoc<LayerList<'_>> {
    scan_with(result, Listed::all(&result.scan.inventory), |layers| layers)
}

/// Builds the document of `scan` with the listed objects only. The sums include all objects.
pub(super) fn scan_with<'a, L>(
    result: &'a ScanResult,
    listed: Listed,
    layers: impl FnOnce(LayerList<'a>) -> L,
) -> ScanDoc<L> {
    let scan = &result.scan;
    let inventory = &scan.inventory;
    let fair = fair(scan);
    ScanDoc {
        header: Header::new(DocumentKind::Scan, scan.taken_at),
        complete: scan.is_complete(),
        node: result.node.clone(),
        sysroot: scan.sysroot.is_foreign().then(|| scan.sysroot.root().to_string_lossy().into_owned()),
        filesystems: inventory.filesystems.iter().map(filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|store_ix| store(scan, store_ix.into())).collect(),
        images: images_with_age(listed.images, result, &fair),
        layers: layers(LayerList { scan, layers: listed.layers }),
        containers: listed
            .containers
            .into_iter()
            .map(|container_ix| container(scan, &fair, container_ix))
            .collect(),
        leaks: listed.leaks.into_iter().map(|leak_ix| leak(scan, leak_ix)).collect(),
        totals: totals(scan),
        fair_bytes: (&fair).into(),
        scan: scan.effort,
        warnings: scan.inventory.findings.clone(),
    }
}
