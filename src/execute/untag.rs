//! Removes names from images that keep other names: nothing is freed, and the image stays.

use crate::execute::executor::{Handler, Proof, Run};
use crate::execute::proof::{self, FreshImage, ImageFacts, ProofContext, RemoverFacts};
use crate::execute::remover::{PreconditionError, RemovalAnswer, Remover};
use crate::history::pins::Pins;
use crate::model::outcome::Stopped;
use crate::model::plan::{Cause, Kept, Step, Target, TargetKind};
use crate::model::rules::{Rule, Ruling};
use crate::model::{ImageIx, LabelsOf, OutcomeKind, Plan};
use crate::policy::rules::Judge;
use crate::policy::{Input, Policy, StepOutcome};
use crate::stores::Scan;

/// Rules that keep an image for what would be lost with it. Removing a name loses nothing.
const WAIVED: [Rule; 6] =
    [Rule::InUse, Rule::ProtectedLabel, Rule::AgeUnknown, Rule::MinAge, Rule::UsedJustNow, Rule::BackingOff];

/// Names to be taken from one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untag {
    /// The image, which has others.
    pub image: ImageIx,
    /// Its names that are removed.
    pub names: Vec<String>,
}

impl Untag {
    fn step(&self, scan: &Scan) -> Step {
        let image = Target::image(&scan.inventory, self.image);
        Step::new(Target { kind: TargetKind::Name, names: self.names.clone(), ..image }, Cause::Request)
    }
}

/// The plan for each, without changing anything.
#[must_use]
pub fn plan(
    untags: &[Untag],
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    remover_facts: &RemoverFacts,
) -> Plan {
    let mut plan = Plan::default();
    if untags.is_empty() {
        return plan;
    }
    let facts = ImageFacts::of(scan, proof_context, remover_facts);
    for untag in untags {
        let step = untag.step(scan);
        match judge(scan, &facts, proof_context.policy, untag.image, &untag.names) {
            Some(ruling) => plan.kept.push(Kept::new(step.target, ruling)),
            None => plan.steps.push(step),
        }
    }
    plan.outcome = outcome(plan.kept.is_empty());
    plan
}

/// Takes the names, each proven right before. A signal, or what cannot be proven any more, leaves
/// the rest as it is.
///
/// # Errors
/// When what the proof needs cannot be had: nothing was changed.
pub fn run(
    run: &mut Run<'_>,
    untags: &[Untag],
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    remover: &mut dyn Remover,
) -> Result<Plan, PreconditionError> {
    let mut plan = Plan::default();
    if untags.is_empty() {
        return Ok(plan);
    }
    let was_stopped = run.is_stopped();
    let mut names = Names { proof_context: *proof_context, remover, fresh: None };
    for untag in untags {
        let step = untag.step(scan);
        let id = step.target.id.clone();
        if run.carry_out(step, &mut names, &mut plan) == StepOutcome::Removed {
            for name in &untag.names {
                tracing::info!(id, "untagged {name:?}");
            }
        }
    }
    if let Some(Stopped::Unproven(what)) = &run.stopped
        && plan.steps.is_empty()
        && !was_stopped
    {
        return Err(PreconditionError::new(&what.message));
    }
    plan.outcome = outcome(plan.steps.len() == untags.len());
    Ok(plan)
}

fn outcome(all: bool) -> OutcomeKind {
    if all { OutcomeKind::Reached } else { OutcomeKind::NotReached }
}

struct Names<'a> {
    proof_context: ProofContext<'a>,
    remover: &'a mut dyn Remover,
    fresh: Option<(Scan, ImageIx)>,
}

impl Handler for Names<'_> {
    fn prove(&mut self, step: &mut Step, pins: Option<Pins>) -> Result<Proof, PreconditionError> {
        self.fresh = None;
        let looked =
            proof::look_at(&step.target, &LabelsOf::Nobody, &self.proof_context, pins, self.remover)?;
        // Where it is gone, whoever asked for it is told.
        let Some(FreshImage { scan, at, facts, .. }) = looked else { return Ok(Proof::MayDelete) };
        if let Some(ruling) = judge(&scan, &facts, self.proof_context.policy, at, &step.target.names) {
            return Ok(Proof::Kept(ruling));
        }
        self.fresh = Some((scan, at));
        Ok(Proof::MayDelete)
    }

    fn remove(&mut self, step: &Step) -> RemovalAnswer {
        let Some((fresh, at)) = &self.fresh else {
            return RemovalAnswer::Declined("it no longer exists".into());
        };
        match self.remover.untag(&fresh.inventory, *at, &step.target.names) {
            RemovalAnswer::Kept(ruling) => RemovalAnswer::Declined(ruling.detail.into()),
            RemovalAnswer::NotFound(why)
            | RemovalAnswer::Failed(why)
            | RemovalAnswer::InPart(why)
            | RemovalAnswer::InDoubt(why) => RemovalAnswer::Declined(why),
            other => other,
        }
    }
}

/// The rule that keeps `names`: asked of an image that has no others.
fn judge(scan: &Scan, facts: &ImageFacts, policy: &Policy, at: ImageIx, names: &[String]) -> Option<Ruling> {
    let mut inventory = scan.inventory.clone();
    inventory[at].names = names.to_vec();
    // A manifest list needs its members by their digests.
    inventory.lists.clear();
    inventory[at].pinned_by.retain(|pin| !pin.is_of_list);
    let input = Input { inventory: &inventory, ..facts.input(scan, policy) };
    Judge::new(input).waiving(&WAIVED).kept(at)
}
