//! First detection of an image, and the time from which its age is counted. Pure.
//!
//! Two time lines meet here: dates on the disk are in the time of the wall clock at their writing, and records are in
//! record time ([`super::clock`]). When the evidence is ambiguous, the later time is taken, so that an image never
//! looks older than it is and is never deleted too early.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::text::names::names;
use crate::model::{Evidence, EvidenceKind, ImageIx, Inventory};

/// 2015-01-01T00:00:00Z. An earlier date was written by a clock that was not set, or has no meaning: no store existed
/// in today's form by then.
const FIRST_PLAUSIBLE_SECOND: i64 = 1_420_070_400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub record_time: Timestamp,
    pub wall: Timestamp,
}

impl Moment {
    /// Converts a date on the disk to record time. If record time is ahead of the wall clock, the date may have been
    /// written before or after the clock was set back. It is treated as written after, so that nothing looks too old.
    fn to_record_time(self, date: Timestamp) -> Timestamp {
        let ahead = self.record_time.duration_since(self.wall).max(SignedDuration::ZERO);
        date.saturating_add(ahead).unwrap_or(Timestamp::MAX)
    }
}

names! {
    /// Origin of `first_detected`.
    AgeRule {
        /// The latest creation date of a part of the image on the disk.
        Creation = "creation",
        /// The first container of the image; the disk has no creation date of any part.
        Container = "container",
        /// The first scan that saw the image; the disk has no plausible date.
        FirstScan = "first-scan",
        /// The first scan that saw the image; a date on the disk is in the future, so it was written by a wrong
        /// clock.
        FutureEvidence = "future-evidence",
        /// An earlier scan proved that the image was not in the store, which overrides the dates on the disk.
        AbsentBefore = "absent-before",
        /// The stored evidence cannot be read any more.
        Unreadable = "unreadable",
    }
}

/// Result of the first detection of an image. It is stored with the image and never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstDetection {
    pub rule: AgeRule,
    /// All evidence on the disk at that time, by the node's wall clock.
    pub found: Vec<Evidence>,
}

impl FirstDetection {
    #[must_use]
    pub fn deciding(&self) -> Option<Evidence> {
        let plausible = self.found.iter().filter(|evidence| is_plausible(evidence.at));
        match self.rule {
            AgeRule::Creation => {
                plausible.filter(|evidence| evidence.kind.is_creation()).max_by_key(|evidence| evidence.at)
            }
            AgeRule::Container => {
                plausible.filter(|evidence| !evidence.kind.is_creation()).min_by_key(|evidence| evidence.at)
            }
            AgeRule::FutureEvidence => plausible.max_by_key(|evidence| evidence.at),
            AgeRule::FirstScan | AgeRule::AbsentBefore | AgeRule::Unreadable => None,
        }
        .copied()
    }
}

fn is_plausible(date: Timestamp) -> bool {
    date.as_second() >= FIRST_PLAUSIBLE_SECOND
}

/// Returns the first detection of an image without a record. `absent_at` is the last time at which the image was proven
/// absent, by a complete scan of its store or by the end of an earlier life.
#[must_use]
pub fn first_detection(
    evidence: &[Evidence],
    absent_at: Option<Timestamp>,
    now: &Moment,
) -> (Timestamp, FirstDetection) {
    let mut creation = None;
    let mut container = None;
    for evidence in evidence.iter().filter(|evidence| is_plausible(evidence.at)) {
        let time = now.to_record_time(evidence.at);
        if evidence.kind.is_creation() {
            creation = creation.max(Some(time));
        } else {
            container = Some(container.map_or(time, |first: Timestamp| first.min(time)));
        }
    }
    let (mut first, mut rule) = match (creation, container) {
        (Some(time), _) => (time, AgeRule::Creation),
        (None, Some(time)) => (time, AgeRule::Container),
        (None, None) => (now.record_time, AgeRule::FirstScan),
    };
    // The records keep microseconds. Round now, so that the value is the same before and after it is recorded.
    first = Timestamp::from_microsecond(first.as_microsecond()).unwrap_or(first);
    if first > now.record_time {
        (first, rule) = (now.record_time, AgeRule::FutureEvidence);
    }
    if let Some(absent_at) = absent_at
        && first <= absent_at
    {
        // One microsecond later, since the image was absent at that time.
        let after = absent_at.saturating_add(SignedDuration::from_micros(1)).unwrap_or(absent_at);
        (first, rule) = (after.min(now.record_time), AgeRule::AbsentBefore);
    }
    (first, FirstDetection { rule, found: evidence.to_vec() })
}

