//! Evidence on the disk for the first detection of an image. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::names;

/// Evidence on the disk for when an image was first here. Each piece is about one part: the image as it
/// is now is no older than the latest piece about its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Evidence {
    #[serde(rename = "what")]
    pub kind: EvidenceKind,
    /// The time it gives, by the clock of the node at that time.
    pub at: Timestamp,
}

names! {
    /// What a piece of evidence is about.
    EvidenceKind {
        /// The store's own record of the image, where it has the time of the record's making.
        ImageRecord = "image-record",
        /// The record of its top layer or snapshot.
        TopLayer = "top-layer",
        /// The birth of the directory that holds its manifest and configuration.
        MetadataDirectory = "metadata-directory",
        /// The record of a container made from it: it existed by then, maybe long before.
        Container = "container",
        /// The kubelet's record of a pull of it: the same, since that is written anew for other credentials.
        PullRecord = "pull-record",
    }
}

impl EvidenceKind {
    /// It tells when something of the image was made, not only that it was there.
    #[must_use]
    pub fn is_creation(self) -> bool {
        !matches!(self, Self::Container | Self::PullRecord)
    }
}
