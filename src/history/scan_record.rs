//! A scan in the form in which it is recorded.

use jiff::Timestamp;

use super::clock::{self, ClockState};
use super::figures::Figures;
use crate::model::refs::{Refs, Root};
use crate::model::repull::KnownOrigin;
use crate::model::{
    Consistency, ContainerState, Evidence, Filesystem, ImageIx, Inventory, Owner, RecordBound, StoreId,
    StoreIx,
};

use crate::sys::clock::ClockReading;

/// A scan to be recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanRun {
    /// Id of the run, as [`super::runs::new_id`] creates it.
    pub run_id: String,
    pub record: ScanRecord,
    /// Duration of the scan, in seconds.
    pub seconds: f64,
    /// The whole node could be read.
    pub complete: bool,
    /// Figures of the stores of `record`, in the same order.
    pub figures: Vec<Figures>,
    /// The scan searched for all stores of the node; the user did not name some of them instead.
    pub all_stores: bool,
}

/// Contents of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRecord {
    /// Start of the scan, by the wall clock. Everything was seen at this time or later.
    pub taken_at: Timestamp,
    /// `clock` as record time, as far as it was known at the scan.
    pub record_time: Timestamp,
    /// Reading of the clocks at the end of the scan. Everything was seen before this time.
    pub clock: ClockReading,
    /// Filesystems that contain a store.
    pub filesystems: Vec<Filesystem>,
    /// Stores that were read.
    pub stores: Vec<SeenStore>,
    pub images: Vec<SeenImage>,
    pub containers: Vec<SeenContainer>,
    /// The bytes of images and containers were measured. If not, their recorded bytes do not change.
    pub is_measured: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenStore {
    pub key: StoreId,
    /// Consistency of the reading. A missing object counts as deleted only if the reading is consistent.
    pub consistency: Consistency,
    /// The number of its objects that are recorded is bounded ([`RecordBound`]).
    pub is_of_another_user: bool,
}

/// An image. The byte counts have the meanings of the fields with the same names in the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenImage {
    /// Index of its store in `stores`.
    pub store: usize,
    pub id: String,
    pub names: Vec<String>,
    /// Manifest digests.
    pub digests: Vec<String>,
    /// `None` without evidence.
    pub origin: Option<KnownOrigin>,
    /// Evidence on the disk for its first detection.
    pub evidence: Vec<Evidence>,
    /// The configuration protects the image.
    pub pinned: bool,
    /// Something other than the containers of its store uses or needs the image: a container of another store, a
    /// container that only podman's database contains, or a mount.
    pub in_use: bool,
    /// Bytes that the image reaches.
    pub total_bytes: u64,
    /// Bytes that only this image reaches.
    pub exclusive_bytes: u64,
    /// Bytes that its deletion would free.
    pub frees_bytes: u64,
    /// Size that the runtime's tools print.
    pub listed_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenContainer {
    /// Index of its store in `stores`.
    pub store: usize,
    pub id: String,
    pub name: String,
    /// Program that created the container.
    pub owner: Owner,
    /// Index of its image in `images`.
    pub image: Option<usize>,
    /// Indices of the images that are mounted as volumes.
    pub volumes: Vec<usize>,
    /// Id of its image as recorded, even if the image does not exist.
    pub image_id: Option<String>,
    /// Time of creation, by the wall clock.
    pub created: Option<Timestamp>,
    /// State of the container as far as the disk proves it.
    pub state: ContainerState,
    pub sandbox: bool,
    /// Bytes of its own files and its writable layer.
    pub bytes: u64,
}

impl SeenContainer {
    /// Returns the indices of the images that it uses: its own image, then its volumes.
    pub fn images(&self) -> impl Iterator<Item = usize> + '_ {
        self.image.into_iter().chain(self.volumes.iter().copied())
    }
}

