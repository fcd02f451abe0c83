//! Removers of images: the runtime through CRI, or an editor in the graphroot.

use crate::cri::CriError;
use crate::editor::{Deleted, Error, Meaning};
use crate::model::plan::{Failure, Gain, Target, TargetKind};
use crate::model::refs::Refs;
use crate::model::rules::{Rule, Ruling};
use crate::model::{ImageIx, Inventory};
use crate::policy::kubelet::Listing;
use crate::policy::{ExternalFacts, FullFilesystem};
use crate::stores::Scan;

/// Removes images, and reports what else keeps them.
pub trait Remover {
    /// Who answers for a removal, as the subject of a message.
    fn name(&self) -> &'static str;

    /// Begins to ask what the next [`Self::look`] goes by, while the disk is read.
    fn ask(&mut self) {}

    /// Asks afresh what uses and keeps the images of `inventory`, besides what the disk
    /// says; one entry an image.
    ///
    /// # Errors
    /// When that cannot be had in full: then nothing may be deleted.
    fn look(&mut self, inventory: &Inventory) -> Result<Vec<ExternalFacts>, PreconditionError>;

    /// Reasons for which a removal of an image of `scan` would be refused, as far as they can be seen in advance. Called
    /// once, before a plan. One entry an image; nothing is known of images beyond its end.
    fn foresee(&self, _scan: &Scan) -> Vec<ExternalFacts> {
        Vec::new()
    }

    /// Where the first image of a store has to free itself what its deletion needs to begin.
    fn full_filesystems(&self, _inventory: &Inventory) -> Vec<FullFilesystem> {
        Vec::new()
    }

    /// Removes an image with all its names.
    fn remove(&mut self, inventory: &Inventory, image: ImageIx) -> RemovalAnswer;

    /// Bytes of our own that this may use up for a removal or make again after it, on the
    /// filesystem `device` (`st_dev`), as of now: they are no part of what the removal frees.
    fn own_bytes(&self, _device: u64) -> u64 {
        0
    }

    /// What the runtime listed at the last look; `None`: there is no runtime behind this.
    fn listing(&self) -> Option<&Listing> {
        None
    }

    /// What the next removal also frees of the leaks of the measured inventory, for each filesystem.
    fn byproduct(&self, _inventory: &Inventory, _refs: &Refs) -> Vec<Gain> {
        Vec::new()
    }
}

/// The result of a removal request: what the editor (`failed_edit`) and the runtime (`cri`) say, in the words of the
/// executor.
///
/// | answer | is it asked whether it is there? | outcome of the step |
/// |---|---|---|
/// | Answered | within 10 s | removed, or still there |
/// | Proven | no | removed |
/// | Declined, NotStopped, LeftOver | no | failed |
/// | Kept, StoreUnavailable, NotAsked | no | that; nothing was touched |
/// | InPart | at once | removed with a problem, or failed: the next run finishes it |
/// | Failed | at once | removed, or failed |
/// | NotFound | within 10 s | another process has deleted it, or failed |
/// | InDoubt | within what the remover says | removed, or failed |
/// | Unknown | no | failed, and the run ends |
///
/// After NotAsked, and where the store cannot be asked, the run ends as well. After a signal it is asked once, and what
/// is still there and may be half removed is kept by the rule that the run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalAnswer {
    /// The request succeeded; the store has to confirm it.
    Answered,
    /// It is deleted or repaired, as proven under the store's locks.
    Proven,
    /// It was refused; nothing has changed.
    Declined(Failure),
    /// It had to be stopped first, and could not be.
    NotStopped(Failure),
    /// It is in use by now, or its removal is not proven to be safe, and it was not touched.
    Kept(Ruling),
    /// Some of it was removed, and something could not be: whether it is gone the store tells, and
    /// at once.
    InPart(Failure),
    /// Some of it was removed, and the rest is still there.
    LeftOver(Failure),
    /// Of its store nothing can be proven or changed for now (its lock is held, mounts cannot be
    /// read, its disk is full): it is skipped.
    StoreUnavailable(Failure),
    /// Reported as not found: another process may be removing it. The store has to confirm it.
    NotFound(Failure),
    /// The request failed, maybe halfway: the store is checked at once.
    Failed(Failure),
    /// There was no answer, and the removal may continue: the store has to confirm it.
    InDoubt(Failure),
    /// It was requested, and its outcome cannot be determined: the run ends.
    Unknown(String),
    /// Nothing was requested: a signal came first, the runtime is unavailable, or there is no room to
    /// write. The target is not at fault, and the run ends.
    NotAsked(Failure),
}

