//! The node as its runtime lists it, and the effect of deletions on it.

use jiff::Timestamp;

use crate::model::deletion::plan::{self, Cause, Step};
use crate::model::refs::{Live, Refs, Root};
use crate::model::space::{InvalidStats, Measured, Space, Stat};
use crate::model::{Container, FilesystemIx, ImageIx, Inventory};
use crate::policy::input::Input;
use crate::policy::kubelet::detect::{KubeletRecord, key};
use crate::policy::kubelet::manager::Manager;
use crate::policy::kubelet::runtime::{FsStats, ListedContainer, ListedImage, Listing, Runtime};
use crate::policy::kubelet::settings::KubeletPolicy;

/// Images and containers that a runtime lists, matched with an inventory, on which the collector runs. Nothing is
/// deleted: removals are predicted.
#[derive(Debug)]
pub struct SimulatedNode<'a> {
    /// Images that the runtime still lists, with their positions in the inventory.
    pub images: Vec<(ListedImage, Option<ImageIx>)>,
    /// The runtime's image filesystem.
    pub filesystem: FilesystemIx,
    /// True if the runtime only reports the deletion of an artifact, as CRI-O does: the next run finds it again, and
    /// cannot distinguish it from an artifact that was just pulled.
    pub keeps_artifacts: bool,
    /// Deletions, in order.
    pub steps: Vec<(ImageIx, Step)>,
    /// Artifacts that were only reported as deleted.
    pub still_there: Vec<ImageIx>,
    /// Numbers of the image filesystem when the space pass of the last run began; `None`: no run has begun one.
    pub by_space: Option<Measured>,
    /// Numbers of the filesystems, as measured or as predicted.
    spaces: Vec<Measured>,
    inventory: &'a Inventory,
    containers: &'a [ListedContainer],
    live: Live<'a>,
}

impl<'a> SimulatedNode<'a> {
    #[must_use]
    pub fn new(
        inventory: &'a Inventory,
        refs: &'a Refs,
        listing: &'a Listing,
        spaces: Vec<Measured>,
    ) -> Self {
        Self {
            images: listing.images_in(inventory),
            filesystem: listing.filesystem_in(inventory).unwrap_or(0.into()),
            keeps_artifacts: false,
            steps: Vec::new(),
            still_there: Vec::new(),
            by_space: None,
            spaces,
            inventory,
            containers: &listing.containers,
            live: refs.live(),
        }
    }

    /// Returns a collector that has been running for long, and remembers the ages in layersweep's records.
    #[must_use]
    pub fn manager(&self, policy: KubeletPolicy, input: &Input<'_>) -> Manager {
        let records = self.images.iter().filter_map(|(image, image_ix)| {
            let ages = input.ages((*image_ix)?)?;
            let record = KubeletRecord {
                first_detected: Some(ages.first_detected),
                last_used: ages.last_used,
                ..KubeletRecord::default()
            };
            Some((key(policy.by_handler, &image.id, &image.handler), record))
        });
        Manager { policy, began: Timestamp::MIN, records: records.collect() }
    }

    pub fn space(&self) -> Measured {
        let space = self.spaces.get(self.filesystem.get()).cloned();
        space.unwrap_or(Err(InvalidStats::Missing(Stat::All)))
    }

    /// Returns a container that uses the image, if containers/storage knows it: then it refuses the deletion. The
    /// kubelet does not know podman's containers.
    fn blocking_container(&self, image: ImageIx) -> Option<&'a Container> {
        let inventory = self.inventory;
        let store = &inventory[inventory[image].store];
        let mut containers = inventory.containers.iter();
        let user = containers.find(|container| container.image == Some(image));
        user.filter(|_| store.kind.facts().keeps_used_images)
    }
}

impl Runtime for SimulatedNode<'_> {
    fn list_images(&mut self) -> Result<Vec<ListedImage>, String> {
        Ok(self.images.iter().map(|(image, _)| image.clone()).collect())
    }

    fn list_containers(&mut self) -> Result<Vec<ListedContainer>, String> {
        Ok(self.containers.to_vec())
    }

    fn image_filesystem(&mut self) -> Result<FsStats, String> {
        let space = self.space();
        self.by_space = Some(space.clone());
        match space {
            Ok(Space { capacity_bytes, available_bytes, .. }) => {
                Ok(FsStats { capacity_bytes: Some(capacity_bytes), available_bytes: Some(available_bytes) })
            }
            Err(InvalidStats::NoCapacity) => Ok(FsStats { capacity_bytes: Some(0), available_bytes: None }),
            // The kubelet takes missing numbers for a full filesystem; layersweep does not.
            Err(invalid) => Err(invalid.to_string()),
        }
    }

    fn remove_image(&mut self, id: &str, handler: &str) -> Result<(), String> {
        let listed = self.images.iter().find(|(image, _)| image.is(id, handler));
        let image_ix = listed.ok_or("no such image")?.1;
        if let Some(container) = image_ix.and_then(|image_ix| self.blocking_container(image_ix)) {
            return Err(format!("image is in use by container {}", container.name));
        }
        if self.keeps_artifacts && image_ix.is_some_and(|image_ix| self.inventory.is_artifact(image_ix)) {
            self.still_there.extend(image_ix);
            return Ok(());
        }
        self.images.retain(|(image, _)| !image.is(id, handler));
        // Nothing is freed if the image is in a store that layersweep does not read, or is kept for another handler.
        let Some(image) = image_ix.filter(|_| self.images.iter().all(|(_, other)| *other != image_ix)) else {
            return Ok(());
        };
        let cause = if self.by_space.is_some() { Cause::Space } else { Cause::Age };
        let step = Step::of_image(self.inventory, &self.live, image, (cause, self.filesystem), &self.spaces);
        plan::apply(&step.gains, &mut self.spaces);
        self.live.remove(self.inventory, Root::Image(image));
        self.steps.push((image, step));
        Ok(())
    }
}
