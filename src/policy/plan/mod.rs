//! Policy `exact`: the next deletion, given the current measurements. Pure.
//!
//! A [`Planner`] hands out one deletion at a time. The caller passes the current numbers of the filesystems to
//! [`Planner::next`], carries out the step, and passes its outcome to [`Planner::answer`]; the next step takes both
//! into account. A run passes measurements, a dry run ([`plan()`]) predictions. Both use the same planner, so that
//! a dry run shows the deletions of the run as long as its predictions are right.
//!
//! The age pass over all images is first, then the space pass, one filesystem after the other. For a request, only
//! the images that it names are deleted.

mod full_disk;
mod pass_order;
mod space_pass;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};

use crate::model::deletion::plan::{
    self, Cause, ExpectedPulls, Failure, FilesystemPlan, Kept, PassEnd, Phase, Target, Trigger,
};
use crate::model::refs::{Live, Root};
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{BytesAndInodes, InvalidStats, Measured, Space, Stat};
use crate::model::text::display::{self, thousands};
use crate::model::{
    Aftermath, Answer, ContainerState, FilesystemIx, ImageIx, Inventory, NodeIx, OutcomeKind, Plan, Problem,
    Step,
};
use crate::policy::cheapest::costs::{PullCost, PullCosts};
use crate::policy::input::{Ages, DeletionOrder, FullFilesystem, Input};
use crate::policy::rules::{self, Judge};

use full_disk::FirstDeletion;
use pass_order::PassStart;
use space_pass::{SpacePass, gain_on};
pub use types::Task;

#[derive(Debug)]
pub struct Planner<'a> {
    input: Input<'a>,
    live: Live<'a>,
    states: Vec<ImageState>,
    /// By image: the reason why a space pass passed it over.
    passed_over: Vec<Option<String>>,
    /// Images that a request names, each once; otherwise the candidates in the order of the policy.
    order: Vec<ImageIx>,
    is_request: bool,
    /// Expected costs of pulling images again, from the first space pass with the order `cheapest` on.
    costs: Option<PullCosts>,
    /// Costs of the deletions for space, by filesystem.
    spent: HashMap<FilesystemIx, PullCost>,
    /// By image: its maximum idle time, if it has one.
    max_ages: Vec<Option<SignedDuration>>,
    stage: Stage,
    pending: Option<(ImageIx, Step)>,
    steps: Vec<Step>,
    problems: Vec<Problem>,
    filesystems: Vec<FilesystemPlan>,
    age: bool,
    /// Stores in which no record can be written until a first deletion has made room.
    full: Vec<FullFilesystem>,
}

/// By node: a description of what keeps it, if anything does.
type Keepers = HashMap<NodeIx, Option<Rc<str>>>;

#[derive(Debug)]
pub enum ImageState {
    Kept(Ruling),
    Candidate,
    Gone,
}

impl ImageState {
    /// Returns the states of all images, before any is deleted.
    #[must_use]
    pub fn all(judge: &Judge<'_>, inventory: &Inventory) -> Vec<Self> {
        let images = (0..inventory.images.len()).map(ImageIx::from);
        images.map(|image| judge.kept(image).map_or(Self::Candidate, Self::Kept)).collect()
    }
}

#[derive(Debug)]
enum Stage {
    Named { next: usize },
    Age { next: usize },
    Space { filesystem: usize, pass: Option<Box<SpacePass>> },
    Over,
}

impl Stage {
    fn first(is_request: bool) -> Self {
        if is_request { Self::Named { next: 0 } } else { Self::Age { next: 0 } }
    }
}

