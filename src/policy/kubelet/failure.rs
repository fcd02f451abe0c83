//! Failures and events of the kubelet's collector.

use crate::model::text::display::bytes;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeletFailure {
    #[error("listing the images: {0}")]
    ListImages(String),
    #[error("listing the pods: {0}")]
    ListPods(String),
    #[error("asking for the image filesystem: {0}")]
    FsStats(String),
    #[error("the image filesystem has no valid capacity")]
    InvalidCapacity,
    /// Images above the maximum age could not be deleted; the run ended there.
    #[error("deleting old images: {}", list(.0))]
    AgeDeletion(Vec<(String, String)>),
    #[error("deleting images: {}", list(.0))]
    Deletion(Vec<(String, String)>),
    /// According to listed sizes, too little was freed.
    #[error(
        "wanted to free {}, but freed {}",
        bytes(u64::try_from(*wanted_bytes).unwrap_or_default()),
        bytes(*freed_bytes)
    )]
    NotEnoughFreed {
        wanted_bytes: i128,
        /// Sum of the listed sizes of the deleted images.
        freed_bytes: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletEvent {
    /// The deletions were not sufficient, according to listed sizes.
    FreeDiskSpaceFailed,
    /// The image filesystem's capacity is 0 or missing.
    InvalidDiskCapacity,
    /// The second failing run in a row (see [`crate::policy::kubelet::FailureStreak`]).
    ImageGCFailed,
}

impl KubeletEvent {
    /// Returns the reason of the event in the kubelet's spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FreeDiskSpaceFailed => "FreeDiskSpaceFailed",
            Self::InvalidDiskCapacity => "InvalidDiskCapacity",
            Self::ImageGCFailed => "ImageGCFailed",
        }
    }
}

fn list(failed: &[(String, String)]) -> String {
    let texts: Vec<_> = failed.iter().map(|(key, error)| format!("{key}: {error}")).collect();
    texts.join("; ")
}
