//! What the policies decide on, and what they say.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::model::ContainerState;
use crate::model::plan::Cause;
use crate::model::rules::Rule;

/// A container of CRI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Uid of its pod by the kubelet's label; empty where the kubelet did not make it.
    pub pod: String,
    /// Its name in the pod.
    pub name: String,
    /// How often it was made again.
    pub attempt: u32,
    /// The sandbox it lives in.
    pub sandbox: String,
    /// What it is doing.
    pub state: ContainerState,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// When it ended, if it has and somebody knows.
    pub died: Option<Timestamp>,
}

impl Container {
    /// Since when it has been dead, as far as that is known: its death, or its making if it
    /// has never run or nobody knows what became of it.
    #[must_use]
    pub fn dead_since(&self) -> Option<Timestamp> {
        match self.state {
            ContainerState::Running => None,
            // An end before the beginning is a clock that was set back.
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
    /// Its id.
    pub id: String,
    /// Uid of its pod by the kubelet's label; empty where the kubelet did not make it.
    pub pod: String,
    /// Uid by its own metadata, whoever made it.
    pub uid: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// It runs.
    pub ready: bool,
}

/// What is known of the pods that containers, sandboxes and logs belong to, by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// It is known which pods there are; if not, none counts as gone.
    pub sources_ready: bool,
    /// Their content may go: the pod is no more.
    pub content_removable: HashSet<String>,
    /// Their runtime part may go under pressure: all of it has ended.
    pub runtime_removable: HashSet<String>,
}

impl Pods {
    /// It is proven that there is no such pod any more.
    #[must_use]
    pub fn is_gone(&self, uid: &str) -> bool {
        self.sources_ready && !uid.is_empty() && self.content_removable.contains(uid)
    }

    /// The kubelet's word for what may be removed whole.
    pub(super) fn is_removable(&self, uid: &str, under_pressure: bool) -> bool {
        self.content_removable.contains(uid) || (under_pressure && self.runtime_removable.contains(uid))
    }
}

/// Something that is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Id of the container or sandbox.
    pub id: String,
    /// Why.
    pub cause: Cause,
    /// Nobody knows whether it runs: it is stopped first, and stays if that fails.
    pub stop_first: bool,
}

/// Something that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Id of the container or sandbox, path of a log.
    pub id: String,
    /// The rule that keeps it, in kebab case.
    pub rule: Rule,
    /// Why, in words.
    pub detail: String,
}

/// What a policy says of all containers, or of all sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// What goes, in order.
    pub goes: Vec<Removal>,
    /// What stays.
    pub kept: Vec<Kept>,
    /// So many more stay than the total limit allows, since rules keep them.
    pub over_total: usize,
}

impl Verdicts {
    /// Whether this one is to go.
    #[must_use]
    pub fn takes(&self, id: &str) -> Option<&Removal> {
        self.goes.iter().find(|removal| removal.id == id)
    }

    pub(super) fn keep(&mut self, id: &str, rule: Rule, detail: impl Into<String>) {
        self.kept.push(Kept { id: id.to_owned(), rule, detail: detail.into() });
    }
}