impl<'a> Planner<'a> {
    /// Judges every image and orders the candidates.
    #[must_use]
    pub fn new(input: Input<'a>, task: Task<'_>) -> Self {
        let judge = Judge::new(input).waiving(task.waived());
        let states = ImageState::all(&judge, input.inventory);
        let named = task.named(states.len());
        let is_request = named.is_some();
        let order = named.unwrap_or_else(|| order(&input, &states));
        let reachable = judged_filesystems(&input, &states, is_request);
        let filesystems = reachable.into_iter().map(FilesystemPlan::new).collect();
        Self {
            input,
            live: input.refs.live(),
            passed_over: vec![None; states.len()],
            states,
            order,
            is_request,
            costs: None,
            spent: HashMap::new(),
            max_ages: max_ages(&input),
            stage: Stage::first(is_request),
            pending: None,
            steps: Vec::new(),
            problems: Vec::new(),
            filesystems,
            age: false,
            full: input.full_filesystems.to_vec(),
        }
    }

    /// Returns the next deletion, or `None` if there is nothing (more) to do. `measured` has the current numbers of
    /// each filesystem of the inventory. A step that was handed out and not answered counts as failed.
    pub fn next(&mut self, measured: &[Measured]) -> Option<Step> {
        self.fail_unanswered();
        let step = self
            .next_named(measured)
            .or_else(|| self.next_aged(measured))
            .or_else(|| self.next_for_space(measured));
        self.pending.clone_from(&step);
        step.map(|(_, step)| step)
    }

    /// Records the outcome of the last step. Does nothing without an open step.
    pub fn answer(&mut self, answer: Answer) {
        let Some((image, step)) = self.pending.take() else { return };
        let is_gone = answer.is_gone();
        match answer {
            Answer::Removed | Answer::RemovedInPart(_) => {
                self.age |= step.cause == Cause::Age;
                self.note_cost(image, &step);
                self.steps.push(step);
            }
            // Another process deleted it: this is not an error, but not a deletion of this run either.
            Answer::AlreadyGone | Answer::StopRun(_) => {}
            Answer::Kept(ruling) => {
                self.states[image.get()] = ImageState::Kept(ruling.since_run_began());
            }
            Answer::StoreSkipped(why) => {
                let ruling = Ruling::keeps(Rule::OutOfReach, why.message);
                self.keep_store(image, &ruling.since_run_began());
            }
            Answer::Failed(problem, _) => {
                self.states[image.get()] =
                    ImageState::Kept(Ruling::keeps(Rule::RemovalFailed, problem.message.clone()));
                self.problems.push(problem);
            }
        }
        if is_gone {
            self.states[image.get()] = ImageState::Gone;
            self.live.remove(self.input.inventory, Root::Image(image));
            self.keep_last_holders(image);
        }
        if let Stage::Space { pass: Some(pass), .. } = &mut self.stage {
            pass.answered(&self.input, &self.live, image, is_gone);
        }
        if is_gone {
            self.made_room(image);
        }
    }

    /// Adds the expected cost of pulling a deleted image again to that of its filesystem.
    fn note_cost(&mut self, image: ImageIx, step: &Step) {
        if let (Some(costs), Some(filesystem), Cause::Space) = (&self.costs, step.filesystem, step.cause) {
            let cost = costs.of_nodes(self.live.last_held(Root::Image(image)));
            *self.spent.entry(filesystem).or_default() += cost;
        }
    }

    /// Keeps all images of a store in which nothing can be deleted.
    fn keep_store(&mut self, image: ImageIx, ruling: &Ruling) {
        let images = &self.input.inventory.images;
        let store = images[image.get()].store;
        for (state, _) in self.states.iter_mut().zip(images).filter(|(_, other)| other.store == store) {
            if matches!(state, ImageState::Candidate) {
                *state = ImageState::Kept(ruling.clone());
            }
        }
    }

    fn fail_unanswered(&mut self) {
        if let Some((_, step)) = &self.pending {
            let problem = step.problem("the run ended before its outcome was known");
            self.answer(Answer::Failed(problem, Aftermath::Unseen));
        }
    }

    /// Keeps images that have become the last of their store to reach layers that another store needs.
    fn keep_last_holders(&mut self, deleted: ImageIx) {
        let inventory = self.input.inventory;
        for node in self.input.refs.reach(Root::Image(deleted)) {
            if self.input.refs.use_of(inventory, *node).is_none() {
                continue;
            }
            for root in self.input.refs.reached_by(*node) {
                if let Root::Image(image) = root {
                    self.keep_needed_elsewhere(image);
                }
            }
        }
    }

