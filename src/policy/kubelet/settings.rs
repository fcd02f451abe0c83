//! Settings of the kubelet, and the checks that it makes on them.

use jiff::SignedDuration;

use crate::model::space::Space;

/// Period of the collection loop; the first run is at once.
pub const IMAGE_GC_PERIOD: SignedDuration = SignedDuration::from_mins(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletPolicy {
    /// `imageGCHighThresholdPercent`: collection starts at this percentage; usage is rounded up before the
    /// comparison.
    pub high_percent: i64,
    /// `imageGCLowThresholdPercent`: collection ends when the listed sizes of the deleted images are enough to
    /// reach this percentage.
    pub low_percent: i64,
    /// `imageMinimumGCAge`, since first detection; only for the space pass.
    pub min_age: SignedDuration,
    /// `imageMaximumGCAge`, since last use; zero disables it.
    pub max_age: SignedDuration,
    /// Images are identified by id and runtime handler (the feature gate `RuntimeClassInImageCriApi`, disabled by
    /// default).
    pub by_handler: bool,
}

impl KubeletPolicy {
    /// Returns whether the disk has reached the low threshold. The kubelet does not measure this again.
    #[must_use]
    pub fn is_at_low(&self, space: &Space) -> bool {
        i128::from(space.available_bytes) * 100
            >= i128::from(space.capacity_bytes) * i128::from(100 - self.low_percent)
    }

    /// Returns the settings that the kubelet rejects, in the order of its checks. The sign of the minimum age is
    /// not checked.
    #[must_use]
    pub fn check(&self) -> Vec<ConfigFault> {
        let range = 0..=100;
        let zero = SignedDuration::ZERO;
        let checks = [
            (!range.contains(&self.high_percent), ConfigFault::HighOutOfRange),
            (!range.contains(&self.low_percent), ConfigFault::LowOutOfRange),
            (self.low_percent >= self.high_percent, ConfigFault::LowNotBelowHigh),
            (self.max_age < zero, ConfigFault::MaxAgeNegative),
            (self.max_age > zero && self.max_age <= self.min_age, ConfigFault::MaxAgeNotAboveMinAge),
        ];
        checks.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, fault)| fault).collect()
    }
}

impl Default for KubeletPolicy {
    fn default() -> Self {
        Self {
            high_percent: 85,
            low_percent: 80,
            min_age: SignedDuration::from_mins(2),
            max_age: SignedDuration::ZERO,
            by_handler: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigFault {
    #[error("the high threshold is not within 0 and 100")]
    HighOutOfRange,
    #[error("the low threshold is not within 0 and 100")]
    LowOutOfRange,
    #[error("the low threshold is not below the high threshold")]
    LowNotBelowHigh,
    #[error("the maximum age is negative")]
    MaxAgeNegative,
    #[error("the maximum age is not above the minimum age")]
    MaxAgeNotAboveMinAge,
}

/// Decides which failing runs the kubelet reports: `ImageGCFailed` from the second failure in a row, since a
/// failure of the first run after the start is normal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureStreak {
    failed_before: bool,
}

impl FailureStreak {
    /// Records a run, and returns whether its failure is reported.
    pub fn reports(&mut self, failed: bool) -> bool {
        std::mem::replace(&mut self.failed_before, failed) && failed
    }
}
