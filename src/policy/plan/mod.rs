//! Policy `exact`: the next deletion, given the current measurements. Pure.
//!
//! A [`Planner`] is asked one step at a time: it is told what the filesystems say now and how the
//! last step went, and says what to delete next. The run answers with measurements, a dry run
//! ([`plan()`]) with predictions; both come from the same planner, so they are the same plan as
//! long as the predictions hold.
//!
//! First the age pass over all images, then the space pass, one filesystem after the other. Or, for
//! a request, the images that it names, and no others.

mod full_disk;
mod space_pass;
#[cfg(test)]
mod tests;
mod types;

use jiff::SignedDuration;

use crate::model::plan::{self, Cause, Failure, FilesystemPlan, Kept, PassEnd, Phase, Target, Trigger};
use crate::model::refs::{Live, Root};
use crate::model::rules::{Rule, Ruling};
use crate::model::space::{InvalidStats, Measured, Space, Stat};
use crate::model::{Aftermath, Answer, FilesystemIx, ImageIx, Inventory, OutcomeKind, Plan, Problem, Step};
use crate::policy::input::{Ages, FullFilesystem, Input};
use crate::policy::rules::{self, Judge};

use full_disk::FirstDeletion;
use space_pass::{SpacePass, gain_on};
pub use types::Task;

/// Plans one deletion at a time.
#[derive(Debug)]
pub struct Planner<'a> {
    input: Input<'a>,
    live: Live<'a>,
    states: Vec<ImageState>,
    /// What was passed over in a space pass, and why.
    passed_over: Vec<Option<String>>,
    /// The images that a request names, each once; else the candidates in the order of the policy.
    order: Vec<ImageIx>,
    is_request: bool,
    /// The position of each image in `order`.
    rank: Vec<usize>,
    stage: Stage,
    pending: Option<(ImageIx, Step)>,
    steps: Vec<Step>,
    problems: Vec<Problem>,
    filesystems: Vec<FilesystemPlan>,
    age: bool,
    /// Stores in which no record can be written before the first deletion has made room.
    full: Vec<FullFilesystem>,
}

/// State of an image in the plan.
#[derive(Debug)]
pub enum ImageState {
    /// A rule keeps it.
    Kept(Ruling),
    /// It may be deleted.
    Candidate,
    /// It is deleted.
    Gone,
}

