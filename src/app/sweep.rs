//! Lists, deletes and repairs leaks. A change takes two calls, [`Sweep::plan`] and [`Sweep::act`]; between them a
//! person may be asked.

use crate::config::Via;
use crate::execute::editors::Editors;
use crate::execute::measure::SettlePatience;
use crate::execute::{Gauges, Run, leaks};
use crate::history::runs::Command;
use crate::model::deletion::outcome::{Outcome, OutcomeKind};
use crate::model::deletion::plan::{Phase, Plan, Problem};
use crate::model::{Consistency, Inventory};
use crate::policy::leaks::{Decision, LeakPlan, LeakRequest};
use crate::services::error::{Error, Exit};
use crate::services::observer::Observer;
use crate::services::recorder::{Beginning, Recorder};
use crate::services::request::Request;
use crate::services::run::CommandRun;
use crate::services::scan::{self, ScanResult};
use crate::services::store_editing::{self, Resumed};
use crate::stores::Scan;

#[derive(Clone, Debug)]
pub struct SweepRequest<'a> {
    pub request: &'a Request,
    pub leaks: LeakRequest,
    /// Delete the leaks that are proven safe to delete.
    pub delete: bool,
    pub dry_run: bool,
}

impl SweepRequest<'_> {
    pub fn changes(&self) -> bool {
        self.delete || !self.leaks.repair.is_empty()
    }
}

#[derive(Debug)]
pub struct SweepResult {
    scanned: ScanResult,
    editors: Editors,
    pub leaks: LeakRequest,
    pub plan: LeakPlan,
    /// Result of the run; `None`: nothing was done.
    pub outcome: Option<Outcome>,
    pub delete: bool,
    pub dry_run: bool,
    /// `None`: nothing will be changed.
    pub run_id: Option<String>,
    /// Number of objects whose deletion a killed run had begun, and that were deleted first.
    pub resumed: usize,
    /// Deletions of killed runs that could not be finished.
    unfinished: Vec<Problem>,
    /// A killed run left deletions, which are finished first if the person agrees.
    pub is_unfinished: bool,
    pub exit: Exit,
}

impl SweepResult {
    pub fn scan(&self) -> &Scan {
        &self.scanned.scan
    }
}

#[derive(Debug)]
pub struct Sweep<'a> {
    sweep_request: SweepRequest<'a>,
    run: CommandRun<'a>,
}

impl<'a> Sweep<'a> {
    /// # Errors
    /// When changes are requested below a sysroot.
    pub fn new(sweep_request: SweepRequest<'a>, observer: &'a dyn Observer) -> Result<Self, Error> {
        if sweep_request.request.sysroot.is_some() && sweep_request.changes() {
            return Err(Error::usage("--sysroot: `sweep` only reports on a mounted disk")
                .hint("`layersweep sweep` lists what could be deleted"));
        }
        Ok(Self { sweep_request, run: CommandRun::new(Command::Sweep, observer) })
    }

    pub fn run_id(&self) -> &str {
        &self.run.id
    }

