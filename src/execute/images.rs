//! Runs the planner's plan for images, step by step.

use crate::execute::executor::{Handler, Run};
use crate::execute::gauges::Gauges;
use crate::execute::proof::{self, FreshImage, ImageFacts, PolicyContext, Waived};
use crate::execute::remover::{PreconditionError, Remover};
use crate::history::pins::Pins;
use crate::model::deletion::outcome::Stopped;
use crate::model::deletion::plan::{self, Cause, Failure, Gain, Phase, Problem, Step, Target};
use crate::model::rules::Rule;
use crate::model::space::Measured;
use crate::model::{Answer, Plan, RemovalResult};
use crate::policy::Input;
use crate::policy::compare::{Comparison, compare};
use crate::policy::plan::{Planner, Task};
use crate::policy::rules::Judge;
use crate::stores::Scan;

/// The plan for `scan` after `made` was freed. [`run`] follows the same plan as long as its predictions are right. Also
/// returns the current space of the filesystems.
#[must_use]
pub fn plan(
    made: &[Gain],
    scan: &Scan,
    context: &dyn PolicyContext,
    task: Task<'_>,
    facts: &ImageFacts,
) -> (Plan, Vec<Measured>) {
    let mut full_filesystems = facts.full_filesystems.clone();
    full_filesystems.retain(|full| !plan::freed_on(full.filesystem, made).covers(full.to_free));
    let measured = Gauges::open(&scan.inventory, None).measure();
    let mut then = measured.clone();
    plan::apply(made, &mut then);
    let input = Input { full_filesystems: &full_filesystems, ..facts.input(scan, context) };
    (crate::policy::plan::plan(input, task, &then), measured)
}

/// Compares the policies, the kubelet's with these settings. `None` if the filesystem reports impossible numbers.
#[must_use]
pub fn side_by_side(
    scan: &Scan,
    context: &dyn PolicyContext,
    facts: &ImageFacts,
    kubelet: Option<crate::policy::kubelet::KubeletPolicy>,
) -> Option<Comparison> {
    let measured = Gauges::open(&scan.inventory, None).measure();
    compare(facts.input(scan, context), &measured, facts.listing.as_ref(), kubelet)
}

/// Carries out the task, and returns the plan as it was carried out. `planned`: the facts of a plan that was made just
/// now for the same scan. Without them, the remover and the context are asked about all images once more; each deletion
/// is proven by facts of its own in any case.
///
/// # Errors
/// When the facts of the remover cannot be read in full: then no image was deleted.
pub fn run(
    run: &mut Run<'_>,
    scan: &Scan,
    context: &dyn PolicyContext,
    task: Task<'_>,
    remover: &mut dyn Remover,
    planned: Option<&ImageFacts>,
) -> Result<Plan, PreconditionError> {
    let fresh;
    let facts = match planned {
        Some(facts) => facts,
        None => {
            fresh = ImageFacts::now(scan, context, remover)?;
            &fresh
        }
    };
    let mut planner = Planner::new(facts.input(scan, context), task);
    let mut images = Images { scan, context, waived: task.waived(), remover, fresh: None };
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

struct Images<'a> {
    scan: &'a Scan,
    context: &'a dyn PolicyContext,
    waived: Waived,
    remover: &'a mut dyn Remover,
    /// The scan that proved the next deletion.
    fresh: Option<FreshImage>,
}

impl Handler for Images<'_> {
    fn prove(&mut self, step: &mut Step, pins: Option<Pins>) -> Result<(), Answer> {
        let looked = proof::look_at(&step.target, self.context, pins, self.remover)?;
        let Some(fresh) = looked else {
            return Err(Answer::AlreadyGone);
        };
        let judge = Judge::new(fresh.facts.input(&fresh.scan, self.context)).waiving(self.waived);
        if let Some(ruling) = judge.kept(fresh.image_ix) {
            return Err(Answer::Kept(ruling));
        }
        let image = &fresh.scan.inventory[fresh.image_ix];
        if step.cause == Cause::Request
            && let Some(name) = image.names.iter().find(|name| !step.target.names.contains(name))
        {
            // The user named another name of the image, and may need this one.
            let detail = format!("it is also tagged {name}; name the id or add --all-tags");
            return Err(Answer::kept(Rule::NotProven, detail));
        }
        step.target.names.clone_from(&image.names);
        self.fresh = Some(fresh);
        Ok(())
    }

    fn remove(&mut self, step: &Step) -> RemovalResult {
        let Some(fresh) = &self.fresh else {
            return Answer::StopRun("it was not proven safe to delete".into()).into();
        };
        self.remover.remove(step, &fresh.scan.inventory, fresh.image_ix)
    }

    fn is_there(&mut self, step: &Step) -> Result<Option<bool>, PreconditionError> {
        let Some(fresh) = &self.fresh else { return Err(PreconditionError::damaged(&step.target)) };
        proof::is_there(self.context.scan_request(), &fresh.scan, fresh.image_ix)
    }

    fn own_bytes(&self, device: u64) -> u64 {
        self.remover.own_bytes(device)
    }

    fn byproduct(&self, target: &Target) -> Vec<Gain> {
        self.remover.byproduct(target, &self.scan.inventory, &self.scan.refs)
    }
}
