//! Removers of images: the runtime through CRI, or an editor in the graphroot.

use std::time::Duration;

use crate::cri::CriError;
use crate::model::deletion::plan::{Failure, Gain, Step, Target};
use crate::model::refs::Refs;
use crate::model::{Aftermath, Answer, ImageIx, Inventory, RemovalResult};
use crate::policy::kubelet::Listing;
use crate::policy::{Facts, FullFilesystem};
use crate::stores::Scan;
use crate::sys::stop;

/// Maximum time between the runtime's answer to a removal and the removal of the record.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Removes images, and reports their users that are not on the disk.
pub trait Remover {
    /// Starts the requests of the next [`Self::look_at`] in the background, while the disk is read.
    fn ask(&mut self, _image: &Target) {}

    /// Reads the users and protections of the images of `inventory` that are not on the disk; one entry for each image.
    ///
    /// # Errors
    /// When they cannot be read in full: then nothing may be deleted.
    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Facts>, PreconditionError>;

    /// Reads the same about one image, after [`Self::look`] has read it about all. The facts about other images
    /// may be from that time.
    ///
    /// # Errors
    /// As [`Self::look`].
    fn look_at(&mut self, inventory: &Inventory, _: ImageIx) -> Result<Vec<Facts>, PreconditionError> {
        self.look(inventory)
    }

    /// Reasons for which a removal of an image of `scan` would be refused, as far as they are known in advance. Called
    /// once, before a plan. One entry for each image; nothing is known of images beyond its end.
    fn foresee(&self, _scan: &Scan) -> Vec<Facts> {
        Vec::new()
    }

    /// Filesystems on which the first image of a store must free the room for its own deletion.
    fn full_filesystems(&self, _inventory: &Inventory) -> Vec<FullFilesystem> {
        Vec::new()
    }

    /// Removes the image of `step`, which is `image` in `inventory`, with all its names.
    fn remove(&mut self, step: &Step, inventory: &Inventory, image: ImageIx) -> RemovalResult;

    /// Current bytes of layersweep's own files on the filesystem `device` (`st_dev`) that a removal may release or
    /// create again. They are not counted as freed by the removal.
    fn own_bytes(&self, _device: u64) -> u64 {
        0
    }

    /// The runtime's listings at the last look; `None`: the remover uses no runtime.
    fn listing(&self) -> Option<&Listing> {
        None
    }

    /// Bytes of leaks that the removal of `target`, if it is the next one, also frees, for each filesystem.
    fn byproduct(&self, _target: &Target, _inventory: &Inventory, _refs: &Refs) -> Vec<Gain> {
        Vec::new()
    }
}

/// The result of a removal that the runtime reported as done: only the store can confirm it.
pub(super) fn reported_removed(step: &Step) -> RemovalResult {
    let message = "the runtime reported it as removed, but it still exists";
    RemovalResult::Unconfirmed {
        within: GONE_WITHIN,
        gone: Answer::Removed,
        otherwise: Answer::failed(step, message, Aftermath::StillThere),
    }
}

/// A fact that a proof of a deletion needs is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PreconditionError {
    pub message: String,
    /// A retry may succeed: disk and runtime showed different moments.
    pub is_stale: bool,
    /// A call of the runtime failed.
    is_of_runtime: bool,
    /// Only the images of the same store need the fact.
    is_of_store: bool,
}

impl PreconditionError {
    /// An error that a retry does not resolve.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_stale: false, is_of_runtime: false, is_of_store: false }
    }

    /// The same error in a run that deletes in other stores without the runtime.
    #[must_use]
    pub(super) fn beside_others(self) -> Self {
        Self { is_of_store: ends_only_store(self.is_of_runtime), ..self }
    }

    /// An error for damaged records: an object that is missing in them may still exist.
    #[must_use]
    pub(super) fn damaged(target: &Target) -> Self {
        let root = target.store_root();
        Self::new(format!("the records of the store {root} can no longer be read in full"))
    }

    /// An error that a new plan resolves.
    #[must_use]
    pub fn stale(message: impl Into<String>) -> Self {
        Self { is_stale: true, ..Self::new(message) }
    }
}

impl From<CriError> for PreconditionError {
    fn from(error: CriError) -> Self {
        Self { is_of_runtime: true, ..Self::new(error.to_string()) }
    }
}

/// Returns true if a failure ends only the deletions in the runtime's store: a call of the runtime failed, and not
/// because a signal cancelled it.
fn ends_only_store(is_of_runtime: bool) -> bool {
    is_of_runtime && !stop::is_requested()
}

/// The same result of a removal through the runtime in a run that deletes in other stores without it.
pub(super) fn beside_others(result: RemovalResult) -> RemovalResult {
    match result {
        RemovalResult::Answered(Answer::StopRun(failure)) if ends_only_store(failure.is_of_runtime) => {
            Answer::StoreSkipped(failure).into()
        }
        other => other,
    }
}

/// An object whose proof failed is not deleted, and the run stops, unless other stores do not need the proof.
impl From<PreconditionError> for Answer {
    fn from(error: PreconditionError) -> Self {
        let PreconditionError { message, is_of_runtime, is_of_store, .. } = error;
        let failure = Failure { message, is_of_runtime, ..Failure::default() };
        if is_of_store { Self::StoreSkipped(failure) } else { Self::StopRun(failure) }
    }
}
