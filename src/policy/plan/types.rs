//! Tasks and answers of a planner.

use crate::model::plan::{Failure, Problem};
use crate::model::rules::{Rule, Ruling};
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, ImageIx, StoreIx};

/// What a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task<'a> {
    /// What the policy asks for: by age, then by space.
    Policy,
    /// These images of the inventory, in this order, and nothing else. A place beyond the
    /// inventory's images means nothing.
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

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The target is deleted, as a check of the store proved.
    Removed,
    /// It was already deleted.
    AlreadyGone,
    /// A rule keeps it now; it was not touched.
    Kept(Ruling),
    /// Nothing in its store can be proven or changed for now; it was not touched.
    StoreSkipped(Failure),
    /// Its disk is full, and what it holds is too little to begin with; it was not touched.
    MakesNoRoom(Failure),
    /// It was not touched, and the run ends here.
    NotTried,
    /// The attempt failed, and the target is still there.
    Failed(Problem),
    /// It was reported as removed, and is still there.
    StillThere(Problem),
}

/// What the first deletions have to do on disks so full that none can begin.
#[derive(Debug, Default)]
pub(super) struct FirstDeletions {
    /// By store; `None`: not looked at yet.
    pub(super) of_stores: Option<Vec<FirstDeletion>>,
    /// An image stayed since that was answered.
    pub(super) is_unsettled: bool,
    /// Images that made too little room when it was their turn, and what was said of them.
    pub(super) waiting: Vec<(ImageIx, Failure)>,
    /// Deletions were wanted where none can begin.
    pub(super) is_barred: bool,
}

impl FirstDeletions {
    pub(super) fn of(&self, store: StoreIx) -> Option<&FirstDeletion> {
        self.of_stores.as_ref()?.get(store.get())
    }
}

/// What the first deletion in a store has to do.
#[derive(Debug)]
pub(super) enum FirstDeletion {
    /// Nothing: what any deletion writes has room.
    Any,
    /// Free so much on that filesystem itself, before anything is written.
    MakesRoom(FilesystemIx, BytesAndInodes),
    /// No deletion can begin there; why.
    Impossible(FilesystemIx, String),
}