    /// Keeps a candidate if another store now needs its layers.
    fn keep_needed_elsewhere(&mut self, image: ImageIx) {
        if self.is_candidate(image)
            && let Some(user) = self.live.needed_elsewhere(self.input.inventory, image)
        {
            let detail = rules::needed_by(&user.by);
            self.states[image.get()] = ImageState::Kept(Ruling::keeps(Rule::InUse, detail));
        }
    }

    #[must_use]
    pub fn finish(mut self, measured: &[Measured]) -> Plan {
        self.fail_unanswered();
        let aged_left = self.is_aged_left();
        self.close(measured);
        let cannot_begin = self.keep_images_of_full_stores();
        for plan in &mut self.filesystems {
            plan.after = measured.get(plan.filesystem.get()).cloned();
            if let Some(pulls) = &mut plan.pulls {
                let spent = self.spent.get(&plan.filesystem).copied().unwrap_or_default();
                *pulls = ExpectedPulls { bytes: spent.bytes(), is_estimated: spent.is_estimated, ..*pulls };
            }
        }
        let kept = self.kept(aged_left);
        let space = self.filesystems.iter().any(|plan| plan.started.any());
        let trigger = Trigger { space, age: self.age };
        let reached = self.filesystems.iter().any(|plan| plan.end == PassEnd::Reached);
        let failed = self.filesystems.iter().any(|plan| plan.end == PassEnd::Invalid);
        let short = self.filesystems.iter().any(|plan| match plan.end {
            PassEnd::NotReached => true,
            PassEnd::Open => plan.started.any(),
            _ => false,
        });
        let mut images = self.order.iter().map(|image| &self.states[image.get()]);
        let outcome = match self.is_request {
            true if self.order.is_empty() => OutcomeKind::NotNeeded,
            true if images.all(|state| matches!(state, ImageState::Gone)) => OutcomeKind::Reached,
            // `rm` has no threshold: a rule keeps an image, or an attempt failed.
            true if self.problems.is_empty() => OutcomeKind::Refused,
            true => OutcomeKind::Failed,
            false if failed => OutcomeKind::Failed,
            false if short || aged_left => OutcomeKind::NotReached,
            false if reached || self.age => OutcomeKind::Reached,
            false => OutcomeKind::NotNeeded,
        };
        // A store without a possible first deletion is a failure, even if other targets were reached.
        let outcome = if cannot_begin { OutcomeKind::Failed } else { outcome };
        Plan {
            trigger,
            mounts: self.input.inventory.mounts(),
            filesystems: self.filesystems,
            steps: self.steps,
            kept,
            problems: self.problems,
            notes: Vec::new(),
            outcome,
        }
    }

    /// Completes the plan when no more steps are requested, perhaps because the run ended early. A target that was
    /// reached counts as reached, even if no further step was requested to find out.
    fn close(&mut self, measured: &[Measured]) {
        if self.is_request {
            return;
        }
        for plan in self.filesystems.iter_mut().filter(|plan| plan.end == PassEnd::Open) {
            match check_filesystem(&self.input, plan, measured) {
                Ok(space) if self.input.policy.targets.wanted(plan.started, &space).is_nothing() => {
                    plan.end = if plan.wanted.is_nothing() { PassEnd::NotNeeded } else { PassEnd::Reached };
                }
                Ok(_) => {}
                Err(invalid) => {
                    plan.end = PassEnd::Invalid;
                    plan.invalid = Some(invalid);
                }
            }
        }
        if let Stage::Space { .. } = self.stage {
            self.next_filesystem();
        }
    }

    fn can_begin(&self, image: ImageIx) -> bool {
        FirstDeletion { full: &self.full, input: &self.input, live: &self.live }.is_possible(image)
    }

