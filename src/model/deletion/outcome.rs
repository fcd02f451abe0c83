//! Actions of a run, and its end.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::model::deletion::outcome_kind::OutcomeKind;
use crate::model::deletion::plan::{Failure, FilesystemPlan, Plan, Problem, Step, Target};
use crate::model::ids::FilesystemIx;
use crate::model::space::{Measured, Started};
use crate::model::text::display::two_decimals;

/// Largest difference between prediction and measurement that is always insignificant. The journal and trees of a
/// filesystem change by this much even if nothing is deleted.
pub const NOISE_BYTES: u64 = 64 * 1024;

/// Returns the largest insignificant difference between a prediction and its measurement, in bytes: one percent,
/// but at least 2 × [`NOISE_BYTES`], since btrfs has its trees in blocks of 16 KiB, all of them twice.
#[must_use]
pub fn tolerance(predicted_bytes: u64) -> u64 {
    (predicted_bytes / 100).max(2 * NOISE_BYTES)
}

/// Returns whether the freed bytes differ significantly from the prediction; see [`tolerance`].
#[must_use]
pub fn differs(predicted_bytes: u64, measured_bytes: i64) -> bool {
    let off = (i128::from(measured_bytes) - i128::from(predicted_bytes)).unsigned_abs();
    off > u128::from(tolerance(predicted_bytes))
}

