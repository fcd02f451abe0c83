//! Deletion of images, and of leaks, containers and logs with them: `gc` by policy, `rm` by name. It takes two calls,
//! [`Gc::plan`] and [`Gc::act`]; between them a person may be asked. A dry run is the first call alone.
//!
//! This file has the two calls and their results; `planning` scans and plans; `deleting` acts and records.

mod deleting;
mod planning;

use std::collections::HashSet;

use jiff::Timestamp;

use super::report::thresholds;
use super::rm::{self, NamedImages};
use crate::config::{Config, Via};
use crate::disk::{Progress, filesystem};
use crate::execute::editors::Editors;
use crate::execute::way::Way;
use crate::execute::{ImageFacts, PreconditionError};
use crate::history::runs::{Command, Event};
use crate::model::deletion::outcome::{Outcome, OutcomeKind};
use crate::model::deletion::plan::{FilesystemPlan, PassEnd, Phase, Plan, Problem, TargetKind, freed_on};
use crate::model::refs::{Refs, Root};
use crate::model::rules::Rule;
use crate::model::space::{BytesAndInodes, Measured};
use crate::model::{FilesystemIx, Finding, ImageIx, StoreId};
use crate::policy::compare::{Comparison, kubelet_policy};
use crate::policy::kubelet::KubeletPolicy;
use crate::policy::leaks::{LeakPlan, LeakRequest};
use crate::policy::plan::Task;
use crate::policy::space::Targets;
use crate::policy::thresholds::DiskThreshold;
use crate::policy::{Policy, PolicyKind};
use crate::services::containers::Containers;
use crate::services::diagnosis::{self, CauseGroup, CauseKind, Disk, StoppedHolders};
use crate::services::error::{Error, Exit};
use crate::services::gc_request::{GcRequest, Only, Selection};
use crate::services::observer::Observer;
use crate::services::outside::{self, InodeUse, Outside};
use crate::services::recorder;
use crate::services::reserve;
use crate::services::run::CommandRun;
use crate::services::scan::ScanResult;
use crate::services::state::{Purpose, State, read_clocks};
use crate::services::store_editing::{self, Resumed};
use crate::services::via::Deleter;
use crate::stores::{self, Scan};
use crate::sys::stop::is_requested;

#[derive(Debug)]
pub struct GcResult {
    pub command: Command,
    pub run_id: String,
    pub dry_run: bool,
    /// `None` if the run was refused before it began.
    pub policy: Option<PolicyKind>,
    /// The way of deletion that was used; [`Via::Auto`] if that depends on the store, or if the run was refused before it
    /// was chosen.
    pub via: Via,
    /// The stores from which images can be deleted, each with its way.
    pub stores: Vec<StoreWay>,
    /// The plan; after a run, as it was carried out.
    pub plan: Plan,
    /// Result of the run; `None`: nothing was done.
    pub outcome: Option<Outcome>,
    /// Space of the filesystems before the run.
    pub before: Vec<Measured>,
    pub targets: Targets,
    /// Bytes that the kubelet's algorithm expects to free; `None` for policy `exact`.
    pub believed_bytes: Option<u64>,
    pub comparison: Option<Comparison>,
    pub events: Vec<Event>,
    pub findings: Vec<Finding>,
    /// Commands that end the use of images that `rm` has kept, as clauses.
    pub hints: Vec<String>,
    /// Usage outside of the stores on filesystems that are still too full, and of full filesystems without a store; no
    /// deletion by layersweep frees it.
    pub outside: Vec<Outside>,
    /// Use of the inodes of filesystems that are still short of them.
    pub inode_uses: Vec<InodeUse>,
    /// Stopped containers, if a target was not reached.
    pub stopped: StoppedHolders,
    /// Named images of the plan that were never pulled, so that no registry may have them: store and id.
    pub never_pulled: HashSet<(StoreId, String)>,
    /// Lines of a list of `rm` that name no image of this node.
    pub absent: Vec<String>,
    pub at: Timestamp,
    pub exit: Exit,
    /// Number of images, layers, containers and temporary files that killed runs had begun to delete, and that were
    /// deleted first.
    pub resumed: usize,
}