    /// After the first deletion, the filesystem has room: the stage restarts for the images that waited.
    fn made_room(&mut self, image: ImageIx) {
        let store = self.input.inventory[image].store;
        let Some(full) = self.full.iter().find(|full| full.store == store) else { return };
        let filesystem = full.filesystem;
        self.full.retain(|full| full.filesystem != filesystem);
        self.stage = Stage::first(self.is_request);
    }

    /// Keeps the images that cannot be deleted because their stores are still full. Returns whether there are any
    /// that should have been deleted.
    fn keep_images_of_full_stores(&mut self) -> bool {
        let mut found = false;
        for full in std::mem::take(&mut self.full) {
            let images = (0..self.states.len()).map(ImageIx::from);
            let of_store = images.filter(|image| self.input.inventory[*image].store == full.store);
            let waiting: Vec<_> = of_store.filter(|image| self.is_candidate(*image)).collect();
            let is_deletion_due = waiting
                .iter()
                .any(|image| if self.is_request { self.order.contains(image) } else { self.is_aged(*image) });
            let is_space_wanted = self.filesystems.iter().any(|plan| {
                plan.filesystem == full.filesystem
                    && (plan.end == PassEnd::NotReached || (plan.end == PassEnd::Open && plan.started.any()))
                    // Images are not deleted for inodes if they hold too few.
                    && (plan.few_inodes.is_none() || plan.wanted.bytes > 0)
            });
            if !(is_deletion_due || (is_space_wanted && !waiting.is_empty())) {
                continue;
            }
            found = true;
            let which = if self.is_request { "none of the named images" } else { "no single image" };
            let why = format!(
                "no space left to write: {which} frees the {} that a deletion needs on this full disk",
                full.to_free
            );
            for image in waiting {
                self.states[image.get()] = ImageState::Kept(Ruling::keeps(Rule::OutOfReach, why.clone()));
            }
            let problem = Problem::new(
                None,
                Phase::Remove,
                Failure { message: why, no_space: true, ..Failure::default() },
            );
            self.problems.push(Problem { filesystem: Some(full.filesystem), ..problem });
        }
        found
    }

    fn is_candidate(&self, image: ImageIx) -> bool {
        matches!(self.states[image.get()], ImageState::Candidate)
    }

    /// Returns whether it may be deleted next.
    fn has_turn(&self, image: ImageIx) -> bool {
        self.is_candidate(image) && self.can_begin(image)
    }

    fn is_aged_left(&self) -> bool {
        !self.is_request && self.order.iter().any(|image| self.is_aged(*image))
    }

    fn is_aged(&self, image: ImageIx) -> bool {
        let Some(limit) = self.max_ages[image.get()] else { return false };
        self.is_candidate(image) && idle(&self.input, image).is_some_and(|idle| idle > limit)
    }

    fn next_named(&mut self, measured: &[Measured]) -> Option<(ImageIx, Step)> {
        let Stage::Named { next } = self.stage else { return None };
        for plan in self.filesystems.iter_mut().filter(|plan| plan.before.is_none()) {
            plan.before = measured.get(plan.filesystem.get()).cloned();
            plan.end = PassEnd::NotNeeded;
        }
        let mut rest = self.order.iter().copied().enumerate().skip(next);
        let Some((position, image)) = rest.find(|(_, image)| self.has_turn(*image)) else {
            self.stage = Stage::Over;
            return None;
        };
        self.stage = Stage::Named { next: position + 1 };
        Some(self.step(image, Cause::Request, self.filesystem_of(image), None, measured))
    }

    /// Returns the filesystem on which deleting the image next frees most; that of its store if it frees nothing.
    fn filesystem_of(&self, image: ImageIx) -> FilesystemIx {
        let inventory = self.input.inventory;
        let gains = plan::gains(inventory, &self.live, Root::Image(image));
        let largest = gains
            .iter()
            .max_by_key(|gain| gain.size.frees_bytes)
            .filter(|gain| gain.size.frees_bytes > 0)
            .map(|gain| gain.filesystem);
        largest.unwrap_or(inventory[inventory[image].store].filesystem)
    }

