//! `fits`: bytes that images would add, and whether the disk has room for them below its high threshold.

use std::collections::HashSet;

use crate::config::Config;
use crate::model::arrival::{
    self, Arrival, Compression, Estimate, KnownImage, KnownLayer, NodeContents, Sizes, WantedLayers,
};
use crate::model::deletion::plan::{Target, freed_on};
use crate::model::layer_nodes::LayerNodes;
use crate::model::rules::Rule;
use crate::model::space::{InvalidStats, Measured, Space};
use crate::model::text::names::names;
use crate::model::text::reference::{self, bare_id};
use crate::model::{FilesystemIx, Image, ImageIx, Inventory, LayerBlob, Node, NodeKind, Plan, StoreIx};
use crate::node::image_lists::WantedImage;
use crate::policy::input::NotRepullable;
use crate::policy::{FreeFloor, Input, Targets, Task, Thresholds, plan};
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

names! {
    /// Answer to the question whether the images fit below the thresholds without a deletion.
    Fit {
        /// The upper end of the estimate fits, or nothing arrives.
        Yes = "yes",
        /// The estimate fits, but not its upper end.
        Probably = "probably",
        /// The estimate does not fit.
        No = "no",
    }
}

/// Numbers of a filesystem with the images, by the estimate and its ends.
#[derive(Clone, Copy, Debug)]
pub struct SpaceThen {
    pub low: Space,
    pub middle: Space,
    pub high: Space,
}

impl SpaceThen {
    fn new(now: Space, bytes: &Estimate) -> Self {
        Self { low: now.lost(bytes.low), middle: now.lost(bytes.middle), high: now.lost(bytes.high) }
    }

    fn gained(self, bytes: u64) -> Self {
        Self {
            low: self.low.gained(bytes, 0),
            middle: self.middle.gained(bytes, 0),
            high: self.high.gained(bytes, 0),
        }
    }

    /// Returns whether the filesystem stays below its thresholds.
    ///
    /// # Errors
    /// If the numbers are invalid.
    fn fit(&self, targets: &Targets, now: &Space) -> Result<Fit, InvalidStats> {
        for (then, fit) in [(&self.high, Fit::Yes), (&self.middle, Fit::Probably)] {
            if !targets.start(then)?.any() && then.owed_bytes <= now.owed_bytes {
                return Ok(fit);
            }
        }
        Ok(Fit::No)
    }
}

/// Deletions that make room for the images.
#[derive(Debug)]
pub struct Room {
    /// The command, with the threshold that makes room; `None` if it does not make enough, would delete
    /// [`Self::never_pulled`], or would have to run on the node that the disk is of.
    pub command: Option<String>,
    /// Deletions of images on the filesystem that can be pulled again, if [`Self::to_pin`] are pinned.
    pub plan: Plan,
    /// Images of the request that are here, and that the command deletes unless they are pinned: now, or once they are
    /// older than the minimum age.
    pub to_pin: Vec<String>,
    /// True if the images fit after the plan.
    pub fit: Fit,
    /// Number of the first deletions of the plan after which that is so; `None` if they do not fit after all.
    pub enough: Option<usize>,
    /// Images that were never pulled, and that a run with this threshold deletes, with or without these pins.
    pub never_pulled: Vec<String>,
    /// Bytes that the plan frees on the filesystem.
    pub freed_bytes: u64,
    /// Numbers of the filesystem after the plan, with the images.
    pub then: SpaceThen,
}

impl Coming {
    fn arrival(&self) -> Option<&Arrival> {
        match self {
            Self::Arrives(arrival) => Some(arrival),
            Self::Here | Self::Index(_) | Self::Unknown { .. } => None,
        }
    }
}

#[derive(Debug)]
pub struct Fits {
    pub result: ScanResult,
    /// Store that the images would be pulled into.
    pub store: StoreIx,
    pub images: Vec<(String, Coming)>,
    /// Sum over the images.
    pub total: Arrival,
    pub now: Space,
    pub then: SpaceThen,
    pub fit: Fit,
    /// Deletions that would make room; `None` if the filesystem surely stays below its thresholds.
    pub room: Option<Room>,
    pub gc_refused: Option<String>,
}

impl Fits {
    /// Returns the exit code: 4 if the images do not surely fit, 3 if the layers of some are unknown.
    pub fn exit(&self) -> Exit {
        if self.fit != Fit::Yes {
            Exit::NotReached
        } else if self.unknown() > 0 {
            Exit::Incomplete
        } else {
            self.result.exit()
        }
    }

