//! Deleting images, and what goes with them: `gc` by policy, `rm` by name. Two calls, with the
//! question between them: [`Gc::plan`] and [`Gc::act`]. A dry run is the first of them alone.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;

use super::by_hand;
use super::containers::Containers;
use super::database;
use super::direct;
use super::error::{Error, Exit};
use super::events::events;
use super::gc_request::{GcRequest, Only, Selection};
use super::observer::{Audience, Observer};
use super::outside::{self, Outside};
use super::policy_context::{self, NodeContext};
use super::protect::labels_for;
use super::recorder::{self, Beginning, Recorder};
use super::request::Request;
use super::reserve;
use super::rm::{self, Requested};
use super::run::CommandRun;
use super::runtime;
use super::scan::{self, ScanResult};
use super::state::{Purpose, State, pins_now, read_clocks};
use super::via;
use crate::config::{Config, Via};
use crate::cri::Options;
use crate::execute::cri::CriRemover;
use crate::execute::direct::DirectRemover;
use crate::execute::editors::{Editors, Keep};
use crate::execute::measure::SettlePatience;
use crate::execute::owner::Owners;
use crate::execute::{
    self, Gauges, PreconditionError, ProofContext, Remover, RemoverFacts, Run, images, names,
};
use crate::history::pins::Pins;
use crate::history::runs::{Command, Event};
use crate::model::display::two_decimals;
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::plan::{Gain, PassEnd, Phase, Plan, Problem, TargetKind, sum};
use crate::model::refs::Refs;
use crate::model::space::Measured;
use crate::model::{Finding, Inventory};
use crate::policy::PolicyKind;
use crate::policy::compare::{Comparison, kubelet_policy};
use crate::policy::kubelet::{CollectorReport, KubeletPolicy};
use crate::policy::leaks::LeakPlan;
use crate::policy::plan::Task;
use crate::policy::space::Targets;
use crate::stores::{self, Scan};
use crate::sys::stop::{flag, is_asked};

/// Of the plan, which cannot know what that frees.
const UNFINISHED: &str =
    "a run was killed in the middle of a deletion, which is finished first: the plan may change";

/// A plan, or what became of it.
#[derive(Debug)]
pub struct GcResult {
    pub command: Command,
    pub run_id: String,
    pub dry_run: bool,
    /// `None` where the run was refused before it began.
    pub policy: Option<PolicyKind>,
    /// What was used; [`Via::Auto`] where the run was refused before that was known.
    pub via: Via,
    /// What is to be deleted; of a run, the plan as it was carried out.
    pub plan: Plan,
    /// The run; `None`: nothing was done.
    pub outcome: Option<Outcome>,
    /// What the filesystems said before.
    pub before: Vec<Measured>,
    pub targets: Targets,
    /// What the kubelet's own algorithm says of itself; `None` for policy `exact`.
    pub kubelet: Option<CollectorReport>,
    /// Both policies side by side, of a dry run of policy `kubelet`.
    pub comparison: Option<Comparison>,
    pub events: Vec<Event>,
    pub findings: Vec<Finding>,
    /// What the filesystems that stay too full hold in no store, where no deletion here reaches it.
    pub outside: Vec<Outside>,
    pub at: Timestamp,
    pub exit: Exit,
}

/// What a run will do, and all that it takes.
#[derive(Debug)]
pub struct Planned {
    pub result: GcResult,
    /// A killed run left deletions that this one finishes first.
    pub is_unfinished: bool,
    scanned: ScanResult,
    editors: Editors,
    config: Config,
    stores: stores::ScanRequest,
    named: Requested,
    containers: Option<(Containers, Plan)>,
    leaks: Option<LeakPlan>,
    /// Why no leak may be deleted.
    barred: Option<String>,
}

/// Who removes images.
#[derive(Debug)]
enum Deleter {
    /// The runtime.
    Cri(Box<CriRemover>),
    /// We do, while none of these owners runs; `None`: whoever runs (`--while-runtime-runs`).
    Direct(Option<Owners>),
}