    fn next_aged(&mut self, measured: &[Measured]) -> Option<(ImageIx, Step)> {
        let Stage::Age { next } = self.stage else { return None };
        let mut rest = self.order.iter().copied().enumerate().skip(next);
        if let Some((position, image)) =
            rest.find(|(_, image)| self.is_aged(*image) && self.can_begin(*image))
        {
            self.stage = Stage::Age { next: position + 1 };
            return Some(self.step(image, Cause::Age, self.filesystem_of(image), None, measured));
        }
        self.stage = Stage::Space { filesystem: 0, pass: None };
        // A deletion for one filesystem may free bytes on another, so the wanted bytes of all are determined
        // before.
        for plan in self.filesystems.iter_mut().filter(|plan| plan.before.is_none()) {
            // Invalid numbers are reported at the turn of the filesystem.
            let _ = check_filesystem(&self.input, plan, measured);
        }
        None
    }

    fn next_for_space(&mut self, measured: &[Measured]) -> Option<(ImageIx, Step)> {
        loop {
            let Stage::Space { filesystem: position, pass } = &mut self.stage else { return None };
            let Some(plan) = self.filesystems.get_mut(*position) else {
                self.stage = Stage::Over;
                return None;
            };
            let filesystem = plan.filesystem;
            // The pass has restarted: a filesystem with a final result keeps it.
            if !matches!(plan.end, PassEnd::Open | PassEnd::NotReached) {
                self.next_filesystem();
                continue;
            }
            let space = match check_filesystem(&self.input, plan, measured) {
                Ok(space) => space,
                Err(invalid) => {
                    plan.end = PassEnd::Invalid;
                    plan.invalid = Some(invalid.clone());
                    let mount = mount(&self.input, filesystem);
                    self.problems.push(Problem::new(Some(mount), Phase::Measure, invalid.to_string()));
                    continue;
                }
            };
            if let Some(impossible) = self.input.policy.targets.impossible_floor(&space) {
                let mount = mount(&self.input, filesystem);
                let problem = Problem::new(Some(mount), Phase::Measure, impossible.to_string());
                if !self.problems.contains(&problem) {
                    self.problems.push(problem);
                }
            }
            let wanted = self.input.policy.targets.wanted(plan.started, &space);
            if wanted.is_nothing() {
                plan.end = if plan.wanted.is_nothing() { PassEnd::NotNeeded } else { PassEnd::Reached };
                self.next_filesystem();
                continue;
            }
            let pass = pass.get_or_insert_with(|| {
                Box::new(SpacePass::new(filesystem, self.input.inventory, plan.wanted))
            });
            let candidates = self
                .order
                .iter()
                .copied()
                .filter(|image| matches!(self.states[image.get()], ImageState::Candidate));
            plan.few_inodes = pass.few_inodes(&self.input, &self.live, candidates.clone(), wanted.inodes);
            let wanted = match plan.few_inodes {
                Some(_) => BytesAndInodes { inodes: 0, ..wanted },
                None => wanted,
            };
            if wanted.is_nothing() {
                plan.end = PassEnd::NotReached;
                self.next_filesystem();
                continue;
            }
            let (states, full_disk) =
                (&self.states, FirstDeletion { full: &self.full, input: &self.input, live: &self.live });
            let is_open = |image: ImageIx| {
                matches!(states[image.get()], ImageState::Candidate) && full_disk.is_possible(image)
            };
            if !pass.has_order() {
                let candidates = candidates.collect();
                let order = match self.input.policy.order {
                    DeletionOrder::Idle => candidates,
                    DeletionOrder::Cheapest => {
                        let costs = self.costs.get_or_insert_with(|| PullCosts::of(&self.input));
                        let (input, live) = (&self.input, &self.live);
                        let start = PassStart { input, live, costs, filesystem, wanted };
                        let (order, at_least_bytes) =
                            start.cheapest(candidates, |image| full_disk.is_possible(image));
                        plan.pulls
                            .get_or_insert(ExpectedPulls { at_least_bytes, ..ExpectedPulls::default() });
                        order
                    }
                };
                pass.follow(order);
            }
            let found = pass.next(&self.input, &self.live, is_open, wanted);
            match found {
                // A rule keeps it now: the other members of its group are considered again.
                Some((image, _)) if !is_open(image) => {
                    pass.answered(&self.input, &self.live, image, false);
                }
                Some((image, group)) => {
                    return Some(self.step(image, Cause::Space, filesystem, group, measured));
                }
                None => {
                    plan.end = PassEnd::NotReached;
                    self.next_filesystem();
                }
            }
        }
    }

