//! `fits`: bytes that images would add, and whether the disk has room for them below its high threshold.

use std::collections::HashMap;

use super::error::{Error, Exit};
use super::observer::Observer;
use super::policy_context;
use super::reach::Reach;
use super::request::Request;
use super::scan::{self, ScanOptions, ScanResult};
use super::state::Purpose;
use crate::config::Config;
use crate::model::arrival::{self, Arrival, KnownLayer, Ratio, StoreContents};
use crate::model::plan::freed_on;
use crate::model::reference;
use crate::model::space::Space;
use crate::model::{FilesystemIx, Image, Inventory, NodeKind, Plan, StoreIx, StoreKind};
use crate::node::image_lists::WantedImage;

/// Knowledge of an image that may come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coming {
    /// The store has it.
    Here,
    /// Its layers are known.
    Arrives(Arrival),
    /// Only its name is known.
    Unknown,
}

/// Result of `fits`.
#[derive(Debug)]
pub struct Fits {
    pub result: ScanResult,
    /// Store that the images would be pulled into.
    pub store: StoreIx,
    /// Each image, in the order of the request.
    pub images: Vec<(String, Coming)>,
    pub ratio: Ratio,
    /// Sum over the images.
    pub total: Arrival,
    /// Numbers of the store's filesystem now, and with the images.
    pub now: Space,
    pub then: Space,
    /// Without a deletion, the filesystem stays below its thresholds.
    pub fits: bool,
    /// Deletions that would make room; `None` if none are needed.
    pub plan: Option<Plan>,
    /// Bytes that the plan frees on the filesystem.
    pub freed_bytes: u64,
    /// Reason why no run of `gc` could begin now.
    pub gc_refused: Option<String>,
}

impl Fits {
    /// Returns the exit code: 4 if the images do not fit, 3 if it is not known of all of them.
    pub fn exit(&self) -> Exit {
        match self.fits {
            false => Exit::NotReached,
            true if self.unknown() > 0 => Exit::Incomplete,
            true => self.result.exit(),
        }
    }

    /// Returns the number of images of which only the name is known.
    pub fn unknown(&self) -> usize {
        self.images.iter().filter(|(_, coming)| *coming == Coming::Unknown).count()
    }

    /// Returns the filesystem of the store.
    pub fn filesystem(&self) -> FilesystemIx {
        let inventory = &self.result.scan.inventory;
        inventory[self.store].filesystem
    }
}

/// Computes what `wanted` adds to the store that this node's runtime pulls into.
///
/// # Errors
/// When the stores or the database cannot be read, or the filesystem has invalid numbers.
pub fn fits(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    wanted: Vec<WantedImage>,
) -> Result<Fits, Error> {
    let options = ScanOptions { blobs: true, ..ScanOptions::with_labels(config) };
    let mut result = scan::scan_with(request, observer, Purpose::Look, false, options)?;
    let reach = Reach::find(request, config, &mut result);
    let inventory = &result.scan.inventory;
    let store = store_of_pulls(inventory)
        .ok_or_else(|| Error::refused("images can be pulled into none of these stores"))?;
    let contents = contents(inventory, store);
    let ratio = Ratio::of(&contents);
    let layers: Vec<_> = wanted.iter().map(|image| image.layers.clone().unwrap_or_default()).collect();
    let arrivals = arrival::arrivals(&contents, &ratio, &layers);
    let here: Vec<_> = inventory.images.iter().filter(|image| image.store == store).collect();
    let images: Vec<_> = wanted
        .into_iter()
        .zip(arrivals)
        .map(|(image, arrival)| {
            let coming = match &image.layers {
                Some(_) => Coming::Arrives(arrival),
                None if here.iter().any(|known| is_same(&image.name, known)) => Coming::Here,
                None => Coming::Unknown,
            };
            (image.name, coming)
        })
        .collect();
    let arriving = images.iter().filter_map(|(_, coming)| match coming {
        Coming::Arrives(arrival) => Some(arrival),
        Coming::Here | Coming::Unknown => None,
    });
    let total = arriving.fold(Arrival::default(), |sum, arrival| sum.plus(arrival));
    let filesystem = inventory[store].filesystem;
    let mount = &inventory[filesystem].mount;
    let invalid = |error: &dyn std::fmt::Display| Error::failed(format!("{}: {error}", mount.display()));
    let now = inventory[filesystem].space().map_err(|error| invalid(&error))?;
    let then = now.lost(total.disk_bytes);
    let started = config.images.targets.start(&then).map_err(|error| invalid(&error))?;
    let fits = !started.any() && then.owed_bytes <= now.owed_bytes;
    let plan = match fits {
        true => None,
        false => Some(policy_context::plan_after(
            request,
            observer,
            config,
            (&result, &reach.facts),
            (filesystem, total.disk_bytes),
        )?),
    };
    let steps = plan.iter().flat_map(|plan| &plan.steps).flat_map(|step| &step.gains);
    let freed_bytes = freed_on(filesystem, steps).bytes;
    let gc_refused = reach.refused();
    Ok(Fits { store, images, ratio, total, now, then, fits, plan, freed_bytes, gc_refused, result })
}

/// Returns the store that the runtime of this node pulls into: that of containerd, or else the graphroot with the most
/// images.
fn store_of_pulls(inventory: &Inventory) -> Option<StoreIx> {
    let stores = inventory.stores.iter().enumerate();
    let stores = stores.filter(|(_, store)| !store.read_only && !store.is_of_artifacts());
    let best = stores.max_by_key(|(position, store)| {
        let images = inventory.images.iter().filter(|image| image.store.get() == *position);
        // Of equal stores the first one was configured for root.
        (store.kind == StoreKind::Containerd, images.count(), std::cmp::Reverse(*position))
    });
    best.map(|(position, _)| StoreIx::from(position))
}

/// Returns the layers of a store whose blobs are known.
fn contents(inventory: &Inventory, store: StoreIx) -> StoreContents {
    let nodes = inventory.nodes.iter().filter(|node| node.store == store);
    let mut blobs: HashMap<&str, u64> = HashMap::new();
    let mut layers: HashMap<&str, u64> = HashMap::new();
    for node in nodes {
        match node.kind {
            NodeKind::Blob => blobs.insert(&node.id, node.size.bytes),
            NodeKind::Layer | NodeKind::Snapshot => layers.insert(&node.id, node.size.bytes),
            _ => None,
        };
    }
    let images: Vec<_> = inventory.images.iter().filter(|image| image.store == store).collect();
    let chains = images.iter().map(|image| {
        let unpacked = image.layers.iter().rev().filter_map(|layer| layers.get(layer.as_str()));
        let unpacked: Vec<_> = unpacked.copied().collect();
        match unpacked.len() == image.blobs.len() {
            true => image
                .blobs
                .iter()
                .zip(unpacked)
                .map(|(blob, bytes)| KnownLayer {
                    digest: blob.digest.clone(),
                    compressed_bytes: blob.compressed_bytes,
                    bytes,
                })
                .collect(),
            false => Vec::new(),
        }
    });
    let keeps_blobs =
        images.iter().flat_map(|image| &image.blobs).any(|blob| blobs.contains_key(blob.digest.as_str()));
    StoreContents { chains: chains.collect(), keeps_blobs }
}

/// Returns true if `name` refers to an image of the store. A short name refers to the one that the tools would pull.
fn is_same(name: &str, image: &Image) -> bool {
    reference::means(name, &image.names, &image.digests)
}
