//! `fits`: bytes that images would add, and whether the disk has room for them below its high threshold.

use std::collections::{HashMap, HashSet};

use crate::config::Config;
use crate::model::arrival::{self, Arrival, KnownLayer, Ratio, StoreContents};
use crate::model::deletion::plan::{Target, freed_on};
use crate::model::rules::Rule;
use crate::model::space::{Measured, Space};
use crate::model::text::reference::{self, bare_id};
use crate::model::{FilesystemIx, Image, ImageIx, Inventory, NodeKind, Plan, StoreIx};
use crate::node::image_lists::WantedImage;
use crate::policy::{Input, Targets, Task, Thresholds, plan};
use crate::services::error::{Error, Exit};
use crate::services::observer::Observer;
use crate::services::policy_context;
use crate::services::reach::Reach;
use crate::services::request::Request;
use crate::services::scan::{self, ScanOptions, ScanResult};
use crate::services::state::Purpose;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coming {
    Here,
    Arrives(Arrival),
    /// It is an index of manifests: the digest of that of this node's platform, if there is one.
    Index(Option<String>),
    /// Only its name is known. `no_such_file`: it may be meant for a file.
    Unknown {
        no_such_file: bool,
    },
}

#[derive(Debug)]
pub struct Room {
    /// The command, with the threshold that makes room; `None` if it can delete nothing.
    pub command: Option<String>,
    /// Its plan if [`Self::to_pin`] are pinned.
    pub plan: Plan,
    /// Images of the request that are here, and that the command deletes unless they are pinned: now, or once they are
    /// older than the minimum age.
    pub to_pin: Vec<String>,
    /// Number of the first deletions of the plan after which the images fit; `None` if they do not fit after all.
    pub enough: Option<usize>,
    /// Images that the plan deletes and that were never pulled.
    pub never_pulled: Vec<String>,
    /// Bytes that the plan frees on the filesystem.
    pub freed_bytes: u64,
    /// Numbers of the filesystem after the plan, with the images.
    pub then: Space,
}

#[derive(Debug)]
pub struct Fits {
    pub result: ScanResult,
    /// Store that the images would be pulled into.
    pub store: StoreIx,
    pub images: Vec<(String, Coming)>,
    pub ratio: Ratio,
    /// Sum over the images.
    pub total: Arrival,
    pub now: Space,
    pub then: Space,
    /// Nothing arrives, or the filesystem stays below its thresholds without a deletion.
    pub fits: bool,
    /// Deletions that would make room; `None` if the filesystem stays below its thresholds.
    pub room: Option<Room>,
    pub gc_refused: Option<String>,
}

impl Fits {
    /// Returns the exit code: 4 if the images do not fit, 3 if it is not known of all of them.
    pub fn exit(&self) -> Exit {
        if !self.fits {
            Exit::NotReached
        } else if self.unknown() > 0 {
            Exit::Incomplete
        } else {
            self.result.exit()
        }
    }

    pub fn unknown(&self) -> usize {
        let is_unknown = |coming: &Coming| matches!(coming, Coming::Unknown { .. } | Coming::Index(_));
        self.images.iter().filter(|(_, coming)| is_unknown(coming)).count()
    }

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
    let given: Vec<Option<ImageIx>> = wanted.iter().map(|image| find(inventory, store, image)).collect();
    let layers: Vec<_> = wanted.iter().map(|image| image.layers.clone().unwrap_or_default()).collect();
    let arrivals = arrival::arrivals(&contents, &ratio, &layers);
    let images: Vec<_> = wanted
        .into_iter()
        .zip(arrivals)
        .zip(&given)
        .map(|((image, arrival), found)| {
            let coming = match (&image.layers, found) {
                (Some(_), None) => Coming::Arrives(arrival),
                (Some(_), Some(_)) if arrival.new_layers == 0 => Coming::Arrives(arrival),
                (_, Some(_)) => Coming::Here,
                (None, None) if image.is_index => Coming::Index(image.digests.into_iter().next()),
                (None, None) => Coming::Unknown { no_such_file: image.no_such_file },
            };
            (image.name, coming)
        })
        .collect();
    let arriving = images.iter().filter_map(|(_, coming)| match coming {
        Coming::Arrives(arrival) => Some(arrival),
        Coming::Here | Coming::Index(_) | Coming::Unknown { .. } => None,
    });
    let total = arriving.fold(Arrival::default(), |sum, arrival| sum.plus(arrival));
    let filesystem = inventory[store].filesystem;
    let mount = &inventory[filesystem].mount;
    let invalid = |error: &dyn std::fmt::Display| Error::failed(format!("{}: {error}", mount.display()));
    let now = inventory[filesystem].space().map_err(|error| invalid(&error))?;
    let then = now.lost(total.disk_bytes);
    let started = config.images.targets.start(&then).map_err(|error| invalid(&error))?;
    let stays_below = !started.any() && then.owed_bytes <= now.owed_bytes;
    let room = if stays_below {
        None
    } else {
        Some(policy_context::with_input(
            request,
            observer,
            config,
            (&result, &reach.facts),
            |input, measured| {
                // Layers that are here only with images that the plan deletes have to arrive after all.
                let arriving = |gone: &HashSet<&str>| {
                    let mut contents = contents.clone();
                    let chains = inventory
                        .images
                        .iter()
                        .filter(|image| image.store == store)
                        .zip(&mut contents.chains);
                    chains
                        .filter(|(image, _)| gone.contains(image.id.as_str()))
                        .for_each(|(_, chain)| chain.clear());
                    let arrivals = arrival::arrivals(&contents, &ratio, &layers);
                    let coming = arrivals
                        .iter()
                        .zip(&images)
                        .filter(|(_, (_, coming))| matches!(coming, Coming::Arrives(_)));
                    coming.fold(0, |sum: u64, (arrival, _)| sum.saturating_add(arrival.disk_bytes))
                };
                let given: Vec<_> = given.iter().flatten().copied().collect();
                make_room(
                    input,
                    measured,
                    (filesystem, now, total.disk_bytes),
                    &given,
                    &arriving,
                    reach.command(),
                )
            },
        )?)
    };
    let fits = stays_below || total.disk_bytes == 0;
    let gc_refused = reach.refused();
    Ok(Fits { store, images, ratio, total, now, then, fits, room, gc_refused, result })
}

