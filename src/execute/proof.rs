//! Proof right before a deletion: the current records of the store and listings of the runtime, without
//! measuring sizes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::disk::Progress;
use crate::execute::remover::{PreconditionError, Remover};
use crate::history::pins::Pins;
use crate::model::display::with_causes;
use crate::model::plan::Target;
use crate::model::rules::Rule;
use crate::model::{Consistency, ImageIx, Inventory, LabelsOf, StoreId, StoreIx};
use crate::policy::kubelet::Listing;
use crate::policy::{Facts, FullFilesystem, Input, Policy, rules};
use crate::stores::{self, Measure, Scan, ScanRequest};
use crate::sys::stop;

const PAUSE: Duration = Duration::from_millis(50);
/// Number of retries when disk and runtime show different moments.
const ATTEMPTS: u32 = 5;

/// The context of a run: what it scans, by which policy it decides, and what history, configuration and the node's
/// files say of images. The images of any inventory can be asked about, since each look at the disk makes a new one.
pub trait PolicyContext {
    /// Request for another scan of the disk.
    fn scan_request(&self) -> &ScanRequest;

    fn policy(&self) -> &Policy;

    /// Reads afresh the ages of images and what protects them, or begins to, while the disk is read. `pins`: the
    /// keep-list where it has just been read. The result answers for any inventory: between the last look at the disk
    /// and a removal there is no time for reading files.
    fn read_facts(&self, pins: Option<Pins>) -> FactsOf<'_>;

    /// The present on the time line that the ages are on, which need not be that of the wall clock.
    fn now(&self) -> Timestamp;

    /// Beginning of the scan that the run goes by, on the same time line.
    fn scanned(&self) -> Timestamp;
}

/// Facts about the images of an inventory: one entry an image.
pub type FactsOf<'a> = Box<dyn Fn(&Inventory) -> Vec<Facts> + 'a>;

/// Facts about the images of a scan from outside its records.
#[derive(Debug, Default)]
pub struct ImageFacts {
    /// One entry an image; nothing is known of images beyond its end.
    pub of_images: Vec<Facts>,
    /// What the runtime lists; `None` without a runtime.
    pub(super) listing: Option<Listing>,
    /// Where the first image of a store has to free itself what its deletion needs to begin.
    pub full_filesystems: Vec<FullFilesystem>,
}

impl ImageFacts {
    /// Facts without a remover.
    #[must_use]
    pub fn of(of_images: Vec<Facts>) -> Self {
        Self { of_images, ..Self::default() }
    }

    /// Returns why images cannot be deleted, of those that cannot.
    #[must_use]
    pub fn out_of_reach(&self) -> BTreeMap<ImageIx, String> {
        let facts = self.of_images.iter().enumerate();
        facts.filter_map(|(position, facts)| Some((position.into(), facts.out_of_reach.clone()?))).collect()
    }

    /// Asks the remover alone. Measuring takes long, and on a busy node something is always being created or deleted:
    /// then disk and runtime show different moments. A look at the records alone takes milliseconds, so the runtime is
    /// asked about that one. Images that were created since the measuring are no candidates; those that were deleted
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
                tracing::debug!("{error}; asking about a fresh look");
                let (fresh, facts) = look_together(request, &LabelsOf::None, remover)?;
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