impl Deleter {
    /// The remover, which `direct` holds where it is made for this.
    fn remover<'r, 'e: 'r>(
        &'e mut self,
        editors: &'e Editors,
        direct: &'r mut Option<DirectRemover<'e>>,
    ) -> &'r mut dyn Remover {
        match self {
            Self::Cri(remover) => remover.as_mut(),
            Self::Direct(owners) => direct.insert(DirectRemover::new(editors, owners.as_ref())),
        }
    }
}

/// One run of `gc` or `rm`.
#[derive(Debug)]
pub struct Gc<'a> {
    asked: GcRequest<'a>,
    /// Locked from the beginning, or where somebody is asked, from the answer on.
    command_run: CommandRun<'a>,
    kubelet: Option<KubeletPolicy>,
    deleter: Option<Deleter>,
    /// What `deleter` is; before, what is configured.
    via: Via,
    /// Filesystems that were not synchronised before the first measurement; `None`: none has to be yet.
    not_written_out: Option<Vec<Finding>>,
    /// An interrupted run was finished after the answer.
    resumed: bool,
}

impl<'a> Gc<'a> {
    pub fn new(asked: GcRequest<'a>, observer: &'a dyn Observer) -> Self {
        Self {
            via: asked.config.via,
            command_run: CommandRun::new(asked.command(), observer),
            asked,
            kubelet: None,
            deleter: None,
            not_written_out: None,
            resumed: false,
        }
    }

    /// Scans and plans. Nothing is deleted yet. `asks`: somebody is asked before [`Self::act`].
    ///
    /// # Errors
    /// When nothing can be planned, or another run holds the lock. If [`Error::is_stale`], another try may do:
    /// on a busy node something is always just coming or going, and what was scanned may then be of another
    /// moment than what the runtime lists.
    pub fn plan(&mut self, asks: bool) -> Result<Planned, Error> {
        self.check()?;
        if !self.asked.dry_run && !asks {
            self.command_run.lock(self.asked.request)?;
        }
        let mut deleter = self.take_deleter()?;
        let planned = self.plan_images(&mut deleter);
        self.deleter = Some(deleter);
        planned
    }

    /// Carries out what was planned.
    ///
    /// # Errors
    /// When nothing was deleted: another run holds the lock, or what the proofs need cannot be had. If
    /// [`Error::is_stale`], another plan may do.
    pub fn act(&mut self, planned: Planned) -> Result<GcResult, Error> {
        let was_locked = self.command_run.is_locked();
        self.command_run.lock(self.asked.request)?;
        if !was_locked && resumed(self.asked.request, &planned.editors, planned.scanned.state.pins()) {
            self.resumed = true;
            return Err(PreconditionError::stale("an interrupted run was finished first").into());
        }
        let mut deleter = self.take_deleter()?;
        let missing = reserve::missing(&planned.scanned.scan, planned.scanned.state.place());
        let result = self.carry_out(&mut deleter, planned);
        if let Deleter::Cri(remover) = &deleter {
            // Again, where it was used up and there is room now.
            reserve::prepare(remover.reserve_file());
        }
        reserve::tell_made(&missing, self.command_run.observer);
        self.deleter = Some(deleter);
        result
    }

    /// The result of a run that was refused, which is recorded, too: unless another run keeps it from
    /// beginning, which reports it.
    pub fn refused(&self, error: &Error) -> GcResult {
        if self.command_run.is_locked()
            && let Ok((state, _)) = read_clocks().and_then(|now| State::open(self.asked.request, Purpose::Look, now))
            // Nothing is written beside records that cannot be read.
            && !state.is_unreadable()
        {
            recorder::refusal(&self.command_run, &state, self.via.as_str(), &error.message);
        }
        GcResult {
            dry_run: self.asked.dry_run,
            exit: Exit::Refused,
            ..self.result(refused_plan(&error.message))
        }
    }

