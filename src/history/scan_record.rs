//! A scan as it is recorded.

use jiff::Timestamp;

use super::clock::{self, ClockState};
use super::figures::Figures;
use crate::model::refs::{Refs, Root};
use crate::model::{Consistency, ContainerState, Evidence, Filesystem, ImageIx, Inventory, Owner, StoreId};
use crate::sys::clock::ClockReading;

/// A scan that is to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanRun {
    /// Id of its run, as [`super::runs::new_id`] makes it.
    pub run_id: String,
    pub record: ScanRecord,
    /// How long it took.
    pub seconds: f64,
    /// Everything could be read.
    pub complete: bool,
    /// Counts and bytes of the stores of `scan_record`, in their order.
    pub figures: Vec<Figures>,
    /// All stores of the node were looked for: none was named in their place.
    pub all_stores: bool,
}

/// What a scan saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRecord {
    /// When the scan began, by the wall clock: everything was seen at this moment or later.
    pub taken_at: Timestamp,
    /// `clock` as record time, as well as it was known then.
    pub record_time: Timestamp,
    /// The clocks when everything had been seen. Nothing that it saw came later.
    pub clock: ClockReading,
    /// Every filesystem that holds a store.
    pub filesystems: Vec<Filesystem>,
    /// Every store that was read.
    pub stores: Vec<SeenStore>,
    pub images: Vec<SeenImage>,
    pub containers: Vec<SeenContainer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenStore {
    pub key: StoreId,
    /// How far its records belong together. Only from a consistent reading does it follow
    /// that what is not there is gone.
    pub consistency: Consistency,
}

/// An image. Byte counts as in the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenImage {
    /// Its store: a position in `stores`.
    pub store: usize,
    pub id: String,
    pub names: Vec<String>,
    /// Evidence on the disk for its first detection.
    pub evidence: Vec<Evidence>,
    /// Something keeps it by configuration.
    pub pinned: bool,
    /// Something uses it that is none of the containers here: a container of another store.
    pub in_use: bool,
    /// All that it reaches.
    pub total_bytes: u64,
    /// Of that, what only it reaches.
    pub exclusive_bytes: u64,
    /// What its deletion would free.
    pub frees_bytes: u64,
    /// The size that the runtime's tools print.
    pub listed_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenContainer {
    /// Its store: a position in `stores`.
    pub store: usize,
    pub id: String,
    pub name: String,
    /// Who made it.
    pub owner: Owner,
    /// Its image: a position in `images`; an image in use is one that a container names.
    pub image: Option<usize>,
    /// Images that it has mounted as volumes: positions in `images`, which are in use too.
    pub volumes: Vec<usize>,
    /// Its image as recorded, even where there is none such.
    pub image_id: Option<String>,
    /// When it was made, by the wall clock.
    pub created: Option<Timestamp>,
    /// What the disk proves about its state.
    pub state: ContainerState,
    pub sandbox: bool,
    /// Bytes of its own files and writable layer.
    pub bytes: u64,
}

impl SeenContainer {
    /// The images that it uses, as positions: its own, then its volumes.
    pub fn images(&self) -> impl Iterator<Item = usize> + '_ {
        self.image.into_iter().chain(self.volumes.iter().copied())
    }
}

impl ScanRecord {
    /// Takes from an inventory what the records need. The scan began at `began` (wall clock);
    /// `clock` was read when it had ended: what is there was there by then, and what is not had
    /// gone by then. `last` is the stored state of the clock as far as it could be read.
    #[must_use]
    pub fn new(
        inventory: &Inventory,
        refs: &Refs,
        began: Timestamp,
        clock: ClockReading,
        last: Option<&ClockState>,
    ) -> Self {
        let record_time = clock::advance(last, &clock).state.record_time;
        Self {
            taken_at: began.min(clock.wall),
            record_time,
            clock,
            filesystems: inventory.filesystems.clone(),
            stores: inventory
                .stores
                .iter()
                .map(|store| SeenStore { key: StoreId::of(store), consistency: store.consistency })
                .collect(),
            images: (0..inventory.images.len()).map(|at| image(inventory, refs, at.into())).collect(),
            containers: inventory
                .containers
                .iter()
                .map(|container| SeenContainer {
                    store: container.store.get(),
                    id: container.id.to_string(),
                    name: container.name.clone(),
                    owner: container.owner,
                    image: container.image.map(ImageIx::get),
                    volumes: container.volumes.iter().map(|image| image.get()).collect(),
                    image_id: container.image_id.as_ref().map(ToString::to_string),
                    created: container.created,
                    state: container.state,
                    sandbox: container.sandbox,
                    bytes: Refs::held_bytes(inventory, &container.holds),
                })
                .collect(),
        }
    }
}

fn image(inventory: &Inventory, refs: &Refs, at: ImageIx) -> SeenImage {
    let image = &inventory[at];
    let sizes = refs.sizes(inventory, Root::Image(at));
    SeenImage {
        store: image.store.get(),
        id: image.id.to_string(),
        names: image.names.clone(),
        evidence: image.evidence.clone(),
        pinned: !image.pinned_by.is_empty(),
        in_use: refs.is_named(at) && inventory.uses_of(at).next().is_some()
            || refs.needed_elsewhere(inventory, at).is_some(),
        total_bytes: sizes.total.bytes,
        exclusive_bytes: sizes.exclusive.bytes,
        frees_bytes: sizes.exclusive.frees_bytes,
        listed_bytes: image.listed_bytes,
    }
}