/// A store with its way of deletion.
#[derive(Clone, Debug)]
pub struct StoreWay {
    pub id: StoreId,
    pub filesystem: FilesystemIx,
    pub way: Way,
    /// Other way to delete images that are out of reach there, as a clause; empty if none is known.
    pub remedy: String,
    /// Bytes that deleting all of these images frees.
    pub unused_bytes: u64,
}

impl GcResult {
    fn stores_by(&self, way: &Way) -> Vec<StoreId> {
        let stores = self.stores.iter().filter(|store| store.way == *way);
        stores.map(|store| store.id.clone()).collect()
    }
}

/// The plan of a run, ready to be carried out.
#[derive(Debug)]
pub struct Planned {
    pub result: GcResult,
    /// A killed run left deletions that this run finishes first.
    pub is_unfinished: bool,
    work: Work,
    deleter: Deleter,
}

#[derive(Debug)]
struct Work {
    scanned: ScanResult,
    editors: Editors,
    config: Config,
    stores: stores::ScanRequest,
    /// The images that `rm` names.
    named: NamedImages,
    /// Refusal for the stores of a runtime that should answer and does not.
    refused: Option<Plan>,
    containers: Option<(Containers, Plan)>,
    /// `Err`: the reason for which no leak may be deleted.
    leaks: Result<Option<LeakPlan>, String>,
    /// The facts about the images that the plan is made of; `None` if they may have changed since.
    facts: Option<ImageFacts>,
    resumed: Resumed,
}

#[derive(Debug)]
pub struct Gc<'a> {
    gc_request: GcRequest<'a>,
    /// Locked from the beginning, or, if a person is asked, from the answer on.
    command_run: CommandRun<'a>,
    /// The kubelet's settings, in a dry run of its policy.
    kubelet: Option<KubeletPolicy>,
    /// The way of deletion; before the first plan, the configured one.
    via: Via,
    /// Failures to synchronise filesystems before the first measurement; `None` until that was done.
    sync_findings: Option<Vec<Finding>>,
    resumed: usize,
}

impl<'a> Gc<'a> {
    /// # Errors
    /// When flags or configuration contradict each other.
    pub fn new(gc_request: GcRequest<'a>, observer: &'a dyn Observer) -> Result<Self, Error> {
        let command = gc_request.command();
        if gc_request.request.sysroot.is_some() {
            let command = command.as_str();
            return Err(Error::usage(format!("--sysroot: `{command}` never deletes from a mounted disk"))
                .hint("`layersweep report` shows what could be deleted"));
        }
        check_only(&gc_request, gc_request.config.via)?;
        Ok(Self {
            via: gc_request.config.via,
            command_run: CommandRun::new(command, observer),
            kubelet: kubelet(&gc_request)?,
            gc_request,
            sync_findings: None,
            resumed: 0,
        })
    }

    /// Scans and plans. Deletes nothing of the plan yet, but finishes the deletions of killed runs, unless this is a
    /// dry run or a person is asked. `asks`: a person is asked before [`Self::act`].
    ///
    /// # Errors
    /// When nothing can be planned, or another run holds the lock. If [`Error::is_stale`], another attempt may succeed:
    /// on a busy node objects are created and deleted all the time, and the scan and the runtime's listings may show
    /// different moments.
    pub fn plan(&mut self, asks: bool) -> Result<Planned, Error> {
        if !self.gc_request.dry_run && !asks {
            self.command_run.lock(self.gc_request.request)?;
        }
        self.make_plan()
    }