/// Returns whether other processes that wrote or deleted meanwhile spoiled a measurement. This is so if less than
/// nothing was freed. It is also so if the measurement differs from the prediction by more than an eighth and more
/// than 1 MiB, on a filesystem that changed by more than noise (`beside_bytes`) without the deletion.
#[must_use]
pub fn is_disturbed(predicted_bytes: u64, measured_bytes: i64, beside_bytes: u64) -> bool {
    let off = (i128::from(measured_bytes) - i128::from(predicted_bytes)).unsigned_abs();
    let is_far = off > u128::from((predicted_bytes / 8).max(1 << 20));
    measured_bytes < 0 || is_far && beside_bytes > NOISE_BYTES
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deletion {
    /// Reason and expectation. The target is as it was right before the deletion.
    pub step: Step,
    /// Time of the deletion (UTC).
    pub at: Timestamp,
    /// Bytes freed on the filesystems that were expected to free something, without [`Self::byproduct_bytes`].
    /// Negative if other processes wrote more meanwhile. `None` if it was not measured, or a signal ended the wait.
    pub measured_bytes: Option<i64>,
    /// Bytes by which the free space of these filesystems changed without this deletion, as far as observed: in
    /// either direction right before it, and downwards during the wait for its bytes.
    #[serde(default)]
    pub beside_bytes: u64,
    /// Bytes of leaks that were deleted with it (containerd's garbage collection runs after it).
    pub byproduct_bytes: u64,
    /// Used percentage, after the deletion, of the filesystem that it was done for. If it was done for none: of the
    /// first filesystem on which it freed something.
    pub usage_after_percent: Option<f64>,
    /// [`Self::measured_bytes`] by filesystem, without logs. Empty if they are `None`.
    #[serde(default)]
    pub freed: Vec<FreedOn>,
    /// A signal ended the deletion when the object was gone, but not all that it held: the next run deletes the rest.
    #[serde(default)]
    pub is_cut_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreedOn {
    pub filesystem: FilesystemIx,
    /// Bytes; negative if other processes wrote more meanwhile.
    pub bytes: i64,
    /// Percentage used afterwards.
    pub usage_after_percent: Option<f64>,
}

impl Deletion {
    /// Returns the bytes freed on one filesystem, if measured.
    #[must_use]
    pub fn measured_on(&self, filesystem: FilesystemIx) -> Option<i64> {
        self.freed.iter().find(|freed| freed.filesystem == filesystem).map(|freed| freed.bytes)
    }

    /// Returns whether the freed bytes differ significantly from the prediction.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.measured_bytes.is_some_and(|measured| differs(self.step.predicted_bytes(), measured))
    }

    /// Returns whether other processes spoiled the measurement; see [`is_disturbed`].
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        let predicted = self.step.predicted_bytes();
        self.measured_bytes.is_some_and(|measured| is_disturbed(predicted, measured, self.beside_bytes))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    Signal,
    /// The proof of a deletion needs something that is not available: nothing more is deleted.
    Unproven(Failure),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The plan as it was carried out, with deleted, kept and failed objects.
    pub plan: Plan,
    pub deletions: Vec<Deletion>,
    pub repaired: Vec<Target>,
    pub before: Vec<Measured>,
    pub after: Vec<Measured>,
    pub stopped: Option<Stopped>,
}

impl Outcome {
    #[must_use]
    pub fn kind(&self) -> OutcomeKind {
        self.plan.outcome
    }

    /// Returns the change of each filesystem of the plan.
    #[must_use]
    pub fn usage_changes(&self) -> Vec<UsageChange> {
        let changes = self.plan.filesystems.iter().map(|plan| {
            let position = plan.filesystem.get();
            let (before, after) = (self.before.get(position), self.after.get(position));
            let measured = self.deletions.iter().filter_map(|deletion| deletion.measured_on(plan.filesystem));
            let measured_bytes = Some(measured.fold(0, i64::saturating_add));
            UsageChange { measured_bytes, ..UsageChange::new(&self.plan, plan, before, after) }
        });
        changes.collect()
    }

    /// Returns the bytes freed, including those of objects that were removed only in part.
    #[must_use]
    pub fn measured_bytes(&self) -> i64 {
        let whole = self.deletions.iter().filter_map(|deletion| deletion.measured_bytes);
        let parts = self.plan.problems.iter().filter_map(|problem: &Problem| problem.measured_bytes);
        whole.chain(parts).fold(0, i64::saturating_add)
    }
}

/// Filesystem of a run, before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "UsageChangeDoc"))]
pub struct UsageChange {
    /// Mount point.
    pub mount: String,
    /// Targets that were missed at the start: `used`, `free`, `inodes`.
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    pub started: Started,
    /// Percentage used before the first deletion; null if the filesystem's numbers are invalid.
    pub usage_before_percent: Option<f64>,
    /// Percentage used after the last deletion; for a dry run, predicted; null for a run that did not end.
    pub usage_after_percent: Option<f64>,
    /// Bytes freed here by the deletions, as far as measured; null for a dry run, and for a run that did not end.
    pub measured_bytes: Option<i64>,
}

impl UsageChange {
    #[must_use]
    pub fn new(
        plan: &Plan,
        filesystem: &FilesystemPlan,
        before: Option<&Measured>,
        after: Option<&Measured>,
    ) -> Self {
        let percent =
            |measured: Option<&Measured>| Some(two_decimals(measured?.as_ref().ok()?.used_percent()));
        let mount = plan.mounts.get(filesystem.filesystem.get());
        Self {
            mount: mount.map_or_else(String::new, |mount| mount.to_string_lossy().into_owned()),
            started: filesystem.started,
            usage_before_percent: percent(before),
            usage_after_percent: percent(after),
            measured_bytes: None,
        }
    }

    /// Returns the filesystems that were short of space or on which a run freed some; without any, the first.
    #[must_use]
    pub fn notable(all: &[Self]) -> Vec<&Self> {
        let is_notable =
            |change: &&Self| change.started.any() || change.measured_bytes.is_some_and(|bytes| bytes != 0);
        let notable: Vec<_> = all.iter().filter(is_notable).collect();
        if notable.is_empty() { all.first().into_iter().collect() } else { notable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurement_is_disturbed_if_other_processes_write() {
        const KIB: i64 = 1024;
        const MIB: i64 = 1024 * KIB;
        const NOISE: u64 = NOISE_BYTES;
        for (predicted, measured, beside, expected) in [
            // Other processes wrote more than was freed, with or without an observed change.
            (32 * MIB, -1, 0, true),
            (0, -4 * KIB, 0, true),
            // Far below and far above the prediction.
            (32 * MIB, 28 * MIB - 1, NOISE + 1, true),
            (32 * MIB, 36 * MIB + 1, NOISE + 1, true),
            (32 * MIB, 0, NOISE + 1, true),
            (0, MIB + 1, NOISE + 1, true),
            // Close to it: within an eighth, or 1 MiB.
            (32 * MIB, 28 * MIB, u64::MAX, false),
            (32 * MIB, 36 * MIB, u64::MAX, false),
            (MIB, 0, u64::MAX, false),
            (MIB, 2 * MIB, u64::MAX, false),
            // No other process was observed: the prediction is wrong.
            (32 * MIB, 0, NOISE, false),
            (32 * MIB, 64 * MIB, 0, false),
            (i64::MAX, 0, u64::MAX, true),
        ] {
            let found = is_disturbed(predicted.unsigned_abs(), measured, beside);
            assert_eq!(found, expected, "{predicted} {measured} {beside}");
        }
    }

    #[test]
    fn noise_is_not_a_difference() {
        const KIB: u64 = 1024;
        for (predicted, measured, expected) in [
            (0, 0, false),
            (0, 131_072, false),
            (0, 131_073, true),
            (0, -131_073, true),
            (10 * KIB, 0, false),
            (1_000 * KIB * KIB, 991 * 1024 * 1024, false),
            (1_000 * KIB * KIB, 980 * 1024 * 1024, true),
            (u64::MAX, i64::MIN, true),
        ] {
            assert_eq!(differs(predicted, measured), expected, "{predicted} {measured}");
        }
    }
}
