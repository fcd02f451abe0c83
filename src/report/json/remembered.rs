//! What the records know of an image.

use jiff::Timestamp;
use serde::Serialize;

use super::ImageDoc;
use crate::history::ages::{AgeRule, Basis, ImageAge};
use crate::history::known::Life;
use crate::model::{Evidence, EvidenceKind};

/// What the records know of an image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RememberedDoc {
    /// Since when it is here, as far as that is proven.
    pub first_detected: Timestamp,
    /// `records`: our records have it; `disk`: they do not, and the disk says so now.
    pub first_detected_from: Basis,
    /// Why it is this time: `making`: the latest part of it was made then; `container`: its
    /// first container was; `first-scan`: the disk says nothing, and a scan saw it then;
    /// `future-evidence`: the disk gives a time in the future, and a scan saw it then;
    /// `absent-before`: it was not there at the scan before; `lost`: the record of that cannot be
    /// read any more.
    pub rule: AgeRule,
    /// What the time was taken from, and what else spoke of it.
    pub evidence: Vec<EvidenceDoc>,
    /// When a container last used it; null if none was ever seen.
    pub last_used: Option<Timestamp>,
    /// Containers seen that were made from it.
    pub use_count: u64,
    /// Which life of it this is, from 1: a new one begins when it is pulled again after its deletion.
    pub life: u32,
    /// Its earlier lives, the latest first.
    pub earlier_lives: Vec<LifeDoc>,
}

/// Something on the disk that tells when an image came.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EvidenceDoc {
    /// `image-record`, `top-layer`, `metadata-directory`, `container` or `pull-record`.
    pub kind: EvidenceKind,
    /// The time it gives.
    pub at: Timestamp,
    /// This decided.
    pub decides: bool,
}

/// A life of an image: from its first detection to its deletion.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LifeDoc {
    /// Since when it was here.
    pub first_detected: Timestamp,
    /// When it was last seen.
    pub last_seen: Timestamp,
    /// Since when it was gone.
    pub gone_since: Option<Timestamp>,
    /// When a container last used it.
    pub last_used: Option<Timestamp>,
    /// Containers seen that were made from it.
    pub use_count: u64,
}

impl RememberedDoc {
    /// From an image's age and its lives.
    pub fn new(age: &ImageAge, lives: &[Life]) -> Self {
        let mut earlier: Vec<_> = lives.iter().filter(|life| life.gone_since.is_some()).collect();
        earlier.sort_by_key(|life| std::cmp::Reverse(life.age.life));
        let deciding = age.detection.deciding();
        let evidence = |one: &Evidence| EvidenceDoc {
            kind: one.kind,
            at: one.at,
            decides: deciding.as_ref() == Some(one),
        };
        Self {
            first_detected: age.first_detected,
            first_detected_from: age.basis,
            rule: age.detection.rule,
            evidence: age.detection.found.iter().map(evidence).collect(),
            last_used: age.last_used,
            use_count: age.use_count,
            life: age.life,
            earlier_lives: earlier.into_iter().map(life).collect(),
        }
    }
}

fn life(life: &Life) -> LifeDoc {
    LifeDoc {
        first_detected: life.age.first_detected,
        last_seen: life.last_seen,
        gone_since: life.gone_since,
        last_used: life.age.last_used,
        use_count: life.age.use_count,
    }
}

impl ImageDoc {
    /// Fills in what is known of its age.
    pub fn remember(&mut self, age: &ImageAge) {
        self.first_detected = Some(age.first_detected);
        self.first_detected_from = Some(age.basis);
        self.last_used = age.last_used;
        self.use_count = Some(age.use_count);
        self.lives = Some(age.life);
    }
}
