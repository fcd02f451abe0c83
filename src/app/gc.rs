//! Deleting images, and what goes with them: `gc` by policy, `rm` by name. Two calls, with the
//! question between them: [`Gc::plan`] and [`Gc::act`]. A dry run is the first of them alone.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::by_hand;
use super::containers::Containers;
use super::database;
use super::direct;
use super::error::{Error, Exit};
use super::events::{Event, events};
use super::gc_request::{GcRequest, Only};
use super::observer::{Observer, Weight};
use super::outside::{self, Outside};
use super::policy_context::{self, NodeContext};
use super::protect::labels_for;
use super::recorder::{self, Beginning, Recorder};
use super::request::Request;
use super::reserve;
use super::rm::{self, Named};
use super::runtime;
use super::scan::{self, ScanResult};
use super::state::State;
use super::via;
use crate::config::{Config, Via};
use crate::cri::Options;
use crate::execute::cri::CriRemover;
use crate::execute::direct::DirectRemover;
use crate::execute::editors::{Editors, Keep};
use crate::execute::measure::{self, Patience};
use crate::execute::owner::Owners;
use crate::execute::{self, Gauges, Looked, Means, PreconditionError, Remover, Run, images, names};
use crate::history::RunLock;
use crate::history::pins::Pins;
use crate::history::runs::{self, Command};
use crate::model::display::two_decimals;
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::plan::{End, Gain, Kind, Phase, Plan, Problem, sum};
use crate::model::refs::Refs;
use crate::model::space::Measured;
use crate::model::{Finding, Inventory};
use crate::policy::PolicyKind;
use crate::policy::compare::{Comparison, kubelet_policy};
use crate::policy::kubelet::{self, Report};
use crate::policy::leaks::Plan as LeakPlan;
use crate::policy::plan::Task;
use crate::policy::space::Targets;
use crate::stores::{self, Scan};
use crate::sys::stop::{flag, is_asked};

/// How often it is scanned again because the node does not keep still.
const ATTEMPTS: u32 = 5;

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
    pub kubelet: Option<Report>,
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
    stores: stores::Request,
    named: Named,
    containers: Option<(Containers, Plan)>,
    leaks: Option<LeakPlan>,
    /// Why no leak may be deleted.
    barred: Option<String>,
}

/// What removes images, and who may be at work in the stores besides, unless that does not matter.
#[derive(Debug)]
enum Through {
    Cri(Box<CriRemover>),
    Direct(Option<Owners>),
}

/// One run of `gc` or `rm`.
#[derive(Debug)]
pub struct Gc<'a> {
    asked: GcRequest<'a>,
    observer: &'a dyn Observer,
    began: Instant,
    run_id: String,
    kubelet: Option<kubelet::Policy>,
    through: Option<Through>,
    /// What `through` is; before, what is configured.
    via: Via,
    /// Filesystems that were not synchronised before the first measurement; `None`: none has to be yet.
    not_written_out: Option<Vec<Finding>>,
    /// An interrupted run was finished after the answer.
    resumed: bool,
    /// Held from the beginning, or where somebody is asked, from the answer on.
    lock: Option<RunLock>,
}

impl<'a> Gc<'a> {
    pub fn new(asked: GcRequest<'a>, observer: &'a dyn Observer) -> Self {
        Self {
            via: asked.config.via,
            asked,
            observer,
            began: Instant::now(),
            run_id: runs::new_id(Timestamp::now()),
            kubelet: None,
            through: None,
            not_written_out: None,
            resumed: false,
            lock: None,
        }
    }

