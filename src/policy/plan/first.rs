//! Which image goes first on a disk so full that no record file can be written anew.
//!
//! There the first image's own layers have to make the room for that, so it has to have some. Where it shares
//! them with others that may be deleted (`podman build` leaves an image without a name for each instruction),
//! all images on one of those layers go together. After it the order is the policy's again.

use std::cell::Cell;
use std::collections::HashMap;

use super::first_deletions::filesystem_of_layers;
use super::{ImageState, Planner, Stage, ranks};
use crate::model::display::{bytes, short_id};
use crate::model::plan::{Failure, FilesystemPlan, PassEnd, Step, Target};
use crate::model::refs::Root;
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{BytesAndInodes, Measured};
use crate::model::{FilesystemIx, ImageIx, LayerId, NodeKind, Size, StoreIx};
use crate::policy::input::FullFilesystem;

type ByLayer<'a> = HashMap<&'a LayerId, Vec<ImageIx>>;

impl Planner<'_> {
    /// Puts the images that make the room at the top of the order, where they have to be chosen (again). Where there are
    /// none, says why nothing in the store can be deleted.
    pub(super) fn put_first(&mut self, measured: &[Measured]) {
        let undecided = self.first.undecided();
        if undecided.is_empty() {
            return;
        }
        for full in undecided {
            let chosen = self.choose_first(full, measured);
            self.first.decided(full.store, chosen);
        }
        self.begin_again();
    }

    /// Goes through the order from its beginning once more: those that make room, then the others; first by age again,
    /// since what makes room by space may be younger than others that have waited for it.
    fn begin_again(&mut self) {
        let mut turns = self.order.clone();
        turns.sort_by_cached_key(|at| !self.first.is_chosen(*at));
        self.turns = turns;
        self.rank = ranks(&self.turns, self.states.len());
        self.stage = Stage::first(self.is_request);
    }

    /// The images that make the room; else why none do.
    fn choose_first(&self, full: FullFilesystem, measured: &[Measured]) -> Result<Vec<ImageIx>, String> {
        let candidates = self.candidates_for_room(full.store, measured);
        let by_layer = self.by_layer(full.store);
        self.choose(&candidates, &by_layer, full).map_err(|largest| {
            let named = self.to_name_too(&candidates, &by_layer, full);
            self.why_impossible(full, largest, named)
        })
    }

    /// Whether the image has its turn only once others of its store have made room by space, which the age pass does not
    /// take: they are not old enough, or not all of them.
    pub(super) fn awaits_younger(&self, image: ImageIx) -> bool {
        let first = self.first.makes_room(self.input.inventory[image].store);
        first.is_some_and(|(_, images)| !images.iter().all(|at| self.is_aged(*at)))
    }

    /// The space pass is over: old images that waited for younger ones to make room are considered alone. Returns whether there
    /// are any.
    pub(super) fn put_aged_first(&mut self, measured: &[Measured]) -> bool {
        let is_left = self.order.iter().any(|at| self.is_aged(*at) && self.awaits_younger(*at));
        if is_left {
            self.first.choose_anew();
            self.put_first(measured);
        }
        is_left
    }

    /// The images of a store that may make the room, in the order of their turn.
    fn candidates_for_room(&self, store: StoreIx, measured: &[Measured]) -> Vec<ImageIx> {
        let inventory = self.input.inventory;
        let wanting = self.filesystems.iter().filter(|plan| self.wants_space(plan, measured));
        let wanting: Vec<_> = wanting.map(|plan| plan.filesystem).collect();
        let nodes =
            |at: &ImageIx| self.input.refs.reach(Root::Image(*at)).iter().map(|node| &inventory[*node]);
        let is_wanted = |at: &ImageIx| nodes(at).any(|node| wanting.contains(&node.filesystem));
        // What is not wanted for its space goes by age alone.
        let may_go = |at: &ImageIx| self.is_request || is_wanted(at) || self.is_aged(*at);
        let of_store =
            self.order.iter().copied().filter(|at| self.is_candidate(*at) && self.is_of(*at, store));
        of_store.filter(may_go).collect()
    }

    /// The images that make the room together; else the bytes that the largest group of images would free.
    fn choose(
        &self,
        candidates: &[ImageIx],
        by_layer: &ByLayer<'_>,
        full: FullFilesystem,
    ) -> Result<Vec<ImageIx>, u64> {
        let largest = Cell::new(0);
        let makes_room = |images: &[ImageIx]| {
            let gain = self.gain(images, full.filesystem);
            largest.set(gain.bytes.max(largest.get()));
            gain.covers(full.to_free)
        };
        let position: HashMap<_, _> = candidates.iter().zip(0..).collect();
        let all_may_go = |images: &&Vec<ImageIx>| images.iter().all(|at| position.contains_key(at));
        // Images of one top layer are one image with several names and records: they have its turn. Of
        // groups on a layer further down the smallest goes.
        let top = |at: ImageIx| self.input.inventory[at].layers.first();
        let with_same_top = |at: &ImageIx| {
            let alone = Some(vec![*at]).filter(|images| makes_room(images));
            let is_same = |images: &&Vec<ImageIx>| images.iter().all(|other| top(*other) == top(*at));
            let of_top = || by_layer.get(top(*at)?).filter(is_same).filter(all_may_go);
            alone.or_else(|| of_top().filter(|images| makes_room(images)).cloned())
        };
        let on_same_layer = || {
            let groups = by_layer.values().filter(|images| images.len() > 1);
            let groups = groups.filter(all_may_go).filter(|images| makes_room(images));
            let turn = |images: &&Vec<ImageIx>| images.iter().filter_map(|at| position.get(at)).min();
            groups.min_by_key(|images| (images.len(), turn(images))).cloned()
        };
        let found = candidates.iter().find_map(with_same_top).or_else(on_same_layer);
        found.ok_or(largest.into_inner())
    }

    fn why_impossible(&self, full: FullFilesystem, largest: u64, named: Option<String>) -> String {
        let root = self.input.inventory[full.store].root.display();
        let why = match (full.to_free.bytes, named) {
            (_, Some(others)) => others,
            (0, None) => format!(
                "too few inodes are free for the record files of {root}, and no image that may be deleted has layers of \
                 its own"
            ),
            (_, None) => format!(
                "deletions in {root} need {} to begin, and what may be deleted, alone or with those that share its \
                 layers, frees at most {}",
                full.to_free,
                bytes(largest)
            ),
        };
        format!("no space left to write: {why}")
    }

    /// With which others an image that was named makes room, if it is named with them.
    fn to_name_too(&self, named: &[ImageIx], by_layer: &ByLayer<'_>, full: FullFilesystem) -> Option<String> {
        let named = Some(named).filter(|_| self.is_request)?;
        let title = |at: &ImageIx| {
            let image = &self.input.inventory[*at];
            image.names.first().cloned().unwrap_or_else(|| short_id(&image.id))
        };
        named.iter().find_map(|at| {
            let layers = self.input.inventory[*at].layers.iter().filter_map(|layer| by_layer.get(layer));
            let mut groups = layers.take_while(|images| images.iter().all(|at| self.is_candidate(*at)));
            let group = groups.find(|images| self.gain(images, full.filesystem).covers(full.to_free))?;
            let others: Vec<_> = group.iter().filter(|at| !named.contains(at)).map(title).collect();
            let (one, others) = (title(at), others.join(", "));
            Some(format!("{one} shares its layers with {others}; name them together"))
        })
    }

    /// The images of a store that are still there, by each of their layers.
    fn by_layer(&self, store: StoreIx) -> ByLayer<'_> {
        let mut all = ByLayer::new();
        for (at, image) in self.input.inventory.images.iter().enumerate() {
            let at = ImageIx::from(at);
            if image.store == store && !matches!(self.states[at.get()], ImageState::Gone) {
                image.layers.iter().for_each(|layer| all.entry(layer).or_default().push(at));
            }
        }
        all
    }

    fn is_of(&self, image: ImageIx, store: StoreIx) -> bool {
        self.input.inventory[image].store == store
    }

    /// What emptying the layers of these images frees on a filesystem: their records go later. Too much, since a
    /// layer's size has its tar-split data, which goes later, too; the editor measures the directories themselves, and
    /// refuses. Nothing where that would take from other stores what they need.
    fn gain(&self, images: &[ImageIx], filesystem: FilesystemIx) -> BytesAndInodes {
        let inventory = self.input.inventory;
        let mut reached: HashMap<_, u32> = HashMap::new();
        for node in images.iter().flat_map(|at| self.input.refs.reach(Root::Image(*at))) {
            *reached.entry(*node).or_default() += 1;
        }
        reached.retain(|node, count| self.live.holders(*node) == *count);
        if reached.keys().any(|node| self.input.refs.use_of(inventory, *node).is_some()) {
            return BytesAndInodes::default();
        }
        let freed = reached.keys().map(|node| &inventory[*node]);
        let freed =
            freed.filter(|node| node.filesystem == filesystem && node.kind != NodeKind::ImageMetadata);
        freed.map(|node| node.size).sum::<Size>().into()
    }

    /// The images that have to be deleted along with this one, as nothing can be written before all of them
    /// are: those that were chosen with it.
    pub(super) fn along(&self, image: ImageIx) -> Vec<ImageIx> {
        let chosen = self.first.makes_room(self.input.inventory[image].store);
        let chosen = chosen.map(|(_, images)| images).filter(|images| images.contains(&image));
        let mut along: Vec<_> = chosen.into_iter().flatten().copied().filter(|at| *at != image).collect();
        along.sort_by_key(|at| self.rank[at.get()]);
        along
    }

    /// After the first deletion the filesystem has room: what went along with it is deleted as well, and what has waited
    /// since it makes none itself gets its turn.
    pub(super) fn made_room(&mut self, image: ImageIx, step: &Step) {
        let along = self.images_along(image, step);
        if let Some(waited) = self.first.removed(self.filesystem_of_layers(image), along) {
            for at in waited {
                self.states[at.get()] = ImageState::Candidate;
                // Others may have gone while it waited.
                self.keep_needed_elsewhere(at);
            }
            self.begin_again();
        }
    }

    /// The image's store lacks that much for a deletion to begin, as it turned out; whether the image waits for room.
    pub(super) fn made_no_room(&mut self, image: ImageIx, to_free: BytesAndInodes, why: &Failure) -> bool {
        let full = FullFilesystem {
            store: self.input.inventory[image].store,
            filesystem: self.filesystem_of_layers(image),
            to_free,
        };
        self.first.made_no_room(full, image, why)
    }

    /// The images that go along with this one in its step.
    pub(super) fn images_along(&self, image: ImageIx, step: &Step) -> Vec<ImageIx> {
        let inventory = self.input.inventory;
        let find = |target: &Target| inventory.find_image(inventory[image].store, &target.id);
        step.along.iter().filter_map(find).collect()
    }

    /// The step of an image that was deleted along with the one before.
    pub(super) fn next_along(&mut self, measured: &[Measured]) -> Option<(ImageIx, Step)> {
        let at = self.first.went_along.pop_front()?;
        let filesystem = self.filesystem_of(at);
        let left = self.first.went_along.len() + 1;
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

    pub(super) fn filesystem_of_layers(&self, image: ImageIx) -> FilesystemIx {
        filesystem_of_layers(&self.input, image)
    }

    /// Whether images go by space on a filesystem, now or when its turn comes.
    fn wants_space(&self, plan: &FilesystemPlan, measured: &[Measured]) -> bool {
        let Some(Ok(space)) = measured.get(plan.filesystem.get()) else { return false };
        if plan.end != PassEnd::Open {
            return false;
        }
        let targets = &self.input.policy.targets;
        let started = targets.start(space).map(|started| plan.started.union(started));
        started.is_ok_and(|started| !targets.wanted(started, space).is_nothing())
    }

    /// Where nothing can begin in the image's store all of it stays, and that is a problem of the run unless another store
    /// makes the room; whether that is so.
    pub(super) fn bar(&mut self, image: ImageIx) -> bool {
        let store = self.input.inventory[image].store;
        let images = (0..self.states.len()).map(ImageIx::from);
        let open = images.filter(|at| self.is_candidate(*at) && self.is_of(*at, store)).collect::<Vec<_>>();
        let Some(why) = self.first.bar(store, open.into_iter()) else { return false };
        self.keep_store(image, &Ruling::keeps(Rule::OutOfReach, why));
        if let Stage::Space { pass: Some(pass), .. } = &mut self.stage {
            pass.answered(&self.input, &self.live, &self.rank, image, false);
        }
        true
    }
}
