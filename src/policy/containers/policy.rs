//! The settings of container collection.

use jiff::SignedDuration;

/// Whose rules decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decides {
    /// Ours.
    #[default]
    Exact,
    /// The kubelet's.
    Kubelet,
}

/// What is kept of the dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whose rules decide.
    pub decides: Decides,
    /// Nothing goes that is younger: counted from death by policy `exact`, from creation by
    /// policy `kubelet`.
    pub min_age: SignedDuration,
    /// So many dead containers of each eviction unit (pod and container name) stay; `None`: all.
    pub max_per_unit: Option<usize>,
    /// So many dead containers stay on the node; `None`: no limit.
    pub max_total: Option<usize>,
}

impl Default for Policy {
    /// The kubelet's limits with our minimum age.
    fn default() -> Self {
        Self { min_age: Self::MIN_AGE, decides: Decides::Exact, ..Self::kubelet() }
    }
}

impl Policy {
    /// The minimum age of policy `exact`. Somebody who looks why a pod has died has this long at
    /// least, also for pods that are gone.
    pub const MIN_AGE: SignedDuration = SignedDuration::from_mins(5);

    /// The kubelet's own settings.
    #[must_use]
    pub fn kubelet() -> Self {
        Self {
            decides: Decides::Kubelet,
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

    /// Whether the kubelet would start with it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), PolicyFault> {
        if self.min_age.is_negative() { Err(PolicyFault::NegativeMinAge) } else { Ok(()) }
    }
}

/// What is no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyFault {
    /// See text.
    #[error("the minimum age is negative")]
    NegativeMinAge,
}
