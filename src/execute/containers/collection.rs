//! Plans and runs container collection.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use crate::execute::containers::look::{ContainerListing, CriSource, Scope};
use crate::execute::executor::Run;
use crate::execute::remover::PreconditionError;
use crate::model::outcome::Stopped;
use crate::model::plan::{self, Action, Kept, Phase, Problem, Step, Target, TargetKind};
use crate::model::refs::{Live, Root};
use crate::model::{Answer, ContainerIx, Inventory, OutcomeKind, Plan, StoreId, StoreIx};
use crate::policy::containers::exact::{self, Input};
use crate::policy::containers::{ContainerPolicy, Verdicts};
use crate::stores::Scan;

impl ContainerListing {
    /// Returns what the policy says of all containers, or of all sandboxes as if `without` were gone.
    pub(super) fn verdicts(
        &self,
        kind: TargetKind,
        policy: &ContainerPolicy,
        without: &BTreeSet<&str>,
    ) -> Verdicts {
        let Self { containers, sandboxes, pods, .. } = self;
        // The runtime's clock, which its times are of.
        let now = Timestamp::now();
        let input = Input { containers, sandboxes, pods, policy, now };
        let occupied = |id: &str| {
            let mut inside = containers.iter().filter(|one| one.sandbox == id);
            inside.any(|one| !without.contains(one.id.as_str()))
        };
        match kind {
            TargetKind::Container => exact::containers(input),
            TargetKind::Sandbox => exact::sandboxes(input, occupied),
            _ => Verdicts::default(),
        }
    }

    /// These verdicts as a plan.
    pub(super) fn plan(&self, kind: TargetKind, policy: &ContainerPolicy, without: &BTreeSet<&str>) -> Plan {
        let verdicts = self.verdicts(kind, policy, without);
        let mut plan = Plan { notes: self.notes(), ..Plan::default() };
        if verdicts.over_total > 0 {
            let count = verdicts.over_total;
            plan.notes.push(format!("{count} exited containers above the limit stay: rules keep them"));
        }
        let target = |id: String| {
            let names = self.names.get(&id).cloned().into_iter().collect();
            Target { kind, store: None, id, names, leak: None }
        };
        plan.steps.extend(verdicts.to_delete.into_iter().map(|removal| {
            let action = if removal.stop_first { Action::StopAndDelete } else { Action::Delete };
            Step { action, ..Step::new(target(removal.id), removal.cause) }
        }));
        plan.kept.extend(verdicts.kept.into_iter().map(|(id, ruling)| Kept::new(target(id), ruling)));
        plan
    }

    /// Why no pod counts as gone, if so.
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
        let mut own = source.stage(stage, &seen, &plan.steps);
        predictions.predict(&mut own.steps);
        for step in &own.steps {
            predictions.remove(step);
        }
        add(&mut plan, own);
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
    for (at, stage) in scope.stages().enumerate() {
        // What the stage before has removed is gone by now, what could not be removed is still there.
        let seen = match source.list() {
            Ok(seen) => seen,
            Err(error) if at == 0 => return Err(error),
            Err(error) => {
                run.stop_unproven(error.what);
                break;
            }
        };
        let mut own = source.stage(stage, &seen, &[]);
        predictions.predict(&mut own.steps);
        let steps = std::mem::take(&mut own.steps);
        add(&mut plan, own);
        for step in steps {
            // What stands in its way may have gone since.
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
    // That nothing more is known of containers ends nothing but their part of the run.
    match run.stopped.take() {
        Some(Stopped::Unproven(what)) => {
            plan.problems.push(Problem::new(None, Phase::Prove, what));
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

/// Predictions of one run, in the order of its deletions.
pub(super) struct Predictions<'a> {
    inventory: &'a Inventory,
    live: Live<'a>,
    containers: HashMap<&'a str, ContainerIx>,
    store: Option<StoreId>,
}

impl<'a> Predictions<'a> {
    /// `own` is the store that the containers are of.
    pub(super) fn open(scan: &'a Scan, own: Option<StoreIx>) -> Self {
        let inventory = &scan.inventory;
        let containers = inventory.containers.iter().enumerate();
        let containers = containers.filter(|(_, one)| Some(one.store) == own);
        Self {
            inventory,
            live: scan.refs.live(),
            containers: containers.map(|(at, one)| (one.id.as_str(), at.into())).collect(),
            store: own.map(|own| StoreId::of(&inventory[own])),
        }
    }

    /// Says of each what it frees after those before it.
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

    /// What it frees after those that are really gone.
    fn predicted_now(&self, mut step: Step) -> Step {
        if let Some(root) = self.root(&step) {
            step.gains = plan::gains(self.inventory, &self.live, root);
        }
        step
    }

    /// It is deleted.
    fn remove(&mut self, step: &Step) {
        if let Some(root) = self.root(step) {
            self.live.remove(self.inventory, root);
        }
    }

    /// A container created after the scan frees something, but the amount is unknown.
    fn root(&self, step: &Step) -> Option<Root> {
        let is_container = matches!(step.target.kind, TargetKind::Container | TargetKind::Sandbox);
        let at = self.containers.get(step.target.id.as_str()).filter(|_| is_container)?;
        Some(Root::Container(*at))
    }
}
