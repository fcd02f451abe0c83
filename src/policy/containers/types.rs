//! Settings, input and verdicts of the container policies.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::ContainerState;
use crate::model::deletion::plan::Cause;
use crate::model::rules::{Rule, Ruling};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Minimum age. It counts from the exit of a container, or from its creation if it never ran; for a sandbox, from
    /// its creation.
    pub min_age: SignedDuration,
    /// Maximum number of exited containers kept per eviction unit (pod and container name); `None` for all.
    pub max_per_unit: Option<usize>,
    /// Maximum number of exited containers kept on the node; `None` for no limit.
    pub max_total: Option<usize>,
}

impl Default for ContainerPolicy {
    /// The kubelet's limits, with layersweep's minimum age.
    fn default() -> Self {
        Self { min_age: Self::MIN_AGE, max_per_unit: Some(1), max_total: None }
    }
}

impl ContainerPolicy {
    /// Default minimum age: an operator has at least this time to find out why a pod died, even after the pod is
    /// gone.
    pub const MIN_AGE: SignedDuration = SignedDuration::from_mins(5);

    /// Parses a limit in the kubelet's form: a negative number means no limit.
    #[must_use]
    pub fn limit(number: i64) -> Option<usize> {
        usize::try_from(number).ok()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    /// Uid of its pod according to the kubelet's label; empty if the kubelet did not make it.
    pub pod: String,
    pub name: String,
    /// Number of times it was recreated.
    pub attempt: u32,
    pub sandbox: String,
    pub state: ContainerState,
    pub created: Option<Timestamp>,
    pub died: Option<Timestamp>,
}

impl Container {
    /// Returns the time of exit if known, else the creation time (it never ran, or its end is unknown). `None` if it is
    /// running, or if neither time is known.
    #[must_use]
    pub fn dead_since(&self) -> Option<Timestamp> {
        match self.state {
            ContainerState::Running => None,
            // An exit before the start means that the clock was set back.
            ContainerState::Exited => self.died.max(self.created),
            ContainerState::Created | ContainerState::Unknown => self.created.max(self.died),
        }
    }

    /// Describes it for people: `web (attempt 2)`.
    #[must_use]
    pub fn describe(&self) -> String {
        let name = if self.name.is_empty() { &self.id } else { &self.name };
        match self.attempt {
            0 => name.clone(),
            attempt => format!("{name} (attempt {attempt})"),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    /// Uid of its pod according to the kubelet's label; empty if the kubelet did not make it.
    pub pod: String,
    /// Uid according to its own metadata, even if the kubelet did not make it.
    pub uid: String,
    pub created: Option<Timestamp>,
    pub ready: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Uids of the pods whose content may be deleted.
    pub gone: HashSet<String>,
    /// Reason why they are unknown; then no pod is treated as deleted.
    pub unknown: Option<String>,
}

impl Pods {
    /// Returns whether the pod is proven to be deleted.
    #[must_use]
    pub fn is_gone(&self, uid: &str) -> bool {
        self.unknown.is_none() && !uid.is_empty() && self.gone.contains(uid)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub id: String,
    pub cause: Cause,
    /// Stop it first, and keep it if that fails. True for every sandbox, and for a container whose state is unknown.
    pub stop_first: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    pub to_delete: Vec<Removal>,
    /// Kept objects by id, with the ruling.
    pub kept: Vec<(String, Ruling)>,
    /// Number of objects above the total limit that rules keep.
    pub over_total: usize,
}

impl Verdicts {
    #[must_use]
    pub fn deletes(&self, id: &str) -> Option<&Removal> {
        self.to_delete.iter().find(|removal| removal.id == id)
    }

    pub(super) fn keep(&mut self, id: &str, rule: Rule, detail: impl Into<String>) {
        self.kept.push((id.to_owned(), Ruling::keeps(rule, detail)));
    }
}
