//! Policy `exact` for dead containers and sandboxes. Pure.
//!
//! It differs from the kubelet where the kubelet is known to do harm, or not what its settings
//! say: ages count from death; the total limit is met, not undershot, by taking from where most
//! stand; and of a pod that is still running, the newest end of a container is never taken, since
//! the kubelet would take the container for one that has not run yet, and run it again.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::model::ContainerState;
use crate::model::plan::Cause;
use crate::model::rules::{Rule, Ruling};
use crate::policy::containers::ContainerPolicy;
use crate::policy::containers::{Container, Pods, Removal, Sandbox, Verdicts};

#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// All containers, with the deaths of those that have ended.
    pub containers: &'a [Container],
    pub sandboxes: &'a [Sandbox],
    pub pods: &'a Pods,
    pub policy: &'a ContainerPolicy,
    /// The time that ages are counted to.
    pub now: Timestamp,
}

/// A dead container that a limit may take.
struct Candidate<'a> {
    container: &'a Container,
    /// A rule keeps it from the limits; it counts all the same.
    kept: Option<Ruling>,
}

impl Candidate<'_> {
    fn since(&self) -> (Option<Timestamp>, u32, &str) {
        (self.container.dead_since(), self.container.attempt, &self.container.id)
    }
}

/// Containers to delete, earliest exit first.
#[must_use]
pub fn containers(input: Input<'_>) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let ready: HashSet<&str> =
        input.sandboxes.iter().filter(|one| one.ready).map(|one| one.id.as_str()).collect();
    let running: HashSet<_> =
        input.containers.iter().filter(|one| one.state == ContainerState::Running).map(unit_of).collect();
    let mut units: HashMap<(&str, &str), Vec<Candidate<'_>>> = HashMap::new();
    let mut to_delete: Vec<(&Container, Cause)> = Vec::new();
    for one in input.containers {
        if one.state == ContainerState::Running {
            verdicts.keep(&one.id, Rule::Running, "it is running");
            continue;
        }
        let young = too_young(input, one.dead_since(), "dead");
        if input.pods.is_gone(&one.pod) {
            match young {
                Some(ruling) => verdicts.kept.push((one.id.clone(), ruling)),
                None => to_delete.push((one, Cause::PodGone)),
            }
        } else if one.state == ContainerState::Created && ready.contains(one.sandbox.as_str()) {
            verdicts.keep(&one.id, Rule::Starting, "it has not started yet, and its pod is running");
        } else {
            units.entry(unit_of(one)).or_default().push(Candidate { container: one, kept: young });
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
        let most = input.policy.max_per_unit.unwrap_or(usize::MAX);
        let mut position = 0;
        dead.retain(|one| {
            position += 1;
            let goes_now = position > most && one.kept.is_none();
            if goes_now {
                to_delete.push((one.container, Cause::PerUnit));
            }
            !goes_now
        });
    }
    let mut units: Vec<Vec<Candidate<'_>>> = units.into_iter().map(|(_, dead)| dead).collect();
    if let Some(most) = input.policy.max_total {
        verdicts.over_total = meet_total(&mut units, most, &mut to_delete);
    }
    for one in units.into_iter().flatten() {
        match one.kept {
            Some(ruling) => verdicts.kept.push((one.container.id.clone(), ruling)),
            None => verdicts.keep(&one.container.id, Rule::WithinLimits, within(input.policy)),
        }
    }
    to_delete.sort_by_key(|(one, _)| (one.dead_since(), one.attempt, one.id.as_str()));
    let removal = |(one, cause): (&Container, Cause)| Removal {
        id: one.id.clone(),
        cause,
        stop_first: one.state == ContainerState::Unknown,
    };
    verdicts.to_delete = to_delete.into_iter().map(removal).collect();
    verdicts
}

/// The kubelet's unit; a container that the kubelet did not make belongs to its sandbox.
fn unit_of(one: &Container) -> (&str, &str) {
    let pod = if one.pod.is_empty() { &one.sandbox } else { &one.pod };
    (pod, &one.name)
}

fn within(policy: &ContainerPolicy) -> String {
    match policy.max_per_unit {
        None => "no limit is set for the exited instances of a container".into(),
        Some(most) => format!("among the newest {most} of its container"),
    }
}

/// The rule that keeps something exited or existing since `since`.
fn too_young(input: Input<'_>, since: Option<Timestamp>, what: &str) -> Option<Ruling> {
    let Some(since) = since else {
        return Some(Ruling::keeps(Rule::AgeUnknown, format!("unknown how long it has been {what}")));
    };
    // A clock that was set back makes nothing older.
    (input.now.duration_since(since) < input.policy.min_age)
        .then(|| Ruling::keeps(Rule::MinAge, format!("it has been {what} for less than the minimum age")))
}

/// Deletes the oldest from the units with the most containers until at most `most` are left; returns how
/// many are left above that.
fn meet_total<'a>(
    units: &mut [Vec<Candidate<'a>>],
    most: usize,
    to_delete: &mut Vec<(&'a Container, Cause)>,
) -> usize {
    let mut standing: usize = units.iter().map(Vec::len).sum();
    while standing > most {
        let victims = units.iter().enumerate().filter_map(|(at, unit)| {
            let position = unit.iter().rposition(|one| one.kept.is_none())?;
            Some((Reverse(unit.len()), unit[position].since(), at, position))
        });
        let Some((_, _, at, position)) = victims.min() else { break };
        to_delete.push((units[at].remove(position).container, Cause::Total));
        standing -= 1;
    }
    standing.saturating_sub(most)
}

/// Which sandboxes go. `occupied` tells whether a container, dead or alive, is in one.
#[must_use]
pub fn sandboxes(input: Input<'_>, occupied: impl Fn(&str) -> bool) -> Verdicts {
    let mut newest: HashMap<&str, (Option<Timestamp>, &str)> = HashMap::new();
    for one in input.sandboxes {
        let of_pod = newest.entry(pod_of(one)).or_default();
        *of_pod = (*of_pod).max((one.created, &one.id));
    }
    let mut verdicts = Verdicts::default();
    let mut to_delete: Vec<(&Sandbox, Cause)> = Vec::new();
    for one in input.sandboxes {
        let gone = input.pods.is_gone(&one.pod);
        if one.ready {
            verdicts.keep(&one.id, Rule::Ready, "it is running");
        } else if occupied(&one.id) {
            verdicts.keep(&one.id, Rule::HasContainers, "it still has a container");
        } else if let Some(ruling) = too_young(input, one.created, "there") {
            verdicts.kept.push((one.id.clone(), ruling));
        } else if gone {
            to_delete.push((one, Cause::PodGone));
        } else if newest.get(pod_of(one)).is_some_and(|(_, id)| *id == one.id) {
            verdicts.keep(&one.id, Rule::Newest, "it is the newest of its pod");
        } else {
            to_delete.push((one, Cause::Replaced));
        }
    }
    to_delete.sort_by_key(|(one, _)| (one.created, one.id.as_str()));
    let removal = |(one, cause): (&Sandbox, Cause)| Removal { id: one.id.clone(), cause, stop_first: true };
    verdicts.to_delete = to_delete.into_iter().map(removal).collect();
    verdicts
}

/// What the kubelet did not make is alone.
fn pod_of(one: &Sandbox) -> &str {
    if one.pod.is_empty() { &one.id } else { &one.pod }
}