    pub fn request(&self) -> &SweepRequest<'a> {
        &self.sweep_request
    }

    /// Scans and plans. A run that changes something takes the run's lock and finishes the deletions of killed runs: here,
    /// or, if a person is asked (`asks`), in [`Self::act`], so that a question without an answer stops no other run.
    ///
    /// # Errors
    /// When nothing can be planned, or another run holds the lock.
    pub fn plan(&mut self, asks: bool) -> Result<SweepResult, Error> {
        let request = self.sweep_request.request;
        if !self.sweep_request.changes() || self.sweep_request.dry_run {
            let scanned = scan::scan(request, self.run.observer)?;
            let editors = store_editing::editors(request, &scanned.scan);
            return Ok(self.planned(scanned, editors, Resumed::default(), false));
        }
        if !asks {
            self.run.lock(request)?;
        }
        store_editing::check_namespace(request)?;
        let mut scanned = scan::scan_and_record(request, self.run.observer)?;
        let editors = store_editing::editors(request, &scanned.scan);
        // Without readable records the deletions that a killed run began are unknown.
        let may_finish = !scanned.state.was_unreadable;
        let resumed = if may_finish && !asks {
            store_editing::resume(&editors, &scanned.state.begun, &scanned.state.pins)
        } else {
            Resumed::default()
        };
        if resumed.objects > 0 {
            scanned = scan::scan_and_record(request, self.run.observer)?;
        }
        let is_unfinished = may_finish && asks && editors.are_unfinished(&scanned.state.begun);
        Ok(self.planned(scanned, editors, resumed, is_unfinished))
    }

    fn planned(
        &self,
        scanned: ScanResult,
        editors: Editors,
        resumed: Resumed,
        is_unfinished: bool,
    ) -> SweepResult {
        let SweepRequest { leaks, delete, .. } = &self.sweep_request;
        let mut plan = store_editing::plan_leaks(&scanned.scan, leaks, &editors);
        if !delete && !leaks.repair.is_empty() {
            plan.order.retain(|entry_ix| plan.entries[*entry_ix].decision == Decision::Repair);
        }
        SweepResult {
            exit: scanned.exit(),
            leaks: leaks.clone(),
            plan,
            outcome: None,
            delete: *delete,
            dry_run: self.sweep_request.changes(),
            run_id: (self.sweep_request.changes() && !self.sweep_request.dry_run)
                .then(|| self.run.id.clone()),
            resumed: resumed.objects,
            unfinished: resumed.problems,
            is_unfinished,
            scanned,
            editors,
        }
    }

    /// Carries out a plan. Each leak is proven again under the store's locks, however long the answer took.
    ///
    /// # Errors
    /// When another run holds the lock: then nothing was changed.
    pub fn act(&mut self, mut planned: SweepResult) -> Result<SweepResult, Error> {
        self.run.lock(self.sweep_request.request)?;
        if planned.is_unfinished {
            let resumed = store_editing::finish_killed_runs(
                self.sweep_request.request,
                &planned.editors,
                &planned.scanned.state.begun,
            );
            (planned.resumed, planned.unfinished) = (resumed.objects, resumed.problems);
        }
        let steps = planned.plan.steps(&planned.scanned.scan.inventory);
        let not_written_out = self.run.write_out(&planned.scanned.scan.inventory, &steps);
        planned.scanned.scan.inventory.findings.extend(not_written_out);
        let ScanResult { scan, state, .. } = &planned.scanned;
        let inventory = &scan.inventory;
        let all = Plan { steps: steps.clone(), ..Plan::default() };
        let beginning =
            Beginning { policy: None, via: Via::Direct, edited: Vec::new(), plan: &all, before: &[] };
        let mut recorder = Recorder::begin(&self.run, state, None, &beginning);
        let gauges = Gauges::open(inventory, None);
        let mut run = Run::new(gauges, SettlePatience::default(), &mut recorder);
        let before = run.measure();
        let mut done = leaks::run(&mut run, &steps, &planned.editors, self.sweep_request.leaks.min_age);
        done.problems.extend(std::mem::take(&mut planned.unfinished));
        let unproven = unproven(inventory, &planned.editors);
        let is_unproven = !unproven.is_empty();
        done.problems.extend(unproven);
        let mut outcome = run.finish(done, before);
        outcome.plan.outcome = kind(&outcome, is_unproven);
        let kind = match outcome.kind() {
            OutcomeKind::Done if !scan.is_complete() => OutcomeKind::Incomplete,
            kind => kind,
        };
        let exit = match outcome.kind() {
            OutcomeKind::Failed => Exit::Failed,
            OutcomeKind::Refused => Exit::Refused,
            _ => planned.exit,
        };
        planned.exit = recorder.end(&outcome, kind, &[], inventory, exit);
        planned.dry_run = false;
        planned.outcome = Some(outcome);
        Ok(planned)
    }
}

fn kind(outcome: &Outcome, is_unproven: bool) -> OutcomeKind {
    let is_unfinished = outcome.plan.problems.iter().any(|problem| problem.phase == Phase::Resume);
    match outcome.kind() {
        OutcomeKind::Failed => OutcomeKind::Failed,
        _ if is_unfinished => OutcomeKind::Failed,
        OutcomeKind::Refused => OutcomeKind::Refused,
        _ if is_unproven => OutcomeKind::Refused,
        _ if outcome.deletions.is_empty() && outcome.repaired.is_empty() => OutcomeKind::NotNeeded,
        _ => OutcomeKind::Done,
    }
}

/// Problems of stores in which nothing can be proven: their leaks are kept in this run.
fn unproven(inventory: &Inventory, editors: &Editors) -> Vec<Problem> {
    let doubtful = inventory.stores.iter().filter_map(|store| {
        let message = match store.consistency {
            Consistency::Consistent => return None,
            Consistency::WriterActive => "another program kept writing to it; try again later",
            Consistency::Damaged => "its records are damaged; see the warnings",
        };
        let root = store.root.to_string_lossy().into_owned();
        editors.store(store).is_ok().then(|| Problem::new(Some(root), Phase::Read, message))
    });
    doubtful.collect()
}