/// Returns the creation date of the part of an image that every pull creates anew: the metadata directory, or the
/// image's record. A store dates one of them.
#[must_use]
pub fn made(evidence: &[Evidence]) -> Option<Timestamp> {
    part_made(evidence).map(|part| part.at)
}

fn part_made(evidence: &[Evidence]) -> Option<&Evidence> {
    evidence
        .iter()
        .find(|part| matches!(part.kind, EvidenceKind::MetadataDirectory | EvidenceKind::ImageRecord))
}

/// Knowledge about an image from the scan that saw it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// [`made`] at its first detection, in whole microseconds.
    pub made: Option<Timestamp>,
    /// Wall clock when the image was last seen.
    pub seen_wall: Timestamp,
}

/// Checks whether an image that exists now, and existed when it was last seen, was deleted and pulled again in between.
#[must_use]
pub fn was_remade(before: &Before, evidence: &[Evidence], now: &Moment) -> bool {
    let Some(&Evidence { kind, at: made }) = part_made(evidence) else { return false };
    let since_seen = made > before.seen_wall && made <= now.wall;
    let Some(known) = before.made else { return since_seen };
    if made.as_microsecond() == known.as_microsecond() {
        return false;
    }
    // A directory is created once. Otherwise `made` is the date of the oldest record among all names of the image. It
    // also changes when the oldest name is removed, but then the next oldest record already existed at the last scan.
    // If the clock was set back since, the dates prove nothing, and the image counts as pulled again, which makes it
    // younger.
    kind == EvidenceKind::MetadataDirectory
        || made > known && (made > before.seen_wall || before.seen_wall > now.wall)
}

names! {
    Basis {
        Records = "records",
        /// The dates on the disk; the records do not contain the image, or cannot be read.
        Disk = "disk",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageAge {
    /// Time of the first detection, as far as it is proven.
    pub first_detected: Timestamp,
    pub detection: FirstDetection,
    /// Time at which a container of the image was last seen; `None`: never.
    pub last_used: Option<Timestamp>,
    /// Number of distinct containers seen in this life of the image.
    pub use_count: u64,
    /// Number of this life of the image, from 1: earlier lives that are remembered ended with a deletion.
    pub life: u32,
    /// Time from which the age counts: the later of first detected and last used. It is later still in two cases: a
    /// scan found the image unused again, whose last container may have existed until that scan, or a correction of
    /// the clock would otherwise have aged the image.
    pub counted_from: Timestamp,
    pub basis: Basis,
}

/// Returns the time from which an image's age counts: the latest of the three.
#[must_use]
pub fn counted_from(
    first_detected: Timestamp,
    last_used: Option<Timestamp>,
    proven_since: Option<Timestamp>,
) -> Timestamp {
    [last_used, proven_since].into_iter().flatten().fold(first_detected, Timestamp::max)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryAges {
    /// Indexed by [`ImageIx`].
    pub(super) images: Vec<ImageAge>,
    pub now: Timestamp,
}

impl InventoryAges {
    /// Returns the age of an image of the inventory from which these ages were computed.
    #[must_use]
    pub fn of(&self, image: ImageIx) -> &ImageAge {
        &self.images[image.get()]
    }
}

/// Returns the age of an image without a record.
pub(super) fn unrecorded(
    evidence: &[Evidence],
    absent_at: Option<Timestamp>,
    users: u64,
    life: u32,
    now: &Moment,
) -> ImageAge {
    let (first_detected, detection) = first_detection(evidence, absent_at, now);
    let last_used = (users > 0).then_some(now.record_time);
    ImageAge {
        first_detected,
        detection,
        last_used,
        use_count: users,
        life,
        counted_from: counted_from(first_detected, last_used, None),
        basis: Basis::Disk,
    }
}

pub(super) fn users(inventory: &Inventory) -> Vec<u64> {
    let mut users = vec![0; inventory.images.len()];
    let mut seen = HashSet::new();
    for container in &inventory.containers {
        if seen.insert((container.store, &container.id)) {
            container.images().for_each(|image| users[image.get()] += 1);
        }
    }
    for image in inventory.uses.iter().flat_map(|user| &user.images) {
        users[image.get()] += 1;
    }
    users
}

#[cfg(test)]
mod tests;