    /// Scans and plans. Nothing is deleted yet.
    ///
    /// # Errors
    /// When nothing can be planned, or another run holds the lock.
    pub fn plan(&mut self) -> Result<Planned, Error> {
        self.check()?;
        if !self.asked.dry_run && !self.asked.asks {
            self.hold()?;
        }
        let mut through = match self.through.take() {
            Some(through) => through,
            None => self.connect()?,
        };
        let mut attempt = 1;
        let planned = loop {
            match self.plan_once(&mut through) {
                // On a busy node something is always just coming or going, and what was scanned may
                // then be of another moment than what the runtime lists. Nothing was deleted; the
                // next scan takes only what is new, and is fast.
                Err(error) if error.is_stale() && attempt < ATTEMPTS && !is_asked() => {
                    tracing::info!("{error}; scanning again");
                    attempt += 1;
                }
                other => break other,
            }
        };
        self.through = Some(through);
        planned
    }

    /// Carries out what was planned.
    ///
    /// # Errors
    /// When nothing was deleted: another run holds the lock, or what the proofs need cannot be had. If
    /// [`Error::is_stale`], another plan may do.
    pub fn act(&mut self, planned: Planned) -> Result<GcResult, Error> {
        let held = self.lock.is_some();
        self.hold()?;
        if !held && resumed(self.asked.request, &planned.editors, planned.scanned.state.pins()) {
            self.resumed = true;
            return Err(PreconditionError::stale("an interrupted run was finished first").into());
        }
        let mut through = match self.through.take() {
            Some(through) => through,
            None => self.connect()?,
        };
        let missing = reserve::missing(&planned.scanned.scan, planned.scanned.state.place());
        let result = self.carry_out(&mut through, planned);
        if let Through::Cri(remover) = &through {
            // Again, where it was used up and there is room now.
            reserve::prepare(remover.reserve_file());
        }
        reserve::tell_made(&missing, self.observer);
        self.through = Some(through);
        result
    }

    /// The result of a run that was refused, which is recorded, too: unless another run keeps it from
    /// beginning, which reports it.
    pub fn refused(&self, error: &Error) -> GcResult {
        if self.lock.is_some()
            && let Ok((state, _)) = State::open(self.asked.request)
            // Nothing is written beside records that cannot be read.
            && !state.is_unreadable()
        {
            let names = (self.asked.command, self.run_id.as_str(), self.via.as_str());
            recorder::refusal(self.observer, &state, names, self.began, &error.message);
        }
        let plan = refused_plan(&error.message);
        GcResult { dry_run: self.asked.dry_run, exit: Exit::Refused, ..self.result(plan, Vec::new()) }
    }

