//! What removes images: the runtime through CRI, or ourselves in the graphroot.

use crate::model::plan::{Gain, Phase};
use crate::model::refs::Refs;
use crate::model::rules::Ruling;
use crate::model::{ImageIx, Inventory};
use crate::policy::Known;
use crate::policy::kubelet::Listing;

/// Removes images, and knows what else keeps them.
pub trait Remover {
    /// `cri` or `direct`.
    fn name(&self) -> &'static str;

    /// Asks afresh what uses and keeps the images of `inventory`, besides what the disk
    /// says; one entry an image.
    ///
    /// # Errors
    /// When that cannot be had in full: then nothing may be deleted.
    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Known>, PreconditionError>;

    /// Removes an image with all its names.
    fn remove(&mut self, inventory: &Inventory, image: ImageIx) -> Removed;

    /// Takes names from an image that keeps others.
    fn untag(&mut self, _inventory: &Inventory, _image: ImageIx, _names: &[String]) -> Removed {
        Removed::Refused(Phase::Untag, "a runtime removes an image with all its names".into())
    }

    /// Bytes of our own that this may use up for a removal or make again after it, on the
    /// filesystem `device` (`st_dev`), as of now: they are no part of what the removal frees.
    fn own_bytes(&self, _device: u64) -> u64 {
        0
    }

    /// What the runtime listed at the last look; `None`: there is no runtime behind this.
    fn listing(&self) -> Option<&Listing> {
        None
    }

    /// What the next removal takes along of the leaks of the measured inventory, for each filesystem.
    fn byproduct(&self, _inventory: &Inventory, _refs: &Refs) -> Vec<Gain> {
        Vec::new()
    }
}

/// What came of asking for a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The answer was yes; whether it is true the store tells.
    Answered,
    /// It is gone, or repaired, as was proven under the store's locks.
    Proven,
    /// It was refused: nothing has happened.
    Refused(Phase, String),
    /// It is in use by now, or its removal is not proven to be safe, and it was not touched.
    Kept(Ruling),
    /// Some of it was removed, and something could not be: whether it is gone the store tells, and
    /// at once.
    InPart(String),
    /// Some of it was removed, and the rest is still there.
    LeftOver(String),
    /// Of its store nothing can be proven or changed for now (its lock is held, mounts cannot be
    /// read, its disk is full), but there are others: that store is left aside.
    Aside(String),
    /// Likewise, and there is no other store: the run ends.
    Closed(String),
    /// It is not there any more, was the answer: maybe somebody else is removing it. The store
    /// tells.
    NotFound(String),
    /// The answer was a failure, maybe half-way: the store tells, and at once.
    Failed(String),
    /// There was no answer, and it may still be going on: the store tells.
    InDoubt(String),
    /// It was asked for, and nobody can tell what came of it: the run ends.
    Unknown(String),
    /// Nothing was asked for: a signal came first, there is nobody to ask, or no room to write. That
    /// is no failure of the target's, and the run ends.
    NotAsked(String),
}

/// What is needed to prove a deletion cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PreconditionError {
    /// What could not be had, and why.
    pub what: String,
    /// It may be had a moment later: the disk and the runtime told of different moments.
    pub stale: bool,
}

impl PreconditionError {
    /// One that will not be had a moment later either.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), stale: false }
    }

    /// The store cannot be read.
    #[must_use]
    pub fn disk(error: &dyn std::error::Error) -> Self {
        let mut what = format!("looking at the store again: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            what = format!("{what}: {error}");
            cause = error.source();
        }
        Self::new(what)
    }
}
