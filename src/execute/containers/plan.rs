//! From a look to what goes.

use std::collections::BTreeSet;

use crate::execute::containers::files;
use crate::execute::containers::look::Seen;
use crate::execute::containers::{Collector, Doomed, Kind, Plan, Problem, Scope, Stays};
use crate::policy::containers::Decides;
use crate::policy::containers::Verdicts;
use crate::policy::containers::exact;
use crate::policy::containers::kubelet;

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

/// What a stage takes, as if all of `gone` were gone already.
pub(super) fn of(collector: &Collector<'_>, stage: Stage, seen: &Seen, gone: &[Doomed]) -> Plan {
    let without: BTreeSet<&str> = gone.iter().map(|doomed| doomed.id.as_str()).collect();
    let mut plan = Plan { pods_unknown: seen.pods_unknown.clone(), ..Plan::default() };
    let names = |id: &str| seen.names_of(id);
    match stage {
        Stage::Containers => {
            take(&mut plan, Kind::Container, &containers(collector, seen), names);
            if collector.scope.logs {
                files::with_containers(collector, seen, &mut plan);
            }
        }
        Stage::Sandboxes => take(&mut plan, Kind::Sandbox, &sandboxes(collector, seen, &without), names),
        Stage::Logs => files::plan(collector, seen, &without, &mut plan),
    }
    plan
}

pub(super) fn containers(collector: &Collector<'_>, seen: &Seen) -> Verdicts {
    containers_of(input(collector, seen))
}

pub(super) fn sandboxes(collector: &Collector<'_>, seen: &Seen, without: &BTreeSet<&str>) -> Verdicts {
    sandboxes_of(input(collector, seen), without)
}

/// By whoever's rules decide.
pub(super) fn containers_of(input: exact::Input<'_>) -> Verdicts {
    match input.policy.decides {
        Decides::Exact => exact::containers(input),
        Decides::Kubelet => kubelet::containers(input.containers, input.pods, input.policy, input.now, false),
    }
}

/// By whoever's rules decide, as if the containers of `without` were gone.
pub(super) fn sandboxes_of(input: exact::Input<'_>, without: &BTreeSet<&str>) -> Verdicts {
    let occupied = |id: &str| {
        let mut containers = input.containers.iter();
        containers.any(|one| one.sandbox == id && !without.contains(one.id.as_str()))
    };
    match input.policy.decides {
        Decides::Exact => exact::sandboxes(input, occupied),
        Decides::Kubelet => kubelet::sandboxes(input.sandboxes, occupied, input.pods, false),
    }
}

fn input<'a>(collector: &'a Collector<'_>, seen: &'a Seen) -> exact::Input<'a> {
    exact::Input {
        containers: &seen.containers,
        sandboxes: &seen.sandboxes,
        pods: &seen.pods,
        policy: collector.policy,
        // The runtime's clock, which its times are of.
        now: jiff::Timestamp::now(),
    }
}

pub(super) fn take(plan: &mut Plan, kind: Kind, verdicts: &Verdicts, names: impl Fn(&str) -> Vec<String>) {
    plan.over_total += verdicts.over_total;
    plan.goes.extend(verdicts.goes.iter().map(|removal| Doomed {
        kind,
        id: removal.id.clone(),
        names: names(&removal.id),
        reason: removal.reason,
        stop_first: removal.stop_first,
        gains: Vec::new(),
        log_bytes: 0,
    }));
    plan.kept.extend(verdicts.kept.iter().map(|kept| Stays {
        kind,
        id: kept.id.clone(),
        names: names(&kept.id),
        rule: kept.rule,
        detail: kept.detail.clone(),
    }));
}

pub(super) fn problem(plan: &mut Plan, step: &'static str, message: String) {
    plan.problems.push(Problem { id: None, step, message });
}
