//! The kubelet's settings, and what it accepts of them.

use jiff::SignedDuration;

use crate::model::space::Space;

/// The collection loop; the first run is at once.
pub const IMAGE_GC_PERIOD: SignedDuration = SignedDuration::from_mins(5);

/// The image collection policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletPolicy {
    /// `imageGCHighThresholdPercent`: collection starts at this percentage; the percentage is rounded up before.
    pub high_percent: i64,
    /// `imageGCLowThresholdPercent`: it ends when listed sizes of so much have been deleted that this would be
    /// reached.
    pub low_percent: i64,
    /// `imageMinimumGCAge`, since first detection; in the space pass only.
    pub min_age: SignedDuration,
    /// `imageMaximumGCAge`, since last use; zero is off.
    pub max_age: SignedDuration,
    /// Images are known by id and runtime handler (the feature gate `RuntimeClassInImageCriApi`, off by
    /// default).
    pub by_handler: bool,
}

impl KubeletPolicy {
    /// Whether the low threshold is reached by what the disk says, which the kubelet does not ask again.
    #[must_use]
    pub fn is_at_low(&self, space: &Space) -> bool {
        i128::from(space.available_bytes) * 100
            >= i128::from(space.capacity_bytes) * i128::from(100 - self.low_percent)
    }

    /// What the kubelet does not accept, in the order of its checks. The sign of the minimum age is not checked.
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
        checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, fault)| fault).collect()
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

/// What the kubelet does not accept in its configuration.
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

/// Which failing runs the node hears of: `ImageGCFailed` from the second in a row on, since the
/// first at start is normal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureStreak {
    failed_before: bool,
}

impl FailureStreak {
    /// Records a run; returns whether its failure is to be reported.
    pub fn reports(&mut self, failed: bool) -> bool {
        std::mem::replace(&mut self.failed_before, failed) && failed
    }
}
