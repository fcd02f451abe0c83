//! Checks of the stores and their records.

use std::collections::HashSet;

use super::check::Check;
use super::node::Node;
use crate::model::text::display::count;
use crate::model::{Consistency, Image, ImageIx, LeakClass};
use crate::policy::rules::NeverPulled;
use crate::services::protect::FromNode;
use crate::stores::ScanError;

/// Share of the images that are kept by `protect.not_repullable` at which the node is named: a quarter.
const MUCH: usize = 4;

/// Maximum number of findings about the stores; `scan` shows all of them.
const MOST_FINDINGS: usize = 5;

pub(super) fn stores(node: &Node<'_>) -> Vec<Check> {
    let inventory = match &node.scan {
        Ok(scan) => &scan.inventory,
        Err(ScanError::Unreadable { path, source }) => return vec![Check::unread(path, source)],
        Err(error) => {
            let (object, remedy) = match error {
                ScanError::NotAStore { path, hint, .. } => (path.display().to_string(), *hint),
                _ => (
                    String::new(),
                    "name a store with --graphroot DIR, --containerd-root DIR or --docker-root DIR",
                ),
            };
            return vec![Check::error(object, error.to_string(), remedy)];
        }
    };
    let mut checks = Vec::new();
    for (store_ix, store) in inventory.stores.iter().enumerate() {
        let images = inventory.images.iter().filter(|image| image.store.get() == store_ix).count();
        let images = count(images, "image", "images");
        let read_only = if store.read_only { ", read-only" } else { "" };
        let (kind, driver, origin) = (&store.kind, &store.driver, &store.origin);
        let facts = format!("{kind}, {driver}{read_only}, {images}, named by {origin}");
        let object = node.shown(&store.root);
        checks.push(match store.consistency {
            Consistency::Consistent => Check::ok(object, facts),
            Consistency::WriterActive => {
                Check::note(object, format!("{facts}; other programs kept writing to it"))
            }
            Consistency::Damaged => Check::error(
                object,
                format!("{facts}; a record file cannot be read in full: nothing is deleted from it"),
                "see `layersweep scan` and docs/recovery.md",
            ),
        });
    }
    checks
}

pub(super) fn findings(node: &Node<'_>) -> Vec<Check> {
    let findings = node.scan().map_or(&[][..], |scan| &scan.inventory.findings);
    let mut checks = Vec::new();
    for finding in findings.iter().take(MOST_FINDINGS) {
        let stores = node.scan().map_or(&[][..], |scan| &scan.inventory.stores);
        let mut damaged = stores.iter().filter(|store| {
            store.consistency == Consistency::Damaged && finding.path.starts_with(&store.root)
        });
        let remedy = match damaged.find_map(|store| store.kind.facts().recovery) {
            Some(section) => format!("see \"{section}\" in docs/recovery.md"),
            None => "fix it, or run as a user who may read it".to_owned(),
        };
        let check = Check::warning(node.shown(&finding.path), finding.message.clone(), remedy);
        checks.push(Check { is_unread: finding.incomplete, ..check });
    }
    if let Some(more @ 1..) = findings.len().checked_sub(MOST_FINDINGS) {
        let check = Check::warning("", format!("and {more} more"), "see `layersweep scan`");
        checks.push(Check { is_unread: findings.iter().any(|finding| finding.incomplete), ..check });
    }
    checks
}

/// Names the stores with images that no container can start from.
pub(super) fn damaged_images(node: &Node<'_>) -> Vec<Check> {
    let Some(inventory) = node.scan().map(|scan| &scan.inventory) else { return Vec::new() };
    let stores = inventory.stores.iter().enumerate().filter_map(|(position, store)| {
        let of_class = |class: LeakClass| {
            let leaks = inventory.leaks.iter().filter(move |leak| leak.class == class);
            leaks.filter(|leak| leak.store.get() == position).map(|leak| leak.id.as_str())
        };
        let layers: HashSet<_> = of_class(LeakClass::LayerNoDir).collect();
        let broken: HashSet<_> = of_class(LeakClass::BrokenImage).collect();
        let images = inventory.images.iter().filter(|image| {
            let is_broken = broken.contains(image.id.as_str())
                || image.layers.iter().any(|layer| layers.contains(layer.as_str()));
            image.store.get() == position && is_broken
        });
        let number = images.count();
        if number == 0 && layers.is_empty() {
            return None;
        }
        let message = format!(
            "{} without a directory (layer-no-dir): {} cannot be used",
            count(layers.len(), "layer", "layers"),
            count(number, "image", "images")
        );
        let remedy = "`layersweep sweep` lists them; remove the containers that use these images, then the images, \
                      and pull them again";
        Some(Check::error(node.shown(&store.root), message, remedy))
    });
    stores.collect()
}

/// Names a node on which gc keeps many images since they were never pulled.
pub(super) fn not_repullable(node: &Node<'_>) -> Vec<Check> {
    let Some(inventory) = node.scan().map(|scan| &scan.inventory) else { return Vec::new() };
    let mut protect = node.config.images.protect.clone();
    // If a file cannot be read, a run is refused, and another check reports the file.
    if let Ok(found) = FromNode::read(&node.stores, node.config) {
        found.apply(&mut protect);
    }
    let rule = NeverPulled::new(inventory, &protect);
    fn is_kept(rule: &NeverPulled, image: &Image) -> bool {
        !image.names.is_empty() && image.origin.may_lack_a_registry() && rule.are_kept(image)
    }
    let used: HashSet<_> = inventory.containers.iter().filter_map(|container| container.image).collect();
    let all = inventory.images.len();
    let unused = (0..all).map(ImageIx::from).filter(|image| !used.contains(image));
    let kept = unused.filter(|image| is_kept(&rule, &inventory.images[image.get()])).count();
    if kept == 0 || kept * MUCH < all {
        return Vec::new();
    }
    let message = format!(
        "gc keeps {kept} of {all} images, which no container uses, because they were never pulled, or may not have \
         been (`layersweep images --filter origin=loaded`, `=built`, `=preloaded`, `=unknown`); \
         protect.not_repullable = \"never\" lets it delete them"
    );
    vec![Check::note("", message)]
}
