//! Proof right before a deletion: the current records of the store and listings of the runtime, without
//! measuring sizes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::disk::Progress;
use crate::execute::remover::{PreconditionError, Remover};
use crate::history::pins::Pins;
use crate::model::deletion::plan::Target;
use crate::model::rules::Rule;
use crate::model::text::display::with_causes;
use crate::model::{Consistency, ImageIx, Inventory, StoreId, StoreIx};
use crate::policy::kubelet::Listing;
use crate::policy::{Facts, FullFilesystem, Input, Policy, rules};
use crate::stores::{self, Measure, Scan, ScanRequest};
use crate::sys::stop;

const PAUSE: Duration = Duration::from_millis(50);
/// Number of retries when disk and runtime show different moments.
const ATTEMPTS: u32 = 5;

/// Context of a run: the request for scans, the policy, and the facts about images from the history, the configuration
/// and the node's files. It works with any inventory, since each scan creates a new one.
pub trait PolicyContext {
    fn scan_request(&self) -> &ScanRequest;

    fn policy(&self) -> &Policy;

    /// Reads again the ages of images and the facts that protect them, or starts to, while the disk is read. `pins`:
    /// the keep-list, if it has just been read. The returned function works with any inventory: between the last scan
    /// and a removal there is no time to read files.
    fn read_facts(&self, pins: Option<Pins>) -> FactsOf<'_>;

    /// The present on the time line of the ages, which can differ from the wall clock.
    fn now(&self) -> Timestamp;

    /// Start of the run's scan, on the same time line.
    fn scanned(&self) -> Timestamp;
}

/// Facts about the images of an inventory: one entry for each image.
pub type FactsOf<'a> = Box<dyn Fn(&Inventory) -> Vec<Facts> + 'a>;

#[derive(Debug, Default)]
pub struct ImageFacts {
    /// One entry for each image; nothing is known of images beyond its end.
    pub of_images: Vec<Facts>,
    /// The runtime's listings; `None` without a runtime.
    pub(super) listing: Option<Listing>,
    /// Filesystems on which the first image of a store must free the room for its own deletion.
    pub full_filesystems: Vec<FullFilesystem>,
}

impl ImageFacts {
    #[must_use]
    pub fn of(of_images: Vec<Facts>) -> Self {
        Self { of_images, ..Self::default() }
    }

    /// Images that cannot be deleted, with the reasons.
    #[must_use]
    pub fn out_of_reach(&self) -> BTreeMap<ImageIx, String> {
        let facts = self.of_images.iter().enumerate();
        facts.filter_map(|(position, facts)| Some((position.into(), facts.out_of_reach.clone()?))).collect()
    }

    /// Asks the remover alone.
    ///
    /// A measuring scan takes long, and on a busy node objects are created and deleted all the time: then disk and
    /// runtime show different moments. In that case the records alone are read again, which takes milliseconds, and the
    /// remover is asked about those. Images created since the measuring scan are not candidates; images deleted since
    /// are out of reach.
    ///
    /// # Errors
    /// When the facts are not fully available.
    pub fn of_remover(
        scan: &Scan,
        request: &ScanRequest,
        remover: &mut dyn Remover,
    ) -> Result<Self, PreconditionError> {
        let mut of_images = match remover.look(&scan.inventory) {
            Ok(facts) => facts,
            Err(error) if error.is_stale => {
                tracing::debug!("{error}; reading the records again");
                let (fresh, facts) = until_they_agree(|| {
                    let fresh = look(&ScanRequest { labels: false, ..request.clone() })?;
                    let facts = remover.look(&fresh.inventory)?;
                    Ok((fresh, facts))
                })?;
                facts_of_measured(&scan.inventory, &fresh.inventory, facts)
            }
            Err(error) => return Err(error),
        };
        of_images.iter_mut().zip(remover.foresee(scan)).for_each(|(facts, foreseen)| facts.add(foreseen));
        let full_filesystems = remover.full_filesystems(&scan.inventory);
        Ok(Self { of_images, listing: remover.listing().cloned(), full_filesystems })
    }

