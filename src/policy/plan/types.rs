//! What a plan is made of.

use crate::model::refs::{Live, Root};
use crate::model::rules::{Rule, Ruling};
use crate::model::{FilesystemIx, ImageIx, Inventory, NodeIx, Size};
use crate::policy::kubelet::Event;
use crate::policy::space::{Doubt, Measured, Space, Started, Wanted};

/// The planner's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Delete this image, measure, and ask again.
    Delete(Step),
    /// There is nothing (more) to do.
    Done,
}

/// One deletion.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The image.
    pub image: ImageIx,
    /// Why.
    pub reason: Reason,
    /// The filesystem that it is deleted for; for age, that of its store.
    pub filesystem: FilesystemIx,
    /// What is expected to come back, for each filesystem that gives something back.
    pub gains: Vec<Gain>,
    /// It goes together with others, for bytes that only leave when the last of them goes: how
    /// many are left of the group, this one included.
    pub group: Option<usize>,
    /// What [`Self::filesystem`] is expected to say afterwards; `None` where it told nothing.
    pub expected: Option<Space>,
}

impl Step {
    /// What the deletion of `image` would give back next, alone.
    pub(crate) fn new(
        inventory: &Inventory,
        live: &Live<'_>,
        image: ImageIx,
        (reason, filesystem): (Reason, FilesystemIx),
        measured: &[Measured],
    ) -> Self {
        let mut gains = Gains::default();
        gains.add(inventory, live.last_held(Root::Image(image)));
        let gains = gains.sorted();
        let here = gains.iter().find(|gain| gain.filesystem == filesystem).map(|gain| gain.size);
        let here = here.unwrap_or_default();
        let space = measured.get(filesystem.get()).and_then(|space| space.as_ref().ok());
        let expected = space.map(|space| space.gained(here.frees_bytes, here.inodes));
        Self { image, reason, filesystem, gains, group: None, expected }
    }

    /// Bytes that are expected to come back, on all filesystems.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.gains.iter().fold(0, |sum, gain| sum.saturating_add(gain.size.frees_bytes))
    }

    /// Bytes that are expected to come back on one filesystem.
    #[must_use]
    pub fn predicted_on(&self, filesystem: FilesystemIx) -> u64 {
        let here = self.gains.iter().find(|gain| gain.filesystem == filesystem);
        here.map_or(0, |gain| gain.size.frees_bytes)
    }
}

/// What one filesystem gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gain {
    /// Which.
    pub filesystem: FilesystemIx,
    /// The nodes that leave it.
    pub size: Size,
}

/// What a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<'a> {
    /// What the policy asks for: by age, then by space.
    Policy,
    /// These images of the surveyed inventory, in this order, and nothing else. A place beyond
    /// the inventory's images means nothing.
    Named(&'a [ImageIx]),
}

impl Task<'_> {
    /// The rules that it does without. Waiting after a failed attempt is politeness towards the
    /// runtime, which somebody who names an image may do without; every other rule protects.
    #[must_use]
    pub fn waived(&self) -> &'static [Rule] {
        match self {
            Self::Policy => &[],
            Self::Named(_) => &[Rule::BackingOff],
        }
    }

    /// The named images, each once.
    pub(crate) fn named(&self, images: usize) -> Option<Vec<ImageIx>> {
        let Self::Named(named) = self else { return None };
        let mut seen = vec![false; images];
        let first = |at: &&ImageIx| seen.get_mut(at.get()).is_some_and(|seen| !std::mem::replace(seen, true));
        Some(named.iter().filter(first).copied().collect())
    }
}

/// Why an image goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It has been idle for longer than the maximum age.
    Age,
    /// Its filesystem is short of space.
    Space,
    /// Somebody named it.
    Request,
}

impl Reason {
    /// As the documents have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Space => "space",
            Self::Request => "request",
        }
    }
}

impl Verdict {
    /// As the documents have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotNeeded => "not_needed",
            Self::Reached => "reached",
            Self::NotReached => "not_reached",
            Self::Failed => "failed",
        }
    }
}

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The image is gone, as a look at the store proved.
    Removed,
    /// It was gone before we came.
    Gone,
    /// This rule keeps it by now; it was not touched.
    Kept(Ruling),
    /// It was not touched, and the run ends here.
    NotTried,
    /// The attempt failed, and the image is still there.
    Refused(String),
}

/// Adds up what nodes give back, by filesystem.
#[derive(Clone, Debug, Default)]
pub struct Gains(Vec<Gain>);