    /// Carries out a plan.
    ///
    /// # Errors
    /// When nothing was deleted: another run holds the lock, or the facts for the proofs cannot be read. If
    /// [`Error::is_stale`], another plan may succeed.
    pub fn act(&mut self, planned: Planned) -> Result<GcResult, Error> {
        let Planned { result, mut work, mut deleter, .. } = planned;
        let was_locked = self.command_run.is_locked();
        self.command_run.lock(self.gc_request.request)?;
        if !was_locked {
            // A person was asked, which takes time.
            work.facts = None;
            let begun = &work.scanned.state.begun;
            work.resumed = store_editing::finish_killed_runs(self.gc_request.request, &work.editors, begun);
            self.resumed += work.resumed.objects;
            if work.resumed.objects > 0 {
                return Err(PreconditionError::stale("an interrupted run was finished first").into());
            }
        }
        let missing = reserve::missing(&work.scanned.scan, &work.scanned.state.directory);
        let result = self.carry_out(&result, &work, &mut deleter);
        reserve::report_made(&missing, self.command_run.observer);
        result
    }

    /// The result of a refused run. Records the refusal, unless another run holds the lock.
    pub fn refused(&self, error: &Error) -> GcResult {
        if self.command_run.is_locked()
            && let Ok((state, _)) = read_clocks().and_then(|now| State::open(self.gc_request.request, Purpose::Look, now))
            // Nothing is written beside a database that cannot be read.
            && !state.is_unreadable
        {
            recorder::refusal(&self.command_run, &state, self.via, &error.message);
        }
        GcResult {
            dry_run: self.gc_request.dry_run,
            exit: Exit::Refused,
            ..self.unexecuted(refused_plan(&error.message))
        }
    }

    fn unexecuted(&self, plan: Plan) -> GcResult {
        GcResult {
            command: self.command_run.command,
            run_id: self.command_run.id.clone(),
            dry_run: true,
            policy: None,
            via: self.via,
            stores: Vec::new(),
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
            inode_uses: Vec::new(),
            stopped: StoppedHolders::default(),
            never_pulled: HashSet::new(),
            absent: Vec::new(),
            at: Timestamp::now(),
            exit: Exit::Done,
            resumed: self.resumed,
        }
    }

    pub fn has_resumed(&self) -> bool {
        self.resumed > 0
    }

    /// Chooses the runtime, the editor, or both.
    fn choose_deleter(&mut self) -> Result<Deleter, Error> {
        let deleter = Deleter::choose(&self.gc_request)?;
        let needs_runtime = self.kubelet.is_some() || self.gc_request.is_for_runtime();
        let deleter = if needs_runtime { deleter.into_answering()? } else { deleter };
        self.via = deleter.via();
        check_only(&self.gc_request, self.via)?;
        if self.kubelet.is_some() && self.via == Via::Direct {
            return Err(Error::nothing_deleted("policy kubelet goes by the listings of a runtime")
                .hint("use --via cri once the runtime is running, or --policy exact"));
        }
        Ok(deleter)
    }

    /// Returns true if this is a dry run that shows the policies side by side.
    fn compares(&self) -> bool {
        self.kubelet.is_some() || matches!(self.gc_request.selection, Selection::Gc { compare: true, .. })
    }

    fn policy(&self) -> PolicyKind {
        if self.kubelet.is_some() { PolicyKind::Kubelet } else { PolicyKind::Exact }
    }

