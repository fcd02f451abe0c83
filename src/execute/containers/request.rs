//! What is asked of a collection of containers: its scope, its stages, and what it takes through a runtime.

use crate::cri::{Client, StorePlace};
use crate::node::places::KubeletPlaces;
use crate::policy::containers::ContainerPolicy;
use crate::stores::ScanRequest;

/// What to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Containers and sandboxes.
    pub containers: bool,
    /// Logs of pods.
    pub logs: bool,
}

/// The kubelet's three phases, which are ours too: what one removes, the next finds gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Containers,
    Sandboxes,
    Logs,
}

impl Stage {
    pub(super) const ALL: [Self; 3] = [Self::Containers, Self::Sandboxes, Self::Logs];

    pub(super) fn is_in(self, scope: Scope) -> bool {
        match self {
            Self::Containers | Self::Sandboxes => scope.containers,
            Self::Logs => scope.logs,
        }
    }
}

/// Which containers, sandboxes and logs to collect through a runtime, and with what.
pub struct CriContainers<'a> {
    pub client: &'a Client,
    /// Which store it serves.
    pub place: &'a StorePlace,
    /// How to look at the disk again.
    pub request: &'a ScanRequest,
    /// What the kubelet keeps where.
    pub places: &'a KubeletPlaces,
    pub policy: &'a ContainerPolicy,
    pub scope: Scope,
}

impl std::fmt::Debug for CriContainers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CriContainers").field("policy", &self.policy).finish_non_exhaustive()
    }
}
