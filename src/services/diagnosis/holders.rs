//! Images that only stopped containers use. `gc` never deletes an image that a container of any state uses, so a
//! forgotten `podman create` keeps an image for ever: the operator has to remove the container first.
//!
//! Bytes are those of a set: what all these images free once all these containers are removed. A layer that a used
//! image shares with them is not counted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::model::refs::{Live, Root};
use crate::model::{Container, ContainerIx, ContainerState, FilesystemIx, ImageIx, Owner, Size};
use crate::stores::Scan;

/// Returns the state of a container that does not run; `None` if it runs or may run.
pub(super) fn stopped(container: &Container, is_foreign: bool) -> Option<&'static str> {
    match container.state {
        ContainerState::Exited => Some("exited"),
        // The kubelet is about to start the container, or has just started it.
        ContainerState::Created if container.owner == Owner::CriO && !is_foreign => None,
        ContainerState::Created => Some("created, never started"),
        // A build that runs has its container mounted, which counts as running.
        ContainerState::Unknown if container.owner == Owner::Buildah => Some("build container"),
        // On a disk that is mounted on another machine, they ran, or may have run, when it was last in use.
        ContainerState::Running | ContainerState::Unknown => None,
    }
}

/// Images that only stopped containers use, and these containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoppedHolders {
    images: BTreeMap<ImageIx, BTreeSet<ContainerIx>>,
    /// The same by container.
    by_container: BTreeMap<ContainerIx, Vec<ImageIx>>,
}

impl StoppedHolders {
    /// Finds them. Images that stay for another reason too are left out: pinned ones, those of additional stores, and
    /// those that another store needs.
    #[must_use]
    pub fn find(scan: &Scan) -> Self {
        let inventory = &scan.inventory;
        let is_foreign = scan.sysroot.is_foreign();
        let mut images: BTreeMap<ImageIx, BTreeSet<ContainerIx>> = BTreeMap::new();
        let mut used = BTreeSet::new();
        for (position, container) in inventory.containers.iter().enumerate() {
            let is_stopped = stopped(container, is_foreign).is_some();
            for image in container.images() {
                images.entry(image).or_default().insert(position.into());
                if !is_stopped {
                    used.insert(image);
                }
            }
        }
        images.retain(|image_ix, _| {
            let image = &inventory[*image_ix];
            let is_kept = !image.pinned_by.is_empty()
                || inventory.protected.contains_key(image_ix)
                || inventory[image.store].read_only
                || inventory.obstacle(*image_ix).is_some()
                || inventory.uses_of(*image_ix).next().is_some();
            !is_kept && !used.contains(image_ix)
        });
        let mut by_container: BTreeMap<ContainerIx, Vec<ImageIx>> = BTreeMap::new();
        for (image, containers) in &images {
            containers.iter().for_each(|container| by_container.entry(*container).or_default().push(*image));
        }
        Self { images, by_container }
    }

    /// Returns the images that a container keeps, and whether it is the only container that keeps them.
    pub(super) fn kept_by(&self, container: ContainerIx) -> (Vec<ImageIx>, bool) {
        let kept = self.by_container.get(&container).cloned().unwrap_or_default();
        let is_alone = kept.iter().all(|image| self.images.get(image).is_some_and(|all| all.len() == 1));
        (kept, is_alone)
    }

    /// Returns the reference counts after the removal of the containers.
    pub(super) fn without_containers<'a>(&self, scan: &'a Scan) -> Live<'a> {
        let mut live = scan.refs.live();
        for container in self.by_container.keys() {
            live.remove(&scan.inventory, Root::Container(*container));
        }
        live
    }

    /// Returns them as a result of `gc`; `None` if no image is kept by stopped containers alone.
    #[must_use]
    pub fn of_run(&self, scan: &Scan) -> Option<StoppedUse> {
        let inventory = &scan.inventory;
        let mut live = self.without_containers(scan);
        let freed = self.images.keys().map(|image| live.remove(inventory, Root::Image(*image)).frees_bytes);
        let bytes = freed.fold(0, u64::saturating_add);
        let images: Vec<_> = self.images.keys().map(|image| inventory[*image].id.to_string()).collect();
        let containers = self.by_container.keys().map(|ix| inventory[*ix].name.clone()).collect();
        (!images.is_empty()).then_some(StoppedUse { images, containers, bytes })
    }
}

/// Images that only stopped containers use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "StoppedUseDoc"))]
pub struct StoppedUse {
    /// Ids of the images.
    pub images: Vec<String>,
    /// Names of the containers that have to be removed first.
    pub containers: Vec<String>,
    /// Bytes that deleting all these images frees once the containers are removed.
    pub bytes: u64,
}

/// Returns the size that deleting these images next frees on a filesystem.
pub(super) fn freed_next(scan: &Scan, live: &Live<'_>, images: &[ImageIx], ix: FilesystemIx) -> Size {
    // The reference counts of a large store are copied only if a container keeps several images.
    let mut copy = (images.len() > 1).then(|| live.clone());
    let mut sum = Size::default();
    for image in images {
        let root = Root::Image(*image);
        let freed = copy.as_ref().unwrap_or(live).last_held(root).map(|node| &scan.inventory[node]);
        sum += freed.filter(|node| node.filesystem == ix).map(|node| node.size).sum();
        if let Some(copy) = &mut copy {
            copy.remove(&scan.inventory, root);
        }
    }
    sum
}