    fn task<'n>(&self, named: &'n [ImageIx]) -> Task<'n> {
        match self.gc_request.selection {
            Selection::Gc { .. } => Task::Policy,
            Selection::Rm { .. } => Task::Named(named),
        }
    }

    fn hints(&self, plan: &Plan, scan: &Scan, named: &NamedImages) -> Vec<String> {
        if self.gc_request.is_gc() {
            Vec::new()
        } else {
            [rm::hints(plan, scan), named.hints.clone()].concat()
        }
    }

    /// Images excluded by `--only` are not listed.
    fn forget_left_out(&self, plan: &mut Plan) {
        if self.gc_request.leaves_out_images() {
            plan.kept.clear();
        }
    }

    fn findings(&self, scanned: &ScanResult) -> Vec<Finding> {
        let mut findings = scanned.scan.inventory.findings.clone();
        findings.extend(self.sync_findings.iter().flatten().cloned());
        findings
    }

    /// Returns the stopped containers if a target is missed. `scan`: as [`reach::mark`] has left it.
    ///
    /// [`reach::mark`]: crate::services::reach::mark
    fn stopped(&self, plan: &Plan, scan: &Scan) -> StoppedHolders {
        if self.misses(plan).is_empty() { StoppedHolders::default() } else { StoppedHolders::find(scan) }
    }

    /// Returns the filesystems that stay above their thresholds after this plan; none if a signal has ended it.
    fn misses<'p>(&self, plan: &'p Plan) -> Vec<&'p FilesystemPlan> {
        let is_missed = matches!(plan.outcome, OutcomeKind::NotReached | OutcomeKind::Refused);
        if !self.gc_request.is_gc() || !is_missed || is_requested() {
            return Vec::new();
        }
        let filesystems = plan.filesystems.iter();
        filesystems.filter(|plan| plan.started.any() && plan.end != PassEnd::Reached).collect()
    }

    /// Usage of the filesystems that are still too full after this plan, and what else can be deleted there; and the use of
    /// inodes where these are missing.
    fn outside(
        &self,
        plan: &Plan,
        scan: &Scan,
        work: &Work,
        stopped: &StoppedHolders,
    ) -> (Vec<Outside>, Vec<InodeUse>) {
        let above_threshold = self.misses(plan);
        let without_store = self.full_without_store(scan);
        if above_threshold.is_empty() {
            return (without_store, Vec::new());
        }
        let (request, observer, config) =
            (self.gc_request.request, self.command_run.observer, self.gc_request.config);
        // A timer's run must not walk a large disk.
        let most = outside::most_inodes(scan, outside::MOST_INODES);
        let other_users = outside::measure_with_files(request, observer, config, scan, most);
        let has_deleted_leaks = plan.steps.iter().any(|step| step.target.kind == TargetKind::Leak);
        let leaks = LeakRequest { min_age: config.leaks.min_age, ..LeakRequest::default() };
        let leaks = store_editing::plan_leaks(scan, &leaks, &work.editors);
        let disks = disks_after(plan, scan, thresholds::all(config, scan));
        let planned: Vec<_> = disks.iter().map(|disk| disk.planned.clone()).collect();
        let context = diagnosis::Context {
            scan,
            other_users: &other_users,
            stopped,
            ages: &work.scanned.ages,
            divided: &[],
            leaks: &leaks,
            min_age: config.leaks.min_age,
            planned: &planned,
        };
        let mut causes = diagnosis::causes(&context, &disks);
        causes.retain(|cause| match cause.kind {
            CauseKind::UnusedImages => false,
            CauseKind::Leak => !has_deleted_leaks || cause.group != CauseGroup::Layersweep,
            _ => cause.frees_bytes > 0 || cause.frees_inodes > 0 || cause.keeps_bytes > 0,
        });
        diagnosis::rank(&mut causes, &disks);
        let here = |ix| causes.iter().filter(move |cause| cause.filesystem_ix == ix).cloned().collect();
        let outside = above_threshold.iter().map(|plan| {
            let ix = plan.filesystem;
            Outside::of(scan, &other_users, &disks[ix.get()], here(ix))
        });
        let missing = above_threshold.iter().map(|plan| (plan, config.images.targets.missing(plan).inodes));
        let inode_uses = missing.filter(|(_, missing)| *missing > 0).map(|(filesystem, missing)| {
            let ix = filesystem.filesystem;
            let freed = freed_on(ix, plan.steps.iter().flat_map(|step| &step.gains)).inodes;
            InodeUse::of(scan, &other_users, ix, missing).without(freed)
        });
        (outside.chain(without_store).collect(), inode_uses.collect())
    }

    /// Usage of the filesystems without a store that are too full.
    fn full_without_store(&self, scan: &Scan) -> Vec<Outside> {
        let GcRequest { request, config, .. } = self.gc_request;
        let inventory = &scan.inventory;
        let has_others =
            (0..inventory.filesystems.len()).any(|position| !inventory.has_store(position.into()));
        if !has_others || !self.gc_request.is_gc() || is_requested() {
            return Vec::new();
        }
        let mut disks = disks_after(&Plan::default(), scan, thresholds::all(config, scan));
        disks.retain(|disk| !inventory.has_store(disk.ix));
        for disk in &mut disks {
            // This run may have deleted logs.
            let now = filesystem::facts(&disk.filesystem.mount).ok();
            let same = now.filter(|now| now.device == disk.filesystem.device);
            disk.filesystem = same.unwrap_or_else(|| disk.filesystem.clone());
        }
        disks.retain(|disk| !diagnosis::has_room(disk));
        if disks.is_empty() {
            return Vec::new();
        }
        // Only the usual places: a timer's run must not walk a large disk.
        let other_users = outside::measure_quietly(request, config, scan, Some(0), &Progress::default());
        disks.iter().map(|disk| Outside::of(scan, &other_users, disk, Vec::new())).collect()
    }

    fn exit(outcome: OutcomeKind, scanned: &ScanResult) -> Exit {
        match outcome {
            OutcomeKind::Failed => Exit::Failed,
            // The threshold may be missed because something could not be read: that is the exit code then.
            OutcomeKind::NotReached if scanned.exit() != Exit::Done => scanned.exit(),
            OutcomeKind::NotReached => Exit::NotReached,
            OutcomeKind::Refused => Exit::Refused,
            _ => scanned.exit(),
        }
    }
}

