//! The plan of a run: scan, containers and leaks first, then images as they will be found after those.

use super::{Gc, Planned, refuse_part, without};
use crate::app::by_hand;
use crate::app::containers::Containers;
use crate::app::error::Error;
use crate::app::gc::GcResult;
use crate::app::gc_request::{GcRequest, Selection};
use crate::app::observer::Audience;
use crate::app::policy_context::{self, NodeContext};
use crate::app::protect::labels_for;
use crate::app::rm;
use crate::app::scan::{self, Also, ScanResult};
use crate::app::state::Purpose;
use crate::app::store_editing::{self, Resumed};
use crate::app::via::Deleter;
use crate::execute::editors::Editors;
use crate::execute::{self, ImageFacts, PolicyContext, PreconditionError, images};
use crate::model::plan::{Gain, Plan, TargetKind, sum};
use crate::model::space::Measured;
use crate::model::{ImageIx, OutcomeKind};
use crate::policy::space::Targets;
use crate::stores::{self, Scan};

/// Of the plan, which cannot know what that frees.
const UNFINISHED: &str =
    "a run was killed in the middle of a deletion, which is finished first: the plan may change";

impl Gc<'_> {
    pub(super) fn make_plan(&mut self, deleter: &mut Deleter) -> Result<Planned, Error> {
        let mut planned = self.gather(deleter)?;
        self.resumed += planned.resumed.objects;
        planned.result.resumed = self.resumed;
        self.plan_all(&mut planned, deleter)?;
        let Planned { result, is_unfinished, scanned, editors, leaks, config, .. } = &mut planned;
        let plan = &mut result.plan;
        if !self.command_run.is_locked() && editors.are_unfinished(&scanned.state.begun) {
            *is_unfinished = true;
            plan.notes.push(UNFINISHED.to_owned());
        }
        if !plan.steps.iter().any(|one| one.target.kind == TargetKind::Leak) {
            *leaks = None;
        }
        let may_lack_inodes = self.asked.is_gc()
            && plan.steps.is_empty()
            && result.targets.inodes.is_none()
            && !self.asked.leaves_out_images();
        if may_lack_inodes {
            let warnings = by_hand::out_of_inodes(&scanned.scan);
            self.command_run.observer.findings(Audience::Always, &warnings);
            scanned.scan.inventory.findings.extend(warnings);
        }
        if self.asked.dry_run {
            by_hand::advise(plan, self.asked.request, config, &scanned.scan, self.via);
            result.hints = self.hints(plan, &scanned.scan);
            result.outside = self.outside(plan, &scanned.scan, editors);
        }
        result.findings = self.findings(scanned);
        result.exit = self.exit(plan.outcome, plan, scanned);
        Ok(planned)
    }

    /// Scans. Where the run is locked already, deletions that a killed run has begun are finished then, and it
    /// scans again.
    fn scan_and_resume(&self, deleter: &Deleter) -> Result<(ScanResult, Editors, Resumed), Error> {
        let request = self.asked.request;
        let scanned = self.scan()?;
        self.check_records(&scanned)?;
        let dir = &scanned.state.directory.dir;
        let editors = Editors::of(&scanned.scan, dir, request.trust_pid_namespace);
        if let Deleter::Direct(owners) = deleter {
            store_editing::check_namespace(request)?;
            store_editing::check(owners, &scanned, &editors)?;
        }
        // Where somebody is asked, not before the answer.
        let resumed = match self.command_run.is_locked() {
            true => store_editing::finish_killed_runs(request, &editors, &scanned.state.begun),
            false => Resumed::default(),
        };
        let scanned = if resumed.objects > 0 { self.scan()? } else { scanned };
        Ok((scanned, editors, resumed))
    }

    /// What a plan is made from.
    fn gather(&self, deleter: &Deleter) -> Result<Planned, Error> {
        let GcRequest { request, selection, .. } = &self.asked;
        let (scanned, editors, resumed) = self.scan_and_resume(deleter)?;
        let mut config = self.asked.config.clone();
        if self.asked.leaves_out_images() {
            // Nothing starts, so nothing is deleted.
            config.images.targets = Targets::default();
            config.images.max_age = None;
        }
        let containers = match selection {
            Selection::Gc { only, .. } => Containers::wanted(&config, only),
            Selection::Rm { .. } => None,
        };
        let (leaks, barred) = match store_editing::leaks(&self.asked, self.via, &config, &scanned, &editors) {
            Ok(leaks) => (leaks, None),
            Err(why) => (None, Some(why)),
        };
        let stores = stores::ScanRequest { labels: labels_for(&config.images.protect), ..request.stores()? };
        policy_context::protect(self.command_run.observer, &mut config, &stores)?;
        let named = match selection {
            Selection::Gc { .. } => Vec::new(),
            Selection::Rm { references, all_tags } => {
                rm::named(&scanned.scan, references, *all_tags).map_err(|error| match resumed.objects > 0 {
                    true => error.hint(
                        "the interrupted deletion that was finished first may have been of that: see `layersweep \
                         history`",
                    ),
                    false => error,
                })?
            }
        };
        let containers = match (containers, deleter) {
            (Some(containers), Deleter::Cri(remover)) => {
                let plan = containers.by(remover, &stores).plan(&scanned.scan)?;
                Some((containers, plan))
            }
            // Whoever named them was refused.
            (Some(_), Deleter::Direct(_)) => {
                self.command_run
                    .observer
                    .note("containers and logs are collected through the runtime only: they stay");
                None
            }
            (None, _) => None,
        };
        let targets = config.images.targets;
        Ok(Planned {
            result: GcResult { policy: Some(self.policy()), targets, ..self.unexecuted(Plan::default()) },
            is_unfinished: false,
            scanned,
            editors,
            config,
            stores,
            named,
            containers,
            leaks,
            barred,
            resumed,
        })
    }

    fn scan(&self) -> Result<ScanResult, Error> {
        let GcRequest { request, config, dry_run, .. } = self.asked;
        let purpose = if dry_run { Purpose::Look } else { Purpose::Delete };
        scan::scan_with(request, self.command_run.observer, purpose, !dry_run, Also::labels(config))
    }

    /// Refuses where pins are unknown.
    fn check_records(&self, scanned: &ScanResult) -> Result<(), Error> {
        if scanned.state.is_unreadable {
            return Err(Error::refused("the records cannot be read, so pinned images are unknown")
                .hint("see the warning above; `layersweep scan` quarantines a damaged database"));
        }
        if scanned.state.is_new {
            let dir = scanned.state.directory.dir.display();
            self.command_run.observer.note(&format!(
                "no records in {dir} yet: nothing is pinned, and image ages come from the disk alone"
            ));
        }
        Ok(())
    }

    /// Plans everything, from one scan.
    fn plan_all(&mut self, planned: &mut Planned, deleter: &mut Deleter) -> Result<(), Error> {
        let Planned { result, scanned, editors, config, stores, named, containers, leaks, barred, .. } =
            planned;
        let (scan, leaks) = (&scanned.scan, leaks.as_ref());
        let containers = containers.as_ref().map(|(_, plan)| plan);
        let freed_by_leaks = leaks.map(|leaks| leaks.gains(&scan.inventory)).unwrap_or_default();
        let mut context = NodeContext::new(self.asked.request, &scanned.state, config, stores.clone());
        // Containers first: what they hold is free then.
        let pending = containers.map(|plan| {
            context.releases(&scan.inventory, plan);
            without(scan, plan)
        });
        let after = pending.as_ref().unwrap_or(scan);
        let freed_before =
            sum(freed_by_leaks.into_iter().chain(containers.map(Plan::gains).unwrap_or_default()));
        let facts_of = context.read_facts(None);
        let facts = ImageFacts::of_remover(scan, stores, deleter.remover(editors, &mut None))?
            .with(facts_of(&after.inventory));
        let plan_now = |gc: &Self| -> Result<_, PreconditionError> {
            let (mut plan, believed_bytes, before) =
                gc.plan_images(&freed_before, after, &context, named, &facts)?;
            let deletes_images = !plan.steps.is_empty();
            gc.forget_left_out(&mut plan);
            if let Some(containers) = containers {
                plan.prepend(containers.clone());
            }
            // They only make room for images.
            if let Some(leaks) = leaks.filter(|_| gc.asked.is_gc() || deletes_images) {
                let steps = leaks.steps(&scan.inventory);
                let outcome = if steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
                plan.prepend(Plan { steps, outcome, ..Plan::default() });
            }
            refuse_part(&mut plan, barred.as_deref());
            Ok((plan, believed_bytes, before))
        };
        let mut now = plan_now(self)?;
        // Once, and a run that deletes nothing disturbs nobody.
        if !now.0.steps.is_empty() && self.sync_findings.is_none() {
            self.sync_findings = Some(self.command_run.write_out(&scan.inventory, &now.0.steps));
            // The filesystems may say now that there is less to do, a dry run's like any other.
            now = plan_now(self)?;
        }
        (result.plan, result.believed_bytes, result.before) = now;
        if let Some(policy) = self.kubelet {
            result.comparison = images::side_by_side(scan, &context, &facts, policy);
        }
        Ok(())
    }

    /// Returns the plan for images, the bytes that the kubelet believes it frees where its algorithm is shown, and
    /// the filesystems as measured.
    fn plan_images(
        &self,
        freed_before: &[Gain],
        scan: &Scan,
        context: &NodeContext<'_>,
        named: &[ImageIx],
        facts: &ImageFacts,
    ) -> Result<(Plan, Option<u64>, Vec<Measured>), PreconditionError> {
        match self.kubelet {
            None => {
                let (plan, before) = images::plan(freed_before, scan, context, self.task(named), facts);
                Ok((plan, None, before))
            }
            Some(policy) => {
                let (plan, report, before) =
                    execute::kubelet::plan(freed_before, scan, context, facts, policy)?;
                Ok((plan, Some(report.freed.freed_bytes), before))
            }
        }
    }
}