    fn next_filesystem(&mut self) {
        let Stage::Space { filesystem, pass } = &mut self.stage else { return };
        let next = *filesystem + 1;
        if let Some(pass) = pass.take() {
            let mount = mount(&self.input, pass.filesystem());
            let mut keepers = Keepers::new();
            for image in pass.passed_over() {
                let detail = if self.input.refs.is_measured(self.input.inventory, Root::Image(image)) {
                    let bytes = gain_on(&self.input, &self.live, image, pass.filesystem()).bytes;
                    let rest = self.shared_with(image, pass.filesystem(), &mut keepers);
                    format!("its deletion would free {bytes} bytes on {mount} now{rest}")
                } else {
                    format!(
                        "what its deletion would free on {mount} is unknown: layers of it are not measured"
                    )
                };
                self.passed_over[image.get()] = Some(detail);
            }
        }
        self.stage = Stage::Space { filesystem: next, pass: None };
    }

    /// Returns a clause about what keeps most of the bytes that an image shares on a filesystem, and how many; empty
    /// if nothing keeps any.
    fn shared_with(&self, image: ImageIx, filesystem: FilesystemIx, keepers: &mut Keepers) -> String {
        let Input { inventory, refs, .. } = self.input;
        let mut by_keeper: BTreeMap<Rc<str>, u64> = BTreeMap::new();
        for node in refs.reach(Root::Image(image)) {
            if inventory[*node].filesystem != filesystem {
                continue;
            }
            let keeper = keepers.entry(*node).or_insert_with(|| self.keeper_of(*node).map(Rc::from));
            if let Some(keeper) = keeper {
                let sum = by_keeper.entry(Rc::clone(keeper)).or_default();
                *sum = sum.saturating_add(inventory[*node].size.bytes);
            }
        }
        let most = by_keeper.into_iter().max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > 0);
        most.map_or_else(String::new, |(keeper, bytes)| {
            format!(": {} of it stays with {keeper}", display::bytes(bytes))
        })
    }

    /// Describes the first image, container, leak or use from elsewhere that keeps a node.
    fn keeper_of(&self, node: NodeIx) -> Option<String> {
        let Input { inventory, refs, .. } = self.input;
        let keeper = refs.reached_by(node).find_map(|root| self.keeper(root));
        keeper.or_else(|| refs.use_of(inventory, node).map(|used| used.by.clone()))
    }

    /// Describes an image, container or leak that stays; `None` for images that are deleted or may be.
    fn keeper(&self, root: Root) -> Option<String> {
        let inventory = self.input.inventory;
        match root {
            Root::Image(image) if matches!(self.states[image.get()], ImageState::Kept(_)) => {
                Some(format!("the image {}", inventory[image].title()))
            }
            Root::Image(_) => None,
            Root::Container(container) => {
                let container = &inventory[container];
                let text = rules::describe_container(container);
                let is_over = container.state == ContainerState::Exited;
                Some(text + if is_over { ", which has to be removed first" } else { "" })
            }
            Root::Leak(leak) => {
                Some(format!("the leak {}, which has to be removed first", inventory[leak].title()))
            }
        }
    }

    fn step(
        &self,
        image: ImageIx,
        cause: Cause,
        filesystem: FilesystemIx,
        group: Option<usize>,
        measured: &[Measured],
    ) -> (ImageIx, Step) {
        let step = Step::of_image(self.input.inventory, &self.live, image, (cause, filesystem), measured);
        (image, Step { group, ..step })
    }

    fn kept(&self, aged_left: bool) -> Vec<Kept> {
        let images = if self.is_request {
            self.order.clone()
        } else {
            (0..self.states.len()).map(ImageIx::from).collect()
        };
        let kept = images.into_iter().filter_map(|image| {
            let ruling = match &self.states[image.get()] {
                ImageState::Gone => return None,
                ImageState::Kept(ruling) => ruling.clone(),
                ImageState::Candidate => match &self.passed_over[image.get()] {
                    _ if self.is_request || (aged_left && self.is_aged(image)) => Ruling::ended_early(),
                    Some(detail) => Ruling::keeps(Rule::FreesNothing, detail),
                    None => self.ruling_on_untouched(image),
                },
            };
            let kept = Kept::new(Target::image(self.input.inventory, image), ruling);
            let sizes = self.input.refs.sizes(self.input.inventory, Root::Image(image));
            let until = self.kept_until(image, kept.rule);
            Some(Kept { frees_bytes: sizes.exclusive.frees_bytes, until, ..kept })
        });
        kept.collect()
    }

    /// Returns the time at which a rule stops keeping an image.
    fn kept_until(&self, image: ImageIx, rule: Rule) -> Option<Timestamp> {
        let until = match rule {
            Rule::MinAge => {
                let ages = self.input.ages(image)?;
                let min_age = self.input.policy.min_age_of(&self.input.inventory[image]).value;
                ages.first_detected.checked_add(min_age).ok()?
            }
            Rule::BackingOff => self.input.facts(image)?.back_off.as_ref()?.next_try,
            _ => return None,
        };
        (until > self.input.now).then_some(until)
    }

    /// Returns the ruling on a candidate that was not touched.
    fn ruling_on_untouched(&self, image: ImageIx) -> Ruling {
        let nodes = self.input.refs.reach(Root::Image(image)).iter();
        let filesystems: HashSet<_> = nodes.map(|node| self.input.inventory[*node].filesystem).collect();
        let plans: Vec<_> =
            self.filesystems.iter().filter(|plan| filesystems.contains(&plan.filesystem)).collect();
        if let Some(invalid) = plans.iter().find_map(|plan| plan.invalid.as_ref()) {
            return Ruling::keeps(Rule::Unmeasured, invalid.to_string());
        }
        if plans.iter().any(|plan| plan.end == PassEnd::Open) {
            return Ruling::ended_early();
        }
        if let Some((plan, few)) = plans.iter().find_map(|plan| Some((plan, plan.few_inodes?))) {
            let (few, wanted) = (thousands(few), thousands(plan.wanted.inodes));
            let mount = mount(&self.input, plan.filesystem);
            let detail =
                format!("all images together would free {few} of the {wanted} inodes wanted on {mount}");
            return Ruling::keeps(Rule::FreesNothing, detail);
        }
        let reached = plans.iter().find(|plan| plan.started.any());
        let detail = match (reached, plans.first()) {
            (Some(plan), _) => match &plan.after {
                Some(Ok(space)) => {
                    format!("enough was free before its turn, at {:.2} % used", space.used_percent())
                }
                _ => "enough was free before its turn".into(),
            },
            (None, Some(FilesystemPlan { after: Some(Ok(space)), .. })) => format!(
                "deleting starts at {}; {:.2} % are used",
                self.input.policy.targets,
                space.used_percent()
            ),
            (None, _) => "it has no bytes on a filesystem that is short of space".into(),
        };
        Ruling::keeps(Rule::NotNeeded, detail)
    }
}

