//! Deleting images, and what goes with them: `gc` by policy, `rm` by name. Two calls, with the
//! question between them: [`Gc::plan`] and [`Gc::act`]. A dry run is the first of them alone.
//!
//! Top down: here the two calls and their results, then `planning` (scan, plan), then `deleting` (act, record).

mod deleting;
mod planning;

use jiff::Timestamp;

use super::containers::Containers;
use super::error::{Error, Exit};
use super::gc_request::{GcRequest, Only, Selection};
use super::observer::Observer;
use super::outside::{self, Outside};
use super::recorder;
use super::reserve;
use super::rm;
use super::run::CommandRun;
use super::scan::ScanResult;
use super::state::{Purpose, State, read_clocks};
use super::store_editing::{self, Resumed};
use super::via::Deleter;
use crate::config::{Config, Via};
use crate::execute::PreconditionError;
use crate::execute::editors::Editors;
use crate::history::runs::{Command, Event};
use crate::model::display::shell_word;
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::plan::{FilesystemPlan, Gain, PassEnd, Phase, Plan, Problem, TargetKind};
use crate::model::refs::Refs;
use crate::model::space::Measured;
use crate::model::{Finding, ImageIx};
use crate::policy::compare::{Comparison, kubelet_policy};
use crate::policy::kubelet::KubeletPolicy;
use crate::policy::leaks::{LeakPlan, LeakRequest};
use crate::policy::plan::Task;
use crate::policy::space::Targets;
use crate::policy::{Policy, PolicyKind};
use crate::stores::{self, Scan};
use crate::sys::stop::is_asked;

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
    /// Bytes that the kubelet's algorithm believes it frees; `None` for policy `exact`.
    pub believed_bytes: Option<u64>,
    /// Both policies side by side, of a dry run of policy `kubelet`.
    pub comparison: Option<Comparison>,
    pub events: Vec<Event>,
    pub findings: Vec<Finding>,
    /// Commands that end the use of images that `rm` has kept, as clauses.
    pub hints: Vec<String>,
    /// What the filesystems that stay too full hold in no store, where no deletion here reaches it.
    pub outside: Vec<Outside>,
    pub at: Timestamp,
    pub exit: Exit,
    /// How much of what killed runs had begun was finished first: images, layers, containers and temporary files.
    pub resumed: usize,
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
    named: Vec<ImageIx>,
    containers: Option<(Containers, Plan)>,
    leaks: Option<LeakPlan>,
    /// Why no leak may be deleted.
    barred: Option<String>,
    resumed: Resumed,
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
    /// What went wrong when filesystems were synchronised before the first measurement; `None`: that was not
    /// done yet.
    sync_findings: Option<Vec<Finding>>,
    /// See [`GcResult::resumed`].
    resumed: usize,
}

impl<'a> Gc<'a> {
    pub fn new(asked: GcRequest<'a>, observer: &'a dyn Observer) -> Self {
        Self {
            via: asked.config.via,
            command_run: CommandRun::new(asked.command(), observer),
            asked,
            kubelet: None,
            deleter: None,
            sync_findings: None,
            resumed: 0,
        }
    }

