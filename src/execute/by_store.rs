//! Removes each image in the way of its store, within one run: through the runtime where that owns the store, and
//! directly in stores that no runtime owns.
//!
//! Example: containerd answers, and podman has a store beside it. The images of containerd are removed through CRI. The
//! images of podman are removed in its graphroot, where the proof asks in addition whether a runtime owns that store
//! by now. What prevents one way does not prevent the other: images that it concerns are out of reach. If the runtime
//! dies during the run, the images that are left in its store are out of reach, and the run goes on with the others.

use crate::execute::cri::CriRemover;
use crate::execute::direct::DirectRemover;
use crate::execute::remover::{PreconditionError, Remover, beside_others};
use crate::execute::runtime_match::RuntimeStores;
use crate::execute::way::Way;
use crate::model::deletion::plan::{Gain, Step, Target};
use crate::model::refs::Refs;
use crate::model::{ImageIx, Inventory, RemovalResult, StoreIx};
use crate::policy::kubelet::Listing;
use crate::policy::{Facts, FullFilesystem};
use crate::stores::Scan;

#[derive(Debug)]
pub enum StoreRemover<'a> {
    Cri(&'a mut CriRemover),
    Direct(DirectRemover<'a>),
    Both(&'a mut CriRemover, DirectRemover<'a>),
}

impl<'a> StoreRemover<'a> {
    fn cri(&self) -> Option<&CriRemover> {
        match self {
            Self::Cri(cri) | Self::Both(cri, _) => Some(cri),
            Self::Direct(_) => None,
        }
    }

    fn direct(&self) -> Option<&DirectRemover<'a>> {
        match self {
            Self::Direct(direct) | Self::Both(_, direct) => Some(direct),
            Self::Cri(_) => None,
        }
    }

    /// Returns the way of each store, as of the last look.
    #[must_use]
    pub fn ways(&self, inventory: &Inventory) -> Vec<Way> {
        let served = self.cri().and_then(|cri| RuntimeStores::find(cri.runtime_store(), inventory));
        let stores = (0..inventory.stores.len()).map(StoreIx::from);
        let ways = stores.map(|store_ix| match (self.cri(), self.direct_for(inventory, store_ix)) {
            (_, Some(direct)) => direct.way(inventory, store_ix),
            (Some(cri), None) if served.as_ref().is_none_or(|stores| !stores.writes_to(store_ix)) => {
                let of_tool = inventory.obstacle_of_store(store_ix);
                Way::Closed(
                    of_tool
                        .unwrap_or_else(|| format!("it is not in the store of {}", cri.client().endpoint())),
                )
            }
            _ => Way::Cri,
        });
        ways.collect()
    }

    fn direct_for(&self, inventory: &Inventory, store_ix: StoreIx) -> Option<&DirectRemover<'a>> {
        self.direct().filter(|direct| direct.is_responsible(inventory, store_ix))
    }

    fn chosen(&mut self, inventory: &Inventory, image_ix: ImageIx) -> &mut dyn Remover {
        let is_direct = self.direct_for(inventory, inventory[image_ix].store).is_some();
        match self {
            Self::Direct(direct) => direct,
            Self::Both(_, direct) if is_direct => direct,
            Self::Cri(cri) | Self::Both(cri, _) => *cri,
        }
    }

    /// Returns true if the runtime removes the image, and the run deletes images of other stores without it: these are
    /// deleted even if the runtime dies.
    fn is_beside_others(&self, inventory: &Inventory, image_ix: ImageIx) -> bool {
        let Self::Both(_, direct) = self else { return false };
        let edited: Vec<_> =
            (0..inventory.stores.len()).map(|store_ix| direct.edits(inventory, store_ix.into())).collect();
        !direct.is_responsible(inventory, inventory[image_ix].store)
            && inventory.images.iter().any(|image| edited[image.store.get()])
    }

    fn cri_for(&self, target: &Target) -> Option<&CriRemover> {
        let cri = self.cri()?;
        let (runtime_store, store) = (cri.runtime_store(), target.store.as_ref());
        let is_its_own = store
            .is_some_and(|store| store.kind() == runtime_store.kind && store.root() == runtime_store.root);
        (self.direct().is_none() || is_its_own).then_some(cri)
    }
}

impl Remover for StoreRemover<'_> {
    fn ask(&mut self, image: &Target) {
        let is_of_runtime = self.cri_for(image).is_some();
        match self {
            Self::Cri(cri) | Self::Both(cri, _) if is_of_runtime => cri.ask(image),
            _ => {}
        }
    }

    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Facts>, PreconditionError> {
        let Self::Both(cri, direct) = self else {
            return match self {
                Self::Direct(direct) => direct.look(inventory),
                Self::Cri(cri) | Self::Both(cri, _) => cri.look(inventory),
            };
        };
        let (of_cri, mut facts) = (cri.look(inventory)?, direct.look(inventory)?);
        for ((image, of_cri), facts) in inventory.images.iter().zip(of_cri).zip(&mut facts) {
            if direct.is_responsible(inventory, image.store) {
                // The runtime may use it as an image of an additional store.
                facts.add(Facts { out_of_reach: None, removal: None, ..of_cri });
            } else {
                *facts = of_cri;
            }
        }
        Ok(facts)
    }

    fn look_at(&mut self, inventory: &Inventory, image_ix: ImageIx) -> Result<Vec<Facts>, PreconditionError> {
        let looked = self.chosen(inventory, image_ix).look_at(inventory, image_ix);
        looked.map_err(
            |error| {
                if self.is_beside_others(inventory, image_ix) { error.beside_others() } else { error }
            },
        )
    }

    fn foresee(&self, scan: &Scan) -> Vec<Facts> {
        self.direct().map_or_else(Vec::new, |direct| direct.foresee(scan))
    }

    fn full_filesystems(&self, inventory: &Inventory) -> Vec<FullFilesystem> {
        self.direct().map_or_else(Vec::new, |direct| direct.full_filesystems(inventory))
    }

    fn remove(&mut self, step: &Step, inventory: &Inventory, image_ix: ImageIx) -> RemovalResult {
        let result = self.chosen(inventory, image_ix).remove(step, inventory, image_ix);
        if self.is_beside_others(inventory, image_ix) { beside_others(result) } else { result }
    }

    fn own_bytes(&self, device: u64) -> u64 {
        let of_cri = self.cri().map_or(0, |cri| cri.own_bytes(device));
        of_cri.saturating_add(self.direct().map_or(0, |direct| direct.own_bytes(device)))
    }

    fn listing(&self) -> Option<&Listing> {
        self.cri()?.listing()
    }

    fn byproduct(&self, target: &Target, inventory: &Inventory, refs: &Refs) -> Vec<Gain> {
        self.cri_for(target).map_or_else(Vec::new, |cri| cri.byproduct(target, inventory, refs))
    }
}
