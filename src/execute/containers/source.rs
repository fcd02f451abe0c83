//! Plans and runs container collection, through CRI or on the disk.

use crate::execute::containers::account::Account;
use crate::execute::containers::request::{Scope, Stage};
use crate::execute::executor::{Handler, Run};
use crate::execute::remover::PreconditionError;
use crate::model::outcome::Stopped;
use crate::model::plan::{Phase, Problem, Step};
use crate::model::{OutcomeKind, Plan};
use crate::policy::Answer;

/// A backend that lists and removes containers.
pub(super) trait ContainerSource: Handler {
    type Listing;

    fn look(&mut self) -> Result<Self::Listing, PreconditionError>;

    /// What a stage deletes, assuming that `gone` is already deleted.
    fn stage(&self, stage: Stage, seen: &Self::Listing, gone: &[Step]) -> Plan;
}

pub(super) fn plan<S: ContainerSource>(
    source: &mut S,
    scope: Scope,
    account: &mut Account<'_>,
) -> Result<Plan, PreconditionError> {
    let seen = source.look()?;
    let mut plan = Plan::default();
    for stage in Stage::ALL.into_iter().filter(|stage| stage.is_in(scope)) {
        let mut own = source.stage(stage, &seen, &plan.steps);
        account.predict(&mut own.steps);
        for step in &own.steps {
            account.remove(step);
        }
        add(&mut plan, own);
    }
    if !plan.steps.is_empty() {
        plan.outcome = OutcomeKind::Reached;
    }
    Ok(plan)
}

pub(super) fn run<S: ContainerSource>(
    run: &mut Run<'_>,
    source: &mut S,
    scope: Scope,
    account: &mut Account<'_>,
) -> Result<Plan, PreconditionError> {
    let mut plan = Plan::default();
    for (at, stage) in Stage::ALL.into_iter().filter(|stage| stage.is_in(scope)).enumerate() {
        // What the stage before has removed is gone by now, what could not be removed is still there.
        let seen = match source.look() {
            Ok(seen) => seen,
            Err(error) if at == 0 => return Err(error),
            Err(error) => {
                run.stop_unproven(error.what);
                break;
            }
        };
        let mut own = source.stage(stage, &seen, &[]);
        account.predict(&mut own.steps);
        let steps = std::mem::take(&mut own.steps);
        add(&mut plan, own);
        for step in steps {
            // What stands in its way may have gone since.
            let step = account.predicted_now(step);
            if run.carry_out(step, source, &mut plan) == Answer::Removed
                && let Some(step) = plan.steps.last()
            {
                account.remove(step);
            }
        }
        if run.stopped.is_some() {
            break;
        }
    }
    plan.outcome = if plan.steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
    // That nothing more is known of containers ends nothing but their part of the run.
    match run.stopped.take() {
        Some(Stopped::Unproven(what) | Stopped::Closed(what)) => {
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