/// Finds the threshold with which `gc` makes room for `bytes` on a filesystem, and keeps the images `given`. `arriving`
/// returns the bytes that arrive if the images with these ids are gone.
fn make_room(
    input: Input<'_>,
    measured: &[Measured],
    (filesystem, now, mut bytes): (FilesystemIx, Space, u64),
    given: &[ImageIx],
    arriving: &dyn Fn(&HashSet<&str>) -> u64,
    command: &str,
) -> Room {
    /// Maximum number of plans. Each may delete layers that have to arrive again.
    const ROUNDS: usize = 4;
    let targets = input.policy.targets;
    let mut facts = input.facts.to_vec();
    for image_ix in given {
        facts[image_ix.get()].pinned_by.push("one of the images that are to fit".into());
    }
    let mut round = 0;
    loop {
        round += 1;
        let percent = threshold(&targets, &now, bytes);
        let mut policy = input.policy.clone();
        policy.targets.used = Some(Thresholds { high: percent, low: percent });
        let unpinned = Input { policy: &policy, ..input };
        let plan = plan::plan(Input { facts: &facts, ..unpinned }, Task::Policy, measured);
        let gone = plan.steps.iter().map(|step| step.target.id.as_str()).collect();
        let needed_bytes = arriving(&gone);
        if needed_bytes > bytes && round < ROUNDS {
            bytes = needed_bytes;
            continue;
        }
        let given: HashSet<_> = given.iter().map(|image_ix| input.inventory[*image_ix].id.as_str()).collect();
        let mut freed_bytes: u64 = 0;
        let spaces: Vec<_> = plan
            .steps
            .iter()
            .map(|step| {
                freed_bytes = freed_on(filesystem, &step.gains).bytes.saturating_add(freed_bytes);
                now.lost(needed_bytes).gained(freed_bytes, 0)
            })
            .collect();
        let is_enough = |then: &Space| {
            targets.start(then).is_ok_and(|started| !started.any()) && then.owed_bytes <= now.owed_bytes
        };
        let Some(then) = spaces.last().copied() else {
            let (to_pin, never_pulled, then) = (Vec::new(), Vec::new(), now.lost(needed_bytes));
            return Room { command: None, plan, to_pin, enough: None, never_pulled, freed_bytes, then };
        };
        let never_pulled = input.inventory.never_pulled();
        let lost = plan.steps.iter().map(|step| &step.target).filter(|target| {
            target.store.clone().is_some_and(|store| never_pulled.contains(&(store, target.id.clone())))
        });
        let unpinned = plan::plan(unpinned, Task::Policy, measured);
        let young = unpinned.kept.iter().filter(|kept| kept.rule == Rule::MinAge);
        let deletable = unpinned.steps.iter().map(|step| &step.target).chain(young.map(|kept| &kept.target));
        return Room {
            command: Some(format!("{command} --high {percent} --low {percent}")),
            to_pin: titles(deletable.filter(|target| given.contains(target.id.as_str()))),
            enough: spaces.iter().position(is_enough).map(|position| position + 1),
            never_pulled: titles(lost),
            freed_bytes,
            then,
            plan,
        };
    }
}