    fn result(&self, plan: Plan, before: Vec<Measured>) -> GcResult {
        GcResult {
            command: self.asked.command,
            run_id: self.run_id.clone(),
            dry_run: false,
            policy: None,
            via: self.via,
            plan,
            outcome: None,
            before,
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

    fn hold(&mut self) -> Result<(), Error> {
        if self.lock.is_none() {
            self.lock = Some(database::acquire_lock(&database::place(self.asked.request))?);
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Error> {
        let GcRequest { request, command, config, .. } = &self.asked;
        if request.sysroot.is_some() {
            let command = command.as_str();
            return Err(Error::usage(format!("--sysroot: `{command}` never deletes from a mounted disk"))
                .hint("`layersweep explain IMAGE` and `layersweep usage` show what could be deleted"));
        }
        self.check_logs()?;
        // The kubelet's settings, where its algorithm decides: not over what somebody names.
        if config.decides == PolicyKind::Kubelet && *command == Command::Gc {
            let policy = kubelet_policy(&config.images).ok_or_else(|| {
                Error::usage("policy kubelet needs thresholds in percent, and none are set")
                    .hint("set images.high_percent and images.low_percent, or --high and --low")
            })?;
            self.kubelet = Some(policy);
        }
        Ok(())
    }

    fn check_logs(&self) -> Result<(), Error> {
        if self.via != Via::Direct || !self.asked.only.contains(&Only::Logs) {
            return Ok(());
        }
        let message = "--only logs: --via direct keeps logs, since only the runtime knows which are unused";
        Err(Error::usage(message).hint("leave out logs, or use --via cri once the runtime is running"))
    }

    fn connect(&mut self) -> Result<Through, Error> {
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
            return Ok(Through::Direct(direct::owners(request, while_runtime_runs)?));
        };
        self.via = Via::Cri;
        let remover = CriRemover::new(client)?;
        let place = database::place(request);
        let reserve = (!dry_run).then(|| reserve::of(&place, remover.place())).flatten();
        Ok(Through::Cri(Box::new(remover.with_reserve_file(reserve))))
    }

    fn scan(&self) -> Result<ScanResult, Error> {
        let GcRequest { request, config, dry_run, .. } = self.asked;
        scan::scan_for_policy(request, self.observer, !dry_run, config)
    }

    fn plan_once(&mut self, through: &mut Through) -> Result<Planned, Error> {
        let GcRequest { request, command, dry_run, .. } = self.asked;
        let via = self.via;
        let mut scanned = self.scan()?;
        if scanned.state.is_unreadable() {
            return Err(Error::refused("the records cannot be read, so pinned images are unknown")
                .hint("see the warning above; `layersweep scan` quarantines a damaged database"));
        }
        if scanned.state.is_new() {
            let dir = scanned.state.place().dir.display();
            self.observer.note(&format!(
                "no records in {dir} yet: nothing is pinned, and image ages come from the disk alone"
            ));
        }
        let keep = if via == Via::Direct { Keep::Make } else { Keep::Use };
        let dir = &scanned.state.place().dir;
        let editors = Editors::of(&scanned.scan, dir, keep, request.trust_pid_namespace);
        let mut config = self.asked.config.clone();
        if self.asked.leaves_out(Only::Images) {
            // Nothing starts, so nothing is deleted.
            config.images.targets = Targets::default();
            config.images.max_age = None;
        }
        let containers = match (&through, command) {
            (Through::Cri(remover), Command::Gc) => {
                Containers::wanted(&config, &self.asked.only, remover.client())
            }
            (Through::Direct(owners), Command::Gc) => {
                Containers::wanted_on_disk(&config, &self.asked.only, owners.as_ref())
            }
            _ => None,
        };
        if let Through::Direct(owners) = &through {
            direct::check_namespace(request)?;
            direct::check(owners.as_ref(), &scanned, &editors)?;
        }
        // Where somebody is asked, not before the answer.
        if self.lock.is_some() && resumed(request, &editors, scanned.state.pins()) {
            scanned = self.scan()?;
        }
        let (leaks, barred) = match direct::leaks((&self.asked, via), &config, &scanned, &editors) {
            Ok(leaks) => (leaks, None),
            Err(why) => (None, Some(why)),
        };
        let stores = stores::Request { labels: labels_for(&config.images.protect), ..request.stores()? };
        policy_context::protect(self.observer, &mut config, &stores)?;
        let named = rm::named(&scanned.scan, self.asked.named, self.asked.all_tags)?;
        if via == Via::Cri {
            rm::refuse_untags(&scanned.scan, &named.untags)?;
        }
        let scan = &scanned.scan;
        let containers =
            containers.map(|one| one.plan(Some(&editors), &stores, scan).map(|plan| (one, plan)));
        let containers = containers.transpose()?;
        let result = self.result(Plan::default(), Vec::new());
        let mut planned = Planned {
            is_unfinished: false,
            result: GcResult {
                dry_run,
                policy: Some(self.policy()),
                targets: config.images.targets,
                ..result
            },
            scanned,
            editors,
            config,
            stores,
            named,
            containers,
            leaks,
            barred,
        };
        self.plan_all(&mut planned, through)?;
        if self.write_out(&planned) {
            // The filesystems may say now that there is less to do, a dry run's like any other.
            self.plan_all(&mut planned, through)?;
        }
        if self.lock.is_none() && planned.editors.are_unfinished() {
            planned.is_unfinished = true;
            planned.result.plan.notes.push(UNFINISHED.to_owned());
        }
        if planned.leaks.is_some()
            && !planned.result.plan.steps.iter().any(|one| one.target.kind == Kind::Leak)
        {
            planned.leaks = None;
        }
        let may_lack_inodes = command == Command::Gc
            && planned.result.plan.steps.is_empty()
            && planned.result.targets.inodes.is_none()
            && !self.asked.leaves_out(Only::Images);
        if may_lack_inodes {
            let warnings = by_hand::out_of_inodes(&planned.scanned.scan);
            self.observer.findings(Weight::Always, &warnings);
            planned.scanned.scan.inventory.findings.extend(warnings);
        }
        let scanned = &planned.scanned;
        if dry_run {
            let GcRequest { request, .. } = self.asked;
            by_hand::advise(&mut planned.result.plan, request, &planned.config, &scanned.scan);
        }
        let result = &mut planned.result;
        result.findings = self.findings(&planned.scanned);
        if self.asked.dry_run {
            result.outside = self.outside(&result.plan, &planned.scanned.scan);
        }
        result.exit = self.exit(result.plan.outcome, &result.plan, &planned.scanned);
        Ok(planned)
    }

    fn policy(&self) -> PolicyKind {
        if self.kubelet.is_some() { PolicyKind::Kubelet } else { PolicyKind::Exact }
    }

    /// Plans everything, from one scan.
    fn plan_all(&self, planned: &mut Planned, through: &mut Through) -> Result<(), Error> {
        let Planned { result, scanned, editors, config, stores, named, containers, leaks, barred, .. } =
            planned;
        let scan = &scanned.scan;
        let mut context = NodeContext::new(self.asked.request, &scanned.state, config);
        // Containers first: what they hold is free then.
        let pending = containers.as_ref().map(|(_, plan)| {
            context.releases(&scan.inventory, plan);
            without(scan, plan)
        });
        let mut direct;
        let remover: &mut dyn Remover = match through {
            Through::Cri(remover) => remover.as_mut(),
            Through::Direct(owners) => {
                direct = DirectRemover::new(editors, owners.as_ref());
                &mut direct
            }
        };
        let means = Means { request: stores, policy: &config.images, context: &context };
        let made = made(&scan.inventory, leaks.as_ref(), containers.as_ref().map(|(_, plan)| plan));
        let after = pending.as_ref().unwrap_or(scan);
        let looked = Looked::now(scan, &means, remover)?;
        let (plan, before) = match self.kubelet {
            None => images::plan(&made, after, &means, self.task(named), &looked),
            Some(settings) => {
                let (plan, report, before) = execute::kubelet::plan(&made, after, &means, &looked, settings)?;
                result.kubelet = Some(report);
                (plan, before)
            }
        };
        let untags = names::plan(&named.untags, after, &means, &looked);
        if self.asked.dry_run
            && let Some(settings) = self.kubelet
        {
            result.comparison = images::side_by_side(scan, &means, &looked, settings);
        }
        let deletes_images = !plan.steps.is_empty();
        let mut plan = self.only_wanted(plan);
        plan.precede(untags);
        if let Some((_, containers)) = &containers {
            plan.precede(containers.clone());
        }
        // The reserve for the first bytes of a full disk is not spent for nothing.
        if let Some(leaks) = leaks.as_ref().filter(|_| self.asked.command == Command::Gc || deletes_images) {
            let steps = leaks.steps(&scan.inventory);
            let outcome = if steps.is_empty() { OutcomeKind::NotNeeded } else { OutcomeKind::Reached };
            plan.precede(Plan { steps, outcome, ..Plan::default() });
        }
        bar(&mut plan, barred.as_deref());
        (result.plan, result.before) = (plan, before);
        Ok(())
    }

    fn task<'n>(&self, named: &'n Named) -> Task<'n> {
        match self.asked.command {
            Command::Rm => Task::Named(&named.images),
            _ => Task::Policy,
        }
    }

    /// Of images that are left out nothing is told.
    fn only_wanted(&self, mut plan: Plan) -> Plan {
        if self.asked.leaves_out(Only::Images) {
            plan.kept.clear();
        }
        plan
    }

    /// Makes the filesystems that something is deleted from write out what was just written, if that was
    /// not done yet; whether it was done now. A run that deletes nothing disturbs nobody.
    fn write_out(&mut self, planned: &Planned) -> bool {
        let steps = &planned.result.plan.steps;
        if steps.is_empty() || self.not_written_out.is_some() {
            return false;
        }
        let roots: Vec<String> = steps.iter().map(|step| step.target.store_root()).collect();
        let stores = planned.scanned.scan.inventory.stores.iter();
        let touched = stores.filter(|store| roots.iter().any(|root| Path::new(root) == store.root));
        let findings = measure::write_out(touched);
        self.observer.findings(Weight::Always, &findings);
        self.not_written_out = Some(findings);
        true
    }

    fn findings(&self, scanned: &ScanResult) -> Vec<Finding> {
        let mut findings = scanned.scan.inventory.findings.clone();
        findings.extend(self.not_written_out.iter().flatten().cloned());
        findings
    }

    /// Leaks first, then containers and logs, then names, then images.
    fn carry_out(&self, through: &mut Through, planned: Planned) -> Result<GcResult, Error> {
        let Planned {
            mut result,
            mut scanned,
            editors,
            config,
            stores,
            named,
            containers,
            leaks,
            barred,
            ..
        } = planned;
        let mut context = NodeContext::new(self.asked.request, &scanned.state, &config);
        let scan = &mut scanned.scan;
        if let Some((_, plan)) = &containers {
            context.releases(&scan.inventory, plan);
        }
        let mut direct;
        let is_direct = self.via == Via::Direct;
        let remover: &mut dyn Remover = match through {
            Through::Cri(remover) => remover.as_mut(),
            Through::Direct(owners) => {
                direct = DirectRemover::new(&editors, owners.as_ref());
                &mut direct
            }
        };
        let logs = containers.as_ref().map(|(one, _)| one.pod_logs());
        let beginning = Beginning {
            command: self.asked.command,
            run_id: &self.run_id,
            began: self.began,
            policy: Some(self.policy()),
            via: self.via.as_str(),
            plan: &result.plan,
            usage_before_percent: usage_before(&result),
        };
        let mut recorder = Recorder::begin(self.observer, &scanned.state, Some(&context), &beginning);
        let gauges = Gauges::open(&scan.inventory, logs);
        let mut run = Run::new(gauges, Patience::default(), &mut recorder, flag());
        let before = run.measure();
        let leaks = leaks.map(|leaks| {
            let steps = leaks.steps(&scan.inventory);
            execute::leaks::run(&mut run, &steps, &scan.inventory, &editors, config.leaks.min_age)
        });
        if is_direct && !is_asked() {
            editors.prepare();
        }
        let mut began = leaks.is_some();
        let mut stale: Option<PreconditionError> = None;
        let dead = containers.and_then(|(one, _)| match one.run(&mut run, &editors, &stores, scan) {
            Ok(plan) => Some(plan),
            Err(error) => {
                stale = Some(error);
                None
            }
        });
        if let Some(plan) = &dead {
            began = true;
            // What was deleted was in nobody's way, but what it used is not in use any more.
            if !plan.steps.is_empty() {
                *scan = without(scan, plan);
            }
        }
        let means = Means { request: &stores, policy: &config.images, context: &context };
        let untagged = match stale {
            Some(_) => None,
            None => match names::run(&mut run, &named.untags, scan, &means, remover) {
                Ok(plan) => Some(plan),
                Err(error) => {
                    stale = Some(error);
                    None
                }
            },
        };
        began |= !named.untags.is_empty() && untagged.is_some();
        if stale.is_none() {
            let task = self.task(&named);
            let done = match self.kubelet {
                None => images::run(&mut run, scan, &means, task, remover).map(|plan| (plan, None)),
                Some(settings) => execute::kubelet::run(&mut run, scan, &means, remover, settings)
                    .map(|(plan, report)| (plan, Some(report))),
            };
            match done {
                Ok((plan, report)) => (result.plan, result.kubelet) = (self.only_wanted(plan), report),
                Err(error) => stale = Some(error),
            }
        }
        match stale {
            // What was deleted before is gone all the same, and that is told.
            Some(error) if began => {
                result.plan = refused_plan(&error.what);
                (result.policy, result.targets) = (None, Targets::default());
            }
            Some(error) => return Err(error.into()),
            None => {}
        }
        if is_direct && !is_asked() {
            editors.prepare();
        }
        let mut plan = std::mem::take(&mut result.plan);
        for first in [untagged, dead, leaks.map(told_once)].into_iter().flatten() {
            plan.precede(first);
        }
        bar(&mut plan, barred.as_deref());
        by_hand::advise(&mut plan, self.asked.request, &config, scan);
        let outcome = run.finish(plan, before);
        let failed_before = self.asked.command == Command::Gc && scanned.state.last_gc_failed();
        result.events = events(&outcome, result.kubelet.as_ref(), failed_before);
        let believed = result.kubelet.as_ref().map(|report| report.freed.freed_bytes);
        let kind = outcome.kind();
        let lost = recorder.end(&outcome, kind, (&result.events, believed), &scanned.scan.inventory);
        let exit = self.exit(kind, &outcome.plan, &scanned);
        result.exit = if lost && exit == Exit::Done { Exit::Failed } else { exit };
        result.findings = self.findings(&scanned);
        result.outside = self.outside(&outcome.plan, &scanned.scan);
        result.before.clone_from(&outcome.before);
        result.plan.clone_from(&outcome.plan);
        result.outcome = Some(outcome);
        result.at = Timestamp::now();
        Ok(result)
    }

    /// What the filesystems hold in no store that are still too full after this plan.
    fn outside(&self, plan: &Plan, scan: &Scan) -> Vec<Outside> {
        let full = plan.filesystems.iter().filter(|one| one.started.any() && one.end != End::Reached);
        let full: Vec<_> = full.map(|one| one.filesystem).collect();
        let told = self.asked.command == Command::Gc && plan.outcome == OutcomeKind::NotReached;
        if !told || full.is_empty() || is_asked() {
            return Vec::new();
        }
        // The usual places alone: a timer's run is not to walk a whole disk.
        let other_users =
            outside::measure(self.asked.request, self.observer, self.asked.config, scan, Some(0));
        full.into_iter().map(|at| Outside::of(scan, &other_users, at)).collect()
    }

    fn exit(&self, outcome: OutcomeKind, plan: &Plan, scanned: &ScanResult) -> Exit {
        match outcome {
            OutcomeKind::Failed => Exit::Failed,
            // What a rule keeps is refused; what could not be deleted has failed.
            OutcomeKind::NotReached if self.asked.command == Command::Rm => {
                if plan.problems.is_empty() {
                    Exit::Refused
                } else {
                    Exit::Failed
                }
            }
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
fn bar(plan: &mut Plan, why: Option<&str>) {
    let Some(why) = why else { return };
    plan.precede(Plan {
        problems: vec![Problem::new(None, Phase::Prove, why)],
        outcome: OutcomeKind::Refused,
        ..Plan::default()
    });
}

/// What bars a store is told once, and of no single leak.
fn told_once(mut plan: Plan) -> Plan {
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
    let (resumed, problems) = direct::resume(editors, pins);
    if resumed > 0 {
        tracing::warn!("finished an interrupted run: {resumed} images and layers");
    }
    for problem in problems {
        tracing::warn!("an interrupted run could not be finished: {}", problem.message);
    }
    resumed > 0
}
