//! Carries out a plan: leaks first, then containers and logs, then images. Each is proven, measured and recorded by
//! itself. The next image is chosen after each measurement, from the same scan as the plan, so a run may end earlier
//! than planned.

use std::borrow::Cow;

use super::{Gc, GcResult, Work, refuse_part, refused_plan, without};
use crate::config::Via;
use crate::execute::editors::Editors;
use crate::execute::measure::SettlePatience;
use crate::execute::way::Way;
use crate::execute::{self, Gauges, PreconditionError, Run, images};
use crate::model::OutcomeKind;
use crate::model::deletion::plan::{Phase, Plan};
use crate::policy::space::Targets;
use crate::services::by_hand;
use crate::services::crio::{self, StartAdvice};
use crate::services::error::Error;
use crate::services::events::events;
use crate::services::policy_context::NodeContext;
use crate::services::recorder::{Beginning, Recorder};
use crate::services::reserve;
use crate::services::via::Deleter;
use crate::stores::Scan;
use crate::sys::stop::is_requested;

impl Gc<'_> {
    pub(super) fn carry_out(
        &self,
        planned: &GcResult,
        work: &Work,
        deleter: &mut Deleter,
    ) -> Result<GcResult, Error> {
        let Work { scanned, editors, config, stores, containers, leaks, resumed, refused, .. } = work;
        let mut context = NodeContext::new(self.gc_request.request, &scanned.state, config, stores.clone());
        if let Some((_, plan)) = containers {
            context.releases(&scanned.scan.inventory, plan);
        }
        let mut scan = Cow::Borrowed(&scanned.scan);
        let beginning = Beginning {
            policy: Some(self.policy()),
            via: self.via,
            edited: planned.stores_by(&Way::Direct),
            plan: &planned.plan,
            before: &planned.before,
        };
        let mut recorder = Recorder::begin(&self.command_run, &scanned.state, Some(&context), &beginning);
        let logs = containers.as_ref().map(|(containers, _)| containers.pod_logs());
        let gauges = Gauges::open(&scan.inventory, logs);
        let mut run = Run::new(gauges, SettlePatience::default(), &mut recorder);
        let before = run.measure();
        let mut earlier_parts = Vec::new();
        let deleted = self.delete(&mut run, work, &mut scan, &context, deleter, &mut earlier_parts);
        let (mut plan, policy, targets) = match deleted {
            Ok(plan) => (plan, planned.policy, planned.targets),
            // The leaks and containers deleted before are reported even if the images were refused.
            Err(error)
                if earlier_parts.iter().any(|plan| !(plan.steps.is_empty() && plan.problems.is_empty())) =>
            {
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
        plan.prepend(refused.clone().unwrap_or_default());
        if !resumed.problems.is_empty() {
            plan.problems.extend(resumed.problems.iter().cloned());
            plan.outcome = OutcomeKind::Failed;
        }
        by_hand::advise(&mut plan, self.gc_request.request, config, &scan, &planned.stores_by(&Way::Cri));
        if deleter.cri.is_some() {
            ask_again(&mut plan);
        }
        self.make_reserve_files(editors, deleter, &plan);
        let outcome = run.finish(plan, before);
        let failed_before = self.gc_request.is_gc() && scanned.state.last_gc_failed;
        let events = events(&outcome, &targets, failed_before);
        let kind = outcome.kind();
        let exit = Self::exit(kind, scanned);
        let exit = recorder.end(&outcome, kind, &events, &scan.inventory, exit);
        let result = self.unexecuted(outcome.plan.clone());
        let stopped = self.stopped(&outcome.plan, &scan);
        let (outside, inode_uses) = self.outside(&outcome.plan, &scan, work, &stopped);
        Ok(GcResult {
            policy,
            targets,
            dry_run: false,
            events,
            exit,
            findings: self.findings(scanned),
            stores: planned.stores.clone(),
            hints: self.hints(&outcome.plan, &scan, &work.named),
            absent: work.named.absent.clone(),
            outside,
            inode_uses,
            stopped,
            before: outcome.before.clone(),
            outcome: Some(outcome),
            ..result
        })
    }

    /// Deletes leaks, then containers and logs, and adds their plans to `earlier_parts`; then deletes images and
    /// returns their plan.
    fn delete(
        &self,
        run: &mut Run<'_>,
        work: &Work,
        scan: &mut Cow<'_, Scan>,
        context: &NodeContext<'_>,
        deleter: &mut Deleter,
        earlier_parts: &mut Vec<Plan>,
    ) -> Result<Plan, PreconditionError> {
        let Work { editors, config, stores, named, containers, leaks, facts, .. } = work;
        if let Ok(Some(leaks)) = leaks {
            let steps = leaks.steps(&scan.inventory);
            let plan = execute::leaks::run(run, &steps, editors, config.leaks.min_age);
            earlier_parts.push(locks_once(plan));
        }
        if let (Some((containers, _)), Some(remover)) = (containers, &deleter.cri) {
            let plan = containers.by(remover, stores).run(run, scan)?;
            // The images of the deleted containers are not in use any more.
            if !plan.steps.is_empty() {
                *scan = Cow::Owned(without(scan, &plan));
            }
            earlier_parts.push(plan);
        }
        let mut remover = deleter.remover(editors);
        // The earlier parts may have changed the facts.
        let planned = facts.as_ref().filter(|_| earlier_parts.is_empty());
        let mut plan = images::run(run, scan, context, self.task(&named.images), &mut remover, planned)?;
        self.forget_left_out(&mut plan);
        Ok(plan)
    }

    /// Creates the reserve files for the next run after the last deletion, whose bytes the plan did not count; the usage
    /// after the run includes them. An `rm` that deleted no image creates none.
    fn make_reserve_files(&self, editors: &Editors, deleter: &Deleter, done: &Plan) {
        let is_needed = self.gc_request.is_gc() || done.steps.iter().any(|step| step.target.is_image());
        if !is_needed || is_requested() {
            return;
        }
        reserve::prepare(deleter.cri.as_ref().and_then(|remover| remover.reserve_file()));
        if self.via != Via::Cri {
            editors.make_reserve_files();
        }
    }
}

/// Adds a hint to each problem of a runtime that stopped answering.
fn ask_again(plan: &mut Plan) {
    for problem in &mut plan.problems {
        if problem.phase == Phase::Prove && problem.hint.is_none() && problem.is_of_runtime {
            let again = "run this again when the runtime answers";
            problem.hint = Some(crio::before_start().map_or(again, StartAdvice::text).to_owned());
        }
    }
}

/// Reports a store that cannot be locked once, not once for each leak.
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
