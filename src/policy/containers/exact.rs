//! Policy `exact` for dead containers and sandboxes. Pure.
//!
//! It differs from the kubelet where the kubelet is known to do harm, or does not do what its settings say. Ages of
//! containers count from exit, ages of sandboxes from creation. The total limit is met exactly, unless rules keep too
//! many containers: containers are deleted from the units with the most dead containers first. While a pod is running,
//! the newest exited instance of each container that is not running now is kept. Without it, the kubelet would assume
//! that the container has not run yet, and run it again.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::model::ContainerState;
use crate::model::deletion::plan::Cause;
use crate::model::rules::{Rule, Ruling};
use crate::policy::containers::types::ContainerPolicy;
use crate::policy::containers::types::{Container, Pods, Removal, Sandbox, Verdicts};

#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// All containers; exited ones with their time of exit.
    pub containers: &'a [Container],
    pub sandboxes: &'a [Sandbox],
    pub pods: &'a Pods,
    pub policy: &'a ContainerPolicy,
    pub now: Timestamp,
}

struct LimitedContainer<'a> {
    container: &'a Container,
    /// Rule that protects it: a limit must not delete it. It still counts for the limits.
    kept: Option<Ruling>,
}

impl LimitedContainer<'_> {
    fn since(&self) -> (Option<Timestamp>, u32, &str) {
        (self.container.dead_since(), self.container.attempt, &self.container.id)
    }
}

/// Decides about the dead containers, the earliest exit first.
#[must_use]
pub fn containers(input: Input<'_>) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let ready: HashSet<&str> = input
        .sandboxes
        .iter()
        .filter(|container| container.ready)
        .map(|container| container.id.as_str())
        .collect();
    let running: HashSet<_> = input
        .containers
        .iter()
        .filter(|container| container.state == ContainerState::Running)
        .map(unit_of)
        .collect();
    let mut units: HashMap<(&str, &str), Vec<LimitedContainer<'_>>> = HashMap::new();
    let mut to_delete: Vec<(&Container, Cause)> = Vec::new();
    for container in input.containers {
        if container.state == ContainerState::Running {
            verdicts.keep(&container.id, Rule::Running, "it is running");
            continue;
        }
        let young = too_young(input, container.dead_since(), "dead");
        if input.pods.is_gone(&container.pod) {
            match young {
                Some(ruling) => verdicts.kept.push((container.id.clone(), ruling)),
                None => to_delete.push((container, Cause::PodGone)),
            }
        } else if container.state == ContainerState::Created && ready.contains(container.sandbox.as_str()) {
            verdicts.keep(&container.id, Rule::Starting, "it has not started yet, and its pod is running");
        } else {
            units.entry(unit_of(container)).or_default().push(LimitedContainer { container, kept: young });
        }
    }
    let mut units: Vec<_> = units.into_iter().collect();
    units.sort_by_key(|(unit, _)| *unit);
    for (unit, dead) in &mut units {
        dead.sort_by(|a, b| b.since().cmp(&a.since()));
        if let Some(newest) = dead.first_mut()
            && newest.kept.is_none()
            && !running.contains(unit)
            && ready.contains(newest.container.sandbox.as_str())
        {
            let detail = "the kubelet needs it to know that the container has run: its pod is running";
            newest.kept = Some(Ruling::keeps(Rule::Needed, detail));
        }
        let limit = input.policy.max_per_unit.unwrap_or(usize::MAX);
        let mut position = 0;
        dead.retain(|candidate| {
            position += 1;
            let is_deleted = position > limit && candidate.kept.is_none();
            if is_deleted {
                to_delete.push((candidate.container, Cause::PerUnit));
            }
            !is_deleted
        });
    }
    let mut units: Vec<Vec<LimitedContainer<'_>>> = units.into_iter().map(|(_, dead)| dead).collect();
    if let Some(limit) = input.policy.max_total {
        verdicts.over_total = meet_total(&mut units, limit, &mut to_delete);
    }
    for candidate in units.into_iter().flatten() {
        match candidate.kept {
            Some(ruling) => verdicts.kept.push((candidate.container.id.clone(), ruling)),
            None => verdicts.keep(&candidate.container.id, Rule::WithinLimits, within(input.policy)),
        }
    }
    to_delete
        .sort_by_key(|(container, _)| (container.dead_since(), container.attempt, container.id.as_str()));
    let removals = to_delete.into_iter().map(|(container, cause)| Removal {
        id: container.id.clone(),
        cause,
        stop_first: container.state == ContainerState::Unknown,
    });
    verdicts.to_delete = removals.collect();
    verdicts
}