impl Gains {
    /// Adds the nodes, each of which leaves the disk.
    pub fn add(&mut self, inventory: &Inventory, nodes: impl Iterator<Item = NodeIx>) {
        for node in nodes.map(|node| &inventory.nodes[node.get()]) {
            match self.0.iter_mut().find(|gain| gain.filesystem == node.filesystem) {
                Some(gain) => gain.size += node.size,
                None => self.0.push(Gain { filesystem: node.filesystem, size: node.size }),
            }
        }
    }

    /// The sums, in order of the filesystems.
    #[must_use]
    pub fn sorted(mut self) -> Vec<Gain> {
        self.0.sort_by_key(|gain| gain.filesystem);
        self.0
    }
}

/// What made a run act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// At least one filesystem was short of space.
    pub space: bool,
    /// At least one image was too old.
    pub age: bool,
}

/// How it stands in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There was nothing to do.
    NotNeeded,
    /// Every filesystem is where it should be; of a request, all that was named is gone.
    Reached,
    /// A filesystem is still short of space, and no candidate could change that, or the run was
    /// ended before one did; of a request, some of what was named is still there.
    NotReached,
    /// The numbers of a filesystem could not be believed.
    Failed,
}

/// How the space pass over one filesystem ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has not come to an end.
    Open,
    /// No target started.
    NotNeeded,
    /// Every started target has ended.
    Reached,
    /// The candidates did not suffice.
    NotReached,
    /// The numbers could not be believed.
    Doubtful,
}

/// One filesystem's part.
#[derive(Clone, Debug, PartialEq)]
pub struct FilesystemPlan {
    /// Which.
    pub filesystem: FilesystemIx,
    /// What it said when its space pass began (after the age pass); `None`: it did not begin.
    pub before: Option<Measured>,
    /// What it said in the end.
    pub after: Option<Measured>,
    /// The targets that started.
    pub started: Started,
    /// What was missing when they started.
    pub wanted: Wanted,
    /// How its space pass ended.
    pub end: End,
    /// Why it could not be judged.
    pub doubt: Option<Doubt>,
}

impl FilesystemPlan {
    pub(crate) fn new(filesystem: FilesystemIx) -> Self {
        Self {
            filesystem,
            before: None,
            after: None,
            started: Started::default(),
            wanted: Wanted::default(),
            end: End::Open,
            doubt: None,
        }
    }
}

/// An image that stays, and the rule that keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The image.
    pub image: ImageIx,
    /// The rule's name, see `docs/how-it-decides.md`.
    pub rule: Rule,
    /// Why, in words.
    pub detail: String,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The image concerned.
    pub image: Option<ImageIx>,
    /// The filesystem concerned.
    pub filesystem: Option<FilesystemIx>,
    /// What was being done: `remove-image`, `measure`.
    pub step: &'static str,
    /// What happened.
    pub message: String,
}

/// A plan, or what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What made it act.
    pub trigger: Trigger,
    /// Each filesystem that was judged.
    pub filesystems: Vec<FilesystemPlan>,
    /// The deletions in their order; those that failed are among the problems.
    pub steps: Vec<Step>,
    /// Every image that stays; of a request, those of the named ones.
    pub kept: Vec<Kept>,
    /// What went wrong.
    pub problems: Vec<Problem>,
    /// How it stands.
    pub verdict: Verdict,
}

impl Plan {
    /// Bytes expected to come back from all steps together.
    #[must_use]
    pub fn predicted_bytes(&self) -> u64 {
        self.steps.iter().fold(0, |sum, step| sum.saturating_add(step.predicted_bytes()))
    }

    /// Bytes that were missing on all filesystems together.
    #[must_use]
    pub fn wanted_bytes(&self) -> u64 {
        self.filesystems.iter().fold(0, |sum, plan| sum.saturating_add(plan.wanted.bytes))
    }

    /// What the kubelet would tell its node of such an end. Whether a failure is the second in a
    /// row is for [`crate::policy::kubelet::FailureStreak`] to say.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let any = |matches: fn(&FilesystemPlan) -> bool| self.filesystems.iter().any(matches);
        let short = any(|plan| plan.end == End::NotReached);
        let invalid =
            any(|plan| matches!(plan.doubt, Some(Doubt::NoCapacity | Doubt::Missing(Doubt::CAPACITY))));
        let told = [(short, Event::FreeDiskSpaceFailed), (invalid, Event::InvalidDiskCapacity)];
        told.into_iter().filter(|(tell, _)| *tell).map(|(_, event)| event).collect()
    }

    /// How many images went for a reason.
    #[must_use]
    pub fn count(&self, reason: Reason) -> usize {
        self.steps.iter().filter(|step| step.reason == reason).count()
    }
}