    pub fn unknown(&self) -> usize {
        let images = self.images.iter();
        images.filter(|(_, coming)| matches!(coming, Coming::Unknown { .. } | Coming::Index(_))).count()
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
    let options = ScanOptions { blobs: true, ..ScanOptions::for_policy(config) };
    let mut result = scan::scan_with(request, observer, Purpose::Look, false, options)?;
    let reach = Reach::find(request, config, &mut result);
    let inventory = &result.scan.inventory;
    let store = store_of_pulls(inventory)
        .ok_or_else(|| Error::refused("images can be pulled into none of these stores"))?;
    let contents = contents(inventory, store);
    let sizes = Sizes::of(&contents);
    let given: Vec<Option<ImageIx>> = wanted.iter().map(|image| find(inventory, store, image)).collect();
    let parts: Vec<_> = wanted
        .iter()
        .map(|image| (image.repository.clone(), image.layers.clone().unwrap_or_default()))
        .collect();
    let layers: Vec<_> = parts
        .iter()
        .map(|(repository, layers)| WantedLayers { repository: repository.as_deref(), layers })
        .collect();
    let arrivals = arrival::arrivals(&contents, &sizes, &layers, &HashSet::new());
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
    let arriving: Vec<_> = images.iter().filter_map(|(_, coming)| coming.arrival()).collect();
    let total = Arrival::total(&arriving);
    let filesystem = inventory[store].filesystem;
    let mount = &inventory[filesystem].mount;
    let invalid = |error: &dyn std::fmt::Display| Error::failed(format!("{}: {error}", mount.display()));
    let now = inventory[filesystem].space().map_err(|error| invalid(&error))?;
    let then = SpaceThen::new(now, &total.disk);
    let stays_below = then.fit(&config.images.targets, &now).map_err(|error| invalid(&error))?;
    let room = if stays_below == Fit::Yes {
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
                    let arrivals = arrival::arrivals(&contents, &sizes, &layers, gone);
                    let coming = arrivals.iter().zip(&images);
                    let coming = coming.filter(|(_, (_, coming))| coming.arrival().is_some());
                    let disks: Vec<_> = coming.map(|(arrival, _)| arrival.disk).collect();
                    Estimate::of_images(&disks)
                };
                let given: Vec<_> = given.iter().flatten().copied().collect();
                let stores = stores_to_name(inventory, store);
                let is_foreign = result.scan.sysroot.is_foreign();
                let command = (!is_foreign).then(|| reach.command_in(inventory, &stores));
                make_room(input, measured, (filesystem, now, total.disk), &given, &arriving, command)
            },
        )?)
    };
    let fit = if total.new_layers == 0 { Fit::Yes } else { stays_below };
    let gc_refused = reach.refused();
    Ok(Fits { store, images, total, now, then, fit, room, gc_refused, result })
}

/// Returns the stores that a command has to name so that it deletes nothing on another filesystem than that of `target`;
/// none if there are only stores on that one.
fn stores_to_name(inventory: &Inventory, target: StoreIx) -> Vec<StoreIx> {
    let has_images = |ix: StoreIx| inventory.images.iter().any(|image| image.store == ix);
    let stores = (0..inventory.stores.len()).map(StoreIx::from);
    let stores = stores.filter(|ix| *ix == target || !inventory[*ix].read_only && has_images(*ix));
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        stores.partition(|ix| inventory[*ix].filesystem == inventory[target].filesystem);
    let is_named = |ix: &StoreIx| {
        let mut images = inventory.images.iter().enumerate();
        let is_reachable =
            images.any(|(image, of)| of.store == *ix && !inventory.out_of_reach.contains_key(&image.into()));
        *ix == target || is_reachable && !inventory[*ix].is_of_artifacts()
    };
    if elsewhere.is_empty() { Vec::new() } else { here.into_iter().filter(is_named).collect() }
}