    /// Scans and plans. Nothing of the plan is deleted yet; what a killed run has begun is finished, unless
    /// this is a dry run or somebody is asked. `asks`: somebody is asked before [`Self::act`].
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
        let planned = self.make_plan(&mut deleter);
        self.deleter = Some(deleter);
        planned
    }

    /// Carries out what was planned.
    ///
    /// # Errors
    /// When nothing was deleted: another run holds the lock, or what the proofs need cannot be had. If
    /// [`Error::is_stale`], another plan may do.
    pub fn act(&mut self, mut planned: Planned) -> Result<GcResult, Error> {
        let was_locked = self.command_run.is_locked();
        self.command_run.lock(self.asked.request)?;
        if !was_locked {
            let begun = &planned.scanned.state.begun;
            planned.resumed = store_editing::finish_killed_runs(self.asked.request, &planned.editors, begun);
            self.resumed += planned.resumed.objects;
            if planned.resumed.objects > 0 {
                return Err(PreconditionError::stale("an interrupted run was finished first").into());
            }
        }
        let mut deleter = self.take_deleter()?;
        let missing = reserve::missing(&planned.scanned.scan, &planned.scanned.state.directory);
        let result = self.carry_out(&mut deleter, planned);
        reserve::report_made(&missing, self.command_run.observer);
        self.deleter = Some(deleter);
        result
    }

    /// The result of a run that was refused, which is recorded, too: unless another run keeps it from
    /// beginning, which reports it.
    pub fn refused(&self, error: &Error) -> GcResult {
        if self.command_run.is_locked()
            && let Ok((state, _)) = read_clocks().and_then(|now| State::open(self.asked.request, Purpose::Look, now))
            // Nothing is written beside records that cannot be read.
            && !state.is_unreadable
        {
            recorder::refusal(&self.command_run, &state, self.via, &error.message);
        }
        GcResult {
            dry_run: self.asked.dry_run,
            exit: Exit::Refused,
            ..self.unexecuted(refused_plan(&error.message))
        }
    }

    /// The result for a plan that is not carried out.
    fn unexecuted(&self, plan: Plan) -> GcResult {
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
            believed_bytes: None,
            comparison: None,
            events: Vec::new(),
            findings: Vec::new(),
            hints: Vec::new(),
            outside: Vec::new(),
            at: Timestamp::now(),
            exit: Exit::Done,
            resumed: self.resumed,
        }
    }

    /// Whether it has finished an interrupted run, which deletes.
    pub fn has_resumed(&self) -> bool {
        self.resumed > 0
    }

    fn check(&mut self) -> Result<(), Error> {
        let GcRequest { request, config, dry_run, .. } = &self.asked;
        if let Some(sysroot) = &request.sysroot {
            let sysroot = shell_word(&sysroot.to_string_lossy());
            let command = self.command_run.command.as_str();
            return Err(Error::usage(format!("--sysroot: `{command}` never deletes from a mounted disk"))
                .hint(format!("`layersweep report --sysroot {sysroot}` shows what could be deleted")));
        }
        self.check_only()?;
        if matches!(self.asked.selection, Selection::Gc { policy: PolicyKind::Kubelet, .. }) {
            if !dry_run {
                return Err(Error::usage(
                    "--policy kubelet deletes nothing: it only shows what the kubelet would delete",
                )
                .hint("add --dry-run, or leave out --policy to delete by layersweep's own rules"));
            }
            self.kubelet = Some(as_kubelet(&config.images)?);
        }
        Ok(())
    }

    fn check_only(&self) -> Result<(), Error> {
        match &self.asked.selection {
            Selection::Gc { only, .. }
                if self.via == Via::Direct
                    && (only.contains(&Only::Containers) || only.contains(&Only::Logs)) =>
            {
                Err(Error::usage("containers are collected through the runtime only")
                    .hint("use --via cri once the runtime is running, or leave out containers and logs"))
            }
            _ => Ok(()),
        }
    }

    /// Who deletes: chosen with the first plan, and put back after each.
    fn take_deleter(&mut self) -> Result<Deleter, Error> {
        if let Some(deleter) = self.deleter.take() {
            return Ok(deleter);
        }
        let deleter = Deleter::choose(&self.asked)?;
        self.via = deleter.via();
        self.check_only()?;
        if self.kubelet.is_some() && self.via == Via::Direct {
            return Err(Error::refused(
                "nothing was deleted: policy kubelet goes by the listings of a runtime",
            )
            .hint("use --via cri once the runtime is running, or --policy exact"));
        }
        Ok(deleter)
    }

    fn policy(&self) -> PolicyKind {
        if self.kubelet.is_some() { PolicyKind::Kubelet } else { PolicyKind::Exact }
    }

    fn task<'n>(&self, named: &'n [ImageIx]) -> Task<'n> {
        match self.asked.selection {
            Selection::Gc { .. } => Task::Policy,
            Selection::Rm { .. } => Task::Named(named),
        }
    }

    fn hints(&self, plan: &Plan, scan: &Scan) -> Vec<String> {
        if self.asked.is_gc() { Vec::new() } else { rm::hints(plan, scan) }
    }

    /// Of images that are left out nothing is reported.
    fn forget_left_out(&self, plan: &mut Plan) {
        if self.asked.leaves_out_images() {
            plan.kept.clear();
        }
    }

    fn findings(&self, scanned: &ScanResult) -> Vec<Finding> {
        let mut findings = scanned.scan.inventory.findings.clone();
        findings.extend(self.sync_findings.iter().flatten().cloned());
        findings
    }

    /// What the filesystems hold in no store that are still too full after this plan.
    fn outside(&self, plan: &Plan, scan: &Scan, editors: &Editors) -> Vec<Outside> {
        let above_threshold =
            plan.filesystems.iter().filter(|one| one.started.any() && one.end != PassEnd::Reached);
        let above_threshold: Vec<_> =
            above_threshold.map(|one| (one.filesystem, freed_since_scan(one, scan))).collect();
        let is_missed = self.asked.is_gc() && plan.outcome == OutcomeKind::NotReached;
        if !is_missed || above_threshold.is_empty() || is_asked() {
            return Vec::new();
        }
        // The usual places alone: a timer's run is not to walk a whole disk.
        let other_users =
            outside::measure(self.asked.request, self.command_run.observer, self.asked.config, scan, Some(0));
        let leaks = self.leaks_left(plan, scan, editors);
        let leaks_on =
            |at| leaks.iter().find(|gain| gain.filesystem == at).map_or(0, |gain| gain.size.frees_bytes);
        above_threshold
            .into_iter()
            .map(|(at, freed)| Outside {
                leaks_bytes: leaks_on(at),
                ..Outside::of(scan, &other_users, at, freed)
            })
            .collect()
    }

    /// What `sweep --delete` would free, by filesystem, where this run deletes no leaks.
    fn leaks_left(&self, plan: &Plan, scan: &Scan, editors: &Editors) -> Vec<Gain> {
        if plan.steps.iter().any(|step| step.target.kind == TargetKind::Leak) {
            return Vec::new();
        }
        let leaks = LeakRequest { min_age: self.asked.config.leaks.min_age, ..LeakRequest::default() };
        store_editing::plan_leaks(scan, &leaks, editors).gains(&scan.inventory)
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

/// Translates layersweep's settings into the kubelet's.
///
/// # Errors
/// When the kubelet has no such settings, or would not accept them.
fn as_kubelet(policy: &Policy) -> Result<KubeletPolicy, Error> {
    let only_percent = policy.targets.free.is_none() && policy.targets.inodes.is_none();
    let kubelet = kubelet_policy(policy).filter(|_| only_percent).ok_or_else(|| {
        Error::usage("policy kubelet supports only targets in percent used")
            .hint("give --high and --low; remove --min-free, --inodes-high and their keys")
    })?;
    match kubelet.check().first() {
        None => Ok(kubelet),
        Some(fault) => Err(Error::usage(format!("policy kubelet does not accept these settings: {fault}"))),
    }
}

/// Bytes by which the filesystem is less used than in the scan.
fn freed_since_scan(plan: &FilesystemPlan, scan: &Scan) -> u64 {
    let (Some(Ok(before)), Some(Ok(after))) = (&plan.before, &plan.after) else { return 0 };
    let available = after.available_bytes.saturating_sub(scan.inventory[plan.filesystem].available_bytes);
    // Bytes that fill up root's reserve are freed, and not available.
    available.saturating_add(before.owed_bytes.saturating_sub(after.owed_bytes))
}

/// A scan once the containers of `gone` are deleted.
fn without(scan: &Scan, gone: &Plan) -> Scan {
    let is_gone = |id: &str| gone.steps.iter().any(|step| step.target.id == id);
    let mut scan = scan.clone();
    scan.inventory.containers.retain(|one| !is_gone(&one.id));
    scan.refs = Refs::new(&scan.inventory);
    scan
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
    plan.prepend(Plan {
        problems: vec![Problem::new(None, Phase::Prove, why)],
        outcome: OutcomeKind::Refused,
        ..Plan::default()
    });
}
