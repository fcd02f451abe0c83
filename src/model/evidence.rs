//! Evidence on the disk for the first detection of an image. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::text::names::names;

/// Evidence on the disk for the time when an image first existed here. Each piece dates one part of the image. The
/// image in its present form is not older than the latest piece about its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "EvidenceDoc"))]
pub struct Evidence {
    /// `image-record`, `top-layer`, `metadata-directory`, `container` or `pull-record`.
    pub kind: EvidenceKind,
    /// Time of that part, by the node's clock at that time.
    pub at: Timestamp,
}

names! {
    /// Part of an image that a piece of evidence dates.
    EvidenceKind {
        /// The store's record of the image, if it contains the time when the record was made.
        ImageRecord = "image-record",
        /// The record of the image's top layer or snapshot.
        TopLayer = "top-layer",
        /// Birth time of the directory of its manifest and configuration.
        MetadataDirectory = "metadata-directory",
        /// The record of a container made from the image. The image existed by then, perhaps long before.
        Container = "container",
        /// The kubelet's record of a pull of the image. The image may be older: the kubelet rewrites the record
        /// when other credentials are used.
        PullRecord = "pull-record",
    }
}

impl EvidenceKind {
    /// Returns whether the evidence dates the creation of a part, and not only its existence.
    #[must_use]
    pub fn is_creation(self) -> bool {
        !matches!(self, Self::Container | Self::PullRecord)
    }
}