/// Finds the threshold with which `gc` makes room for `bytes` on a filesystem. Only images there that can be pulled again
/// make room, and none of the images `given`. `arriving` returns the bytes that arrive if the images with these ids are
/// gone. `command`: that of `gc` for the stores there; `None` on a disk of another node.
fn make_room(
    input: Input<'_>,
    measured: &[Measured],
    (filesystem, now, mut bytes): (FilesystemIx, Space, Estimate),
    given: &[ImageIx],
    arriving: &dyn Fn(&HashSet<&str>) -> Estimate,
    command: Option<String>,
) -> Room {
    /// Maximum number of plans. Each may delete layers that have to arrive again.
    const ROUNDS: usize = 4;
    let targets = input.policy.targets;
    let inventory = input.inventory;
    let mut of_run = input.facts.to_vec();
    for (image, facts) in inventory.images.iter().zip(&mut of_run) {
        if inventory[image.store].filesystem != filesystem {
            facts.pinned_by.push("on another filesystem".into());
        }
    }
    let input = Input { facts: &of_run, ..input };
    let mut pinned = of_run.clone();
    for image_ix in given {
        pinned[image_ix.get()].pinned_by.push("one of the images that are to fit".into());
    }
    let never_pulled = inventory.never_pulled();
    let is_never_pulled = |target: &Target| {
        target.store.clone().is_some_and(|store| never_pulled.contains(&(store, target.id.clone())))
    };
    let is_elsewhere = |target: &Target| {
        let store = target.store.as_ref().and_then(|store| inventory.find_store(store));
        store.is_some_and(|store_ix| inventory[store_ix].filesystem != filesystem)
    };
    let mut round = 0;
    loop {
        round += 1;
        let percent = threshold(&targets, &now, &bytes);
        let mut policy = input.policy.clone();
        policy.targets.used = Some(Thresholds { high: percent, low: percent });
        let unpinned = Input { policy: &policy, ..input };
        let mut repullable = policy.clone();
        repullable.protect.not_repullable = NotRepullable::Always;
        let kept = Input { policy: &repullable, facts: &pinned, ..input };
        let mut plan = plan::plan(kept, Task::Policy, measured);
        plan.kept.retain(|kept| !is_elsewhere(&kept.target));
        let gone = plan.steps.iter().map(|step| step.target.id.as_str()).collect();
        let needed = arriving(&gone);
        if (needed.middle > bytes.middle || needed.high > bytes.high) && round < ROUNDS {
            bytes = needed;
            continue;
        }
        let given: HashSet<_> = given.iter().map(|image_ix| input.inventory[*image_ix].id.as_str()).collect();
        let mut freed_bytes: u64 = 0;
        let start = SpaceThen::new(now, &needed);
        let spaces: Vec<_> = plan
            .steps
            .iter()
            .map(|step| {
                freed_bytes = freed_on(filesystem, &step.gains).bytes.saturating_add(freed_bytes);
                start.gained(freed_bytes)
            })
            .collect();
        let fits: Vec<_> = spaces.iter().map(|then| then.fit(&targets, &now).unwrap_or(Fit::No)).collect();
        let fit = fits.last().copied().unwrap_or(Fit::No);
        let enough = fits.iter().position(|after| *after == fit).filter(|_| fit != Fit::No);
        let enough = enough.map(|position| position + 1);
        let Some(then) = spaces.last().copied() else {
            let (to_pin, never_pulled, then) = (Vec::new(), Vec::new(), start);
            let fit = then.fit(&targets, &now).unwrap_or(Fit::No);
            return Room { command: None, plan, to_pin, fit, enough: None, never_pulled, freed_bytes, then };
        };
        let run = plan::plan(Input { facts: &pinned, ..unpinned }, Task::Policy, measured);
        let unpinned = plan::plan(unpinned, Task::Policy, measured);
        let steps = run.steps.iter().chain(&unpinned.steps);
        let lost = titles(steps.map(|step| &step.target).filter(|target| is_never_pulled(target)));
        if fit == Fit::No || !lost.is_empty() {
            let never_pulled = lost;
            return Room {
                command: None,
                plan,
                to_pin: Vec::new(),
                fit,
                enough,
                never_pulled,
                freed_bytes,
                then,
            };
        }
        let young = unpinned.kept.iter().filter(|kept| kept.rule == Rule::MinAge);
        let deletable = unpinned.steps.iter().map(|step| &step.target).chain(young.map(|kept| &kept.target));
        let to_pin = titles(deletable.filter(|target| given.contains(target.id.as_str())));
        return Room {
            to_pin: if command.is_some() { to_pin } else { Vec::new() },
            command: command.map(|command| format!("{command} --high {percent} --low {percent}")),
            fit,
            enough,
            never_pulled: lost,
            freed_bytes,
            then,
            plan,
        };
    }
}

fn titles<'a>(targets: impl Iterator<Item = &'a Target>) -> Vec<String> {
    let mut titles: Vec<String> = Vec::new();
    for target in targets {
        // Two stores may have the same image.
        if !titles.iter().any(|title| title == target.title()) {
            titles.push(target.title().to_owned());
        }
    }
    titles
}

/// Returns the percentage to which the usage has to fall now, so that it is at the low threshold after `bytes` more. If
/// only their upper end passes the high threshold, it has to stay just below that.
fn threshold(targets: &Targets, now: &Space, bytes: &Estimate) -> u8 {
    let just_below = Targets {
        used: targets.used.map(|used| Thresholds { low: used.high.saturating_sub(1), ..used }),
        free: targets.free.map(|free| FreeFloor { until: free.start_below, ..free }),
        ..*targets
    };
    let (targets, then) = match to_free(targets, &now.lost(bytes.middle)) {
        0 => (&just_below, now.lost(bytes.high)),
        _ => (targets, now.lost(bytes.middle)),
    };
    let taken = now.capacity_bytes.saturating_sub(now.available_bytes);
    let percent =
        u128::from(taken.saturating_sub(to_free(targets, &then))) * 100 / u128::from(now.capacity_bytes);
    u8::try_from(percent).unwrap_or(100).max(1)
}