    /// A plan that nothing was done of.
    fn result(&self, plan: Plan) -> GcResult {
        GcResult {
            command: self.command_run.command,
            run_id: self.command_run.id.clone(),
            dry_run: true,
            policy: None,
            via: self.via,
            plan,
            outcome: None,
            before: Vec::new(),
            targets: Targets::default(),
            kubelet: None,
            comparison: None,
            events: Vec::new(),
            findings: Vec::new(),
            outside: Vec::new(),
            at: Timestamp::now(),
            exit: Exit::Done,
        }
    }

    /// Whether it has finished an interrupted run, which deletes.
    pub fn has_resumed(&self) -> bool {
        self.resumed
    }

    fn check(&mut self) -> Result<(), Error> {
        let GcRequest { request, config, .. } = &self.asked;
        if request.sysroot.is_some() {
            let command = self.command_run.command.as_str();
            return Err(Error::usage(format!("--sysroot: `{command}` never deletes from a mounted disk"))
                .hint("`layersweep explain IMAGE` and `layersweep usage` show what could be deleted"));
        }
        self.check_logs()?;
        // The kubelet's settings, where its algorithm decides: not over what somebody names.
        if config.decides == PolicyKind::Kubelet && self.asked.is_gc() {
            let policy = kubelet_policy(&config.images).ok_or_else(|| {
                Error::usage("policy kubelet needs thresholds in percent, and none are set")
                    .hint("set images.high_percent and images.low_percent, or --high and --low")
            })?;
            self.kubelet = Some(policy);
        }
        Ok(())
    }

    fn check_logs(&self) -> Result<(), Error> {
        match &self.asked.selection {
            Selection::Gc { only } if self.via == Via::Direct && only.contains(&Only::Logs) => {
                Err(Error::usage(
                    "--only logs: --via direct keeps logs, since only the runtime knows which are unused",
                )
                .hint("leave out logs, or use --via cri once the runtime is running"))
            }
            _ => Ok(()),
        }
    }

    fn take_deleter(&mut self) -> Result<Deleter, Error> {
        if let Some(deleter) = self.deleter.take() {
            return Ok(deleter);
        }
        let GcRequest { request, while_runtime_runs, dry_run, .. } = self.asked;
        // A signal does not wait for a listing that may never come.
        let options = Options { cancel: Some(Arc::clone(flag())), ..Options::default() };
        let client = match self.via {
            Via::Auto => via::choose(request, &options)?,
            Via::Cri => Some(runtime::connect(request, &options)?),
            Via::Direct => None,
        };
        let Some(client) = client else {
            self.via = Via::Direct;
            self.check_logs()?;
            return Ok(Deleter::Direct(direct::owners(request, while_runtime_runs)?));
        };
        self.via = Via::Cri;
        let remover = CriRemover::new(client)?;
        let place = database::place(request);
        let reserve = (!dry_run).then(|| reserve::of(&place, remover.place())).flatten();
        Ok(Deleter::Cri(Box::new(remover.with_reserve_file(reserve))))
    }

    fn scan(&self) -> Result<ScanResult, Error> {
        let GcRequest { request, config, dry_run, .. } = self.asked;
        scan::scan_for_policy(request, self.command_run.observer, !dry_run, config)
    }

    fn plan_images(&mut self, deleter: &mut Deleter) -> Result<Planned, Error> {
        let mut planned = self.prepare(deleter)?;
        self.plan_all(&mut planned, deleter)?;
        let Planned { result, is_unfinished, scanned, editors, leaks, config, .. } = &mut planned;
        let plan = &mut result.plan;
        if !self.command_run.is_locked() && editors.are_unfinished() {
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
            by_hand::advise(plan, self.asked.request, config, &scanned.scan);
            result.outside = self.outside(plan, &scanned.scan);
        }
        result.findings = self.findings(scanned);
        result.exit = self.exit(plan.outcome, plan, scanned);
        Ok(planned)
    }