impl ImageState {
    /// Of all images, before any is deleted.
    #[must_use]
    pub fn all(judge: &Judge<'_>, inventory: &Inventory) -> Vec<Self> {
        let images = (0..inventory.images.len()).map(ImageIx::from);
        images.map(|at| judge.kept(at).map_or(Self::Candidate, Self::Kept)).collect()
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
    /// Judges every image and puts the candidates in order.
    #[must_use]
    pub fn new(input: Input<'a>, task: Task<'_>) -> Self {
        let judge = Judge::new(input).waiving(task.waived());
        let states = ImageState::all(&judge, input.inventory);
        let named = task.named(states.len());
        let is_request = named.is_some();
        let order = named.unwrap_or_else(|| order(&input, &states));
        let rank = ranks(&order, states.len());
        let reachable = reachable_filesystems(&input);
        let filesystems = reachable.into_iter().map(FilesystemPlan::new).collect();
        Self {
            input,
            live: input.refs.live(),
            passed_over: vec![None; states.len()],
            states,
            order,
            is_request,
            rank,
            stage: Stage::first(is_request),
            pending: None,
            steps: Vec::new(),
            problems: Vec::new(),
            filesystems,
            age: false,
            full: input.full_filesystems.to_vec(),
        }
    }

    /// The next deletion at these numbers, `None` when there is nothing (more) to do: one entry for each
    /// filesystem of the inventory, as measured now. A step that was handed out and never answered
    /// counts as failed.
    pub fn next(&mut self, measured: &[Measured]) -> Option<Step> {
        self.fail_unanswered();
        let step = self
            .next_named(measured)
            .or_else(|| self.next_aged(measured))
            .or_else(|| self.next_for_space(measured));
        self.pending.clone_from(&step);
        step.map(|(_, step)| step)
    }

    /// How the last step went. Without an open step this does nothing.
    pub fn answer(&mut self, answer: Answer) {
        let Some((at, step)) = self.pending.take() else { return };
        let is_gone = answer.is_gone();
        match answer {
            Answer::Removed | Answer::RemovedInPart(_) => {
                self.age |= step.cause == Cause::Age;
                self.steps.push(step);
            }
            // Another process deleted it: neither our deletion nor an error.
            Answer::AlreadyGone | Answer::StopRun(_) => {}
            Answer::Kept(ruling) => {
                self.states[at.get()] = ImageState::Kept(ruling.since_run_began());
            }
            Answer::StoreSkipped(why) => {
                let ruling = Ruling::keeps(Rule::OutOfReach, why.message);
                self.keep_store(at, &ruling.since_run_began());
            }
            Answer::Failed(problem, _) => {
                self.states[at.get()] =
                    ImageState::Kept(Ruling::keeps(Rule::RemovalFailed, problem.message.clone()));
                self.problems.push(problem);
            }
        }
        if is_gone {
            self.states[at.get()] = ImageState::Gone;
            self.live.remove(self.input.inventory, Root::Image(at));
            self.keep_last_holders(at);
        }
        if let Stage::Space { pass: Some(pass), .. } = &mut self.stage {
            pass.answered(&self.input, &self.live, &self.rank, at, is_gone);
        }
        if is_gone {
            self.made_room(at);
        }
    }

    /// Nothing of the image's store can be deleted.
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

    /// Some image may have become the last one of its store to hold layers that another store needs.
    fn keep_last_holders(&mut self, gone: ImageIx) {
        let inventory = self.input.inventory;
        for node in self.input.refs.reach(Root::Image(gone)) {
            if self.input.refs.use_of(inventory, *node).is_none() {
                continue;
            }
            for root in self.input.refs.reached_by(*node) {
                if let Root::Image(at) = root {
                    self.keep_needed_elsewhere(at);
                }
            }
        }
    }

    /// Keeps a candidate whose layers another store needs by now.
    fn keep_needed_elsewhere(&mut self, at: ImageIx) {
        if self.is_candidate(at)
            && let Some(user) = self.live.needed_elsewhere(self.input.inventory, at)
        {
            let detail = rules::needed_by(&user.by);
            self.states[at.get()] = ImageState::Kept(Ruling::keeps(Rule::InUse, detail));
        }
    }

    /// Ends the planning, wherever it stands.
    #[must_use]
    pub fn finish(mut self, measured: &[Measured]) -> Plan {
        self.fail_unanswered();
        let aged_left = self.is_aged_left();
        self.close(measured);
        let cannot_begin = self.keep_what_cannot_begin();
        for plan in &mut self.filesystems {
            plan.after = measured.get(plan.filesystem.get()).cloned();
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
        let all_went = || self.order.iter().all(|at| matches!(self.states[at.get()], ImageState::Gone));
        let outcome = match self.is_request {
            true if self.order.is_empty() => OutcomeKind::NotNeeded,
            true if all_went() => OutcomeKind::Reached,
            true => OutcomeKind::NotReached,
            false if failed => OutcomeKind::Failed,
            false if short || aged_left => OutcomeKind::NotReached,
            false if reached || self.age => OutcomeKind::Reached,
            false => OutcomeKind::NotNeeded,
        };
        // Where nothing could begin nothing was reached, whatever was reached elsewhere.
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

    /// Completes the plan when no more steps are requested, perhaps because the run was ended: what
    /// was reached was reached, whether or not another step was asked for to learn of it.
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
            self.leave();
        }
    }

    fn can_begin(&self, image: ImageIx) -> bool {
        FirstDeletion { full: &self.full, input: &self.input, live: &self.live }.can_be(image)
    }

    /// After the first deletion the filesystem has room, and all that waited has its turn.
    fn made_room(&mut self, image: ImageIx) {
        let store = self.input.inventory[image].store;
        let Some(full) = self.full.iter().find(|full| full.store == store) else { return };
        let filesystem = full.filesystem;
        self.full.retain(|full| full.filesystem != filesystem);
        self.stage = Stage::first(self.is_request);
    }

    /// Keeps what was to be deleted in stores that are full still; returns whether there is anything.
    fn keep_what_cannot_begin(&mut self) -> bool {
        let mut found = false;
        for full in std::mem::take(&mut self.full) {
            let images = (0..self.states.len()).map(ImageIx::from);
            let of_store = images.filter(|at| self.input.inventory[*at].store == full.store);
            let waiting: Vec<_> = of_store.filter(|at| self.is_candidate(*at)).collect();
            let short = |at: &ImageIx| match self.is_request {
                true => self.order.contains(at),
                false => self.is_aged(*at),
            };
            let is_space_wanted = self.filesystems.iter().any(|plan| {
                plan.filesystem == full.filesystem
                    && (plan.end == PassEnd::NotReached || (plan.end == PassEnd::Open && plan.started.any()))
            });
            if !(waiting.iter().any(short) || (is_space_wanted && !waiting.is_empty())) {
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
            let problem = Problem::new(None, Phase::Remove, Failure { message: why, no_space: true });
            self.problems.push(Problem { filesystem: Some(full.filesystem), ..problem });
        }
        found
    }

    fn is_candidate(&self, image: ImageIx) -> bool {
        matches!(self.states[image.get()], ImageState::Candidate)
    }

    /// It may be deleted next.
    fn has_turn(&self, image: ImageIx) -> bool {
        self.is_candidate(image) && self.can_begin(image)
    }

    /// The age pass was ended before its time.
    fn is_aged_left(&self) -> bool {
        !self.is_request && self.order.iter().any(|at| self.is_aged(*at))
    }

    fn is_aged(&self, at: ImageIx) -> bool {
        let Some(limit) = self.input.policy.max_age else { return false };
        self.is_candidate(at) && idle(&self.input, at).is_some_and(|idle| idle > limit)
    }

    fn next_named(&mut self, measured: &[Measured]) -> Option<(ImageIx, Step)> {
        let Stage::Named { next } = self.stage else { return None };
        for plan in self.filesystems.iter_mut().filter(|plan| plan.before.is_none()) {
            plan.before = measured.get(plan.filesystem.get()).cloned();
            plan.end = PassEnd::NotNeeded;
        }
        let mut rest = self.order.iter().copied().enumerate().skip(next);
        let Some((position, at)) = rest.find(|(_, at)| self.has_turn(*at)) else {
            self.stage = Stage::Over;
            return None;
        };
        self.stage = Stage::Named { next: position + 1 };
        Some(self.step(at, Cause::Request, self.filesystem_of(at), None, measured))
    }

    /// The filesystem on which deleting the image next frees most; where it frees nothing, that of its store.
    fn filesystem_of(&self, at: ImageIx) -> FilesystemIx {
        let inventory = self.input.inventory;
        let gains = plan::gains(inventory, &self.live, Root::Image(at));
        let most = gains.iter().max_by_key(|gain| gain.size.frees_bytes);
        let most = most.filter(|gain| gain.size.frees_bytes > 0).map(|gain| gain.filesystem);
        most.unwrap_or(inventory[inventory[at].store].filesystem)
    }

    fn next_aged(&mut self, measured: &[Measured]) -> Option<(ImageIx, Step)> {
        let Stage::Age { next } = self.stage else { return None };
        // The first that has not been idle for long enough ends it: so have none after it.
        if let Some(position) = (next..self.order.len()).find(|position| self.has_turn(self.order[*position]))
            && let at = self.order[position]
            && self.is_aged(at)
        {
            self.stage = Stage::Age { next: position + 1 };
            return Some(self.step(at, Cause::Age, self.filesystem_of(at), None, measured));
        }
        self.stage = Stage::Space { filesystem: 0, pass: None };
        // A deletion for one filesystem may free bytes on another: the bytes that each wants are settled before.
        for plan in self.filesystems.iter_mut().filter(|plan| plan.before.is_none()) {
            // Numbers that cannot be true are reported when its turn comes.
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
            // The pass began again: what has come to its end stays so.
            if !matches!(plan.end, PassEnd::Open | PassEnd::NotReached) {
                self.leave();
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
            let wanted = self.input.policy.targets.wanted(plan.started, &space);
            if wanted.is_nothing() {
                plan.end = if plan.wanted.is_nothing() { PassEnd::NotNeeded } else { PassEnd::Reached };
                self.leave();
                continue;
            }
            let pass = pass.get_or_insert_with(|| {
                Box::new(SpacePass::new(filesystem, self.input.inventory, plan.wanted))
            });
            let (states, room) =
                (&self.states, FirstDeletion { full: &self.full, input: &self.input, live: &self.live });
            let open = |at: ImageIx| matches!(states[at.get()], ImageState::Candidate) && room.can_be(at);
            let found = pass.next(&self.input, &self.live, (&self.order, &self.rank), open, wanted);
            match found {
                // Kept by now: those that were to go with it are considered anew.
                Some((at, _)) if !open(at) => {
                    pass.answered(&self.input, &self.live, &self.rank, at, false);
                }
                Some((at, group)) => {
                    return Some(self.step(at, Cause::Space, filesystem, group, measured));
                }
                None => {
                    plan.end = PassEnd::NotReached;
                    self.leave();
                }
            }
        }
    }

    /// Goes on to the next filesystem.
    fn leave(&mut self) {
        let Stage::Space { filesystem, pass } = &mut self.stage else { return };
        let next = *filesystem + 1;
        if let Some(pass) = pass.take() {
            let mount = mount(&self.input, pass.filesystem());
            for at in pass.passed_over() {
                let bytes = gain_on(&self.input, &self.live, at, pass.filesystem()).bytes;
                let detail = format!("its deletion would free {bytes} bytes on {mount} now");
                self.passed_over[at.get()] = Some(detail);
            }
        }
        self.stage = Stage::Space { filesystem: next, pass: None };
    }

    fn step(
        &self,
        image: ImageIx,
        cause: Cause,
        filesystem: FilesystemIx,
        group: Option<usize>,
        measured: &[Measured],
    ) -> (ImageIx, Step) {
        let for_what = (cause, filesystem);
        let step = Step::of_image(self.input.inventory, &self.live, image, for_what, measured);
        (image, Step { group, ..step })
    }

    fn kept(&self, aged_left: bool) -> Vec<Kept> {
        let asked_about = match self.is_request {
            true => self.order.clone(),
            false => (0..self.states.len()).map(ImageIx::from).collect(),
        };
        let kept = asked_about.into_iter().filter_map(|at| {
            let ruling = match &self.states[at.get()] {
                ImageState::Gone => return None,
                ImageState::Kept(ruling) => ruling.clone(),
                ImageState::Candidate => match &self.passed_over[at.get()] {
                    _ if self.is_request || (aged_left && self.is_aged(at)) => Ruling::ended_early(),
                    Some(detail) => Ruling::keeps(Rule::FreesNothing, detail),
                    None => self.why_untouched(at),
                },
            };
            Some(Kept::new(Target::image(self.input.inventory, at), ruling))
        });
        kept.collect()
    }

    /// Why a candidate was not touched.
    fn why_untouched(&self, at: ImageIx) -> Ruling {
        let nodes = self.input.refs.reach(Root::Image(at)).iter();
        let mut on: Vec<_> = nodes.map(|node| self.input.inventory[*node].filesystem).collect();
        on.sort_unstable();
        on.dedup();
        let plans = || self.filesystems.iter().filter(|plan| on.contains(&plan.filesystem));
        if let Some(invalid) = plans().find_map(|plan| plan.invalid.as_ref()) {
            return Ruling::keeps(Rule::Unmeasured, invalid.to_string());
        }
        if plans().any(|plan| plan.end == PassEnd::Open) {
            return Ruling::ended_early();
        }
        let reached = plans().find(|plan| plan.started.any());
        let detail = match (reached, plans().next()) {
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
            (None, _) => "nothing of it lies on a filesystem that is short of space".into(),
        };
        Ruling::keeps(Rule::NotNeeded, detail)
    }
}

/// The position of each image in `order`.
fn ranks(order: &[ImageIx], images: usize) -> Vec<usize> {
    let mut rank = vec![usize::MAX; images];
    for (position, at) in order.iter().enumerate() {
        rank[at.get()] = position;
    }
    rank
}

/// The whole plan if every prediction holds: what `--dry-run` prints. `measured` has one entry for
/// each filesystem of the inventory.
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

/// Looks at the numbers of a filesystem, and starts the targets that they start. A target stays
/// started until the filesystem is left, so that a run is carried to its end.
fn check_filesystem(
    input: &Input<'_>,
    plan: &mut FilesystemPlan,
    measured: &[Measured],
) -> Result<Space, InvalidStats> {
    let space = measured.get(plan.filesystem.get()).cloned();
    let space = space.unwrap_or(Err(InvalidStats::Missing(Stat::All)));
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

/// The candidates: longest idle first, then first detected first, then most exclusive bytes
/// first, then by store and id.
fn order(input: &Input<'_>, states: &[ImageState]) -> Vec<ImageIx> {
    let candidates = states.iter().enumerate().filter(|(_, state)| matches!(state, ImageState::Candidate));
    let mut keyed: Vec<_> = candidates
        .map(|(at, _)| {
            let at = ImageIx::from(at);
            let ages = input.ages(at);
            let image = &input.inventory[at];
            let exclusive = input.refs.sizes(input.inventory, Root::Image(at)).exclusive.frees_bytes;
            let key = (
                ages.map(Ages::idle_since),
                ages.map(|ages| ages.first_detected),
                std::cmp::Reverse(exclusive),
                image.store,
                image.id.as_str(),
            );
            (key, at)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, at)| at).collect()
}

fn mount(input: &Input<'_>, at: FilesystemIx) -> String {
    let on = input.inventory.filesystems.get(at.get());
    on.map(|on| on.mount.display().to_string()).unwrap_or_default()
}

/// For how long nothing has used an image.
fn idle(input: &Input<'_>, at: ImageIx) -> Option<SignedDuration> {
    input.ages(at).map(|ages| input.now.duration_since(ages.idle_since()))
}

/// The filesystems on which something could be deleted: those of the images that the backend can delete,
/// whether or not a rule keeps them. The others stay as full as they are whatever is done, and every run
/// would miss its threshold. Where no image is in reach: that of the first store.
fn reachable_filesystems(input: &Input<'_>) -> Vec<FilesystemIx> {
    let inventory = input.inventory;
    let mut reachable = Vec::new();
    for (at, image) in inventory.images.iter().enumerate() {
        let store = &inventory[image.store];
        let at = ImageIx::from(at);
        if store.read_only || input.known(at).is_some_and(|known| known.out_of_reach.is_some()) {
            continue;
        }
        reachable.push(store.filesystem);
        let nodes = input.refs.reach(Root::Image(at)).iter().map(|node| &inventory[*node]);
        // It may build on what lies in an additional store.
        let ours = nodes.filter(|node| !inventory[node.store].read_only);
        reachable.extend(ours.map(|node| node.filesystem));
        reachable.sort_unstable();
        reachable.dedup();
    }
    if reachable.is_empty() {
        let ours = inventory.stores.iter().find(|store| !store.read_only);
        reachable.extend(ours.map(|store| store.filesystem));
    }
    reachable
}
