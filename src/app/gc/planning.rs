//! The plan of a run: a scan, then containers and leaks, then images as they will be after those deletions.

use super::{Gc, Planned, Work, as_kubelet, refuse_part, stores_with_ways, without};
use crate::app::gc::GcResult;
use crate::app::rm::{self, NamedImages};
use crate::config::Via;
use crate::execute::editors::Editors;
use crate::execute::way::Way;
use crate::execute::{self, ImageFacts, PolicyContext, PreconditionError, images};
use crate::model::deletion::plan::{Gain, Plan, TargetKind, sum};
use crate::model::space::Measured;
use crate::model::{ImageIx, Inventory, OutcomeKind};
use crate::policy::compare::Comparison;
use crate::policy::space::Targets;
use crate::services::by_hand;
use crate::services::containers::Containers;
use crate::services::error::Error;
use crate::services::gc_request::{GcRequest, Selection};
use crate::services::observer::Audience;
use crate::services::policy_context::{self, NodeContext};
use crate::services::reach;
use crate::services::scan::{self, ScanOptions, ScanResult};
use crate::services::state::Purpose;
use crate::services::store_editing::{self, Resumed};
use crate::services::via::Deleter;
use crate::stores::{self, Scan};

/// Note on a plan that does not include the bytes freed by unfinished deletions.
const UNFINISHED: &str =
    "a run was killed in the middle of a deletion, which is finished first: the plan may change";

/// The images as they will be after the containers of the plan are deleted, with the facts about them.
struct ImagesThen<'a> {
    /// The scan without the containers that are deleted first.
    scan: &'a Scan,
    context: &'a NodeContext<'a>,
    facts: &'a ImageFacts,
    /// Space that leaks and containers free before the images.
    freed_before: Vec<Gain>,
}

struct WholePlan {
    plan: Plan,
    /// Bytes that the kubelet's algorithm expects to free; `None` for policy `exact`.
    believed_bytes: Option<u64>,
    /// Space of the filesystems before.
    before: Vec<Measured>,
}

/// The first plan of a run, with what the runtime and the editors know.
struct JudgedPlan {
    whole: WholePlan,
    /// Comparison of the policies, in a dry run of the kubelet's or if it is requested.
    comparison: Option<Comparison>,
    facts: ImageFacts,
    /// Way of each store.
    ways: Vec<Way>,
}