    /// Scans, and finds out what a plan is made from.
    fn prepare(&self, deleter: &Deleter) -> Result<Planned, Error> {
        let GcRequest { request, selection, .. } = &self.asked;
        let mut scanned = self.scan()?;
        if scanned.state.is_unreadable() {
            return Err(Error::refused("the records cannot be read, so pinned images are unknown")
                .hint("see the warning above; `layersweep scan` quarantines a damaged database"));
        }
        if scanned.state.is_new() {
            let dir = scanned.state.place().dir.display();
            self.command_run.observer.note(&format!(
                "no records in {dir} yet: nothing is pinned, and image ages come from the disk alone"
            ));
        }
        let keep = if self.via == Via::Direct { Keep::Make } else { Keep::Use };
        let dir = &scanned.state.place().dir;
        let editors = Editors::of(&scanned.scan, dir, keep, request.trust_pid_namespace);
        let mut config = self.asked.config.clone();
        if self.asked.leaves_out_images() {
            // Nothing starts, so nothing is deleted.
            config.images.targets = Targets::default();
            config.images.max_age = None;
        }
        let containers = match (deleter, selection) {
            (Deleter::Cri(remover), Selection::Gc { only }) => Containers::wanted(&config, only, remover),
            (Deleter::Direct(owners), Selection::Gc { only }) => {
                Containers::wanted_on_disk(&config, only, owners.as_ref())
            }
            (_, Selection::Rm { .. }) => None,
        };
        if let Deleter::Direct(owners) = deleter {
            direct::check_namespace(request)?;
            direct::check(owners.as_ref(), &scanned, &editors)?;
        }
        // Where somebody is asked, not before the answer.
        if self.command_run.is_locked() && resumed(request, &editors, scanned.state.pins()) {
            scanned = self.scan()?;
        }
        let (leaks, barred) = match direct::leaks(&self.asked, self.via, &config, &scanned, &editors) {
            Ok(leaks) => (leaks, None),
            Err(why) => (None, Some(why)),
        };
        let stores = stores::ScanRequest { labels: labels_for(&config.images.protect), ..request.stores()? };
        policy_context::protect(self.command_run.observer, &mut config, &stores)?;
        let named = match selection {
            Selection::Gc { .. } => Requested::default(),
            Selection::Rm { references, all_tags } => rm::named(&scanned.scan, references, *all_tags)?,
        };
        if self.via == Via::Cri {
            rm::refuse_untags(&scanned.scan, &named.untags)?;
        }
        let containers = match containers {
            Some(one) => {
                let plan = one.plan(Some(&editors), &stores, &scanned.scan)?;
                Some((one, plan))
            }
            None => None,
        };
        let targets = config.images.targets;
        let result = GcResult { policy: Some(self.policy()), targets, ..self.result(Plan::default()) };
        Ok(Planned {
            is_unfinished: false,
            result,
            scanned,
            editors,
            config,
            stores,
            named,
            containers,
            leaks,
            barred,
        })
    }

    fn policy(&self) -> PolicyKind {
        if self.kubelet.is_some() { PolicyKind::Kubelet } else { PolicyKind::Exact }
    }

