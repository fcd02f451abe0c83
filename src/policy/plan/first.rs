//! Which image goes first on a disk so full that no record file can be written anew.
//!
//! There the first image's own layers have to make the room for that, so it has to have some. After it the
//! order is the policy's again.

use super::sweep::gain_on;
use super::{ImageState, Planner, Stage, ranks};
use crate::model::display::bytes;
use crate::model::plan::Phase;
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{Measured, Wanted};
use crate::model::{ImageIx, Problem, StoreIx};

/// Inodes that a layer's directory frees at least.
const INODES: u64 = 4;

impl Planner<'_> {
    /// Puts the first image that makes room at the top of the order, for each store that needs one. Where
    /// there is none, says why nothing in the store can be deleted.
    pub(super) fn put_first(&mut self, measured: &[Measured]) -> Vec<Option<String>> {
        let stores = (0..self.input.inventory.stores.len()).map(StoreIx::from);
        stores.map(|store| self.put_first_of(store, measured)).collect()
    }

    fn put_first_of(&mut self, store: StoreIx, measured: &[Measured]) -> Option<String> {
        let least = self.first_has_to_free(store, measured)?;
        let turns = self.named.as_ref().unwrap_or(&self.order).iter().copied();
        let gains: Vec<Option<Wanted>> = turns.map(|image| self.gain_of_candidate(image, store)).collect();
        let makes_room = |gain: &Option<Wanted>| {
            gain.is_some_and(|gain| gain.bytes >= least.bytes && gain.inodes >= least.inodes)
        };
        match gains.iter().position(makes_room) {
            Some(place) => {
                self.named.as_mut().unwrap_or(&mut self.order)[..=place].rotate_right(1);
                self.rank = ranks(&self.order, self.states.len());
                None
            }
            None => {
                let largest = gains.iter().flatten().map(|gain| gain.bytes).max().unwrap_or(0);
                let root = self.input.inventory.stores[store.get()].root.display();
                Some(match least.bytes {
                    0 => format!(
                        "no space left to write: no inode is free for the record files of {root}, and no \
                         image that may be deleted has layers of its own"
                    ),
                    needed => format!(
                        "no space left to write: deletions in {root} need {} to begin, and the largest image \
                         that may be deleted frees {}",
                        bytes(needed),
                        bytes(largest)
                    ),
                })
            }
        }
    }

    /// What the deletion of an image of the store would free now; `None` if it is no candidate.
    fn gain_of_candidate(&self, image: ImageIx, store: StoreIx) -> Option<Wanted> {
        let is_candidate = matches!(self.states[image.get()], ImageState::Candidate);
        let filesystem = self.input.inventory.stores[store.get()].filesystem;
        let gain = || gain_on(&self.input, &self.live, image, filesystem);
        (is_candidate && self.is_of(image, store)).then(gain)
    }

    fn is_of(&self, image: ImageIx, store: StoreIx) -> bool {
        self.input.inventory.images[image.get()].store == store
    }

    /// `None`: a deletion can begin there, maybe since something else goes before.
    fn first_has_to_free(&self, store: StoreIx, measured: &[Measured]) -> Option<Wanted> {
        let images = (0..self.states.len()).map(ImageIx::from);
        let of_store = images.filter(|image| self.is_of(*image, store));
        let needed = of_store.filter_map(|image| self.input.known(image)?.first_frees).max()?;
        let filesystem = self.input.inventory.stores[store.get()].filesystem;
        let space = measured.get(filesystem.get())?.as_ref().ok()?;
        if space.inodes > 0 && space.inodes_free < INODES {
            // Where bytes are short as well, a layer frees them with its inodes.
            return Some(Wanted { bytes: 0, inodes: INODES });
        }
        (space.available_bytes < needed).then_some(Wanted { bytes: needed, inodes: 0 })
    }

    /// Whether its store is one where nothing can begin; then its images stay, and that is a problem of the
    /// run.
    pub(super) fn is_barred(&mut self, image: ImageIx) -> bool {
        let store = self.input.inventory.images[image.get()].store;
        let message = self.stuck.as_mut().and_then(|stuck| stuck.get_mut(store.get())?.take());
        let Some(message) = message else { return false };
        let images = &self.input.inventory.images;
        for (state, _) in self.states.iter_mut().zip(images).filter(|(_, image)| image.store == store) {
            if matches!(state, ImageState::Candidate) {
                *state = ImageState::Kept(Ruling::keeps(Rule::OutOfReach, message.clone()));
            }
        }
        if let Stage::Space { sweep: Some(sweep), .. } = &mut self.stage {
            sweep.answered(&self.input, &self.live, &self.rank, image, false);
        }
        self.problems.push(Problem::new(None, Phase::Remove, message));
        self.barred = true;
        true
    }
}
