//! Settings, input and verdicts of the container policies.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};

use crate::model::ContainerState;
use crate::model::plan::Cause;
use crate::model::rules::{Rule, Ruling};

/// Limits for exited containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerPolicy {
    /// Minimum age, counted from exit.
    pub min_age: SignedDuration,
    /// Exited containers kept per eviction unit (pod and container name); `None`: all.
    pub max_per_unit: Option<usize>,
    /// Exited containers kept on the node; `None`: no limit.
    pub max_total: Option<usize>,
}

impl Default for ContainerPolicy {
    /// The kubelet's limits with a minimum age of its own.
    fn default() -> Self {
        Self { min_age: Self::MIN_AGE, max_per_unit: Some(1), max_total: None }
    }
}

impl ContainerPolicy {
    /// The minimum age. An operator has at least this long to find out why a pod died,
    /// also for pods that are gone.
    pub const MIN_AGE: SignedDuration = SignedDuration::from_mins(5);

    /// The kubelet's way to write limits: less than 0 is none.
    #[must_use]
    pub fn limit(number: i64) -> Option<usize> {
        usize::try_from(number).ok()
    }
}

/// A container of CRI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    /// Uid of its pod by the kubelet's label; empty where the kubelet did not make it.
    pub pod: String,
    /// Its name in the pod.
    pub name: String,
    /// How often it was recreated.
    pub attempt: u32,
    /// The sandbox it lives in.
    pub sandbox: String,
    pub state: ContainerState,
    pub created: Option<Timestamp>,
    /// When it exited, if known.
    pub died: Option<Timestamp>,
}

impl Container {
    /// When it exited, as far as known, else when it was created (it never ran, or its end is unknown).
    #[must_use]
    pub fn dead_since(&self) -> Option<Timestamp> {
        match self.state {
            ContainerState::Running => None,
            // An end before the start means that the clock was set back.
            ContainerState::Exited => self.died.max(self.created),
            ContainerState::Created | ContainerState::Unknown => self.created.max(self.died),
        }
    }

    /// For people: `web (attempt 2)`.
    #[must_use]
    pub fn describe(&self) -> String {
        let name = if self.name.is_empty() { &self.id } else { &self.name };
        match self.attempt {
            0 => name.clone(),
            attempt => format!("{name} (attempt {attempt})"),
        }
    }
}

/// A pod sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    /// Uid of its pod by the kubelet's label; empty where the kubelet did not make it.
    pub pod: String,
    /// Uid by its own metadata, also if the kubelet did not create it.
    pub uid: String,
    pub created: Option<Timestamp>,
    pub ready: bool,
}

/// Which pods are deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Uids of those that are: their content may go.
    pub gone: HashSet<String>,
    /// Why that is unknown, if so; then no pod is treated as deleted.
    pub unknown: Option<String>,
}

impl Pods {
    /// Whether the pod is proven to be deleted.
    #[must_use]
    pub fn is_gone(&self, uid: &str) -> bool {
        self.unknown.is_none() && !uid.is_empty() && self.gone.contains(uid)
    }
}

/// A container or sandbox to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Id of the container or sandbox.
    pub id: String,
    pub cause: Cause,
    /// Its state is unknown: it is stopped first, and stays if that fails.
    pub stop_first: bool,
}

/// The verdicts of a policy on all containers, or on all sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// What is deleted, in order.
    pub to_delete: Vec<Removal>,
    /// What stays, by id.
    pub kept: Vec<(String, Ruling)>,
    /// How many more than the total limit stay because rules keep them.
    pub over_total: usize,
}

impl Verdicts {
    /// Whether this one is to go.
    #[must_use]
    pub fn deletes(&self, id: &str) -> Option<&Removal> {
        self.to_delete.iter().find(|removal| removal.id == id)
    }

    pub(super) fn keep(&mut self, id: &str, rule: Rule, detail: impl Into<String>) {
        self.kept.push((id.to_owned(), Ruling::keeps(rule, detail)));
    }
}