    /// Plans everything, from one scan.
    fn plan_all(&mut self, planned: &mut Planned, deleter: &mut Deleter) -> Result<(), Error> {
        let Planned { result, scanned, editors, config, stores, named, containers, leaks, barred, .. } =
            planned;
        let scan = &scanned.scan;
        let containers = containers.as_ref().map(|(_, plan)| plan);
        let mut context = NodeContext::new(self.asked.request, &scanned.state, config);
        // Containers first: what they hold is free then.
        let pending = containers.map(|plan| {
            context.releases(&scan.inventory, plan);
            without(scan, plan)
        });
        let after = pending.as_ref().unwrap_or(scan);
        let made = made(&scan.inventory, leaks.as_ref(), containers);
        let proof_context = ProofContext { request: stores, policy: &config.images, context: &context };
        let looked = RemoverFacts::now(scan, &proof_context, deleter.remover(editors, &mut None))?;
        let untags = names::plan(&named.untags, after, &proof_context, &looked);
        let plan_now = |gc: &Self| -> Result<_, PreconditionError> {
            let (plan, report, before) = match gc.kubelet {
                None => {
                    let (plan, before) = images::plan(&made, after, &proof_context, gc.task(named), &looked);
                    (plan, None, before)
                }
                Some(policy) => {
                    let (plan, report, before) =
                        execute::kubelet::plan(&made, after, &proof_context, &looked, policy)?;
                    (plan, Some(report), before)
                }
            };
            let deletes_images = !plan.steps.is_empty();
            let mut plan = gc.only_wanted(plan);
            plan.precede(untags.clone());
            if let Some(containers) = containers {
                plan.precede(containers.clone());
            }
            // The reserve for the first bytes of a full disk is not spent for nothing.
            if let Some(leaks) = leaks.as_ref().filter(|_| gc.asked.is_gc() || deletes_images) {
                let steps = leaks.steps(&scan.inventory);
                let outcome = if steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
                plan.precede(Plan { steps, outcome, ..Plan::default() });
            }
            refuse_part(&mut plan, barred.as_deref());
            Ok((plan, report, before))
        };
        let mut now = plan_now(self)?;
        // Once, and a run that deletes nothing disturbs nobody.
        if !now.0.steps.is_empty() && self.not_written_out.is_none() {
            self.not_written_out = Some(self.command_run.write_out(&scan.inventory, &now.0.steps));
            // The filesystems may say now that there is less to do, a dry run's like any other.
            now = plan_now(self)?;
        }
        (result.plan, result.kubelet, result.before) = now;
        if let Some(policy) = self.kubelet.filter(|_| self.asked.dry_run) {
            result.comparison = images::side_by_side(scan, &proof_context, &looked, policy);
        }
        Ok(())
    }

