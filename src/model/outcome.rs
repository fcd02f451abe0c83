//! What a run did, and how it ended.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::FilesystemIx;
pub use super::outcome_kind::OutcomeKind;
use super::plan::{Failure, Plan, Problem, Step, Target};
use super::space::Measured;

/// Smallest difference between prediction and measurement that means anything: a filesystem's own
/// journal and trees move by this much while nothing is deleted.
pub const NOISE_BYTES: u64 = 64 * 1024;

/// How far a measurement may be off a prediction before it means something, in bytes: one
/// percent, at least [`NOISE_BYTES`].
#[must_use]
pub fn tolerance(predicted_bytes: u64) -> u64 {
    (predicted_bytes / 100).max(NOISE_BYTES)
}

/// Whether what was freed differs from what was predicted by more than a filesystem's own noise.
#[must_use]
pub fn differs(predicted_bytes: u64, measured_bytes: i64) -> bool {
    let off = (i128::from(measured_bytes) - i128::from(predicted_bytes)).unsigned_abs();
    off > u128::from(tolerance(predicted_bytes))
}

/// Whether a measurement tells of others that wrote or deleted meanwhile, and not of the deletion: less than
/// nothing was freed, or it is off by more than an eighth of the prediction and more than 1 MiB on a
/// filesystem that also moved by `beside_bytes`, more than noise, without the deletion.
#[must_use]
pub fn is_disturbed(predicted_bytes: u64, measured_bytes: i64, beside_bytes: u64) -> bool {
    let off = (i128::from(measured_bytes) - i128::from(predicted_bytes)).unsigned_abs();
    let is_far = off > u128::from((predicted_bytes / 8).max(1 << 20));
    measured_bytes < 0 || is_far && beside_bytes > NOISE_BYTES
}

/// A deletion that has happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deletion {
    /// Why, and what was expected; its target as it was right before.
    pub step: Step,
    /// When it was done (UTC).
    pub at: Timestamp,
    /// Bytes freed on the filesystems that were expected to give something, without what is booked
    /// as [`Self::byproduct_bytes`]; negative where others wrote more meanwhile. `None` where that
    /// was not measured, or a signal ended the waiting.
    pub measured_bytes: Option<i64>,
    /// By how much the free space of these filesystems moved without this deletion, as far as that was
    /// seen: either way right before it, and down while its bytes were awaited.
    #[serde(default)]
    pub beside_bytes: u64,
    /// Bytes of leaks that this deletion took along (containerd's garbage collection runs with it).
    pub byproduct_bytes: u64,
    /// Percent used of the filesystem that it was done for, else of the first that gave something.
    pub usage_after_percent: Option<f64>,
    /// [`Self::measured_bytes`] by filesystem, without logs. Empty where they are `None`.
    #[serde(default)]
    pub freed: Vec<FreedOn>,
}

/// What a deletion freed on one filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreedOn {
    pub filesystem: FilesystemIx,
    /// Bytes; negative where others wrote more meanwhile.
    pub bytes: i64,
    /// Percent used afterwards.
    pub usage_after_percent: Option<f64>,
}

impl Deletion {
    /// Bytes freed on one filesystem, where that was measured.
    #[must_use]
    pub fn measured_on(&self, filesystem: FilesystemIx) -> Option<i64> {
        self.freed.iter().find(|freed| freed.filesystem == filesystem).map(|freed| freed.bytes)
    }

    /// What was freed differs from what was predicted by more than a filesystem's own noise.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.measured_bytes.is_some_and(|measured| differs(self.step.predicted_bytes(), measured))
    }

    /// What was measured tells of others, and not of this deletion.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        let predicted = self.step.predicted_bytes();
        self.measured_bytes.is_some_and(|measured| is_disturbed(predicted, measured, self.beside_bytes))
    }
}

/// Why a run ended before its plan did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    Signal,
    /// What is needed to prove a deletion cannot be had: nothing more is deleted.
    Unproven(Failure),
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The plan as it was carried out: what was deleted, what stayed, what failed.
    pub plan: Plan,
    /// What was deleted, in order.
    pub deletions: Vec<Deletion>,
    /// Leaks whose records were repaired.
    pub repaired: Vec<Target>,
    /// What each filesystem said before and after.
    pub before: Vec<Measured>,
    pub after: Vec<Measured>,
    pub stopped: Option<Stopped>,
}

impl Outcome {
    #[must_use]
    pub fn kind(&self) -> OutcomeKind {
        self.plan.outcome
    }

    /// Bytes freed, by what was removed in part as well.
    #[must_use]
    pub fn measured_bytes(&self) -> i64 {
        let whole = self.deletions.iter().filter_map(|one| one.measured_bytes);
        let parts = self.plan.problems.iter().filter_map(|problem: &Problem| problem.measured_bytes);
        whole.chain(parts).fold(0, i64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_of_others_where_the_filesystem_moved_without_the_deletion() {
        const KIB: i64 = 1024;
        const MIB: i64 = 1024 * KIB;
        const NOISE: u64 = NOISE_BYTES;
        for (predicted, measured, beside, expected) in [
            // Others wrote more than was freed, seen or not.
            (32 * MIB, -1, 0, true),
            (0, -4 * KIB, 0, true),
            // Far below and far above.
            (32 * MIB, 28 * MIB - 1, NOISE + 1, true),
            (32 * MIB, 36 * MIB + 1, NOISE + 1, true),
            (32 * MIB, 0, NOISE + 1, true),
            (0, MIB + 1, NOISE + 1, true),
            // Not far: an eighth, and 1 MiB.
            (32 * MIB, 28 * MIB, u64::MAX, false),
            (32 * MIB, 36 * MIB, u64::MAX, false),
            (MIB, 0, u64::MAX, false),
            (MIB, 2 * MIB, u64::MAX, false),
            // Nobody else was seen: it is the prediction that is wrong.
            (32 * MIB, 0, NOISE, false),
            (32 * MIB, 64 * MIB, 0, false),
            (i64::MAX, 0, u64::MAX, true),
        ] {
            let found = is_disturbed(predicted.unsigned_abs(), measured, beside);
            assert_eq!(found, expected, "{predicted} {measured} {beside}");
        }
    }

    #[test]
    fn noise_is_no_difference() {
        const KIB: u64 = 1024;
        for (predicted, measured, expected) in [
            (0, 0, false),
            (0, 65_536, false),
            (0, 65_537, true),
            (0, -65_537, true),
            (10 * KIB, 0, false),
            (1_000 * KIB * KIB, 991 * 1024 * 1024, false),
            (1_000 * KIB * KIB, 980 * 1024 * 1024, true),
            (u64::MAX, i64::MIN, true),
        ] {
            assert_eq!(differs(predicted, measured), expected, "{predicted} {measured}");
        }
    }
}
