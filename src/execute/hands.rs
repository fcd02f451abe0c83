//! What removes images: the runtime through CRI, or ourselves in the graphroot.

use crate::model::refs::Refs;
use crate::model::{ImageIx, Inventory, StoreIx};
use crate::policy::kubelet::{ListedContainer, ListedImage};
use crate::policy::plan::Gain;

/// Removes images, and knows what else keeps them.
pub trait Hands {
    /// A name for people and documents: `cri` or `direct`.
    fn name(&self) -> &'static str;

    /// Asks afresh what uses and keeps the images of `inventory`, besides what the disk
    /// says; one entry an image.
    ///
    /// # Errors
    /// When that cannot be had in full: then nothing may be deleted.
    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Extra>, Blind>;

    /// Removes an image with all its names.
    fn remove(&mut self, inventory: &Inventory, image: ImageIx) -> Removed;

    /// Takes names from an image that keeps others.
    fn untag(&mut self, _inventory: &Inventory, _image: ImageIx, _names: &[String]) -> Removed {
        Removed::Refused("a runtime removes an image with all its names".into())
    }

    /// Bytes of our own that these hands may give up for a removal or make again after it, on the
    /// filesystem `device` (`st_dev`), as of now: they are no part of what the removal gives back.
    fn own_bytes(&self, _device: u64) -> u64 {
        0
    }

    /// What the runtime listed at the last look; `None`: there is no runtime behind these hands.
    fn listing(&self) -> Option<&Listing> {
        None
    }

    /// What the leaks of the measured inventory give back that the next removal takes along,
    /// for each filesystem; nothing where it takes none.
    fn byproduct(&self, _inventory: &Inventory, _refs: &Refs) -> Vec<Gain> {
        Vec::new()
    }
}

/// What is known of an image beyond the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Users, each as `owner name`.
    pub used_by: Vec<String>,
    /// The runtime calls it pinned.
    pub runtime_pins: bool,
    /// Why these hands cannot remove it, if they cannot.
    pub out_of_reach: Option<String>,
}

/// What a runtime lists, as the kubelet sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The runtime's own store, in the inventory that was looked at.
    pub store: StoreIx,
    /// Its images, and what they are in that inventory; `None`: nothing that lies in a store.
    pub images: Vec<(ListedImage, Option<ImageIx>)>,
    /// Its containers, with the references of the images that they have mounted as volumes.
    pub containers: Vec<(ListedContainer, Vec<String>)>,
}

/// What came of asking for a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The answer was yes; whether it is true the store tells.
    Answered,
    /// It was refused: nothing has happened.
    Refused(String),
    /// It is in use by now, and was not touched: no failure of the image's.
    Kept(String),
    /// Some of it was removed, and something would not go or could not be tried any more: whether the
    /// image is gone the store tells, and at once.
    InPart(String),
    /// Of its store nothing can be proven or changed for now (its lock is held, mounts cannot be
    /// read, its disk is full), but there are others: that store is left aside. No failure of the image's.
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
    /// Nothing was asked for: a signal came first, there is nobody to ask, or no room to write. That
    /// is no failure of the image's, and the run ends.
    NotAsked(String),
}

/// What is needed to prove a deletion cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Blind {
    /// What could not be had, and why.
    pub what: String,
    /// It may be had a moment later: the disk and the runtime told of different moments.
    pub stale: bool,
}

impl Blind {
    /// The store cannot be read.
    #[must_use]
    pub fn disk(error: &dyn std::error::Error) -> Self {
        let mut what = format!("looking at the store again: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            what = format!("{what}: {error}");
            cause = error.source();
        }
        Self { what, stale: false }
    }
}
