//! Parts of the kubelet that layersweep does not use: its loops with their periods, the checks of the collector's
//! constructor, and a feature gate of older releases.

use jiff::SignedDuration;
use layersweep::policy::kubelet::KubeletPolicy;

/// Period of the loop that only detects images.
pub const IMAGE_DETECT_PERIOD: SignedDuration = SignedDuration::from_mins(5);
/// Period of the loop that lists images for the node's status.
pub const IMAGE_LIST_PERIOD: SignedDuration = SignedDuration::from_secs(30);
/// Period of container collection.
pub const CONTAINER_GC_PERIOD: SignedDuration = SignedDuration::from_mins(1);
/// Period of the eviction manager.
pub const EVICTION_PERIOD: SignedDuration = SignedDuration::from_secs(10);

/// Error of the collector's constructor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyFault {
    HighOutOfRange,
    LowOutOfRange,
    LowAboveHigh,
}

/// Checks a policy like the collector's constructor: less strictly than the configuration check, and only the first
/// error is reported.
pub fn check(policy: &KubeletPolicy) -> Result<(), PolicyFault> {
    let (high, low) = (policy.high_percent, policy.low_percent);
    if !(0..=100).contains(&high) {
        return Err(PolicyFault::HighOutOfRange);
    }
    if !(0..=100).contains(&low) {
        return Err(PolicyFault::LowOutOfRange);
    }
    if low > high {
        return Err(PolicyFault::LowAboveHigh);
    }
    Ok(())
}

/// A maximum age needs the feature gate `ImageMaximumGCAge`, which is always on since 1.35.
pub fn lacks_gate(policy: &KubeletPolicy, max_age_gate: bool) -> bool {
    !policy.max_age.is_zero() && !max_age_gate
}

/// Returns the loops that the kubelet starts with a policy.
pub fn loops(policy: &KubeletPolicy) -> Loops {
    let never = policy.high_percent == 100 && policy.max_age.is_zero();
    Loops { collection: !never, detection: true }
}

/// Loops that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops {
    /// The loop that deletes.
    pub collection: bool,
    /// The loop that detects.
    pub detection: bool,
}