/// Returns the whole plan if every prediction is right: `--dry-run` prints it. `measured` has one entry for each
/// filesystem of the inventory.
#[must_use]
pub fn plan(input: Input<'_>, task: Task<'_>, measured: &[Measured]) -> Plan {
    let mut spaces = measured.to_vec();
    let mut planner = Planner::new(input, task);
    while let Some(step) = planner.next(&spaces) {
        plan::apply(&step.gains, &mut spaces);
        planner.answer(Answer::Removed);
    }
    planner.finish(&spaces)
}

/// Checks the numbers of a filesystem, and starts the targets that they exceed. A started target stays started
/// until the filesystem is finished, so that a run continues until it is reached.
fn check_filesystem(
    input: &Input<'_>,
    plan: &mut FilesystemPlan,
    measured: &[Measured],
) -> Result<Space, InvalidStats> {
    let space = measured.get(plan.filesystem.get()).cloned().unwrap_or(Err(InvalidStats::Missing(Stat::All)));
    if plan.before.is_none() {
        plan.before = Some(space.clone());
    }
    let space = space?;
    let earlier = plan.started;
    plan.started = earlier.union(input.policy.targets.start(&space)?);
    if plan.started != earlier {
        let wanted = input.policy.targets.wanted(plan.started, &space);
        plan.wanted = plan.wanted.max(wanted);
    }
    Ok(space)
}

