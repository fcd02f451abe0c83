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
use crate::policy::{Ages, ExternalFacts, FullFilesystem, Input, Policy, rules};
use crate::stores::{self, Measure, Scan, ScanRequest};
use crate::sys::stop;

const PAUSE: Duration = Duration::from_millis(50);
/// Number of retries when disk and runtime show different moments.
const ATTEMPTS: u32 = 5;

/// Facts about images from outside the disk and the runtime: ages, pins and the like, whatever inventory the
/// images are in, since each look at the disk makes a new one.
pub trait PolicyContext {
    /// One entry an image, in the order of the inventory.
    fn ages(&self, inventory: &Inventory) -> Vec<Ages>;
    /// Reads afresh what protects images, or begins to, while the disk is read. `pins`: our keep-list where it
    /// has just been read. What comes of it answers for any inventory: between the last look at the disk and
    /// a removal there is no time for reading files.
    fn read_facts(&self, pins: Option<Pins>) -> FactsOf<'_>;
    /// The present on the time line that [`Self::ages`] are on, which need not be that of the
    /// wall clock.
    fn now(&self) -> Timestamp;
    /// When the scan began that the run goes by, on the same time line.
    fn scanned(&self) -> Timestamp;
}

/// What protects the images of an inventory: one entry an image.
pub type FactsOf<'a> = Box<dyn Fn(&Inventory) -> Vec<ExternalFacts> + 'a>;

/// How to rescan the disk, and the policy to apply.
#[derive(Clone, Copy)]
pub struct ProofContext<'a> {
    pub request: &'a ScanRequest,
    pub policy: &'a Policy,
    pub context: &'a dyn PolicyContext,
}

impl std::fmt::Debug for ProofContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProofContext").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// What a remover knows about the images of a measured scan, besides the disk.
#[derive(Debug, Default)]
pub struct RemoverFacts {
    /// One entry an image; beyond its end nothing is known.
    pub known: Vec<ExternalFacts>,
    /// What the runtime lists; `None`: there is none.
    pub(super) listing: Option<Listing>,
    /// Where the first image of a store has to free itself what its deletion needs to begin.
    pub full_filesystems: Vec<FullFilesystem>,
}

impl RemoverFacts {
    /// Facts without a remover.
    #[must_use]
    pub fn of(known: Vec<ExternalFacts>) -> Self {
        Self { known, ..Self::default() }
    }

    /// Why images cannot be deleted, of those that cannot.
    #[must_use]
    pub fn out_of_reach(&self) -> BTreeMap<ImageIx, String> {
        let known = self.known.iter().enumerate();
        known.filter_map(|(at, known)| Some((at.into(), known.out_of_reach.clone()?))).collect()
    }

    /// Asks when a run begins. Measuring takes long, and on a busy node something is
    /// always being created or deleted: then disk and runtime show different moments. A look at the
    /// records alone takes milliseconds, so the runtime is asked about that one. What has come since
    /// the measuring is no candidate; what has gone is out of reach.
    ///
    /// # Errors
    /// When that cannot be had in full.
    pub fn now(
        scan: &Scan,
        proof_context: &ProofContext<'_>,
        remover: &mut dyn Remover,
    ) -> Result<Self, PreconditionError> {
        let mut known = match remover.look(&scan.inventory) {
            Ok(known) => known,
            Err(error) if error.is_stale => {
                tracing::debug!("{error}; asking about a fresh look");
                let (fresh, known) = look_together(proof_context.request, &LabelsOf::None, remover)?;
                now_known(&scan.inventory, &fresh.inventory, known)
            }
            Err(error) => return Err(error),
        };
        known.iter_mut().zip(remover.foresee(scan)).for_each(|(known, foreseen)| known.add(foreseen));
        let full_filesystems = remover.full_filesystems(&scan.inventory);
        Ok(Self { known, listing: remover.listing().cloned(), full_filesystems })
    }
}

