//! Facts about an image from the records, as JSON.

use jiff::Timestamp;
use serde::Serialize;

use super::{ImageDoc, LifeDoc};
use crate::history::ages::{AgeRule, Basis, ImageAge};
use crate::history::story::Story;
use crate::model::Evidence;

/// Facts about an image from the records.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RememberedDoc {
    /// Earliest proven time at which the image was here.
    pub first_detected: Timestamp,
    /// Source of `first_detected`: `records` (stored by an earlier run) or `disk` (not in the records,
    /// derived from the disk now).
    pub first_detected_from: Basis,
    /// Evidence for that time: `creation`, the creation of its latest part; `container`, the creation of its
    /// first container; `first-scan`, a scan, because the disk has no evidence; `future-evidence`, a scan,
    /// because the disk's evidence is in the future; `absent-before`, a scan, because the scan before did not
    /// find it; `unreadable`, unknown, because the record of the evidence is unreadable.
    pub rule: AgeRule,
    /// Evidence that was considered, including the evidence that decided.
    pub evidence: Vec<Evidence>,
    /// Evidence that decided; null if it was a scan.
    pub decided_by: Option<Evidence>,
    /// Last known use by a container; null if none was ever seen.
    pub last_used: Option<Timestamp>,
    /// Number of containers seen that were made from it.
    pub use_count: u64,
    /// Number of this life, from 1. A new life begins when the image is pulled again after its deletion.
    pub life: u32,
    /// Earlier lives, the latest first.
    pub earlier_lives: Vec<LifeDoc>,
}

impl RememberedDoc {
    /// Builds the object from an image's age and its story.
    pub fn new(age: &ImageAge, story: &Story) -> Self {
        // A life that has ended since the last scan is still recorded as present.
        let earlier = story.lives.iter().filter(|life| life.age.life < age.life);
        Self {
            first_detected: age.first_detected,
            first_detected_from: age.basis,
            rule: age.detection.rule,
            evidence: age.detection.found.clone(),
            decided_by: age.detection.deciding(),
            last_used: age.last_used,
            use_count: age.use_count,
            life: age.life,
            earlier_lives: earlier.map(|life| LifeDoc::new(story, life, true)).collect(),
        }
    }
}

impl ImageDoc {
    /// Fills in the age of the image from the records.
    pub fn remember(&mut self, age: &ImageAge) {
        self.first_detected = Some(age.first_detected);
        self.first_detected_from = Some(age.basis);
        self.last_used = age.last_used;
        self.use_count = Some(age.use_count);
        self.lives = Some(age.life);
    }
}