    /// Adds what the context knows.
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

/// Maps the facts from `fresh` to the images of `measured`.
fn facts_of_measured(measured: &Inventory, fresh: &Inventory, facts: Vec<Facts>) -> Vec<Facts> {
    let (old_stores, new_stores) = (measured.store_ids(), fresh.store_ids());
    let containers = measured.containers.iter();
    let old: HashSet<_> = containers.map(|one| (&old_stores[one.store.get()], one.id.as_str())).collect();
    let is_new = |user: &usize| {
        let one = &fresh.containers[*user];
        !old.contains(&(&new_stores[one.store.get()], one.id.as_str()))
    };
    let users = rules::containers_by_image(fresh).into_iter();
    let all = fresh.images.iter().zip(facts).zip(users).map(|((image, mut facts), users)| {
        let new =
            users.into_iter().filter(is_new).map(|user| rules::describe_container(&fresh.containers[user]));
        facts.used_by.extend(new);
        ((&new_stores[image.store.get()], image.id.as_str()), facts)
    });
    let mut by_id: HashMap<_, _> = all.collect();
    let gone = || Facts { out_of_reach: Some("it was deleted during the scan".into()), ..Facts::default() };
    let images = measured.images.iter();
    images
        .map(|one| by_id.remove(&(&old_stores[one.store.get()], one.id.as_str())).unwrap_or_else(gone))
        .collect()
}

/// What the records say now, unmeasured.
pub(super) fn look(request: &ScanRequest, labels: LabelsOf) -> Result<Scan, PreconditionError> {
    rescan(ScanRequest { measure: Measure::Records, labels, ..request.clone() })
}

/// What `request` finds now.
pub(super) fn rescan(request: ScanRequest) -> Result<Scan, PreconditionError> {
    let request = ScanRequest { now: Timestamp::now(), ..request };
    let cannot = |error| PreconditionError::new(format!("rescanning the store: {}", with_causes(&error)));
    stores::run(&request, &Progress::default()).map_err(cannot)
}

/// Looks at the disk and asks the remover, and repeats that until both show the same moment.
fn look_together(
    request: &ScanRequest,
    labels: &LabelsOf,
    remover: &mut dyn Remover,
) -> Result<(Scan, Vec<Facts>), PreconditionError> {
    let mut attempt = 1;
    loop {
        remover.ask();
        let scan = look(request, labels.clone())?;
        match remover.look(&scan.inventory) {
            Ok(known) => return Ok((scan, known)),
            Err(error) if error.is_stale && attempt < ATTEMPTS && !stop::is_asked() => {
                tracing::debug!("{error}; looking again");
                attempt += 1;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

/// An image as the stores, the runtime and the records have it right before its deletion.
pub(super) struct FreshImage {
    pub(super) scan: Scan,
    pub(super) image_ix: ImageIx,
    pub(super) facts: ImageFacts,
}

/// Looks again at everything that says something of an image; `None`: it is gone. `labels` are read of the
/// images that are to be judged.
///
/// # Errors
/// When that cannot be had in full.
pub(super) fn look_at(
    target: &Target,
    labels: &LabelsOf,
    context: &dyn PolicyContext,
    pins: Option<Pins>,
    remover: &mut dyn Remover,
) -> Result<Option<FreshImage>, PreconditionError> {
    let Some(store) = &target.store else { return Ok(None) };
    let facts_of = context.read_facts(pins);
    let (scan, of_remover) = look_together(context.scan_request(), labels, remover)?;
    let store = find_store(store, &scan.inventory)?;
    let Some(image_ix) = scan.inventory.find_image(store, &target.id) else {
        return match is_damaged(&scan.inventory, store) {
            true => Err(PreconditionError::damaged(target)),
            false => Ok(None),
        };
    };
    let facts = ImageFacts::of(of_remover).with(facts_of(&scan.inventory));
    Ok(Some(FreshImage { scan, image_ix, facts }))
}

/// A store's position in an inventory. Where it is not, nothing is known of its images.
pub(super) fn find_store(key: &StoreId, inventory: &Inventory) -> Result<StoreIx, PreconditionError> {
    inventory.find_store(key).ok_or_else(|| {
        PreconditionError::new(format!("the store {} could not be read any more", key.root().display()))
    })
}

/// Of damaged records nothing is proven by what they lack.
fn is_damaged(inventory: &Inventory, store: StoreIx) -> bool {
    inventory[store].consistency == Consistency::Damaged
}

/// Rules that are skipped.
pub(super) type Waived = &'static [Rule];

/// Whether the store of `image` still has it; `None` where it is not there and the records are
/// damaged. Other stores say nothing of that: for a graphroot or a containerd its own records alone are
/// read. Only a store of artifacts is read with all others.
pub(super) fn is_there(
    request: &ScanRequest,
    scan: &Scan,
    at: ImageIx,
) -> Result<Option<bool>, PreconditionError> {
    let image = &scan.inventory[at];
    let store = &scan.inventory[image.store];
    if !store.is_of_artifacts() {
        let request = ScanRequest { measure: Measure::Records, ..request.clone() };
        return stores::has_image(&request, scan, image).map_err(|error| {
            let root = store.root.display();
            PreconditionError::new(format!("the store {root} could not be read any more: {error}"))
        });
    }
    let inventory = look(request, LabelsOf::None)?.inventory;
    let own = find_store(&StoreId::of(store), &inventory)?;
    let is_there = inventory.find_image(own, &image.id).is_some();
    Ok((is_there || !is_damaged(&inventory, own)).then_some(is_there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Store, StoreKind};

    fn store(root: &str, driver: &str) -> Store {
        Store {
            kind: StoreKind::ContainersStorage,
            root: root.into(),
            driver: driver.into(),
            filesystem: 0.into(),
            read_only: false,
            origin: String::new(),
            consistency: Consistency::Consistent,
        }
    }

    fn inventory(stores: &[Store]) -> Inventory {
        Inventory { stores: stores.to_vec(), ..Inventory::default() }
    }

    /// One root can hold the stores of two drivers, and an image of the one proves nothing of
    /// the other.
    #[test]
    fn a_store_is_known_by_its_driver_too() {
        let both = inventory(&[store("/store", "overlay"), store("/store", "vfs")]);
        for (at, one) in both.stores.iter().enumerate() {
            assert_eq!(find_store(&StoreId::of(one), &both), Ok(at.into()));
        }
        // containerd's may be called by another snapshotter when the first is in use.
        let containerd = |driver| Store { kind: StoreKind::Containerd, ..store("/store", driver) };
        let key = StoreId::of(&containerd("native"));
        assert_eq!(find_store(&key, &inventory(&[containerd("overlayfs")])), Ok(0.into()));
    }

    /// The images of a store that was not read are not gone.
    #[test]
    fn a_store_that_was_not_read_proves_nothing() {
        let key = StoreId::of(&store("/store", "overlay"));
        let error = find_store(&key, &inventory(&[store("/other", "overlay")])).unwrap_err();
        assert!(error.what.contains("/store") && !error.is_stale, "{error}");
    }
}