/// The stores of a scan from which images can be deleted.
fn stores_with_ways(scan: &Scan, plan: &Plan, ways: Vec<Way>) -> Vec<StoreWay> {
    let inventory = &scan.inventory;
    let stores = inventory.stores.iter().zip(ways).enumerate().filter(|(_, (store, _))| !store.read_only);
    let stores = stores.map(|(position, (store, way))| {
        let mut out_of_reach = inventory.out_of_reach.keys();
        // Images in other namespaces have another remedy than the store.
        let first = out_of_reach.find(|image_ix| {
            let image = &inventory[**image_ix];
            image.store.get() == position && image.id.namespace().is_none()
        });
        let remedy = first.map(|image_ix| diagnosis::remedy_out_of_reach(scan, *image_ix));
        let remedy = remedy.filter(|_| way.reason_against().is_some()).unwrap_or_default();
        let id = StoreId::of(store);
        let unused_bytes = out_of_reach_bytes(scan, plan, &id);
        StoreWay { id, filesystem: store.filesystem, way, remedy, unused_bytes }
    });
    stores.collect()
}

/// Returns the bytes that deleting the unused images of a store frees together, if they are out of reach.
fn out_of_reach_bytes(scan: &Scan, plan: &Plan, store: &StoreId) -> u64 {
    let inventory = &scan.inventory;
    let kept = plan.kept.iter().filter(|kept| kept.rule == Rule::OutOfReach);
    let ids: HashSet<_> = kept
        .filter(|kept| kept.target.store.as_ref() == Some(store))
        .map(|kept| kept.target.id.as_str())
        .collect();
    // Images in other namespaces have a line of their own.
    let images = inventory.images.iter().enumerate().filter(|(_, image)| {
        ids.contains(image.id.as_str())
            && image.id.namespace().is_none()
            && StoreId::of(&inventory[image.store]) == *store
    });
    let roots: Vec<_> = images.map(|(position, _)| Root::Image(position.into())).collect();
    scan.refs.sizes_of_set(inventory, &roots).exclusive.frees_bytes
}

/// Refuses containers and logs if images are deleted directly.
fn check_only(gc_request: &GcRequest<'_>, via: Via) -> Result<(), Error> {
    let Selection::Gc { only, .. } = &gc_request.selection else { return Ok(()) };
    if via != Via::Direct || !(only.contains(&Only::Containers) || only.contains(&Only::Logs)) {
        return Ok(());
    }
    Err(Error::usage("containers are collected through the runtime only")
        .hint("use --via cri once the runtime is running, or leave out containers and logs"))
}

