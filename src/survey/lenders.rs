//! Stores that other stores take images from: additional image stores and imagestores.

use std::path::{Path, PathBuf};

use super::reading::Reading;
use crate::graphroot::config::StoreConfig;
use crate::inventory::{Consistency, Inventory, Lent, StoreIx};
use crate::sys::quiet;
use crate::sys::sysroot::Sysroot;

/// Where a directory really is. The same one has the same device and inode, whatever it is
/// called: a bind mount is no symlink.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Place {
    fn of(path: PathBuf) -> Self {
        let identity = quiet::facts(&path).ok().map(|facts| (facts.device, facts.inode));
        Self { path, identity }
    }

    fn is(&self, other: &Self) -> bool {
        self.path == other.path || self.identity.is_some() && self.identity == other.identity
    }
}

/// The graphroots that somebody writes to.
#[derive(Debug)]
pub(super) struct Own {
    /// One a store; `None` where there is no such directory.
    places: Vec<Option<Place>>,
}

impl Own {
    pub(super) fn new(sysroot: &Sysroot, stores: &[StoreConfig]) -> Self {
        let place = |store: &StoreConfig| sysroot.resolve(&store.graphroot).ok().map(Place::of);
        Self { places: stores.iter().map(place).collect() }
    }

    /// The store with this graphroot, and where that is by its own name.
    pub(super) fn find(&self, graphroot: &Path) -> Option<(usize, &Path)> {
        let wanted = Place::of(graphroot.to_path_buf());
        let places = self.places.iter().enumerate();
        let mut same =
            places.filter_map(|(at, place)| Some((at, place.as_ref().filter(|it| it.is(&wanted))?)));
        same.next().map(|(at, place)| (at, place.path.as_path()))
    }

    /// Positions of all stores, each behind those that it takes images from. Where they go round in
    /// a circle, somebody comes first.
    pub(super) fn lenders_first(&self, sysroot: &Sysroot, stores: &[StoreConfig]) -> Vec<usize> {
        let lenders = |at: usize| {
            let named = stores[at].additional_image_stores.iter();
            let named = named.filter_map(|path| sysroot.resolve(path).ok());
            named.filter_map(|path| self.find(&path).map(|found| found.0)).collect::<Vec<_>>()
        };
        let mut order = Vec::new();
        let mut begun = vec![false; stores.len()];
        for first in 0..stores.len() {
            // Those to be looked into, the deepest last, each with its lenders still to come.
            let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
            let mut next = Some(first);
            loop {
                if let Some(at) = next.filter(|at| !begun[*at]) {
                    begun[at] = true;
                    path.push((at, lenders(at).into_iter().rev().collect()));
                }
                let Some((at, waiting)) = path.last_mut() else { break };
                next = waiting.pop();
                if next.is_none() {
                    order.push(*at);
                    path.pop();
                }
            }
        }
        order
    }
}

/// A store that could not be read at all.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    /// Its position among the stores that were to be read.
    pub(super) at: usize,
    pub(super) graphroot: PathBuf,
    /// Where its images may come from.
    pub(super) borrows_from: Vec<PathBuf>,
}

/// Notes which stores may be used by one whose containers are not all known.
pub(super) fn note(inventory: &mut Inventory, readings: &[Box<dyn Reading>], unread: Vec<Unread>) {
    let damaged = readings.iter().zip(&inventory.stores).enumerate();
    let damaged = damaged.filter(|(_, (_, store))| store.consistency == Consistency::Damaged);
    let damaged =
        damaged.map(|(at, (reading, store))| (Some(at), store.root.clone(), reading.borrows_from()));
    let unread = unread.into_iter().map(|one| (None, one.graphroot, one.borrows_from));
    let mut lent = Vec::new();
    for (borrower, to, borrows_from) in damaged.chain(unread) {
        let borrows_from: Vec<_> = borrows_from.into_iter().map(Place::of).collect();
        for (at, reading) in readings.iter().enumerate().filter(|(at, _)| Some(*at) != borrower) {
            let mut roots = reading.roots().into_iter().map(Place::of);
            if roots.any(|root| borrows_from.iter().any(|place| place.is(&root))) {
                lent.push(Lent { store: StoreIx::from(at), to: to.clone() });
            }
        }
    }
    inventory.lent.extend(lent);
}
