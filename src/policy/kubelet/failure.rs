//! What the kubelet's collector says when it fails.

use crate::model::display::bytes;
use crate::policy::kubelet::runtime::RuntimeError;

/// Why a run fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeletFailure {
    #[error("listing the images: {0}")]
    ListImages(#[source] RuntimeError),
    #[error("listing the pods: {0}")]
    ListPods(#[source] RuntimeError),
    #[error("asking for the image filesystem: {0}")]
    FsStats(#[source] RuntimeError),
    #[error("the image filesystem has no valid capacity")]
    InvalidCapacity,
    /// Images that were too old could not be deleted; the run has ended there.
    #[error("deleting old images: {}", list(.0))]
    AgeDeletion(Vec<(String, RuntimeError)>),
    /// Images could not be deleted to make space.
    #[error("deleting images: {}", list(.0))]
    Deletion(Vec<(String, RuntimeError)>),
    /// By listed sizes, too little was freed.
    #[error(
        "wanted to free {}, but freed {}",
        bytes(u64::try_from(*wanted_bytes).unwrap_or_default()),
        bytes(*freed_bytes)
    )]
    NotEnoughFreed {
        /// What was to be freed.
        wanted_bytes: i128,
        /// The sum of the listed sizes of what was deleted.
        freed_bytes: u64,
    },
}

/// What is told to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletEvent {
    /// The deletions did not suffice, by listed sizes.
    FreeDiskSpaceFailed,
    /// The image filesystem's capacity is 0 or missing.
    InvalidDiskCapacity,
    /// The second failing run in a row (see [`crate::policy::kubelet::FailureStreak`]).
    ImageGCFailed,
}

impl KubeletEvent {
    /// The event's reason as the kubelet has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FreeDiskSpaceFailed => "FreeDiskSpaceFailed",
            Self::InvalidDiskCapacity => "InvalidDiskCapacity",
            Self::ImageGCFailed => "ImageGCFailed",
        }
    }
}

fn list(failed: &[(String, RuntimeError)]) -> String {
    let texts: Vec<_> = failed.iter().map(|(key, error)| format!("{key}: {error}")).collect();
    texts.join("; ")
}
