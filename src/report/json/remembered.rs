//! What the records know of an image.

use jiff::Timestamp;
use serde::Serialize;

use super::ImageDoc;
use crate::inventory::EvidenceKind;

/// What the records know of an image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RememberedDoc {
    /// Since when it is here, as far as that is proven.
    #[cfg_attr(test, schemars(with = "String"))]
    pub first_detected: Timestamp,
    /// `records`: our records have it; `disk`: they do not, and the disk says so now.
    pub first_detected_from: &'static str,
    /// Why it is this time: `making`: the latest part of it was made then; `container`: its
    /// first container was; `first-scan`: the disk says nothing, and a scan saw it then;
    /// `future-evidence`: the disk gives a time in the future, and a scan saw it then;
    /// `absent-before`: it was not there at the scan before.
    pub rule: &'static str,
    /// What the time was taken from, and what else spoke of it.
    pub evidence: Vec<EvidenceDoc>,
    /// When a container last used it; null if none was ever seen.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub last_used: Option<Timestamp>,
    /// Containers seen that were made from it.
    pub use_count: u64,
    /// Which life of it this is, from 1: it may have gone and come back.
    pub life: u32,
    /// Its earlier lives, the latest first.
    pub earlier_lives: Vec<LifeDoc>,
}

/// Something on the disk that tells when an image came.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EvidenceDoc {
    /// `image-record`, `top-layer`, `metadata-directory` or `container`.
    pub kind: &'static str,
    /// The time it gives.
    #[cfg_attr(test, schemars(with = "String"))]
    pub at: Timestamp,
    /// This decided.
    pub decides: bool,
}

/// A life of an image: from its coming to its going.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LifeDoc {
    /// Since when it was here.
    #[cfg_attr(test, schemars(with = "String"))]
    pub first_detected: Timestamp,
    /// When it was last seen.
    #[cfg_attr(test, schemars(with = "String"))]
    pub last_seen: Timestamp,
    /// Since when it was gone.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub gone_since: Option<Timestamp>,
    /// When a container last used it.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub last_used: Option<Timestamp>,
    /// Containers seen that were made from it.
    pub use_count: u64,
}

/// The word for a kind of evidence.
#[must_use]
pub fn evidence_kind(kind: EvidenceKind) -> &'static str {
    match kind {
        EvidenceKind::ImageRecord => "image-record",
        EvidenceKind::TopLayer => "top-layer",
        EvidenceKind::MetadataDirectory => "metadata-directory",
        EvidenceKind::Container => "container",
    }
}

impl ImageDoc {
    /// Fills in what the records know.
    pub fn remember(&mut self, known: &RememberedDoc) {
        self.first_detected = Some(known.first_detected);
        self.first_detected_from = Some(known.first_detected_from);
        self.last_used = known.last_used;
        self.use_count = Some(known.use_count);
        self.lives = Some(known.life);
    }
}