impl Gc<'_> {
    /// Scans, reads the protections of images, plans, and adds advice.
    pub(super) fn make_plan(&mut self) -> Result<Planned, Error> {
        let mut deleter = self.choose_deleter()?;
        let mut work = self.gather(&mut deleter)?;
        self.resumed += work.resumed.objects;
        let JudgedPlan { whole, comparison, facts, ways } = self.plan_all(&work, &mut deleter)?;
        let WholePlan { plan, believed_bytes, before } = whole;
        self.via = via_of(self.via, &work.scanned.scan.inventory, &ways);
        work.scanned.scan.inventory.silent_stores = reach::silent_stores(&ways);
        if self.gc_request.is_gc() {
            let GcRequest { request, config, .. } = self.gc_request;
            let closed = reach::closed_stores(&work.scanned.scan.inventory, &work.editors);
            // The plan has already reported files that cannot be read.
            reach::mark(request, config, &mut work.scanned, closed, facts.out_of_reach());
        }
        let targets = work.config.images.targets;
        let mut result = GcResult {
            policy: Some(self.policy()),
            targets,
            believed_bytes,
            before,
            comparison,
            stores: stores_with_ways(&work.scanned.scan, &plan, ways),
            never_pulled: work.scanned.scan.inventory.never_pulled(),
            absent: work.named.absent.clone(),
            ..self.unexecuted(plan)
        };
        let is_unfinished =
            !self.command_run.is_locked() && work.editors.are_unfinished(&work.scanned.state.begun);
        if is_unfinished {
            result.plan.notes.push(UNFINISHED.to_owned());
        }
        if !result.plan.steps.iter().any(|step| step.target.kind == TargetKind::Leak) {
            work.leaks = work.leaks.map(|_| None);
        }
        self.warn_of_inodes(&result, &mut work.scanned.scan);
        let scan = &work.scanned.scan;
        let scan_then = work.containers.as_ref().map(|(_, plan)| without(scan, plan));
        result.stopped = self.stopped(&result.plan, scan_then.as_ref().unwrap_or(scan));
        if self.gc_request.dry_run {
            let (request, config) = (self.gc_request.request, &work.config);
            let of_runtime = result.stores_by(&Way::Cri);
            by_hand::advise(&mut result.plan, request, config, scan, &of_runtime);
            result.hints = self.hints(&result.plan, scan, &work.named);
            (result.outside, result.inode_uses) = self.outside(&result.plan, scan, &work, &result.stopped);
        }
        result.findings = self.findings(&work.scanned);
        result.exit = Self::exit(result.plan.outcome, &work.scanned);
        work.facts = Some(facts);
        Ok(Planned { result, is_unfinished, work, deleter })
    }

    /// Warns of filesystems that lack inodes, if this run deletes nothing to free any.
    fn warn_of_inodes(&self, result: &GcResult, scan: &mut Scan) {
        let may_lack_inodes = self.gc_request.is_gc()
            && result.plan.steps.is_empty()
            && result.targets.inodes.is_none()
            && !self.gc_request.leaves_out_images();
        if may_lack_inodes {
            let warnings = by_hand::out_of_inodes(scan);
            self.command_run.observer.findings(Audience::Always, &warnings);
            scan.inventory.findings.extend(warnings);
        }
    }

    /// Scans. If the run is locked already, also finishes the deletions of killed runs, and scans again.
    fn scan_and_resume(&self, deleter: &Deleter) -> Result<(ScanResult, Editors, Resumed), Error> {
        let request = self.gc_request.request;
        let scanned = self.scan()?;
        self.check_records(&scanned)?;
        let dir = &scanned.state.directory.dir;
        let editors = Editors::of(&scanned.scan, dir, request.trust_pid_namespace);
        deleter.check(request, &scanned.scan.inventory, &editors)?;
        // If a person is asked, the run is locked, and killed runs are finished, only after the answer.
        let resumed = if self.command_run.is_locked() {
            store_editing::finish_killed_runs(request, &editors, &scanned.state.begun)
        } else {
            Resumed::default()
        };
        let scanned = if resumed.objects > 0 { self.scan()? } else { scanned };
        Ok((scanned, editors, resumed))
    }

    /// Collects the input of a plan.
    fn gather(&self, deleter: &mut Deleter) -> Result<Work, Error> {
        let GcRequest { request, selection, .. } = &self.gc_request;
        let (scanned, editors, resumed) = self.scan_and_resume(deleter)?;
        let mut config = self.gc_request.config.clone();
        if self.gc_request.leaves_out_images() {
            // Without targets no pass starts, so no image is deleted.
            config.images.targets = Targets::default();
            config.images.disable_age_pass();
        }
        let containers = match selection {
            Selection::Gc { only, .. } => Containers::wanted(&config, only),
            Selection::Rm { .. } => None,
        };
        let inventory = &scanned.scan.inventory;
        let ways = deleter.remover(&editors).ways(inventory);
        let leaks = store_editing::leaks(&self.gc_request, &ways, &config, &scanned, &editors);
        let is_for_images = self.gc_request.is_gc() && !self.gc_request.leaves_out_images();
        let refused = deleter.refused(inventory).filter(|_| is_for_images);
        let stores =
            stores::ScanRequest { labels: !config.images.protect.labels.is_empty(), ..request.stores()? };
        policy_context::protect(self.command_run.observer, &mut config, &stores)?;
        if self.gc_request.is_gc() && !self.gc_request.leaves_out_images() {
            policy_context::warn_unmatched_references(self.command_run.observer, &config, inventory);
        }
        let named = match selection {
            Selection::Gc { .. } => NamedImages::default(),
            Selection::Rm { references, listed, all_tags } => {
                let named = rm::named(&scanned.scan, references, listed, *all_tags);
                named.map_err(|error| {
                    if resumed.objects == 0 {
                        return error;
                    }
                    error.hint(
                        "an interrupted deletion was finished first, perhaps of that image: see `layersweep history`",
                    )
                })?
            }
        };
        let containers = match (containers, &deleter.cri) {
            (Some(containers), Some(remover)) => {
                let plan = containers.by(remover, &stores).plan(&scanned.scan)?;
                Some((containers, plan))
            }
            // They come from the configuration: `check_only` refuses them on the command line.
            (Some(_), None) => {
                self.command_run
                    .observer
                    .note("containers and logs are collected through the runtime only: they stay");
                None
            }
            (None, _) => None,
        };
        Ok(Work { scanned, editors, config, stores, named, refused, containers, leaks, facts: None, resumed })
    }

    fn scan(&self) -> Result<ScanResult, Error> {
        let GcRequest { request, config, dry_run, .. } = self.gc_request;
        let purpose = if dry_run { Purpose::Look } else { Purpose::Delete };
        let compares = self.compares();
        scan::scan_with(
            request,
            self.command_run.observer,
            purpose,
            !dry_run,
            ScanOptions::for_policy(config).with_blobs(compares),
        )
    }

    /// Refuses a run if the pins cannot be read.
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

    /// Plans leaks, containers and images from one scan. If requested, also compares the policies. Also returns the facts about the images, and the ways of the stores.
    fn plan_all(&mut self, work: &Work, deleter: &mut Deleter) -> Result<JudgedPlan, Error> {
        let scan = &work.scanned.scan;
        let mut context =
            NodeContext::new(self.gc_request.request, &work.scanned.state, &work.config, work.stores.clone());
        // Containers are deleted first: then their images are not in use.
        let without_containers = work.containers.as_ref().map(|(_, plan)| {
            context.releases(&scan.inventory, plan);
            without(scan, plan)
        });
        let scan_then = without_containers.as_ref().unwrap_or(scan);
        let facts_of = context.read_facts(None);
        let mut remover = deleter.remover(&work.editors);
        let facts = ImageFacts::of_remover(scan, &work.stores, &mut remover)?;
        let facts = facts.with(facts_of(&scan_then.inventory));
        let ways = remover.ways(&scan.inventory);
        let freed_before = work.freed_before_images();
        let images = ImagesThen { scan: scan_then, context: &context, facts: &facts, freed_before };
        let mut whole = self.plan_once(work, &images)?;
        // Synchronise the filesystems once, and only if the plan deletes something: it makes them write.
        if !whole.plan.steps.is_empty() && self.sync_findings.is_none() {
            self.sync_findings = Some(self.command_run.write_out(&scan.inventory, &whole.plan.steps));
            // The filesystems may report now that there is less to do.
            whole = self.plan_once(work, &images)?;
        }
        let kubelet = self.kubelet.or_else(|| as_kubelet(&work.config.images).ok());
        let comparison =
            self.compares().then(|| images::side_by_side(scan, &context, &facts, kubelet)).flatten();
        Ok(JudgedPlan { whole, comparison, facts, ways })
    }

    /// Plans leaks, containers and images, in this order, by what the filesystems report now.
    fn plan_once(&self, work: &Work, images: &ImagesThen<'_>) -> Result<WholePlan, PreconditionError> {
        let inventory = &work.scanned.scan.inventory;
        let mut whole = self.plan_images(&work.named.images, images)?;
        let plan = &mut whole.plan;
        let deletes_images = !plan.steps.is_empty();
        self.forget_left_out(plan);
        if let Some((_, containers)) = &work.containers {
            plan.prepend(containers.clone());
        }
        match &work.leaks {
            // With `rm` leaks only make room for images.
            Ok(Some(leaks)) if self.gc_request.is_gc() || deletes_images => {
                let steps = leaks.steps(inventory);
                let outcome = if steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
                plan.prepend(Plan { steps, outcome, ..Plan::default() });
            }
            Ok(_) => {}
            Err(why) => refuse_part(plan, why),
        }
        plan.prepend(work.refused.clone().unwrap_or_default());
        Ok(whole)
    }

    fn plan_images(
        &self,
        named: &[ImageIx],
        images: &ImagesThen<'_>,
    ) -> Result<WholePlan, PreconditionError> {
        let ImagesThen { scan, context, facts, freed_before } = images;
        let Some(policy) = self.kubelet else {
            let (plan, before) = images::plan(freed_before, scan, *context, self.task(named), facts);
            return Ok(WholePlan { plan, believed_bytes: None, before });
        };
        let (plan, report, before) = execute::kubelet::plan(freed_before, scan, *context, facts, policy)?;
        Ok(WholePlan { plan, believed_bytes: Some(report.freed.freed_bytes), before })
    }
}

/// Returns the way of a run whose stores have these ways. Stores without images do not count.
fn via_of(chosen: Via, inventory: &Inventory, ways: &[Way]) -> Via {
    let is_edited = inventory.images.iter().any(|image| ways[image.store.get()] == Way::Direct);
    if chosen == Via::Auto && !is_edited { Via::Cri } else { chosen }
}

impl Work {
    /// Space that leaks and containers free before the first image.
    fn freed_before_images(&self) -> Vec<Gain> {
        let leaks = self.leaks.iter().flatten().flat_map(|leaks| leaks.gains(&self.scanned.scan.inventory));
        let containers = self.containers.iter().flat_map(|(_, plan)| plan.gains());
        sum(leaks.chain(containers))
    }
}