/// Returns the bytes that are to be freed for the targets and for the bytes that are owed.
fn to_free(targets: &Targets, then: &Space) -> u64 {
    let started = targets.start(then).unwrap_or_default();
    targets.wanted(started, then).bytes.max(then.owed_bytes)
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

/// Returns the images of all stores whose layers have known blobs, as they matter to the `store` that images are pulled
/// into.
fn contents(inventory: &Inventory, store: StoreIx) -> NodeContents {
    let mut blobs: HashSet<&str> = HashSet::new();
    for node in inventory.nodes.iter().filter(|node| node.kind == NodeKind::Blob && node.store == store) {
        blobs.insert(&node.id);
    }
    let layers = LayerNodes::of(inventory);
    let mut contents = NodeContents::default();
    for image in &inventory.images {
        if image.store == store {
            let blobs_here = image.blobs.iter().filter(|blob| blobs.contains(blob.digest.as_str()));
            contents.keeps_blobs |= blobs_here.clone().next().is_some();
            if !is_pulled_here(image) {
                contents.blobs.extend(blobs_here.map(|blob| blob.digest.clone()));
            }
        }
        let unpacked = layers.with_blobs(image);
        if !unpacked.is_empty() {
            let names = image.names.iter();
            contents.images.push(KnownImage {
                id: image.id.to_string(),
                repositories: names
                    .map(|name| reference::repository(&reference::normalized(name)).to_owned())
                    .collect(),
                layers: unpacked
                    .into_iter()
                    .map(|(blob, node)| known_layer(blob, &inventory[node]))
                    .collect(),
                is_here: image.store == store && is_pulled_here(image),
            });
        }
    }
    contents
}

fn known_layer(blob: &LayerBlob, node: &Node) -> KnownLayer {
    let mut blob = blob.clone();
    let facts = node.layer.as_ref();
    // The manifest of an image that was loaded calls its tars compressed.
    if facts.is_some_and(|facts| facts.diff_id.as_deref() == Some(blob.digest.as_str())) {
        blob.compression = Compression::None;
    }
    let is_measured = facts.is_none_or(|facts| !facts.is_unmeasured && facts.elsewhere.is_none());
    // Some filesystems take more for a layer than its blocks.
    let bytes = if is_measured { node.size.bytes.max(node.size.frees_bytes) } else { 0 };
    KnownLayer { blob, bytes }
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
    use crate::model::deletion::plan::TargetKind;
    use crate::model::{Store, StoreKind, samples};

    #[test]
    fn command_names_stores_of_one_disk() {
        // The first store is that of the pulls; the third is out of reach.
        for (filesystems, expected) in
            [([0, 0, 0, 0], &[][..]), ([0, 0, 0, 1], &[0, 1]), ([0, 1, 1, 0], &[0, 3]), ([1, 0, 0, 0], &[0])]
        {
            let images = (0..4_usize).map(|ix| Image { store: ix.into(), ..samples::image("aa", &[]) });
            let mut inventory = Inventory { images: images.collect(), ..Inventory::default() };
            let stores = filesystems.map(|ix: usize| Store { filesystem: ix.into(), ..samples::store() });
            inventory.stores = stores.into();
            inventory.stores[0].kind = StoreKind::Containerd;
            inventory.out_of_reach.insert(2.into(), "it belongs to alice".into());
            let named = stores_to_name(&inventory, 0.into());
            assert_eq!(
                named,
                expected.iter().map(|ix| StoreIx::from(*ix)).collect::<Vec<_>>(),
                "{filesystems:?}"
            );
        }
        let target = |id: &str| Target {
            kind: TargetKind::Image,
            store: None,
            id: id.into(),
            names: vec![],
            leak: None,
        };
        assert_eq!(titles([&target("aa"), &target("bb"), &target("aa")].into_iter()), ["aa", "bb"]);
    }

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
            let exact = Estimate::exact(bytes);
            assert_eq!(threshold(&targets, &now, &exact), expected, "{targets:?} {bytes}");
        }
        let targets = Targets { used, free: None, inodes: None };
        let now = Space { available_bytes: 400, ..now };
        for (middle, high, expected) in [(150, 900, 55), (0, 200, 54), (0, 100, 60)] {
            let bytes = Estimate { low: 0, middle, high };
            assert_eq!(threshold(&targets, &now, &bytes), expected, "{bytes:?}");
        }
    }
}