/// What is known of the images of an inventory.
pub(super) struct ImageFacts {
    ages: Vec<Ages>,
    known: Vec<ExternalFacts>,
    pub(super) full_filesystems: Vec<FullFilesystem>,
    pub(super) now: Timestamp,
    scanned: Timestamp,
}

impl ImageFacts {
    /// `remover_facts` are of the same images, whatever has become of the containers since.
    pub(super) fn of(scan: &Scan, proof_context: &ProofContext<'_>, remover_facts: &RemoverFacts) -> Self {
        let facts = Self::with(
            &scan.inventory,
            proof_context.context,
            &proof_context.context.read_facts(None),
            remover_facts.known.clone(),
        );
        Self { full_filesystems: remover_facts.full_filesystems.clone(), ..facts }
    }

    fn with(
        inventory: &Inventory,
        context: &dyn PolicyContext,
        facts_of: &FactsOf<'_>,
        extra: Vec<ExternalFacts>,
    ) -> Self {
        let mut known = facts_of(inventory);
        known.resize_with(known.len().max(extra.len()), ExternalFacts::default);
        known.iter_mut().zip(extra).for_each(|(known, extra)| known.add(extra));
        let (ages, now, scanned) = (context.ages(inventory), context.now(), context.scanned());
        Self { ages, known, full_filesystems: Vec::new(), now, scanned }
    }

    /// As if the run had begun after everything that was used.
    pub(super) fn scanned_now(self) -> Self {
        Self { scanned: self.now, ..self }
    }

    pub(super) fn input<'a>(&'a self, scan: &'a Scan, policy: &'a Policy) -> Input<'a> {
        Input {
            inventory: &scan.inventory,
            refs: &scan.refs,
            ages: &self.ages,
            known: &self.known,
            full_filesystems: &self.full_filesystems,
            policy,
            now: self.now,
            scanned: self.scanned,
        }
    }
}

/// Maps the facts from `fresh` to the images of `measured`.
fn now_known(measured: &Inventory, fresh: &Inventory, known: Vec<ExternalFacts>) -> Vec<ExternalFacts> {
    let (old_stores, new_stores) = (measured.store_ids(), fresh.store_ids());
    let containers = measured.containers.iter();
    let old: HashSet<_> = containers.map(|one| (&old_stores[one.store.get()], one.id.as_str())).collect();
    let is_new = |user: &usize| {
        let one = &fresh.containers[*user];
        !old.contains(&(&new_stores[one.store.get()], one.id.as_str()))
    };
    let users = rules::containers_by_image(fresh).into_iter();
    let all = fresh.images.iter().zip(known).zip(users).map(|((image, mut known), users)| {
        let new =
            users.into_iter().filter(is_new).map(|user| rules::describe_container(&fresh.containers[user]));
        known.used_by.extend(new);
        ((&new_stores[image.store.get()], image.id.as_str()), known)
    });
    let mut by_id: HashMap<_, _> = all.collect();
    let gone = || ExternalFacts {
        out_of_reach: Some("it was deleted during the scan".into()),
        ..ExternalFacts::default()
    };
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
) -> Result<(Scan, Vec<ExternalFacts>), PreconditionError> {
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
    pub(super) at: ImageIx,
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
    proof_context: &ProofContext<'_>,
    pins: Option<Pins>,
    remover: &mut dyn Remover,
) -> Result<Option<FreshImage>, PreconditionError> {
    let Some(store) = &target.store else { return Ok(None) };
    let facts_of = proof_context.context.read_facts(pins);
    let (scan, extra) = look_together(proof_context.request, labels, remover)?;
    let store = find_store(store, &scan.inventory)?;
    let Some(at) = scan.inventory.find_image(store, &target.id) else {
        return match is_damaged(&scan.inventory, store) {
            true => Err(PreconditionError::damaged(target)),
            false => Ok(None),
        };
    };
    let facts = ImageFacts::with(&scan.inventory, proof_context.context, &facts_of, extra);
    Ok(Some(FreshImage { scan, at, facts }))
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