/// Returns the kubelet's settings if its policy is requested, which only a dry run can show.
fn kubelet(gc_request: &GcRequest<'_>) -> Result<Option<KubeletPolicy>, Error> {
    let Selection::Gc { policy, compare, .. } = &gc_request.selection else { return Ok(None) };
    if *compare && !gc_request.dry_run {
        return Err(Error::usage("--compare deletes nothing: it shows what each order would delete")
            .hint("add --dry-run, or leave out --compare"));
    }
    if *policy != PolicyKind::Kubelet {
        return Ok(None);
    }
    if !gc_request.dry_run {
        return Err(Error::usage(
            "--policy kubelet deletes nothing: it only shows what the kubelet would delete",
        )
        .hint("add --dry-run, or leave out --policy to delete by layersweep's own rules"));
    }
    as_kubelet(&gc_request.config.images).map(Some)
}

/// Translates layersweep's settings into the kubelet's.
///
/// # Errors
/// When the kubelet has no such settings, or would not accept them.
fn as_kubelet(policy: &Policy) -> Result<KubeletPolicy, Error> {
    // The kubelet has no target for inodes: it evicts pods then.
    let only_percent = policy.targets.free.is_none();
    let kubelet = kubelet_policy(policy).filter(|_| only_percent).ok_or_else(|| {
        Error::usage("policy kubelet supports only targets in percent used")
            .hint("give --high and --low; remove --min-free and its key")
    })?;
    match kubelet.check().first() {
        None => Ok(kubelet),
        Some(fault) => Err(Error::usage(format!("policy kubelet does not accept these settings: {fault}"))),
    }
}

/// Returns the filesystems of a scan as they are after this plan.
fn disks_after(plan: &Plan, scan: &Scan, thresholds: Vec<Vec<DiskThreshold>>) -> Vec<Disk> {
    let filesystems = scan.inventory.filesystems.iter().enumerate().zip(thresholds);
    let disks = filesystems.map(|((position, filesystem), thresholds)| {
        let judged = plan.filesystems.iter().find(|plan| plan.filesystem.get() == position);
        let after = judged.and_then(|plan| plan.after.as_ref()?.as_ref().ok());
        let mut filesystem = filesystem.clone();
        let mut owed_bytes = 0;
        if let Some(after) = after {
            let freed = judged.map_or(0, |plan| freed_since_scan(plan, scan));
            filesystem.used_bytes = filesystem.used_bytes.saturating_sub(freed);
            filesystem.available_bytes = after.available_bytes;
            // 0 if the number of inodes does not limit the filesystem.
            if after.inodes > 0 {
                filesystem.inodes_free = after.inodes_free;
            }
            owed_bytes = after.owed_bytes;
        }
        Disk {
            ix: position.into(),
            filesystem,
            parts: Vec::new(),
            thresholds,
            planned: diagnosis::Planned {
                command: "layersweep gc",
                gc: BytesAndInodes::default(),
                none: String::new(),
                by_age: None,
                sweep: BytesAndInodes::default(),
                owed_bytes,
            },
            inode_users: Vec::new(),
            is_full_by_design: scan.is_full_by_design(position.into()),
        }
    });
    disks.collect()
}

/// Bytes by which the filesystem is less used than in the scan.
fn freed_since_scan(plan: &FilesystemPlan, scan: &Scan) -> u64 {
    let (Some(Ok(before)), Some(Ok(after))) = (&plan.before, &plan.after) else { return 0 };
    let available = after.available_bytes.saturating_sub(scan.inventory[plan.filesystem].available_bytes);
    // Freed bytes that fill up root's reserve are not available.
    available.saturating_add(before.owed_bytes.saturating_sub(after.owed_bytes))
}

fn without(scan: &Scan, gone: &Plan) -> Scan {
    let mut scan = scan.clone();
    scan.inventory
        .containers
        .retain(|container| gone.steps.iter().all(|step| container.id != step.target.id));
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

/// Adds the reason for which a part of the run was not begun.
fn refuse_part(plan: &mut Plan, why: &str) {
    plan.prepend(Plan {
        problems: vec![Problem::new(None, Phase::Prove, why)],
        outcome: OutcomeKind::Refused,
        ..Plan::default()
    });
}
