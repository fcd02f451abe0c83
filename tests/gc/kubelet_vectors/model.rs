//! What the kubelet has besides, and we have no use for: its loops with their periods, what the
//! collector's constructor checks, and a feature gate of older releases.

use jiff::SignedDuration;
use layersweep::policy::kubelet::KubeletPolicy;

/// The loop that only looks.
pub const IMAGE_DETECT_PERIOD: SignedDuration = SignedDuration::from_mins(5);
/// The loop that lists images for the node's status.
pub const IMAGE_LIST_PERIOD: SignedDuration = SignedDuration::from_secs(30);
/// Container collection.
pub const CONTAINER_GC_PERIOD: SignedDuration = SignedDuration::from_mins(1);
/// The eviction manager's look at the node.
pub const EVICTION_PERIOD: SignedDuration = SignedDuration::from_secs(10);

/// What the collector itself does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyFault {
    HighOutOfRange,
    LowOutOfRange,
    LowAboveHigh,
}

/// What the collector's constructor checks: laxer than the check of the configuration, and the first
/// fault only.
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

/// Which loops the kubelet starts with it.
pub fn loops(policy: &KubeletPolicy) -> Loops {
    let never = policy.high_percent == 100 && policy.max_age.is_zero();
    Loops { collection: !never, detection: true }
}

/// Which loops run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops {
    /// The one that deletes.
    pub collection: bool,
    /// The one that looks.
    pub detection: bool,
}