fn titles<'a>(targets: impl Iterator<Item = &'a Target>) -> Vec<String> {
    targets.map(|target| target.title().to_owned()).collect()
}

/// Returns the percentage to which the usage has to fall now, so that after `bytes` more it is at the low threshold.
fn threshold(targets: &Targets, now: &Space, bytes: u64) -> u8 {
    let then = now.lost(bytes);
    let started = targets.start(&then).unwrap_or_default();
    let to_free = targets.wanted(started, &then).bytes.max(then.owed_bytes);
    let taken = now.capacity_bytes - now.available_bytes;
    let percent = u128::from(taken.saturating_sub(to_free)) * 100 / u128::from(now.capacity_bytes);
    u8::try_from(percent).unwrap_or(100).max(1)
}

/// Returns the store that the runtime of this node pulls into: one of a kind that only runtimes have, or else the store
/// with the most images.
fn store_of_pulls(inventory: &Inventory) -> Option<StoreIx> {
    let stores =
        inventory.stores.iter().enumerate().filter(|(_, store)| !store.read_only && !store.is_of_artifacts());
    let best = stores.max_by_key(|(position, store)| {
        let images = inventory.images.iter().filter(|image| image.store.get() == *position);
        // Of equal stores the first one was configured for root.
        (store.kind.facts().is_of_runtime, images.count(), std::cmp::Reverse(*position))
    });
    best.map(|(position, _)| StoreIx::from(position))
}

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
    let foreign = images
        .iter()
        .filter(|image| !is_pulled_here(image))
        .flat_map(|image| &image.blobs)
        .filter(|blob| blobs.contains_key(blob.digest.as_str()))
        .map(|blob| blob.digest.clone())
        .collect();
    let chains = images.iter().map(|image| {
        let unpacked: Vec<_> =
            image.layers.iter().rev().filter_map(|layer| layers.get(layer.as_str())).copied().collect();
        if unpacked.len() == image.blobs.len() && is_pulled_here(image) {
            image
                .blobs
                .iter()
                .zip(unpacked)
                .map(|(blob, bytes)| KnownLayer {
                    digest: blob.digest.clone(),
                    compressed_bytes: blob.compressed_bytes,
                    bytes,
                })
                .collect()
        } else {
            Vec::new()
        }
    });
    let keeps_blobs =
        images.iter().flat_map(|image| &image.blobs).any(|blob| blobs.contains_key(blob.digest.as_str()));
    StoreContents { chains: chains.collect(), keeps_blobs, blobs: foreign }
}

/// Returns true for an image that the runtime sees: one of containerd's other namespaces is not here for CRI.
fn is_pulled_here(image: &Image) -> bool {
    image.id.namespace().is_none()
}

/// Returns the image of the store that is the wanted one: by name, id or digest. A short name refers to the one that the
/// tools would pull.
fn find(inventory: &Inventory, store: StoreIx, wanted: &WantedImage) -> Option<ImageIx> {
    let is_name = wanted.layers.is_none() && !wanted.is_index;
    let name = is_name.then_some(&wanted.name);
    let is_it = |image: &Image| {
        let id = image.id.as_str();
        let id = id.rsplit_once('/').map_or(id, |(_, id)| id);
        let mut digests = wanted.digests.iter().chain(name);
        digests.any(|digest| bare_id(digest) == id || image.digests.contains(digest))
            || name.is_some_and(|name| reference::means(name, &image.names, &image.digests))
    };
    let position = inventory
        .images
        .iter()
        .position(|image| image.store == store && is_pulled_here(image) && is_it(image));
    position.map(ImageIx::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::FreeFloor;

    #[test]
    fn threshold_leaves_room_for_the_images() {
        let now =
            Space { capacity_bytes: 1000, available_bytes: 220, owed_bytes: 0, inodes: 0, inodes_free: 0 };
        let used = Some(Thresholds { high: 75, low: 70 });
        let free = Some(FreeFloor { start_below: 100, until: 200 });
        for (used, free, bytes, expected) in [
            (used, None, 0, 70),
            (used, None, 150, 55),
            (used, None, 155, 54),
            // More than is available.
            (used, None, 400, 30),
            (used, None, 2000, 1),
            (None, free, 150, 65),
            (used, free, 150, 55),
            (None, None, 250, 75),
        ] {
            let targets = Targets { used, free, inodes: None };
            assert_eq!(threshold(&targets, &now, bytes), expected, "{targets:?} {bytes}");
        }
    }
}
