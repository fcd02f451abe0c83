//! Which image goes first on a disk so full that no record file can be written anew.
//!
//! There the first image's own layers have to make the room for that, so it has to have some. Where it shares
//! them all with others that may be deleted (`podman build` leaves an image without a name for each instruction
//! that changes no file), they go together. After it the order is the policy's again.

use std::collections::HashMap;

use super::types::First;
use super::{ImageState, Planner, Stage, ranks};
use crate::model::display::{bytes, short_id};
use crate::model::plan::{Cause, Failure, Phase, Step, Target};
use crate::model::refs::Root;
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{Measured, StillToFree};
use crate::model::{ImageIx, LayerId, NodeKind, Problem, Size, StoreIx};

/// Inodes that a layer's directory frees at least.
const INODES: u64 = 4;

impl Planner<'_> {
    /// Puts the first images that make room at the top of the order, for each store that needs some. Where
    /// there are none, says why nothing in the store can be deleted.
    pub(super) fn put_first(&mut self, measured: &[Measured]) -> Vec<First> {
        let stores = (0..self.input.inventory.stores.len()).map(StoreIx::from);
        stores.map(|store| self.put_first_of(store, measured)).collect()
    }

    /// Once more, where the images that were to make room stay after all: others have to make it, and the order is
    /// gone through from its beginning.
    pub(super) fn put_first_again(&mut self, measured: &[Measured]) {
        let Some(mut all) = self.first.take() else { return };
        let is_open = |at: &usize| matches!(all[*at], First::Frees(_));
        let open: Vec<_> = (0..all.len()).filter(is_open).collect();
        for at in &open {
            all[*at] = self.put_first_of((*at).into(), measured);
        }
        self.first = Some(all);
        if open.is_empty() {
            return;
        }
        match &mut self.stage {
            Stage::Named { next } | Stage::Age { next } => *next = 0,
            Stage::Space { pass, .. } => *pass = None,
            Stage::Over => {}
        }
    }

    fn put_first_of(&mut self, store: StoreIx, measured: &[Measured]) -> First {
        let Some(least) = self.first_has_to_free(store, measured) else { return First::Any };
        let turns = self.named.as_ref().unwrap_or(&self.order);
        let candidates: Vec<_> =
            turns.iter().copied().filter(|at| self.is_candidate(*at) && self.is_of(*at, store)).collect();
        let mut groups: HashMap<_, Vec<ImageIx>> = HashMap::new();
        for at in &candidates {
            if let Some(top) = self.top(*at) {
                groups.entry(top).or_default().push(*at);
            }
        }
        let mut largest = 0;
        let mut makes_room = |images: &Vec<ImageIx>| {
            let gain = self.gain(images, store);
            largest = largest.max(gain.bytes);
            has(gain, least)
        };
        let found = candidates.iter().find_map(|at| {
            let group = self.top(*at).and_then(|top| groups.get(top).cloned());
            [Some(vec![*at]), group].into_iter().flatten().find(&mut makes_room)
        });
        if let Some(images) = found {
            // Of a group that the age pass would take in part those come first that it would not: it ends
            // there, and the space pass takes all.
            let aged: Vec<_> = images.iter().filter(|at| self.is_aged(**at)).copied().collect();
            let turns = self.named.as_mut().unwrap_or(&mut self.order);
            turns.sort_by_key(|at| (!images.contains(at), aged.contains(at)));
            self.rank = ranks(&self.order, self.states.len());
            return First::Frees(least);
        }
        let root = self.input.inventory[store].root.display();
        First::Stuck(match (least.bytes, self.to_name_too(&candidates, store, least)) {
            (_, Some(others)) => format!("no space left to write: {others}"),
            (0, None) => format!(
                "no space left to write: no inode is free for the record files of {root}, and no image that may \
                 be deleted has layers of its own"
            ),
            (needed, None) => format!(
                "no space left to write: deletions in {root} need {} to begin, and the largest image that may be \
                 deleted frees {}",
                bytes(needed),
                bytes(largest)
            ),
        })
    }

    /// With which others an image that was named makes room, if it is named with them.
    fn to_name_too(&self, named: &[ImageIx], store: StoreIx, least: StillToFree) -> Option<String> {
        self.named.as_ref()?;
        let images = &self.input.inventory.images;
        named.iter().find_map(|at| {
            let top = self.top(*at)?;
            let all: Vec<_> = (0..images.len())
                .map(ImageIx::from)
                .filter(|at| self.is_candidate(*at) && self.is_of(*at, store))
                .filter(|at| self.top(*at) == Some(top))
                .collect();
            has(self.gain(&all, store), least).then(|| {
                let others = all.iter().filter(|at| !named.contains(at));
                let title = |at: &ImageIx| {
                    let image = &images[at.get()];
                    image.names.first().cloned().unwrap_or_else(|| short_id(&image.id))
                };
                let others: Vec<_> = others.map(title).collect();
                let title = title(at);
                format!("all layers of {title} are those of {}, too; name them together", others.join(", "))
            })
        })
    }

    fn is_of(&self, image: ImageIx, store: StoreIx) -> bool {
        self.input.inventory[image].store == store
    }

    fn top(&self, image: ImageIx) -> Option<&LayerId> {
        self.input.inventory[image].layers.first()
    }

    /// What emptying the layers of these images of the store frees on its filesystem: their records and what is
    /// beside those go later. Nothing where that would take from other stores what they need.
    fn gain(&self, images: &[ImageIx], store: StoreIx) -> StillToFree {
        let inventory = self.input.inventory;
        let filesystem = inventory[store].filesystem;
        let mut reached: HashMap<_, u32> = HashMap::new();
        for node in images.iter().flat_map(|at| self.input.refs.reach(Root::Image(*at))) {
            *reached.entry(*node).or_default() += 1;
        }
        reached.retain(|node, count| self.live.holders(*node) == *count);
        if reached.keys().any(|node| self.input.refs.use_of(inventory, *node).is_some()) {
            return StillToFree::default();
        }
        let freed = reached.keys().map(|node| &inventory[*node]);
        let freed =
            freed.filter(|node| node.filesystem == filesystem && node.kind != NodeKind::ImageMetadata);
        let size: Size = freed.map(|node| node.size).sum();
        StillToFree { bytes: size.frees_bytes, inodes: size.inodes }
    }

    /// The images that have to be deleted along with this one, as nothing can be written before all of them
    /// are: those with the same top layer. None where that would not help either.
    pub(super) fn along(&self, image: ImageIx, cause: Cause) -> Vec<ImageIx> {
        let store = self.input.inventory[image].store;
        let first = self.first.as_ref().and_then(|first| first.get(store.get()));
        let Some(First::Frees(least)) = first else { return Vec::new() };
        let Some(top) = self.top(image) else { return Vec::new() };
        let turns = self.named.as_ref().unwrap_or(&self.order).iter().copied();
        let along: Vec<_> = turns
            .filter(|at| *at != image && self.is_candidate(*at) && self.is_of(*at, store))
            .filter(|at| self.top(*at) == Some(top) && (cause != Cause::Age || self.is_aged(*at)))
            .collect();
        let all = [&[image], along.as_slice()].concat();
        let is_needed = !has(self.gain(&[image], store), *least) && has(self.gain(&all, store), *least);
        if is_needed { along } else { Vec::new() }
    }

    /// After the first deletion the filesystem has room, and what went along with it is deleted as well.
    pub(super) fn has_made_room(&mut self, image: ImageIx, step: &Step) {
        let Some(first) = &mut self.first else { return };
        let inventory = self.input.inventory;
        let store = inventory[image].store;
        for (one, first) in inventory.stores.iter().zip(first) {
            if one.filesystem == inventory[store].filesystem {
                *first = First::Any;
            }
        }
        self.went_along.extend(self.images_along(image, step));
    }

    /// The images that go along with this one in its step.
    pub(super) fn images_along(&self, image: ImageIx, step: &Step) -> Vec<ImageIx> {
        let inventory = self.input.inventory;
        let find = |target: &Target| inventory.find_image(inventory[image].store, &target.id);
        step.along.iter().filter_map(find).collect()
    }

    /// The step of an image that was deleted along with the one before.
    pub(super) fn next_along(&mut self, measured: &[Measured]) -> Option<(ImageIx, Step)> {
        let at = self.went_along.pop_front()?;
        let filesystem = self.filesystem_of(at);
        let left = self.went_along.len() + 1;
        let cause = self.steps.last()?.cause;
        let target = Target::image(self.input.inventory, at);
        let step = Step {
            filesystem: Some(filesystem),
            group: (left > 1).then_some(left),
            expected: measured.get(filesystem.get()).and_then(|space| space.clone().ok()),
            ..Step::new(target, cause)
        };
        Some((at, step))
    }

    /// `None`: a deletion can begin there, maybe since something else goes before.
    fn first_has_to_free(&self, store: StoreIx, measured: &[Measured]) -> Option<StillToFree> {
        let images = (0..self.states.len()).map(ImageIx::from);
        let of_store = images.filter(|image| self.is_of(*image, store));
        let needed = of_store.filter_map(|image| self.input.known(image)?.first_frees).max()?;
        let filesystem = self.input.inventory[store].filesystem;
        let space = measured.get(filesystem.get())?.as_ref().ok()?;
        if space.inodes > 0 && space.inodes_free < INODES {
            // Where bytes are short as well, a layer frees them with its inodes.
            return Some(StillToFree { bytes: 0, inodes: INODES });
        }
        (space.available_bytes < needed).then_some(StillToFree { bytes: needed, inodes: 0 })
    }

    /// Whether its store is one where nothing can begin; then its images stay, and that is a problem of the
    /// run.
    pub(super) fn is_barred(&mut self, image: ImageIx) -> bool {
        let store = self.input.inventory[image].store;
        let first = self.first.as_ref().and_then(|first| first.get(store.get()));
        let Some(First::Stuck(message)) = first else { return false };
        let message = message.clone();
        let images = &self.input.inventory.images;
        for (state, _) in self.states.iter_mut().zip(images).filter(|(_, image)| image.store == store) {
            if matches!(state, ImageState::Candidate) {
                *state = ImageState::Kept(Ruling::keeps(Rule::OutOfReach, message.clone()));
            }
        }
        if let Stage::Space { pass: Some(pass), .. } = &mut self.stage {
            pass.answered(&self.input, &self.live, &self.rank, image, false);
        }
        self.problems.push(Problem::new(None, Phase::Remove, Failure { message, no_space: true }));
        self.barred = true;
        true
    }
}

fn has(gain: StillToFree, least: StillToFree) -> bool {
    gain.bytes >= least.bytes && gain.inodes >= least.inodes
}
