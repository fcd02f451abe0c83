//! A plan carried out: leaks, then containers and logs, then images, each
//! proven, measured and recorded on its own. Which images are next is decided anew from the same scan after each measurement,
//! as it was for the plan: it may end earlier than planned.

use std::borrow::Cow;

use super::{Gc, GcResult, Work, refuse_part, refused_plan, without};
use crate::app::by_hand;
use crate::app::crio;
use crate::app::error::Error;
use crate::app::events::events;
use crate::app::policy_context::NodeContext;
use crate::app::recorder::{Beginning, Recorder};
use crate::app::reserve;
use crate::app::via::Deleter;
use crate::execute::editors::Editors;
use crate::execute::measure::SettlePatience;
use crate::execute::{self, Gauges, PreconditionError, Run, images};
use crate::model::OutcomeKind;
use crate::model::display::two_decimals;
use crate::model::plan::{Phase, Plan, Problem};
use crate::policy::space::Targets;
use crate::stores::Scan;
use crate::sys::stop::is_requested;

impl Gc<'_> {
    /// Carries out what was planned, and records it.
    pub(super) fn carry_out(
        &self,
        planned: &GcResult,
        work: &Work,
        deleter: &mut Deleter,
    ) -> Result<GcResult, Error> {
        let Work { scanned, editors, config, stores, containers, leaks, resumed, .. } = work;
        let mut context = NodeContext::new(self.gc_request.request, &scanned.state, config, stores.clone());
        if let Some((_, plan)) = containers {
            context.releases(&scanned.scan.inventory, plan);
        }
        let mut scan = Cow::Borrowed(&scanned.scan);
        let beginning = Beginning {
            policy: Some(self.policy()),
            via: self.via,
            plan: &planned.plan,
            usage_before_percent: usage_before(planned),
        };
        let mut recorder = Recorder::begin(&self.command_run, &scanned.state, Some(&context), &beginning);
        let logs = containers.as_ref().map(|(one, _)| one.pod_logs());
        let gauges = Gauges::open(&scan.inventory, logs);
        let mut run = Run::new(gauges, SettlePatience::default(), &mut recorder);
        let before = run.measure();
        let has_acted = |plan: &Plan| !(plan.steps.is_empty() && plan.problems.is_empty());
        let mut earlier_parts = Vec::new();
        let deleted = self.delete(&mut run, work, &mut scan, &context, deleter, &mut earlier_parts);
        let (mut plan, policy, targets) = match deleted {
            Ok(plan) => (plan, planned.policy, planned.targets),
            // What was deleted before is gone all the same, and that is reported.
            Err(error) if earlier_parts.iter().any(has_acted) => {
                (refused_plan(&error.message), None, Targets::default())
            }
            Err(error) => return Err(error.into()),
        };
        for earlier in earlier_parts.into_iter().rev() {
            plan.prepend(earlier);
        }
        if let Err(why) = leaks {
            refuse_part(&mut plan, why);
        }
        if !resumed.problems.is_empty() {
            plan.problems.extend(resumed.problems.iter().cloned());
            plan.outcome = OutcomeKind::Failed;
        }
        by_hand::advise(&mut plan, self.gc_request.request, config, &scan, self.via);
        if let Deleter::Cri(remover) = deleter {
            ask_again(&mut plan, &remover.client().endpoint().to_string());
        }
        let outcome = run.finish(plan, before);
        self.make_reserve_files(editors, deleter, &outcome.plan);
        let failed_before = self.gc_request.is_gc() && scanned.state.last_gc_failed;
        let events = events(&outcome, failed_before);
        let kind = outcome.kind();
        let exit = self.exit(kind, &outcome.plan, scanned);
        let exit = recorder.end(&outcome, kind, &events, &scan.inventory, exit);
        let result = self.unexecuted(outcome.plan.clone());
        Ok(GcResult {
            policy,
            targets,
            dry_run: false,
            events,
            exit,
            findings: self.findings(scanned),
            hints: self.hints(&outcome.plan, &scan),
            outside: self.outside(&outcome.plan, &scan, editors),
            before: outcome.before.clone(),
            outcome: Some(outcome),
            ..result
        })
    }

    /// Deletes leaks first, then containers and logs, all of which is added to `earlier_parts`, then images.
    fn delete(
        &self,
        run: &mut Run<'_>,
        work: &Work,
        scan: &mut Cow<'_, Scan>,
        context: &NodeContext<'_>,
        deleter: &mut Deleter,
        earlier_parts: &mut Vec<Plan>,
    ) -> Result<Plan, PreconditionError> {
        let Work { editors, config, stores, named, containers, leaks, .. } = work;
        if let Ok(Some(leaks)) = leaks {
            let steps = leaks.steps(&scan.inventory);
            let plan = execute::leaks::run(run, &steps, editors, config.leaks.min_age);
            earlier_parts.push(locks_once(plan));
        }
        if let (Some((containers, _)), Deleter::Cri(remover)) = (containers, &*deleter) {
            let plan = containers.by(remover, stores).run(run, scan)?;
            // What was deleted was in nobody's way, but what it used is not in use any more.
            if !plan.steps.is_empty() {
                *scan = Cow::Owned(without(scan, &plan));
            }
            earlier_parts.push(plan);
        }
        let mut direct = None;
        let remover = deleter.remover(editors, &mut direct);
        let mut plan = images::run(run, scan, context, self.task(named), remover)?;
        self.forget_left_out(&mut plan);
        Ok(plan)
    }

    /// Makes the reserve files for the next run, once this one is measured: its plan could not count what they take.
    /// A `rm` that deleted no image makes none.
    fn make_reserve_files(&self, editors: &Editors, deleter: &Deleter, done: &Plan) {
        let is_needed = self.gc_request.is_gc() || done.steps.iter().any(|step| step.target.is_image());
        if !is_needed || is_requested() {
            return;
        }
        match deleter {
            Deleter::Cri(remover) => reserve::prepare(remover.reserve_file()),
            Deleter::Direct(_) => editors.make_reserve_files(),
        }
    }
}

/// Percent used before, of the filesystem that is shown.
fn usage_before(result: &GcResult) -> Option<f64> {
    let at = result.plan.shown()?.filesystem;
    let space = result.before.get(at.get())?.as_ref().ok()?;
    Some(two_decimals(space.used_percent()))
}

/// Adds what to do to each problem that a runtime made which stopped answering.
fn ask_again(plan: &mut Plan, socket: &str) {
    let by_runtime = |problem: &&mut Problem| {
        problem.phase == Phase::Prove && problem.hint.is_none() && problem.message.contains(socket)
    };
    for problem in plan.problems.iter_mut().filter(by_runtime) {
        let again = "run this again when the runtime answers";
        problem.hint = Some(crio::before_start().unwrap_or(again).to_owned());
    }
}

/// What bars a store is reported once, and of no single leak.
fn locks_once(mut plan: Plan) -> Plan {
    let mut reported: Vec<String> = Vec::new();
    plan.problems.retain_mut(|problem| {
        if problem.phase != Phase::Lock {
            return true;
        }
        problem.id = None;
        let first = !reported.contains(&problem.message);
        reported.push(problem.message.clone());
        first
    });
    plan
}
