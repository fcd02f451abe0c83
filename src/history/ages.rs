//! First detection of an image, and what its age is counted from. Pure.
//!
//! Evidence on the disk is in the time of the node's wall clock when it was made; records
//! are in record time. Doubts make an image younger, never older.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::names::names;
use crate::model::{Evidence, EvidenceKind, ImageIx, Inventory, StoreKind};

/// 2015-01-01T00:00:00Z: what is said to be older was made by a clock that was not set, or
/// says nothing. No store had today's form by then.
const FIRST_PLAUSIBLE_SECOND: i64 = 1_420_070_400;

/// The two times of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub record_time: Timestamp,
    pub wall: Timestamp,
}

impl Moment {
    /// A time on the disk as record time. Where record time is ahead of the wall clock, a
    /// time may have been written before or after the clock was set back; taken for the
    /// later, it makes nothing too old.
    fn placed(&self, at: Timestamp) -> Timestamp {
        let ahead = self.record_time.duration_since(self.wall).max(SignedDuration::ZERO);
        at.saturating_add(ahead).unwrap_or(Timestamp::MAX)
    }
}

names! {
    /// Why `first_detected` is what it is.
    AgeRule {
        /// The latest thing of it that the disk says was made.
        Making = "making",
        /// Its first container; the disk says of no part of it when it was made.
        Container = "container",
        /// The first scan that saw it; the disk says nothing plausible.
        FirstScan = "first-scan",
        /// The first scan that saw it; the disk gives a time in the future, so it was written
        /// by a clock that was wrong.
        FutureEvidence = "future-evidence",
        /// It was not in the store at an earlier scan, which proves more than the disk does.
        AbsentBefore = "absent-before",
        /// What was stored of it cannot be read any more.
        Lost = "lost",
    }
}

/// What the first detection of an image gave; stored with it and never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstDetection {
    pub rule: AgeRule,
    /// All that the disk said then, by the node's wall clock.
    pub found: Vec<Evidence>,
}

impl FirstDetection {
    /// The piece of evidence that decided, if one did.
    #[must_use]
    pub fn deciding(&self) -> Option<Evidence> {
        let plausible = self.found.iter().filter(|one| is_plausible(one.at));
        match self.rule {
            AgeRule::Making => {
                plausible.filter(|one| one.kind.is_creation()).max_by_key(|one| one.at).copied()
            }
            AgeRule::Container => {
                plausible.filter(|one| !one.kind.is_creation()).min_by_key(|one| one.at).copied()
            }
            AgeRule::FutureEvidence => plausible.max_by_key(|one| one.at).copied(),
            AgeRule::FirstScan | AgeRule::AbsentBefore | AgeRule::Lost => None,
        }
    }
}

fn is_plausible(at: Timestamp) -> bool {
    at.as_second() >= FIRST_PLAUSIBLE_SECOND
}

/// First detection of an image without a record. `absent_at`: when a complete scan of
/// its store, or the end of an earlier life, last proved it not to be there.
#[must_use]
pub fn first_detection(
    evidence: &[Evidence],
    absent_at: Option<Timestamp>,
    now: &Moment,
) -> (Timestamp, FirstDetection) {
    let plausible = || evidence.iter().filter(|one| is_plausible(one.at));
    let making = plausible().filter(|one| one.kind.is_creation()).map(|one| now.placed(one.at)).max();
    let container = plausible().filter(|one| !one.kind.is_creation()).map(|one| now.placed(one.at)).min();
    let (mut first, mut rule) = match (making, container) {
        (Some(at), _) => (at, AgeRule::Making),
        (None, Some(at)) => (at, AgeRule::Container),
        (None, None) => (now.record_time, AgeRule::FirstScan),
    };
    // As exactly as the records keep it, so that recording it does not change it.
    first = Timestamp::from_microsecond(first.as_microsecond()).unwrap_or(first);
    if first > now.record_time {
        (first, rule) = (now.record_time, AgeRule::FutureEvidence);
    }
    if let Some(absent_at) = absent_at
        && first <= absent_at
    {
        // The moment after, since it was not there at that moment.
        let after = absent_at.saturating_add(SignedDuration::from_micros(1)).unwrap_or(absent_at);
        (first, rule) = (after.min(now.record_time), AgeRule::AbsentBefore);
    }
    (first, FirstDetection { rule, found: evidence.to_vec() })
}

