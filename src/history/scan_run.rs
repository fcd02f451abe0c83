//! A scan to be recorded.

use jiff::Timestamp;

use super::clock::{self, ClockState};
use super::figures::Figures;
use crate::model::refs::Refs;
use crate::model::{Consistency, Container, ImageIx, Inventory, RecordBound, StoreIx};
use crate::sys::clock::ClockReading;

/// A scan to be recorded: its inventory, and facts about the scan itself.
#[derive(Clone, Debug)]
pub struct ScanRun<'a> {
    /// Id of the run, as [`super::runs::new_id`] creates it.
    pub run_id: String,
    pub inventory: &'a Inventory,
    pub refs: &'a Refs,
    /// Start of the scan, by the wall clock. Everything was seen at this time or later.
    pub taken_at: Timestamp,
    /// `clock` as record time, as far as it was known at the scan.
    pub record_time: Timestamp,
    /// Reading of the clocks at the end of the scan: present objects existed by then, and missing ones were gone.
    pub clock: ClockReading,
    /// The bytes of images and containers were measured. If not, their recorded bytes do not change.
    pub is_measured: bool,
    /// Duration of the scan, in seconds.
    pub seconds: f64,
    /// The whole node could be read.
    pub complete: bool,
    /// Figures of the stores, in their order.
    pub figures: Vec<Figures>,
    /// The scan searched for all stores of the node; the user did not name some of them instead.
    pub all_stores: bool,
}

impl<'a> ScanRun<'a> {
    /// Creates the run of a scan that measured everything, and that knows no more of itself. The scan began at `began`
    /// (wall clock), and `clock` was read at its end. `last` is the stored state of the clock, if it could be read.
    #[must_use]
    pub fn new(
        run_id: String,
        (inventory, refs): (&'a Inventory, &'a Refs),
        began: Timestamp,
        clock: ClockReading,
        last: Option<&ClockState>,
    ) -> Self {
        Self {
            run_id,
            inventory,
            refs,
            taken_at: began.min(clock.wall),
            record_time: clock::advance(last, &clock).state.record_time,
            clock,
            is_measured: true,
            seconds: 0.0,
            complete: false,
            figures: Vec::new(),
            all_stores: false,
        }
    }

    /// Returns true if something other than the containers of its store uses or needs an image: a container of another
    /// store, a container that only podman's database contains, or a mount.
    pub(super) fn is_used_elsewhere(&self, image_ix: ImageIx) -> bool {
        self.refs.is_named(image_ix) && self.inventory.uses_of(image_ix).next().is_some()
            || self.refs.needed_elsewhere(self.inventory, image_ix).is_some()
    }
}

/// Maximum length of the names and digests that are recorded of a store of another user.
const MOST_TEXT: usize = 1 << 20;

/// Objects that are recorded: all, but of a store of another user only the first by id.
#[derive(Debug)]
pub struct Recorded {
    images: Vec<bool>,
    containers: Vec<bool>,
    /// Number of other images and containers, by store.
    left_out: Vec<usize>,
}

impl Recorded {
    #[must_use]
    pub fn of(inventory: &Inventory) -> Self {
        let images = admitted(inventory, inventory.images.len(), |ix| {
            let image = &inventory.images[ix];
            (image.store, &image.id, image.names.iter().chain(&image.digests).map(String::len).sum())
        });
        let containers = admitted(inventory, inventory.containers.len(), |ix| {
            let container = &inventory.containers[ix];
            (container.store, &container.id, container.name.len())
        });
        let mut left_out = vec![0; inventory.stores.len()];
        let of_images = inventory.images.iter().map(|image| image.store).zip(&images);
        let of_containers = inventory.containers.iter().map(|container| container.store).zip(&containers);
        for (store, _) in of_images.chain(of_containers).filter(|(_, is_recorded)| !**is_recorded) {
            left_out[store.get()] += 1;
        }
        Self { images, containers, left_out }
    }

    pub(super) fn has_image(&self, image_ix: ImageIx) -> bool {
        self.images[image_ix.get()]
    }

    pub(super) fn containers<'i>(&'i self, inventory: &'i Inventory) -> impl Iterator<Item = &'i Container> {
        let containers = inventory.containers.iter().zip(&self.containers);
        containers.filter(|(_, is_recorded)| **is_recorded).map(|(container, _)| container)
    }

    pub(super) fn images_of<'i>(&'i self, container: &'i Container) -> impl Iterator<Item = ImageIx> + 'i {
        container.images().filter(|image_ix| self.has_image(*image_ix))
    }

    /// Returns true if everything in a store was listed and is recorded: what is missing is gone.
    pub(super) fn is_complete(&self, inventory: &Inventory, store_ix: StoreIx) -> bool {
        inventory[store_ix].consistency == Consistency::Consistent && self.left_out[store_ix.get()] == 0
    }

    /// Returns messages about the stores of which not everything is recorded.
    #[must_use]
    pub fn messages(&self) -> Vec<(StoreIx, String)> {
        let stores = self.left_out.iter().enumerate().filter(|(_, left_out)| **left_out > 0);
        let messages = stores.map(|(store, left_out)| {
            let message = format!(
                "{left_out} of its images and containers are not recorded: at most {} of each are, of a store of another \
                 user",
                RecordBound::OBJECTS
            );
            (store.into(), message)
        });
        messages.collect()
    }
}

/// Returns which of `count` objects are recorded. `object` returns the store, the id and the length of the text of one.
fn admitted<'i, I: Ord + 'i>(
    inventory: &Inventory,
    count: usize,
    object: impl Fn(usize) -> (StoreIx, &'i I, usize),
) -> Vec<bool> {
    let mut admitted = vec![true; count];
    if inventory.of_other_users.is_empty() {
        return admitted;
    }
    let mut by_store = vec![Vec::new(); inventory.stores.len()];
    (0..count).for_each(|ix| by_store[object(ix).0.get()].push(ix));
    for store in &inventory.of_other_users {
        let mut here = std::mem::take(&mut by_store[store.get()]);
        here.sort_by_key(|ix| object(*ix).1);
        let mut bound = RecordBound::new(MOST_TEXT);
        here.iter().for_each(|ix| admitted[*ix] = bound.admits(object(*ix).2));
    }
    admitted
}
