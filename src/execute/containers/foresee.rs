//! Images after the containers: what a plan for images is if all of a container plan has gone.

use std::collections::BTreeMap;
use std::collections::HashSet;

use crate::execute::containers::Plan;
use crate::execute::hands::{Blind, Extra, Hands, Listing, Removed};
use crate::model::refs::Refs;
use crate::model::{FilesystemIx, ImageIx, Inventory, Size};
use crate::policy::plan::Gain;
use crate::stores::Survey;

/// A survey without the containers that are to go.
#[derive(Debug)]
pub struct Foreseen<'a> {
    real: &'a Inventory,
    survey: Survey,
    gains: Vec<Gain>,
}

impl<'a> Foreseen<'a> {
    /// What there is when `plan` has been carried out.
    #[must_use]
    pub fn of(survey: &'a Survey, plan: &Plan) -> Self {
        let gone: HashSet<&str> = plan.goes.iter().map(|doomed| doomed.id.as_str()).collect();
        let mut sizes: BTreeMap<FilesystemIx, Size> = BTreeMap::new();
        for gain in plan.goes.iter().flat_map(|doomed| &doomed.gains) {
            *sizes.entry(gain.filesystem).or_default() += gain.size;
        }
        let mut foreseen = survey.clone();
        foreseen.inventory.containers.retain(|one| !gone.contains(one.id.as_str()));
        foreseen.refs = Refs::new(&foreseen.inventory);
        let gains = sizes.into_iter().map(|(filesystem, size)| Gain { filesystem, size }).collect();
        Self { real: &survey.inventory, survey: foreseen, gains }
    }

    /// Lets `plan` plan for images then: it is told what will have come back, `made` included,
    /// what there is, and whom to ask.
    pub fn with<T>(
        &self,
        made: &[Gain],
        hands: &mut dyn Hands,
        plan: impl FnOnce(&[Gain], &Survey, &mut dyn Hands) -> T,
    ) -> T {
        let mut hands = Afterwards { inner: hands, real: self.real, foreseen: &self.survey.inventory };
        plan(&[made, &self.gains].concat(), &self.survey, &mut hands)
    }
}

/// Hands that are asked about the disk as it is, since the runtime's word is held against it. The
/// images are the same ones in both inventories.
struct Afterwards<'a> {
    inner: &'a mut dyn Hands,
    real: &'a Inventory,
    foreseen: &'a Inventory,
}

impl Hands for Afterwards<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Extra>, Blind> {
        // A fresh look at the disk is none of what is foreseen.
        let asked = if std::ptr::eq(inventory, self.foreseen) { self.real } else { inventory };
        self.inner.look(asked)
    }

    /// A plan removes nothing.
    fn remove(&mut self, _: &Inventory, _: ImageIx) -> Removed {
        Removed::Refused("this is only a plan".into())
    }

    fn listing(&self) -> Option<&Listing> {
        self.inner.listing()
    }

    fn own_bytes(&self, device: u64) -> u64 {
        self.inner.own_bytes(device)
    }

    fn byproduct(&self, inventory: &Inventory, refs: &Refs) -> Vec<Gain> {
        self.inner.byproduct(inventory, refs)
    }
}