/// When the part of an image was made that every pull makes anew: its metadata directory,
/// or containerd's record of it.
#[must_use]
pub fn made(kind: StoreKind, evidence: &[Evidence]) -> Option<Timestamp> {
    let what = match kind {
        StoreKind::ContainersStorage => EvidenceKind::MetadataDirectory,
        StoreKind::Containerd => EvidenceKind::ImageRecord,
    };
    evidence.iter().find(|one| one.kind == what).map(|one| one.at)
}

/// What is known of an image that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// [`made`] at its first detection, in whole microseconds.
    pub made: Option<Timestamp>,
    /// The wall clock when it was last seen.
    pub seen_wall: Timestamp,
}

/// Whether an image that is there, and was there when it was last seen, was deleted and
/// pulled again in between.
#[must_use]
pub fn was_remade(kind: StoreKind, before: &Before, evidence: &[Evidence], now: &Moment) -> bool {
    let Some(made) = made(kind, evidence) else { return false };
    let since_seen = made > before.seen_wall && made <= now.wall;
    let Some(known) = before.made else { return since_seen };
    if made.as_microsecond() == known.as_microsecond() {
        return false;
    }
    match kind {
        // A directory is born once.
        StoreKind::ContainersStorage => true,
        // This is the oldest of the records of all its names: it changes too when the
        // oldest name is taken away, and the next oldest was seen before. Where the clock
        // has been set back since, times do not tell; then it is the younger.
        StoreKind::Containerd => made > known && (made > before.seen_wall || before.seen_wall > now.wall),
    }
}

names! {
    /// Where an age comes from.
    Basis {
        Records = "records",
        /// What the disk says now; the records do not know the image, or cannot be read.
        Disk = "disk",
    }
}

/// The age of an image, and what is known of its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageAge {
    /// When it was first detected, as far as proven.
    pub first_detected: Timestamp,
    /// What that was taken from.
    pub detection: FirstDetection,
    /// When a container on it was last seen; `None`: never.
    pub last_used: Option<Timestamp>,
    /// Containers seen on it in this life, each once.
    pub use_count: u64,
    /// Which life of this image it is, from 1. It has had one less before, as far as they
    /// are remembered.
    pub life: u32,
    /// What its age is counted from: the later of first detected and last used, or later
    /// still: the scan that first saw it unused again, since its last container may have been
    /// there until then, or where a correction of the clock would have aged it.
    pub counted_from: Timestamp,
    /// Where this comes from.
    pub basis: Basis,
}

/// What an image's age is counted from.
#[must_use]
pub fn counted_from(
    first_detected: Timestamp,
    last_used: Option<Timestamp>,
    proven_since: Option<Timestamp>,
) -> Timestamp {
    [last_used, proven_since].into_iter().flatten().fold(first_detected, Timestamp::max)
}

/// The ages of all images of one inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryAges {
    /// By position of the image.
    pub(super) images: Vec<ImageAge>,
    /// The record time that ages are counted to.
    pub now: Timestamp,
}

impl InventoryAges {
    /// Of one image of the inventory that these ages were made for.
    #[must_use]
    pub fn of(&self, image: ImageIx) -> &ImageAge {
        &self.images[image.get()]
    }
}

/// The age of an image without a record.
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

/// How many containers, and others, use each image.
pub(super) fn users(inventory: &Inventory) -> Vec<u64> {
    let mut users = vec![0; inventory.images.len()];
    let mut seen = HashSet::new();
    for container in &inventory.containers {
        if seen.insert((container.store, &container.id)) {
            container.images().for_each(|image| users[image.get()] += 1);
        }
    }
    for image in inventory.uses.iter().flat_map(|one| &one.images) {
        users[image.get()] += 1;
    }
    users
}

#[cfg(test)]
mod tests;