    /// Asks the remover and the context.
    ///
    /// # Errors
    /// As [`Self::of_remover`].
    pub fn now(
        scan: &Scan,
        context: &dyn PolicyContext,
        remover: &mut dyn Remover,
    ) -> Result<Self, PreconditionError> {
        let facts_of = context.read_facts(None);
        let facts = Self::of_remover(scan, context.scan_request(), remover)?;
        Ok(facts.with(facts_of(&scan.inventory)))
    }

    #[must_use]
    pub fn with(mut self, context: Vec<Facts>) -> Self {
        let of_remover = std::mem::replace(&mut self.of_images, context);
        self.of_images.resize_with(self.of_images.len().max(of_remover.len()), Facts::default);
        self.of_images.iter_mut().zip(of_remover).for_each(|(facts, more)| facts.add(more));
        self
    }

    /// The input of a plan for `scan`, which has the same images.
    pub(super) fn input<'a>(&'a self, scan: &'a Scan, context: &'a dyn PolicyContext) -> Input<'a> {
        Input {
            inventory: &scan.inventory,
            refs: &scan.refs,
            facts: &self.of_images,
            full_filesystems: &self.full_filesystems,
            policy: context.policy(),
            now: context.now(),
            scanned: context.scanned(),
        }
    }
}

fn facts_of_measured(measured: &Inventory, fresh: &Inventory, facts: Vec<Facts>) -> Vec<Facts> {
    let (old_stores, new_stores) = (measured.store_ids(), fresh.store_ids());
    let containers = measured.containers.iter();
    let old: HashSet<_> =
        containers.map(|container| (&old_stores[container.store.get()], container.id.as_str())).collect();
    let users = rules::containers_by_image(fresh).into_iter();
    let all = fresh.images.iter().zip(facts).zip(users).map(|((image, mut facts), users)| {
        let users = users.into_iter().map(|container_ix| &fresh.containers[container_ix]);
        let new_users = users
            .filter(|container| !old.contains(&(&new_stores[container.store.get()], container.id.as_str())));
        facts.used_by.extend(new_users.map(rules::describe_container));
        ((&new_stores[image.store.get()], image.id.as_str()), facts)
    });
    let mut by_id: HashMap<_, _> = all.collect();
    let facts = measured.images.iter().map(|image| {
        by_id.remove(&(&old_stores[image.store.get()], image.id.as_str())).unwrap_or_else(|| Facts {
            out_of_reach: Some("it was deleted during the scan".into()),
            ..Facts::default()
        })
    });
    facts.collect()
}

/// Reads the records now, without measuring.
pub(super) fn look(request: &ScanRequest) -> Result<Scan, PreconditionError> {
    rescan(ScanRequest { measure: Measure::Records, ..request.clone() })
}

pub(super) fn rescan(request: ScanRequest) -> Result<Scan, PreconditionError> {
    let request = ScanRequest { now: Timestamp::now(), ..request };
    stores::run(&request, &Progress::default())
        .map_err(|error| PreconditionError::new(format!("rescanning the store: {}", with_causes(&error))))
}