impl ScanRecord {
    /// Creates the record of an inventory. The scan began at `began` (wall clock), and `clock` was read at its end:
    /// present objects existed by then, and missing ones were gone by then. `last` is the stored state of the clock,
    /// if it could be read.
    #[must_use]
    pub fn new(
        inventory: &Inventory,
        refs: &Refs,
        began: Timestamp,
        clock: ClockReading,
        last: Option<&ClockState>,
    ) -> Self {
        let record_time = clock::advance(last, &clock).state.record_time;
        let recorded_images = recorded(inventory, inventory.images.len(), |ix| {
            let image = &inventory.images[ix];
            (image.store, &image.id, image.names.iter().chain(&image.digests).map(String::len).sum())
        });
        let recorded_containers = recorded(inventory, inventory.containers.len(), |ix| {
            let container = &inventory.containers[ix];
            (container.store, &container.id, container.name.len())
        });
        let images = inventory.images.iter().map(|image| image.store).zip(&recorded_images);
        let containers =
            inventory.containers.iter().map(|container| container.store).zip(&recorded_containers);
        let mut is_whole = vec![true; inventory.stores.len()];
        for (store, is_recorded) in images.chain(containers) {
            is_whole[store.get()] &= *is_recorded;
        }
        // Positions of the images in the record.
        let mut next = 0..;
        let positions: Vec<Option<usize>> =
            recorded_images.iter().map(|is_recorded| is_recorded.then(|| next.next()).flatten()).collect();
        let position = |image_ix: ImageIx| positions[image_ix.get()];
        Self {
            taken_at: began.min(clock.wall),
            record_time,
            clock,
            filesystems: inventory.filesystems.clone(),
            stores: inventory
                .stores
                .iter()
                .enumerate()
                .map(|(ix, store)| {
                    let is_of_another_user = inventory.of_other_users.contains(&ix.into());
                    // What is left out must not count as gone.
                    let consistency = match store.consistency {
                        Consistency::Consistent if is_of_another_user && !is_whole[ix] => {
                            Consistency::Damaged
                        }
                        consistency => consistency,
                    };
                    SeenStore { key: StoreId::of(store), consistency, is_of_another_user }
                })
                .collect(),
            images: (0..inventory.images.len())
                .filter(|ix| recorded_images[*ix])
                .map(|image_ix| image(inventory, refs, image_ix.into()))
                .collect(),
            containers: inventory
                .containers
                .iter()
                .zip(&recorded_containers)
                .filter(|(_, is_recorded)| **is_recorded)
                .map(|(container, _)| SeenContainer {
                    store: container.store.get(),
                    id: container.id.to_string(),
                    name: container.name.clone(),
                    owner: container.owner,
                    image: container.image.and_then(position),
                    volumes: container.volumes.iter().filter_map(|image| position(*image)).collect(),
                    image_id: container.image_id.as_ref().map(ToString::to_string),
                    created: container.created,
                    state: container.state,
                    sandbox: container.sandbox,
                    bytes: Refs::held_bytes(inventory, &container.holds),
                })
                .collect(),
            is_measured: true,
        }
    }
}

/// Maximum length of the names and digests in a record of a store of another user.
const MOST_TEXT: usize = 1 << 20;

/// Returns which of `count` objects are recorded: of a store of another user only the first by id.
fn recorded<'i, I: Ord + 'i>(
    inventory: &Inventory,
    count: usize,
    object: impl Fn(usize) -> (StoreIx, &'i I, usize),
) -> Vec<bool> {
    let mut recorded = vec![true; count];
    let mut by_store = vec![Vec::new(); inventory.stores.len()];
    (0..count).for_each(|ix| by_store[object(ix).0.get()].push(ix));
    for store in &inventory.of_other_users {
        let mut here = std::mem::take(&mut by_store[store.get()]);
        here.sort_by_key(|ix| object(*ix).1);
        let mut bound = RecordBound::new(MOST_TEXT);
        here.iter().for_each(|ix| recorded[*ix] = bound.admits(object(*ix).2));
    }
    recorded
}

/// Returns messages about the stores of other users of which not everything is recorded.
#[must_use]
pub fn left_out(inventory: &Inventory, record: &ScanRecord) -> Vec<(StoreIx, String)> {
    let images = inventory.images.iter().map(|image| image.store.get());
    let containers = inventory.containers.iter().map(|container| container.store.get());
    let mut unrecorded = vec![0_usize; inventory.stores.len()];
    images.chain(containers).for_each(|store| unrecorded[store] += 1);
    let images = record.images.iter().map(|image| image.store);
    for store in images.chain(record.containers.iter().map(|container| container.store)) {
        unrecorded[store] = unrecorded[store].saturating_sub(1);
    }
    let stores = inventory.of_other_users.iter().filter_map(|store| {
        let left_out = Some(unrecorded[store.get()]).filter(|left_out| *left_out > 0)?;
        let message = format!(
            "{left_out} of its images and containers are not recorded: at most {} of each are, of a store of another user",
            RecordBound::OBJECTS
        );
        Some((*store, message))
    });
    stores.collect()
}

fn image(inventory: &Inventory, refs: &Refs, image_ix: ImageIx) -> SeenImage {
    let image = &inventory[image_ix];
    let sizes = refs.sizes(inventory, Root::Image(image_ix));
    SeenImage {
        store: image.store.get(),
        id: image.id.to_string(),
        names: image.names.clone(),
        digests: image.digests.clone(),
        origin: KnownOrigin::of(&image.origin),
        evidence: image.evidence.clone(),
        pinned: !image.pinned_by.is_empty(),
        in_use: refs.is_named(image_ix) && inventory.uses_of(image_ix).next().is_some()
            || refs.needed_elsewhere(inventory, image_ix).is_some(),
        total_bytes: sizes.total.bytes,
        exclusive_bytes: sizes.exclusive.bytes,
        frees_bytes: sizes.exclusive.frees_bytes,
        listed_bytes: image.listed_bytes,
    }
}
