//! The node as its runtime lists it, and the effect of deletions on it.

use jiff::Timestamp;

use crate::model::plan::{self, Cause, Gain, Step};
use crate::model::refs::{Live, Refs, Root};
use crate::model::space::{InvalidStats, Measured, Stat};
use crate::model::{FilesystemIx, ImageIx, Inventory};
use crate::policy::input::Input;
use crate::policy::kubelet::detect::{KubeletRecord, key};
use crate::policy::kubelet::manager::Manager;
use crate::policy::kubelet::runtime::{ListedContainer, ListedImage, Listing, RuntimeError};
use crate::policy::kubelet::settings::KubeletPolicy;

/// Images and containers that a runtime lists, matched with an inventory; for a run, and for predictions of runs.
#[derive(Debug)]
pub struct ListedNode<'a> {
    /// Images that the runtime still lists, with their positions in the inventory.
    pub images: Vec<(ListedImage, Option<ImageIx>)>,
    /// Numbers of the filesystems, as last measured or as predicted.
    pub spaces: Vec<Measured>,
    inventory: &'a Inventory,
    containers: &'a [ListedContainer],
    live: Live<'a>,
}

impl<'a> ListedNode<'a> {
    #[must_use]
    pub fn new(
        inventory: &'a Inventory,
        refs: &'a Refs,
        listing: &'a Listing,
        spaces: Vec<Measured>,
    ) -> Self {
        let images = listing.images_in(inventory);
        Self { images, spaces, inventory, containers: &listing.containers, live: refs.live() }
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

    #[must_use]
    pub fn containers(&self) -> Vec<ListedContainer> {
        self.containers.to_vec()
    }

    pub fn space(&self, filesystem: FilesystemIx) -> Measured {
        self.spaces.get(filesystem.get()).cloned().unwrap_or(Err(InvalidStats::Missing(Stat::All)))
    }

    /// Returns the position of an image to remove; `None` if it is in a store that was not read.
    ///
    /// # Errors
    /// If the image is not listed.
    pub fn find(&self, id: &str, handler: &str) -> Result<Option<ImageIx>, RuntimeError> {
        let found = self.images.iter().find(|(image, _)| image.is(id, handler));
        found.map(|(_, image_ix)| *image_ix).ok_or_else(|| RuntimeError("no such image".into()))
    }

    /// Returns the deletion of an image at this time.
    #[must_use]
    pub fn step(&self, image: ImageIx, cause: Cause, filesystem: FilesystemIx) -> Step {
        Step::of_image(self.inventory, &self.live, image, (cause, filesystem), &self.spaces)
    }

    /// Applies the deletion of an image, with the gains that were predicted.
    pub fn remove(&mut self, image: ImageIx, gains: &[Gain]) {
        plan::apply(gains, &mut self.spaces);
        self.live.remove(self.inventory, Root::Image(image));
    }
}