/// Calls `look` again until the disk and the remover show the same moment.
fn until_they_agree<T>(
    mut look: impl FnMut() -> Result<T, PreconditionError>,
) -> Result<T, PreconditionError> {
    let mut attempt = 1;
    loop {
        match look() {
            Err(error) if error.is_stale && attempt < ATTEMPTS && !stop::is_requested() => {
                tracing::debug!("{error}; looking again");
                attempt += 1;
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// An image right before its deletion, according to the stores, the runtime and the history.
pub(super) struct FreshImage {
    pub(super) scan: Scan,
    pub(super) image_ix: ImageIx,
    pub(super) facts: ImageFacts,
}

/// Reads again all facts about an image; `None`: it does not exist any more.
///
/// Everything is read that may have changed since the run's first look and that can keep this image: the records of all
/// stores (images, layers, containers), the configuration that names the stores, the files and the keep-list that
/// protect images, the runtime's containers and sandboxes, and the runtime's status of this image. The files and the
/// status of other images are not read. No image uses another, except a manifest list its members: for a member, the
/// remover reads the whole listing again.
///
/// # Errors
/// When the facts cannot be read in full.
pub(super) fn look_at(
    target: &Target,
    context: &dyn PolicyContext,
    pins: Option<Pins>,
    remover: &mut dyn Remover,
) -> Result<Option<FreshImage>, PreconditionError> {
    let Some(store) = &target.store else { return Ok(None) };
    let facts_of = context.read_facts(pins);
    let request = ScanRequest { image: Some(target.id.clone()), ..context.scan_request().clone() };
    until_they_agree(|| {
        remover.ask(target);
        let scan = look(&request)?;
        let store = find_store(store, &scan.inventory)?;
        let Some(image_ix) = scan.inventory.find_image(store, &target.id) else {
            return if is_damaged(&scan.inventory, store) {
                Err(PreconditionError::damaged(target))
            } else {
                Ok(None)
            };
        };
        let of_remover = remover.look_at(&scan.inventory, image_ix)?;
        let facts = ImageFacts::of(of_remover).with(facts_of(&scan.inventory));
        Ok(Some(FreshImage { scan, image_ix, facts }))
    })
}

/// Finds a store in an inventory. An absent store is an error: its images may still exist.
pub(super) fn find_store(key: &StoreId, inventory: &Inventory) -> Result<StoreIx, PreconditionError> {
    inventory.find_store(key).ok_or_else(|| {
        PreconditionError::new(format!("the store {} could not be read any more", key.root().display()))
    })
}

/// Returns true if the store's records are damaged: an object that is missing in them may still exist.
fn is_damaged(inventory: &Inventory, store: StoreIx) -> bool {
    inventory[store].consistency == Consistency::Damaged
}

pub(super) type Waived = &'static [Rule];

/// Returns true if the store of the image still has it; `None` if it does not, and its records are damaged. Reads the
/// records of that store alone; only a store of artifacts is read with all others.
pub(super) fn is_there(
    request: &ScanRequest,
    scan: &Scan,
    image_ix: ImageIx,
) -> Result<Option<bool>, PreconditionError> {
    let image = &scan.inventory[image_ix];
    let store = &scan.inventory[image.store];
    if !store.is_of_artifacts() {
        let request = ScanRequest { measure: Measure::Records, ..request.clone() };
        return stores::has_image(&request, scan, image).map_err(|error| {
            let root = store.root.display();
            PreconditionError::new(format!("the store {root} could not be read any more: {error}"))
        });
    }
    let request = ScanRequest { labels: false, image: Some(image.id.to_string()), ..request.clone() };
    let inventory = look(&request)?.inventory;
    let store_ix = find_store(&StoreId::of(store), &inventory)?;
    let is_there = inventory.find_image(store_ix, &image.id).is_some();
    Ok((is_there || !is_damaged(&inventory, store_ix)).then_some(is_there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Store, StoreKind, samples};

    fn store(root: &str, driver: &str) -> Store {
        Store { root: root.into(), driver: driver.into(), ..samples::store() }
    }

    fn inventory(stores: &[Store]) -> Inventory {
        Inventory { stores: stores.to_vec(), ..Inventory::default() }
    }

    /// One root can contain the stores of two drivers; an image in one of them proves nothing about the other.
    #[test]
    fn stores_of_two_drivers_differ() {
        fn containerd(driver: &str) -> Store {
            Store { kind: StoreKind::Containerd, ..store("/store", driver) }
        }
        let both = inventory(&[store("/store", "overlay"), store("/store", "vfs")]);
        for (position, store) in both.stores.iter().enumerate() {
            assert_eq!(find_store(&StoreId::of(store), &both), Ok(position.into()));
        }
        // A store of containerd is the same store with another snapshotter.
        let key = StoreId::of(&containerd("native"));
        assert_eq!(find_store(&key, &inventory(&[containerd("overlayfs")])), Ok(0.into()));
    }

    /// The images of a store that was not read may still exist.
    #[test]
    fn missing_store_is_an_error() {
        let key = StoreId::of(&store("/store", "overlay"));
        let error = find_store(&key, &inventory(&[store("/other", "overlay")])).unwrap_err();
        assert!(error.message.contains("/store") && !error.is_stale, "{error}");
    }
}