/// Consequence of a failed edit for its target and for the run.
///
/// The store is asked afterwards if an image still exists. A leak in doubt counts as existing: only the editor can tell,
/// under the locks.
pub(super) fn failed_edit(kind: TargetKind, id: &str, error: Error) -> RemovalAnswer {
    let is_leak = kind == TargetKind::Leak;
    let failure = Failure::from(&error);
    match error {
        Error::Interrupted => RemovalAnswer::NotAsked(failure),
        Error::Stopped { done, cause } => {
            log(id, &done);
            if !is_leak {
                return RemovalAnswer::InPart(failure);
            }
            match cause.is_interrupted() {
                true => RemovalAnswer::Unknown(failure.message),
                false => RemovalAnswer::LeftOver(Failure::from(&*cause)),
            }
        }
        Error::Failed(_) if !is_leak => RemovalAnswer::Failed(failure),
        // Most leaks have no record: without room for a new record file they can still be deleted.
        Error::NoSpace(_) if !is_leak => RemovalAnswer::StoreUnavailable(failure),
        Error::Locked { .. } => RemovalAnswer::StoreUnavailable(failure),
        Error::Refused(refusal) => {
            let keeps = |rule, why| RemovalAnswer::Kept(Ruling::keeps(rule, why));
            match refusal.means() {
                Meaning::Store => RemovalAnswer::StoreUnavailable(failure),
                Meaning::Immutable => RemovalAnswer::Declined(failure),
                Meaning::Gone => RemovalAnswer::NotFound(failure),
                Meaning::InUse | Meaning::Running if !is_leak => keeps(Rule::InUse, failure.message),
                Meaning::InUse | Meaning::Running | Meaning::NotProven => {
                    keeps(Rule::NotProven, failure.message)
                }
            }
        }
        Error::Failed(_) | Error::NoSpace(_) => RemovalAnswer::Declined(failure),
    }
}

/// Logs what an edit did. What is left of something whose record was deleted is now an orphan, which
/// `sweep` finds.
pub(super) fn log(id: &str, deleted: &Deleted) {
    for failure in &deleted.failures {
        tracing::warn!(id, "left behind: {failure}");
    }
    if deleted.more_failures > 0 {
        tracing::warn!(id, "{} more are left behind", deleted.more_failures);
    }
    tracing::debug!(
        id,
        layers = deleted.layers.len(),
        removed = deleted.removed,
        in_place = deleted.in_place,
        reserve_file = deleted.reserve_file_released,
        locked_for = ?deleted.locked_for,
        "deleted"
    );
}

/// Something that is needed to prove a deletion is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PreconditionError {
    /// What is not available, and why.
    pub what: String,
    /// A retry may succeed: disk and runtime showed different moments.
    pub is_stale: bool,
}

impl PreconditionError {
    /// An error that a retry does not resolve.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), is_stale: false }
    }

    /// What damaged records lack proves nothing.
    #[must_use]
    pub(super) fn damaged(target: &Target) -> Self {
        let root = target.store_root();
        Self::new(format!("the records of the store {root} can no longer be read in full"))
    }

    /// An error that a new plan resolves.
    #[must_use]
    pub fn stale(what: impl Into<String>) -> Self {
        Self { what: what.into(), is_stale: true }
    }
}

/// The runtime cannot be asked.
impl From<CriError> for PreconditionError {
    fn from(error: CriError) -> Self {
        Self::new(error.to_string())
    }
}
