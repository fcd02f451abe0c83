//! The kubelet's container collection, unchanged: its floor deletes more than the total limit asks for,
//! and ages count from creation. The state of Kubernetes 1.30 and later; `fixtures/kubelet-gc.json`
//! holds the rows that it must pass. Pure.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::model::ContainerState;
use crate::model::plan::Cause;
use crate::model::rules::Rule;
use crate::policy::containers::ContainerPolicy;
use crate::policy::containers::{Container, Pods, Removal, Sandbox, Verdicts};

/// Which containers go. What fails later counts as removed all the same, so all of it is known
/// beforehand.
#[must_use]
pub fn containers(all: &[Container], pods: &Pods, policy: &ContainerPolicy, now: Timestamp) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let mut units = units(all, policy, now, &mut verdicts);
    let mut to_delete = Vec::new();
    units.retain_mut(|unit| {
        let gone = unit.first().is_some_and(|one| pods.is_gone(&one.pod));
        if gone {
            remove_oldest(unit, usize::MAX, Cause::PodGone, &mut to_delete);
        }
        !gone
    });
    if let Some(most) = policy.max_per_unit {
        for unit in &mut units {
            let surplus = unit.len().saturating_sub(most);
            remove_oldest(unit, surplus, Cause::PerUnit, &mut to_delete);
        }
    }
    let standing = |units: &[Vec<&Container>]| units.iter().map(Vec::len).sum::<usize>();
    if let Some(most) = policy.max_total.filter(|most| standing(&units) > *most) {
        let each = (most / units.len().max(1)).max(1);
        for unit in &mut units {
            let surplus = unit.len().saturating_sub(each);
            remove_oldest(unit, surplus, Cause::Total, &mut to_delete);
        }
        let surplus = standing(&units).saturating_sub(most);
        if surplus > 0 {
            let mut all: Vec<_> = units.drain(..).flatten().collect();
            newest_first(&mut all);
            remove_oldest(&mut all, surplus, Cause::Total, &mut to_delete);
            units.push(all);
        }
    }
    verdicts.to_delete = to_delete;
    for one in units.into_iter().flatten() {
        verdicts.keep(&one.id, Rule::WithinLimits, "within the limits");
    }
    verdicts
}

/// Containers that are not running and old enough, by pod and container name.
fn units<'a>(
    all: &'a [Container],
    policy: &ContainerPolicy,
    now: Timestamp,
    verdicts: &mut Verdicts,
) -> Vec<Vec<&'a Container>> {
    let newest = now.saturating_sub(policy.min_age).unwrap_or(Timestamp::MIN);
    let mut positions: HashMap<(&str, &str), usize> = HashMap::new();
    let mut units: Vec<Vec<&Container>> = Vec::new();
    for one in all {
        if one.state == ContainerState::Running {
            verdicts.keep(&one.id, Rule::Running, "it is running");
        } else if one.created.is_some_and(|created| created > newest) {
            verdicts.keep(&one.id, Rule::MinAge, "created less than the minimum age ago");
        } else {
            let position = *positions.entry((&one.pod, &one.name)).or_insert(units.len());
            match units.get_mut(position) {
                Some(unit) => unit.push(one),
                None => units.push(vec![one]),
            }
        }
    }
    units
}

fn newest_first(unit: &mut [&Container]) {
    unit.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.id.cmp(&b.id)));
}

/// Takes the oldest `count` off the end. A unit that goes as a whole is not sorted before.
fn remove_oldest(unit: &mut Vec<&Container>, count: usize, cause: Cause, to_delete: &mut Vec<Removal>) {
    let stay = unit.len().saturating_sub(count);
    if count == 0 {
        return;
    }
    if stay > 0 {
        newest_first(unit);
    }
    for one in unit.drain(stay..).rev() {
        let stop_first = one.state == ContainerState::Unknown;
        to_delete.push(Removal { id: one.id.clone(), cause, stop_first });
    }
}

/// Which sandboxes go. `occupied` tells whether a container, dead or alive, is in one.
#[must_use]
pub fn sandboxes(all: &[Sandbox], occupied: impl Fn(&str) -> bool, pods: &Pods) -> Verdicts {
    let mut positions: HashMap<&str, usize> = HashMap::new();
    let mut by_pod: Vec<Vec<&Sandbox>> = Vec::new();
    for one in all {
        let position = *positions.entry(&one.uid).or_insert(by_pod.len());
        match by_pod.get_mut(position) {
            Some(pod) => pod.push(one),
            None => by_pod.push(vec![one]),
        }
    }
    let mut verdicts = Verdicts::default();
    for pod in &mut by_pod {
        pod.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.id.cmp(&b.id)));
        let gone = pod.first().is_some_and(|one| pods.is_gone(&one.uid));
        for (at, one) in pod.iter().enumerate().rev() {
            if one.ready {
                verdicts.keep(&one.id, Rule::Ready, "it is running");
            } else if occupied(&one.id) {
                verdicts.keep(&one.id, Rule::HasContainers, "it still has a container");
            } else if at == 0 && !gone {
                verdicts.keep(&one.id, Rule::Newest, "it is the newest of its pod");
            } else {
                let cause = if gone { Cause::PodGone } else { Cause::Replaced };
                verdicts.to_delete.push(Removal { id: one.id.clone(), cause, stop_first: true });
            }
        }
    }
    verdicts
}
