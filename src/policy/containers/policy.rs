//! The settings of container collection.

use jiff::SignedDuration;

use crate::policy::PolicyKind;

/// Limits for exited containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerPolicy {
    pub decides: PolicyKind,
    /// Minimum age: counted from exit by policy `exact`, from creation by policy `kubelet`.
    pub min_age: SignedDuration,
    /// Exited containers kept per eviction unit (pod and container name); `None`: all.
    pub max_per_unit: Option<usize>,
    /// Exited containers kept on the node; `None`: no limit.
    pub max_total: Option<usize>,
}

impl Default for ContainerPolicy {
    /// The kubelet's limits with our minimum age.
    fn default() -> Self {
        Self { min_age: Self::MIN_AGE, decides: PolicyKind::Exact, ..Self::kubelet() }
    }
}

impl ContainerPolicy {
    /// The minimum age of policy `exact`. An operator has at least this long to find out why a pod died,
    /// also for pods that are gone.
    pub const MIN_AGE: SignedDuration = SignedDuration::from_mins(5);

    /// The kubelet's own settings.
    #[must_use]
    pub fn kubelet() -> Self {
        Self {
            decides: PolicyKind::Kubelet,
            min_age: SignedDuration::ZERO,
            max_per_unit: Some(1),
            max_total: None,
        }
    }

    /// The kubelet's way to write limits: less than 0 is none.
    #[must_use]
    pub fn limit(number: i64) -> Option<usize> {
        usize::try_from(number).ok()
    }
}