    fn task<'n>(&self, named: &'n Requested) -> Task<'n> {
        match self.asked.selection {
            Selection::Gc { .. } => Task::Policy,
            Selection::Rm { .. } => Task::Named(&named.images),
        }
    }

    /// Of images that are left out nothing is told.
    fn only_wanted(&self, mut plan: Plan) -> Plan {
        if self.asked.leaves_out_images() {
            plan.kept.clear();
        }
        plan
    }

    fn findings(&self, scanned: &ScanResult) -> Vec<Finding> {
        let mut findings = scanned.scan.inventory.findings.clone();
        findings.extend(self.not_written_out.iter().flatten().cloned());
        findings
    }

    fn carry_out(&self, deleter: &mut Deleter, planned: Planned) -> Result<GcResult, Error> {
        let Planned { result, scanned, config, containers, barred, .. } = &planned;
        let mut context = NodeContext::new(self.asked.request, &scanned.state, config);
        if let Some((_, plan)) = containers {
            context.releases(&scanned.scan.inventory, plan);
        }
        let mut scan = Cow::Borrowed(&scanned.scan);
        let beginning = Beginning {
            policy: Some(self.policy()),
            via: self.via.as_str(),
            plan: &result.plan,
            usage_before_percent: usage_before(result),
        };
        let mut recorder = Recorder::begin(&self.command_run, &scanned.state, Some(&context), &beginning);
        let logs = containers.as_ref().map(|(one, _)| one.pod_logs());
        let gauges = Gauges::open(&scan.inventory, logs);
        let mut run = Run::new(gauges, SettlePatience::default(), &mut recorder, flag());
        let before = run.measure();
        let has_acted = |plan: &Plan| !(plan.steps.is_empty() && plan.problems.is_empty());
        let mut before_images = Vec::new();
        let deleted = self.delete(&mut run, &planned, &mut scan, &context, deleter, &mut before_images);
        let (mut plan, kubelet, policy, targets) = match deleted {
            Ok((plan, report)) => (plan, report, result.policy, result.targets),
            // What was deleted before is gone all the same, and that is told.
            Err(error) if before_images.iter().any(has_acted) => {
                (refused_plan(&error.what), result.kubelet.clone(), None, Targets::default())
            }
            Err(error) => return Err(error.into()),
        };
        self.prepare_to_edit(&planned);
        for first in before_images.into_iter().rev() {
            plan.precede(first);
        }
        refuse_part(&mut plan, barred.as_deref());
        by_hand::advise(&mut plan, self.asked.request, config, &scan);
        let outcome = run.finish(plan, before);
        let failed_before = self.asked.is_gc() && scanned.state.last_gc_failed();
        let events = events(&outcome, kubelet.as_ref(), failed_before);
        let believed = kubelet.as_ref().map(|report| report.freed.freed_bytes);
        let kind = outcome.kind();
        let exit = self.exit(kind, &outcome.plan, scanned);
        let exit = recorder.end(&outcome, kind, (&events, believed), &scan.inventory, exit);
        let result = self.result(outcome.plan.clone());
        Ok(GcResult {
            policy,
            targets,
            dry_run: false,
            kubelet,
            events,
            exit,
            findings: self.findings(scanned),
            outside: self.outside(&outcome.plan, &scan),
            before: outcome.before.clone(),
            outcome: Some(outcome),
            ..result
        })
    }

    /// Deletes leaks first, then containers and logs, then names, all of which is added to `before_images`,
    /// then images.
    fn delete(
        &self,
        run: &mut Run<'_>,
        planned: &Planned,
        scan: &mut Cow<'_, Scan>,
        context: &NodeContext<'_>,
        deleter: &mut Deleter,
        before_images: &mut Vec<Plan>,
    ) -> Result<(Plan, Option<CollectorReport>), PreconditionError> {
        let Planned { editors, config, stores, named, containers, leaks, .. } = planned;
        if let Some(leaks) = leaks {
            let steps = leaks.steps(&scan.inventory);
            let plan = execute::leaks::run(run, &steps, &scan.inventory, editors, config.leaks.min_age);
            before_images.push(locks_once(plan));
        }
        self.prepare_to_edit(planned);
        if let Some((containers, _)) = containers {
            let plan = containers.run(run, editors, stores, scan)?;
            // What was deleted was in nobody's way, but what it used is not in use any more.
            if !plan.steps.is_empty() {
                *scan = Cow::Owned(without(scan, &plan));
            }
            before_images.push(plan);
        }
        let mut direct = None;
        let remover = deleter.remover(editors, &mut direct);
        let proof_context = ProofContext { request: stores, policy: &config.images, context };
        let untagged = names::run(run, &named.untags, scan, &proof_context, remover)?;
        if !named.untags.is_empty() {
            before_images.push(untagged);
        }
        let (plan, report) = match self.kubelet {
            None => (images::run(run, scan, &proof_context, self.task(named), remover)?, None),
            Some(policy) => {
                let (plan, report) = execute::kubelet::run(run, scan, &proof_context, remover, policy)?;
                (plan, Some(report))
            }
        };
        Ok((self.only_wanted(plan), report))
    }

    /// Makes the reserve files of the stores that are edited; where `rm` deletes nothing, it takes no room.
    fn prepare_to_edit(&self, planned: &Planned) {
        let is_needed = self.asked.is_gc() || !planned.result.plan.steps.is_empty();
        if self.via == Via::Direct && is_needed && !is_asked() {
            planned.editors.prepare();
        }
    }

    /// What the filesystems hold in no store that are still too full after this plan.
    fn outside(&self, plan: &Plan, scan: &Scan) -> Vec<Outside> {
        let full = plan.filesystems.iter().filter(|one| one.started.any() && one.end != PassEnd::Reached);
        let full: Vec<_> = full.map(|one| one.filesystem).collect();
        let told = self.asked.is_gc() && plan.outcome == OutcomeKind::NotReached;
        if !told || full.is_empty() || is_asked() {
            return Vec::new();
        }
        // The usual places alone: a timer's run is not to walk a whole disk.
        let other_users =
            outside::measure(self.asked.request, self.command_run.observer, self.asked.config, scan, Some(0));
        full.into_iter().map(|at| Outside::of(scan, &other_users, at)).collect()
    }

    fn exit(&self, outcome: OutcomeKind, plan: &Plan, scanned: &ScanResult) -> Exit {
        match outcome {
            OutcomeKind::Failed => Exit::Failed,
            // What a rule keeps is refused; what could not be deleted has failed.
            OutcomeKind::NotReached if !self.asked.is_gc() && plan.problems.is_empty() => Exit::Refused,
            OutcomeKind::NotReached if !self.asked.is_gc() => Exit::Failed,
            // "Everything worked" is not so where something could not be read.
            OutcomeKind::NotReached if scanned.exit() != Exit::Done => scanned.exit(),
            OutcomeKind::NotReached => Exit::NotReached,
            OutcomeKind::Refused => Exit::Refused,
            _ => scanned.exit(),
        }
    }
}

