//! Removers of images: the runtime through CRI, or an editor in the graphroot.

use crate::cri::CriError;
use crate::model::plan::{Gain, Step, Target};
use crate::model::refs::Refs;
use crate::model::{Answer, ImageIx, Inventory, RemovalResult};
use crate::policy::kubelet::Listing;
use crate::policy::{Facts, FullFilesystem};
use crate::stores::Scan;

/// Removes images, and reports what else keeps them.
pub trait Remover {
    /// Begins to ask what the next [`Self::look`] goes by, while the disk is read.
    fn ask(&mut self) {}

    /// Asks afresh what uses and keeps the images of `inventory`, besides what the disk
    /// says; one entry an image.
    ///
    /// # Errors
    /// When that cannot be had in full: then nothing may be deleted.
    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Facts>, PreconditionError>;

    /// Reasons for which a removal of an image of `scan` would be refused, as far as they can be seen in advance. Called
    /// once, before a plan. One entry an image; nothing is known of images beyond its end.
    fn foresee(&self, _scan: &Scan) -> Vec<Facts> {
        Vec::new()
    }

    /// Where the first image of a store has to free itself what its deletion needs to begin.
    fn full_filesystems(&self, _inventory: &Inventory) -> Vec<FullFilesystem> {
        Vec::new()
    }

    /// Removes the image of `step`, which `inventory` has as `image`, with all its names.
    fn remove(&mut self, step: &Step, inventory: &Inventory, image: ImageIx) -> RemovalResult;

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

/// Without its proof nothing is deleted.
impl From<PreconditionError> for Answer {
    fn from(error: PreconditionError) -> Self {
        Self::StopRun(error.what.into())
    }
}
