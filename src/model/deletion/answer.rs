//! The answer to an attempt to delete or repair one target.
//!
//! The editor of a graphroot and the remover through the runtime give it, the executor records it, and the
//! planner continues with it.

use std::time::Duration;

use crate::model::deletion::plan::{Failure, Problem, Step};
use crate::model::rules::{Rule, Ruling};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This run deleted or repaired it, as its store confirms.
    Removed,
    /// As [`Self::Removed`], but some of its files could not be removed.
    RemovedInPart(Failure),
    AlreadyGone,
    /// A rule keeps it now. It was not touched, unless the rule is [`Rule::RunEnded`]: then the next run may have to
    /// finish its deletion.
    Kept(Ruling),
    /// Nothing in its store can be proven or changed now (its lock is held, mounts cannot be read, its disk is
    /// full, its runtime does not answer while other stores do not need it). It was not touched.
    StoreSkipped(Failure),
    /// It still exists, at least in part.
    Failed(Problem, Aftermath),
    /// It was not touched, and the run ends: a signal arrived, the runtime is unavailable, or nothing can be
    /// proven any more.
    StopRun(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aftermath {
    /// Nothing has changed.
    Untouched,
    /// A part of it was removed. The rest still exists, and the freed bytes can be measured.
    LeftOver,
    /// Its removal was requested, and it still exists.
    StillThere,
    /// Its removal has begun, and the next run finishes it.
    Begun,
    /// Its removal was requested or begun, and its store cannot report the result: the run ends.
    Unseen,
}

impl Answer {
    #[must_use]
    pub fn kept(rule: Rule, detail: impl Into<String>) -> Self {
        Self::Kept(Ruling::keeps(rule, detail))
    }

    #[must_use]
    pub fn failed(step: &Step, failure: impl Into<Failure>, aftermath: Aftermath) -> Self {
        Self::Failed(step.problem(failure), aftermath)
    }

    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Removed | Self::RemovedInPart(_) | Self::AlreadyGone)
    }
}

/// The result of a removal: the answer, or a requested removal that the store must confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalResult {
    /// The remover itself knows the answer.
    Answered(Answer),
    /// The store is read until it no longer contains the target, for at most `within`.
    Unconfirmed {
        within: Duration,
        /// The answer if the target is gone.
        gone: Answer,
        /// The answer if it still exists.
        otherwise: Answer,
    },
}

impl From<Answer> for RemovalResult {
    fn from(answer: Answer) -> Self {
        Self::Answered(answer)
    }
}