/// A scan once the containers of `gone` are deleted.
fn without(scan: &Scan, gone: &Plan) -> Scan {
    let is_gone = |id: &str| gone.steps.iter().any(|step| step.target.id == id);
    let mut scan = scan.clone();
    scan.inventory.containers.retain(|one| !is_gone(&one.id));
    scan.refs = Refs::new(&scan.inventory);
    scan
}

/// What is freed before any image is deleted.
fn made(inventory: &Inventory, leaks: Option<&LeakPlan>, containers: Option<&Plan>) -> Vec<Gain> {
    let leaks = leaks.map(|leaks| leaks.gains(inventory)).unwrap_or_default();
    let containers = containers.map(Plan::gains).unwrap_or_default();
    sum(leaks.into_iter().chain(containers))
}

/// Percent used before, of the filesystem that is shown.
fn usage_before(result: &GcResult) -> Option<f64> {
    let at = result.plan.shown()?.filesystem;
    let space = result.before.get(at.get())?.as_ref().ok()?;
    Some(two_decimals(space.used_percent()))
}

fn refused_plan(message: &str) -> Plan {
    Plan {
        problems: vec![Problem::new(None, Phase::Begin, message)],
        outcome: OutcomeKind::Refused,
        ..Plan::default()
    }
}

/// Something that was asked for was not begun: that is no single thing's problem.
fn refuse_part(plan: &mut Plan, why: Option<&str>) {
    let Some(why) = why else { return };
    plan.precede(Plan {
        problems: vec![Problem::new(None, Phase::Prove, why)],
        outcome: OutcomeKind::Refused,
        ..Plan::default()
    });
}

/// What bars a store is told once, and of no single leak.
fn locks_once(mut plan: Plan) -> Plan {
    let mut told: Vec<String> = Vec::new();
    plan.problems.retain_mut(|problem| {
        if problem.phase != Phase::Lock {
            return true;
        }
        problem.id = None;
        let first = !told.contains(&problem.message);
        told.push(problem.message.clone());
        first
    });
    plan
}

/// Finishes what killed runs began, whoever deletes images now; whether there was anything.
fn resumed(request: &Request, editors: &Editors, pins: &Pins) -> bool {
    if direct::check_namespace(request).is_err() {
        return false;
    }
    // A person may have pinned something while being asked.
    let now = pins_now(request);
    let (resumed, problems) = direct::resume(editors, now.as_ref().unwrap_or(pins));
    if resumed > 0 {
        tracing::warn!("finished an interrupted run: {resumed} images and layers");
    }
    for problem in problems {
        tracing::warn!("an interrupted run could not be finished: {}", problem.message);
    }
    resumed > 0
}