/// Returns the kubelet's unit; a container that the kubelet did not make belongs to its sandbox.
fn unit_of(container: &Container) -> (&str, &str) {
    let pod = if container.pod.is_empty() { &container.sandbox } else { &container.pod };
    (pod, &container.name)
}

fn within(policy: &ContainerPolicy) -> String {
    match policy.max_per_unit {
        None => "no limit is set for the exited instances of a container".into(),
        Some(limit) => format!("among the newest {limit} of its container"),
    }
}

/// Returns the rule that keeps an object which has been in a state (exited, existing) since `since`.
fn too_young(input: Input<'_>, since: Option<Timestamp>, state: &str) -> Option<Ruling> {
    let Some(since) = since else {
        return Some(Ruling::keeps(Rule::AgeUnknown, format!("unknown how long it has been {state}")));
    };
    // If the clock was set back, `since` may be in the future: the age is then negative, and the object is too young.
    (input.now.duration_since(since) < input.policy.min_age)
        .then(|| Ruling::keeps(Rule::MinAge, format!("it has been {state} for less than the minimum age")))
}

/// Deletes the oldest containers of the units with the most containers until at most `limit` are left. Returns the
/// number of containers that are left above the limit.
fn meet_total<'a>(
    units: &mut [Vec<LimitedContainer<'a>>],
    limit: usize,
    to_delete: &mut Vec<(&'a Container, Cause)>,
) -> usize {
    let mut remaining: usize = units.iter().map(Vec::len).sum();
    while remaining > limit {
        let candidates = units.iter().enumerate().filter_map(|(unit_ix, unit)| {
            let position = unit.iter().rposition(|candidate| candidate.kept.is_none())?;
            Some((Reverse(unit.len()), unit[position].since(), unit_ix, position))
        });
        let Some((_, _, unit_ix, position)) = candidates.min() else { break };
        to_delete.push((units[unit_ix].remove(position).container, Cause::Total));
        remaining -= 1;
    }
    remaining.saturating_sub(limit)
}

/// Decides about the sandboxes. `occupied` returns whether a container, dead or alive, is in a sandbox.
#[must_use]
pub fn sandboxes(input: Input<'_>, occupied: impl Fn(&str) -> bool) -> Verdicts {
    let mut newest: HashMap<&str, (Option<Timestamp>, &str)> = HashMap::new();
    for sandbox in input.sandboxes {
        let of_pod = newest.entry(pod_of(sandbox)).or_default();
        *of_pod = (*of_pod).max((sandbox.created, &sandbox.id));
    }
    let mut verdicts = Verdicts::default();
    let mut to_delete: Vec<(&Sandbox, Cause)> = Vec::new();
    for sandbox in input.sandboxes {
        let gone = input.pods.is_gone(&sandbox.pod);
        if sandbox.ready {
            verdicts.keep(&sandbox.id, Rule::Ready, "it is running");
        } else if occupied(&sandbox.id) {
            verdicts.keep(&sandbox.id, Rule::HasContainers, "it still has a container");
        } else if let Some(ruling) = too_young(input, sandbox.created, "there") {
            verdicts.kept.push((sandbox.id.clone(), ruling));
        } else if gone {
            to_delete.push((sandbox, Cause::PodGone));
        } else if newest.get(pod_of(sandbox)).is_some_and(|(_, id)| *id == sandbox.id) {
            verdicts.keep(&sandbox.id, Rule::Newest, "it is the newest of its pod");
        } else {
            to_delete.push((sandbox, Cause::Replaced));
        }
    }
    to_delete.sort_by_key(|(sandbox, _)| (sandbox.created, sandbox.id.as_str()));
    let removals = to_delete.into_iter().map(|(sandbox, cause)| Removal {
        id: sandbox.id.clone(),
        cause,
        stop_first: true,
    });
    verdicts.to_delete = removals.collect();
    verdicts
}

/// Returns the pod of a sandbox. A sandbox that the kubelet did not make is its own pod.
fn pod_of(sandbox: &Sandbox) -> &str {
    if sandbox.pod.is_empty() { &sandbox.id } else { &sandbox.pod }
}
