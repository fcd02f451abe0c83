//! The runtime's word on a survey that has aged while it was measured.
//!
//! Measuring takes long, and on a busy node something is always just coming or going: then disk and
//! runtime tell of different moments. A look at the records alone takes milliseconds, so the runtime
//! is asked about that one, and its answers are carried over. What has come since the measuring is no
//! candidate; what has gone is out of reach.

use std::collections::{HashMap, HashSet};

use crate::execute::hands::{Blind, Extra, Hands, Listing};
use crate::execute::proof;
use crate::model::{ImageIx, Inventory, LabelsOf, StoreId, StoreIx};
use crate::policy::rules;
use crate::stores::{Request, Survey};

/// What the hands know of the images of a measured survey, and what their runtime lists of them.
///
/// # Errors
/// When that cannot be had in full.
pub(super) fn look(
    survey: &Survey,
    request: &Request,
    hands: &mut dyn Hands,
) -> Result<(Vec<Extra>, Option<Listing>), Blind> {
    match hands.look(&survey.inventory) {
        Ok(extra) => return Ok((extra, hands.listing().cloned())),
        Err(blind) if blind.stale => tracing::debug!("{blind}; asking about a fresh look"),
        Err(blind) => return Err(blind),
    }
    let (fresh, extra) = proof::look_together(request, &LabelsOf::Nobody, hands)?;
    let carry = Carry::new(&fresh.inventory, &survey.inventory);
    let listing = hands.listing().map(|listing| carry.listing(listing)).transpose()?;
    Ok((carry.extras(extra), listing))
}

/// From a fresh inventory to the measured one.
struct Carry<'a> {
    fresh: &'a Inventory,
    measured: &'a Inventory,
    /// Where each fresh store was.
    stores: Vec<Option<StoreIx>>,
    /// Where each fresh image was.
    images: Vec<Option<ImageIx>>,
}

impl<'a> Carry<'a> {
    fn new(fresh: &'a Inventory, measured: &'a Inventory) -> Self {
        let keys: Vec<_> = measured.stores.iter().map(StoreId::of).collect();
        let store = |key: &StoreId| keys.iter().position(|one| one == key).map(StoreIx::from);
        let stores: Vec<_> = fresh.stores.iter().map(|one| store(&StoreId::of(one))).collect();
        let known = measured.images.iter().enumerate();
        let known: HashMap<_, _> =
            known.map(|(at, image)| ((image.store, image.id.as_str()), ImageIx::from(at))).collect();
        let images = fresh.images.iter();
        let images = images
            .map(|image| known.get(&(stores[image.store.get()]?, image.id.as_str())).copied())
            .collect();
        Self { fresh, measured, stores, images }
    }

    fn extras(&self, extra: Vec<Extra>) -> Vec<Extra> {
        let gone = || Extra { out_of_reach: Some("it went while it was scanned".into()), ..Extra::default() };
        let mut extras: Vec<_> = self.measured.images.iter().map(|_| gone()).collect();
        for (at, extra) in self.images.iter().zip(extra) {
            if let Some(at) = at {
                extras[at.get()] = extra;
            }
        }
        let measured: HashSet<_> =
            self.measured.containers.iter().map(|one| (one.store, one.id.as_str())).collect();
        for (at, users) in self.images.iter().zip(rules::users(self.fresh)) {
            let Some(at) = at else { continue };
            for user in users.into_iter().map(|user| &self.fresh.containers[user]) {
                let store = self.stores[user.store.get()];
                if store.is_none_or(|store| !measured.contains(&(store, user.id.as_str()))) {
                    extras[at.get()].used_by.push(rules::user(user));
                }
            }
        }
        extras
    }

    fn listing(&self, listing: &Listing) -> Result<Listing, Blind> {
        let store = self.stores.get(listing.store.get()).copied().flatten().ok_or_else(|| Blind {
            what: "the runtime's store came while it was scanned".into(),
            stale: true,
        })?;
        let images = listing.images.iter();
        let images = images.map(|(image, at)| {
            let at = at.and_then(|at| self.images.get(at.get()).copied().flatten());
            (image.clone(), at)
        });
        Ok(Listing { store, images: images.collect(), containers: listing.containers.clone() })
    }
}
