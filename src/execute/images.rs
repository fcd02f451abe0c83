//! Runs the planner's plan for images, step by step.

use crate::execute::executor::{Handler, Run};
use crate::execute::gauges::Gauges;
use crate::execute::proof::{self, FreshImage, ImageFacts, ProofContext, RemoverFacts, Waived};
use crate::execute::remover::{PreconditionError, Remover};
use crate::history::pins::Pins;
use crate::model::outcome::Stopped;
use crate::model::plan::{self, Cause, Failure, Gain, Phase, Problem, Step};
use crate::model::rules::Rule;
use crate::model::space::Measured;
use crate::model::{Answer, Image, ImageIx, Plan, RemovalResult};
use crate::policy::compare::{Comparison, compare};
use crate::policy::plan::{Planner, Task};
use crate::policy::rules::Judge;
use crate::stores::Scan;

/// The plan for `scan` without carrying it out: the same that [`run`] follows as long as its
/// predictions hold, after something else has freed `made`. What the filesystems say is as of now.
#[must_use]
pub fn plan(
    made: &[Gain],
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    task: Task<'_>,
    remover_facts: &RemoverFacts,
) -> (Plan, Vec<Measured>) {
    let mut facts = ImageFacts::of(scan, proof_context, remover_facts);
    facts.full_filesystems.retain(|full| !plan::freed_on(full.filesystem, made).covers(full.to_free));
    let measured = Gauges::open(&scan.inventory, None).measure();
    let mut then = measured.clone();
    plan::apply(made, &mut then);
    (crate::policy::plan::plan(facts.input(scan, proof_context.policy), task, &then), measured)
}

/// Both policies side by side, for the runtime's image filesystem; `None` where there is no runtime
/// behind the remover, or the filesystem's numbers cannot be believed.
#[must_use]
pub fn side_by_side(
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    remover_facts: &RemoverFacts,
    kubelet: crate::policy::kubelet::KubeletPolicy,
) -> Option<Comparison> {
    let facts = ImageFacts::of(scan, proof_context, remover_facts);
    let measured = Gauges::open(&scan.inventory, None).measure();
    compare(facts.input(scan, proof_context.policy), &measured, remover_facts.listing.as_ref()?, kubelet)
}

/// Carries out the task, and returns the plan as it was carried out.
///
/// # Errors
/// When what the remover needs to know cannot be had in full: then no image was deleted.
pub fn run(
    run: &mut Run<'_>,
    scan: &Scan,
    proof_context: &ProofContext<'_>,
    task: Task<'_>,
    remover: &mut dyn Remover,
) -> Result<Plan, PreconditionError> {
    let facts = ImageFacts::of(scan, proof_context, &RemoverFacts::now(scan, proof_context, remover)?);
    let mut planner = Planner::new(facts.input(scan, proof_context.policy), task);
    let mut images = Images::new(scan, *proof_context, task.waived(), remover);
    let mut skipped: Vec<Failure> = Vec::new();
    while !run.is_stopped() {
        let Some(step) = planner.next(&run.measure()) else { break };
        let answer = run.step(&step, &mut images);
        if let Answer::StoreSkipped(why) = &answer {
            skipped.push(why.clone());
        }
        planner.answer(answer);
    }
    let mut plan = planner.finish(&run.measure());
    let ended = match &run.stopped {
        Some(Stopped::Unproven(failure)) => Some((Phase::Prove, failure.clone())),
        Some(Stopped::Signal) | None => None,
    };
    let skipped = skipped.into_iter().map(|failure| (failure.phase_of_store(), failure));
    for (phase, failure) in skipped.chain(ended) {
        if !plan.problems.iter().any(|problem| problem.message == failure.message) {
            plan.problems.push(Problem::new(None, phase, failure));
        }
    }
    Ok(plan)
}

/// Proves and removes images of a scan.
pub(super) struct Images<'a> {
    scan: &'a Scan,
    proof_context: ProofContext<'a>,
    waived: Waived,
    remover: &'a mut dyn Remover,
    /// The look that allowed the deletion.
    fresh: Option<Fresh>,
}

/// A look at the stores, and the image that it allows to delete.
struct Fresh {
    scan: Scan,
    at: ImageIx,
}

impl<'a> Images<'a> {
    pub(super) fn new(
        scan: &'a Scan,
        proof_context: ProofContext<'a>,
        waived: Waived,
        remover: &'a mut dyn Remover,
    ) -> Self {
        Self { scan, proof_context, waived, remover, fresh: None }
    }
}

impl Handler for Images<'_> {
    fn prove(&mut self, step: &mut Step, pins: Option<Pins>) -> Result<(), Answer> {
        let labels = self.proof_context.request.labels.only(std::iter::once(step.target.id.as_str()));
        let looked = proof::look_at(&step.target, &labels, &self.proof_context, pins, self.remover)?;
        let Some(FreshImage { scan: fresh, at, facts }) = looked else {
            return Err(Answer::AlreadyGone);
        };
        let judge = Judge::new(facts.input(&fresh, self.proof_context.policy)).waiving(self.waived);
        if let Some(ruling) = judge.kept(at) {
            return Err(Answer::Kept(ruling));
        }
        let image: &Image = &fresh.inventory[at];
        if step.cause == Cause::Request
            && let Some(name) = image.names.iter().find(|name| !step.target.names.contains(name))
        {
            // Its owner may want to keep that one.
            let detail = format!("it is also tagged {name}; name the id or add --all-tags");
            return Err(Answer::kept(Rule::NotProven, detail));
        }
        step.target.names.clone_from(&image.names);
        self.fresh = Some(Fresh { scan: fresh, at });
        Ok(())
    }

    fn remove(&mut self, step: &Step) -> RemovalResult {
        let Some(fresh) = &self.fresh else {
            return Answer::StopRun("it was not proven safe to delete".into()).into();
        };
        self.remover.remove(step, &fresh.scan.inventory, fresh.at)
    }

    fn is_there(&mut self, step: &Step) -> Result<Option<bool>, PreconditionError> {
        let Some(fresh) = &self.fresh else { return Err(PreconditionError::damaged(&step.target)) };
        proof::is_there(self.proof_context.request, &fresh.scan, fresh.at)
    }

    fn own_bytes(&self, device: u64) -> u64 {
        self.remover.own_bytes(device)
    }

    fn byproduct(&self) -> Vec<Gain> {
        self.remover.byproduct(&self.scan.inventory, &self.scan.refs)
    }
}