/// Returns the candidates in order: those that can be pulled again before those that were never pulled, then longest
/// idle first, then first detected first, then most exclusive bytes first, then by store and id.
fn order(input: &Input<'_>, states: &[ImageState]) -> Vec<ImageIx> {
    let images = (0..).map(ImageIx::from).zip(states);
    let mut keyed: Vec<_> = images
        .filter(|(_, state)| matches!(state, ImageState::Candidate))
        .map(|(ix, _)| {
            let ages = input.ages(ix);
            let image = &input.inventory[ix];
            let exclusive = input.refs.sizes(input.inventory, Root::Image(ix)).exclusive.frees_bytes;
            let key = (
                image.origin.may_lack_a_registry() && !image.names.is_empty(),
                ages.map(Ages::idle_since),
                ages.map(|ages| ages.first_detected),
                std::cmp::Reverse(exclusive),
                image.store,
                image.id.as_str(),
            );
            (key, ix)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, ix)| ix).collect()
}

fn mount(input: &Input<'_>, filesystem: FilesystemIx) -> String {
    let filesystem = input.inventory.filesystems.get(filesystem.get());
    filesystem.map(|filesystem| filesystem.mount.display().to_string()).unwrap_or_default()
}

fn idle(input: &Input<'_>, image: ImageIx) -> Option<SignedDuration> {
    input.ages(image).map(|ages| input.now.duration_since(ages.idle_since()))
}

fn max_ages(input: &Input<'_>) -> Vec<Option<SignedDuration>> {
    let policy = input.policy;
    let images = input.inventory.images.iter();
    images.map(|image| if policy.has_age_pass() { policy.max_age_of(image).value } else { None }).collect()
}

/// Returns the filesystems on which something could be deleted: those of the images that the backend can delete,
/// even if a rule keeps them, and for a policy those of unused images that only another user or program can delete. On
/// other filesystems no deletion of images changes the usage, and a run would miss its threshold every time. If there is
/// no such image, returns that of the first store.
fn judged_filesystems(input: &Input<'_>, states: &[ImageState], is_request: bool) -> Vec<FilesystemIx> {
    let inventory = input.inventory;
    let mut reachable = Vec::new();
    for (ix, image) in (0..).map(ImageIx::from).zip(&inventory.images) {
        let store = &inventory[image.store];
        let is_only_out_of_reach = match &states[ix.get()] {
            ImageState::Kept(ruling) => ruling.rule == Rule::OutOfReach && !is_request,
            _ => false,
        };
        let is_out_of_reach = input.facts(ix).is_some_and(|known| known.out_of_reach.is_some());
        if store.read_only || is_out_of_reach && !is_only_out_of_reach {
            continue;
        }
        reachable.push(store.filesystem);
        let nodes = input.refs.reach(Root::Image(ix)).iter().map(|node| &inventory[*node]);
        // It may build on layers in an additional store.
        let deletable = nodes.filter(|node| !inventory[node.store].read_only);
        reachable.extend(deletable.map(|node| node.filesystem));
        reachable.sort_unstable();
        reachable.dedup();
    }
    if reachable.is_empty() {
        let store = inventory.stores.iter().find(|store| !store.read_only);
        reachable.extend(store.map(|store| store.filesystem));
    }
    reachable
}
