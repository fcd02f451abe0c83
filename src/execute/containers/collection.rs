//! Plans and runs container collection.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use crate::execute::containers::cri_source::CriSource;
use crate::execute::containers::look::{ContainerListing, Scope};
use crate::execute::executor::Run;
use crate::execute::remover::PreconditionError;
use crate::model::deletion::outcome::Stopped;
use crate::model::deletion::plan::{self, Action, Kept, Phase, Problem, Step, Target, TargetKind};
use crate::model::refs::{Live, Root};
use crate::model::{Answer, ContainerIx, Inventory, OutcomeKind, Plan, StoreId, StoreIx};
use crate::policy::containers::exact::{self, Input};
use crate::policy::containers::{ContainerPolicy, Verdicts};
use crate::stores::Scan;

impl ContainerListing {
    /// The policy's verdicts on all containers, or on all sandboxes as if the containers in `without` were deleted.
    pub(super) fn verdicts(
        &self,
        kind: TargetKind,
        policy: &ContainerPolicy,
        without: &BTreeSet<&str>,
    ) -> Verdicts {
        let Self { containers, sandboxes, pods, .. } = self;
        // The times in the runtime's listings are of this clock.
        let now = Timestamp::now();
        let input = Input { containers, sandboxes, pods, policy, now };
        match kind {
            TargetKind::Container => exact::containers(input),
            TargetKind::Sandbox => exact::sandboxes(input, |sandbox| {
                let mut inside = containers.iter().filter(|container| container.sandbox == sandbox);
                inside.any(|container| !without.contains(container.id.as_str()))
            }),
            _ => Verdicts::default(),
        }
    }

    pub(super) fn plan(&self, kind: TargetKind, policy: &ContainerPolicy, without: &BTreeSet<&str>) -> Plan {
        let verdicts = self.verdicts(kind, policy, without);
        let mut plan = Plan { notes: self.notes(), ..Plan::default() };
        if verdicts.over_total > 0 {
            let count = verdicts.over_total;
            plan.notes.push(format!("{count} exited containers above the limit stay: rules keep them"));
        }
        plan.steps.extend(verdicts.to_delete.into_iter().map(|removal| {
            let action = if removal.stop_first { Action::StopAndDelete } else { Action::Delete };
            Step { action, ..Step::new(self.target(kind, removal.id), removal.cause) }
        }));
        let kept = verdicts.kept.into_iter();
        plan.kept.extend(kept.map(|(id, ruling)| Kept::new(self.target(kind, id), ruling)));
        plan
    }

    fn target(&self, kind: TargetKind, id: String) -> Target {
        let names = self.names.get(&id).cloned().into_iter().collect();
        Target { kind, store: None, id, names, leak: None }
    }

    /// A note with the reason for which no pod counts as deleted, if there is one.
    pub(super) fn notes(&self) -> Vec<String> {
        let why = self.pods.unknown.iter();
        why.map(|why| format!("no pod is treated as deleted: {why}")).collect()
    }
}

pub(super) fn plan(
    source: &mut CriSource<'_>,
    scope: Scope,
    predictions: &mut Predictions<'_>,
) -> Result<Plan, PreconditionError> {
    let seen = source.list()?;
    let mut plan = Plan::default();
    for stage in scope.stages() {
        let mut stage_plan = source.stage(stage, &seen, &plan.steps);
        predictions.predict(&mut stage_plan.steps);
        for step in &stage_plan.steps {
            predictions.remove(step);
        }
        add(&mut plan, stage_plan);
    }
    if !plan.steps.is_empty() {
        plan.outcome = OutcomeKind::Reached;
    }
    Ok(plan)
}

pub(super) fn run(
    run: &mut Run<'_>,
    source: &mut CriSource<'_>,
    scope: Scope,
    predictions: &mut Predictions<'_>,
) -> Result<Plan, PreconditionError> {
    let mut plan = Plan::default();
    for (stage_number, stage) in scope.stages().enumerate() {
        // A new listing shows which objects the previous stage has really removed.
        let seen = match source.list() {
            Ok(seen) => seen,
            Err(error) if stage_number == 0 => return Err(error),
            Err(error) => {
                run.stop_unproven(error.message);
                break;
            }
        };
        let mut stage_plan = source.stage(stage, &seen, &[]);
        // The proofs change the listing.
        drop(seen);
        predictions.predict(&mut stage_plan.steps);
        let steps = std::mem::take(&mut stage_plan.steps);
        add(&mut plan, stage_plan);
        for step in steps {
            // The prediction assumed that all steps before succeed; this one knows which did.
            let step = predictions.predicted_now(step);
            if run.carry_out(step, source, &mut plan) == Answer::Removed
                && let Some(step) = plan.steps.last()
            {
                predictions.remove(step);
            }
        }
        if run.stopped.is_some() {
            break;
        }
    }
    plan.outcome = if plan.steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
    // A runtime that does not answer ends only the containers' part of the run.
    match run.stopped.take() {
        Some(Stopped::Unproven(failure)) => {
            plan.problems.push(Problem::new(None, Phase::Prove, failure));
            plan.outcome = OutcomeKind::Failed;
        }
        other => run.stopped = other,
    }
    Ok(plan)
}

fn add(plan: &mut Plan, other: Plan) {
    plan.steps.extend(other.steps);
    plan.kept.extend(other.kept);
    plan.problems.extend(other.problems);
    for note in other.notes {
        if !plan.notes.contains(&note) {
            plan.notes.push(note);
        }
    }
}

pub(super) struct Predictions<'a> {
    inventory: &'a Inventory,
    live: Live<'a>,
    containers: HashMap<&'a str, ContainerIx>,
    store: Option<StoreId>,
}

impl<'a> Predictions<'a> {
    /// `store` contains the containers.
    pub(super) fn open(scan: &'a Scan, store: Option<StoreIx>) -> Self {
        let inventory = &scan.inventory;
        let containers = inventory
            .containers
            .iter()
            .enumerate()
            .filter(|(_, container)| Some(container.store) == store)
            .map(|(position, container)| (container.id.as_str(), position.into()));
        Self {
            inventory,
            live: scan.refs.live(),
            containers: containers.collect(),
            store: store.map(|store| StoreId::of(&inventory[store])),
        }
    }

    /// Predicts the gains of each step, if all steps before it succeed.
    fn predict(&self, steps: &mut [Step]) {
        let mut live = self.live.clone();
        for step in steps {
            if step.target.kind != TargetKind::Log {
                step.target.store.clone_from(&self.store);
            }
            if let Some(root) = self.root(step) {
                step.gains = plan::gains(self.inventory, &live, root);
                live.remove(self.inventory, root);
            }
        }
    }

    /// Predicts the gains of a step after the deletions that succeeded.
    fn predicted_now(&self, mut step: Step) -> Step {
        if let Some(root) = self.root(&step) {
            step.gains = plan::gains(self.inventory, &self.live, root);
        }
        step
    }

    /// Notes that the target of a step is deleted.
    fn remove(&mut self, step: &Step) {
        if let Some(root) = self.root(step) {
            self.live.remove(self.inventory, root);
        }
    }

    /// The container of a step in the scan; `None` for a container created since: the bytes that it frees are unknown.
    fn root(&self, step: &Step) -> Option<Root> {
        let is_container = matches!(step.target.kind, TargetKind::Container | TargetKind::Sandbox);
        let container_ix = self.containers.get(step.target.id.as_str()).filter(|_| is_container)?;
        Some(Root::Container(*container_ix))
    }
}
