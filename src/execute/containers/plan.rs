//! Plans container collection from one listing.

use std::collections::BTreeSet;

use crate::execute::containers::files;
use crate::execute::containers::look::CriListing;
use crate::execute::containers::request::{CriContainers, Stage};
use crate::model::Plan;
use crate::model::plan::{Action, Kept, Step, Target, TargetKind};
use crate::policy::PolicyKind;
use crate::policy::containers::exact;
use crate::policy::containers::kubelet;
use crate::policy::containers::{Pods, Verdicts};

/// What a stage takes, as if all of `gone` were gone already.
pub(super) fn of(asked: &CriContainers<'_>, stage: Stage, seen: &CriListing, gone: &[Step]) -> Plan {
    let without: BTreeSet<&str> = gone.iter().map(|step| step.target.id.as_str()).collect();
    let mut plan = Plan { notes: pods_unknown(&seen.pods), ..Plan::default() };
    let names = |id: &str| seen.names_of(id);
    match stage {
        Stage::Containers => {
            take(&mut plan, TargetKind::Container, &containers(asked, seen), names);
            if asked.scope.logs {
                files::with_containers(asked, seen, &mut plan);
            }
        }
        Stage::Sandboxes => take(&mut plan, TargetKind::Sandbox, &sandboxes(asked, seen, &without), names),
        Stage::Logs => files::plan(asked, seen, &without, &mut plan),
    }
    plan
}

pub(super) fn containers(asked: &CriContainers<'_>, seen: &CriListing) -> Verdicts {
    containers_of(input(asked, seen))
}

pub(super) fn sandboxes(asked: &CriContainers<'_>, seen: &CriListing, without: &BTreeSet<&str>) -> Verdicts {
    sandboxes_of(input(asked, seen), without)
}

/// By the deciding policy.
pub(super) fn containers_of(input: exact::Input<'_>) -> Verdicts {
    match input.policy.decides {
        PolicyKind::Exact => exact::containers(input),
        PolicyKind::Kubelet => kubelet::containers(input.containers, input.pods, input.policy, input.now),
    }
}

/// By the deciding policy, as if the containers of `without` were gone.
pub(super) fn sandboxes_of(input: exact::Input<'_>, without: &BTreeSet<&str>) -> Verdicts {
    let occupied = |id: &str| {
        let mut containers = input.containers.iter();
        containers.any(|one| one.sandbox == id && !without.contains(one.id.as_str()))
    };
    match input.policy.decides {
        PolicyKind::Exact => exact::sandboxes(input, occupied),
        PolicyKind::Kubelet => kubelet::sandboxes(input.sandboxes, occupied, input.pods),
    }
}

fn input<'a>(asked: &'a CriContainers<'_>, seen: &'a CriListing) -> exact::Input<'a> {
    exact::Input {
        containers: &seen.containers,
        sandboxes: &seen.sandboxes,
        pods: &seen.pods,
        policy: asked.policy,
        // The runtime's clock, which its times are of.
        now: jiff::Timestamp::now(),
    }
}

/// Why no pod counts as gone, if so.
pub(super) fn pods_unknown(pods: &Pods) -> Vec<String> {
    pods.unknown.iter().map(|why| format!("no pod is treated as deleted: {why}")).collect()
}

pub(super) fn take(
    plan: &mut Plan,
    kind: TargetKind,
    verdicts: &Verdicts,
    names: impl Fn(&str) -> Vec<String>,
) {
    if verdicts.over_total > 0 {
        let count = verdicts.over_total;
        plan.notes.push(format!("{count} exited containers above the limit stay: rules keep them"));
    }
    let target = |id: &String| Target { kind, store: None, id: id.clone(), names: names(id), leak: None };
    plan.steps.extend(verdicts.goes.iter().map(|removal| {
        let action = if removal.stop_first { Action::StopAndDelete } else { Action::Delete };
        Step { action, ..Step::new(target(&removal.id), removal.cause) }
    }));
    plan.kept.extend(verdicts.kept.iter().map(|kept| Kept {
        target: target(&kept.id),
        rule: kept.rule,
        detail: kept.detail.clone(),
    }));
}
