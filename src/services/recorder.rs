//! Reports the events of a run to the history, the log and the observer, while they happen.

use std::time::Instant;

use jiff::Timestamp;

use crate::config::Via;
use crate::disk;
use crate::execute;
use crate::history::journal::{self, Journal};
use crate::history::pins::Pins;
use crate::history::runs::{self, Certainty, Command, Event, RunEnd, RunError, Start};
use crate::history::{Degraded, SaveWarning};
use crate::model::deletion::outcome::{Deletion, Outcome, UsageChange};
use crate::model::deletion::plan::{LayerIdentity, Phase, Plan, Problem, Step, TargetKind};
use crate::model::space::Measured;
use crate::model::{BackOff, Filesystem, Inventory, OutcomeKind, StoreId};
use crate::policy::PolicyKind;
use crate::services::database::warn_of_saving;
use crate::services::error::Exit;
use crate::services::events::failed_again;
use crate::services::observer::{Deleting, Observer};
use crate::services::policy_context::NodeContext;
use crate::services::run::CommandRun;
use crate::services::state::State;

pub(crate) struct Recorder<'a> {
    observer: &'a dyn Observer,
    command: Command,
    state: &'a State,
    /// Contains the back-offs of earlier failures; `None`: this run deletes no images.
    context: Option<&'a NodeContext<'a>>,
    journal: Journal,
    /// Stores that the run edits. Their layers are recorded, so that a deletion can be finished after a kill.
    edited: Vec<StoreId>,
    planned: usize,
    done: usize,
    freed_bytes: i64,
    /// Position in the journal of the deletion that is being measured.
    awaited: Option<usize>,
    /// Warnings that the disk was full when the run began. Dropped if the run made room and is saved in the end.
    disk_full_warnings: Vec<Degraded>,
}

pub(crate) struct Beginning<'a> {
    /// `None` for a run without a policy.
    pub(crate) policy: Option<PolicyKind>,
    pub(crate) via: Via,
    /// Stores in which images are deleted directly.
    pub(crate) edited: Vec<StoreId>,
    pub(crate) plan: &'a Plan,
    /// Space of the filesystems before the run.
    pub(crate) before: &'a [Measured],
}

impl<'a> Recorder<'a> {
    /// Creates the recorder of a run. Writes nothing before the first event.
    pub(crate) fn begin(
        run: &CommandRun<'a>,
        state: &'a State,
        context: Option<&'a NodeContext<'a>>,
        beginning: &Beginning<'_>,
    ) -> Self {
        let CommandRun { command, observer, .. } = *run;
        let plan = beginning.plan;
        let by_policy = command == Command::Gc;
        let usage = plan.filesystems.iter().map(|filesystem| {
            UsageChange::new(plan, filesystem, beginning.before.get(filesystem.filesystem.get()), None)
        });
        let start = Start {
            run_id: run.id.clone(),
            policy: beginning.policy.filter(|_| by_policy).map(|policy| policy.to_string()),
            via: Some(beginning.via.as_str().to_owned()),
            trigger_space: plan.trigger.space,
            trigger_age: plan.trigger.age,
            usage: usage.collect(),
            wanted_bytes: Some(plan.wanted_bytes()).filter(|_| by_policy),
            predicted_bytes: Some(plan.predicted_bytes()),
            ..Start::of(command, started(state, run.began))
        };
        Self {
            observer,
            command,
            state,
            context,
            journal: Journal::begin(&state.directory, start),
            edited: beginning.edited.clone(),
            planned: plan.steps.len(),
            done: 0,
            freed_bytes: 0,
            awaited: None,
            disk_full_warnings: Vec::new(),
        }
    }

    /// Records the end of the run, and returns the exit code: `exit`, or failure if a part of the record is lost.
    pub(crate) fn end(
        mut self,
        outcome: &Outcome,
        kind: OutcomeKind,
        events: &[Event],
        inventory: &Inventory,
        exit: Exit,
    ) -> Exit {
        for event in events {
            self.observer.event(event);
            self.journal.event(event.clone());
        }
        let errors = outcome.plan.problems.iter().map(|problem| RunError {
            id: problem.id.clone().unwrap_or_default(),
            step: problem.phase.as_str().to_owned(),
            message: problem.message.clone(),
            ..RunError::default()
        });
        // Images that the user named and that a rule keeps.
        let kept = if self.command == Command::Rm { outcome.plan.kept.as_slice() } else { &[] };
        let kept = kept.iter().map(|kept| RunError {
            id: kept.target.id.clone(),
            names: kept.target.names.clone(),
            rule: Some(kept.rule),
            step: Phase::Prove.as_str().to_owned(),
            message: kept.detail.clone(),
        });
        let end = RunEnd {
            usage: outcome.usage_changes(),
            measured_bytes: Some(outcome.measured_bytes()),
            errors: errors.chain(kept).collect(),
            filesystems: fullness(&self.journal, inventory),
            ..RunEnd::of(self.state.now(), kind)
        };
        let mut ended = self.journal.end(end);
        if ended.kept {
            ended.degraded.retain(|why| !matches!(why, Degraded::DiskFull { .. }));
        } else {
            ended.degraded.splice(0..0, self.disk_full_warnings);
        }
        warn_of_saving(self.observer, &ended.degraded, &ended.warnings);
        let is_lost = ended.warnings.iter().any(|warning| matches!(warning, SaveWarning::Lost(_)));
        if is_lost && exit == Exit::Done { Exit::Failed } else { exit }
    }

    /// Layers that a later run deletes if this run cannot.
    fn layers_to_finish(&self, step: &Step) -> Vec<LayerIdentity> {
        let is_edited = step.target.store.as_ref().is_some_and(|store| self.edited.contains(store));
        if is_edited { step.layers.clone() } else { Vec::new() }
    }

    fn row(&self, step: &Step, error: Option<String>) -> runs::DeletionRow {
        runs::DeletionRow {
            at: self.state.now(),
            // The history records artifacts as images.
            kind: match step.target.kind {
                TargetKind::Artifact => TargetKind::Image,
                kind => kind,
            },
            store: step.target.store.clone(),
            id: step.target.id.clone(),
            names: step.target.names.clone(),
            layers: Vec::new(),
            reason: step.cause.reason(),
            predicted_bytes: step.predicted_bytes(),
            measured_bytes: None,
            byproduct_bytes: 0,
            others_wrote: false,
            usage_after_percent: None,
            error,
            certainty: Certainty::Seen,
        }
    }
}

impl execute::RunObserver for Recorder<'_> {
    fn begins(&mut self, step: &Step) -> Option<Pins> {
        let (kind, id, name) = (step.target.kind.as_str(), step.target.id.as_str(), step.target.title());
        tracing::info!(id, name, predicted_bytes = step.predicted_bytes(), "deleting {kind}");
        let layers = self.layers_to_finish(step);
        let pins = self.journal.begin_deletion(runs::DeletionRow { layers, ..self.row(step, None) });
        let (disk_full, others): (Vec<_>, Vec<_>) = self
            .journal
            .take_degraded()
            .into_iter()
            .partition(|why| matches!(why, Degraded::DiskFull { .. }));
        self.disk_full_warnings.extend(disk_full);
        if !others.is_empty() {
            warn_of_saving(self.observer, &others, &[]);
        }
        self.observer.deleting(&Deleting {
            number: self.done + 1,
            planned: self.planned,
            target: &step.target,
            freed_bytes: u64::try_from(self.freed_bytes).unwrap_or(0),
        });
        pins.map(|pins| Pins::new(&pins))
    }

    fn announces(&mut self, steps: &[Step]) {
        self.journal.announce(steps.iter().map(|step| self.row(step, None)).collect());
    }

    fn withdraws(&mut self, steps: &[&Step]) {
        for step in steps {
            self.journal.withdraw(&self.row(step, None));
        }
    }

    fn kept(&mut self, _: &Step) {
        self.journal.cancelled();
    }

    fn gone(&mut self, step: &Step) {
        self.awaited = Some(self.journal.deleted(self.row(step, None)));
    }

    fn deleted(&mut self, deletion: &Deletion) {
        let Deletion { step, measured_bytes, byproduct_bytes, usage_after_percent, .. } = deletion;
        let others_wrote = deletion.is_disturbed();
        self.done += 1;
        self.freed_bytes = self.freed_bytes.saturating_add(measured_bytes.unwrap_or(0));
        let predicted_bytes = step.predicted_bytes();
        tracing::info!(id = step.target.id, predicted_bytes, measured_bytes, "deleted");
        if let Some(position) = self.awaited.take() {
            let measured = journal::Measured {
                bytes: *measured_bytes,
                byproduct_bytes: *byproduct_bytes,
                others_wrote,
                usage_after_percent: *usage_after_percent,
            };
            return self.journal.measured(position, measured);
        }
        let row = runs::DeletionRow {
            measured_bytes: *measured_bytes,
            byproduct_bytes: *byproduct_bytes,
            others_wrote,
            usage_after_percent: *usage_after_percent,
            layers: if deletion.is_cut_short { self.layers_to_finish(step) } else { Vec::new() },
            ..self.row(step, None)
        };
        self.journal.deleted(row);
    }

    fn failed(&mut self, step: &Step, problem: &Problem) {
        let message = &problem.message;
        tracing::info!(id = step.target.id, "not deleted: {message:?}");
        self.freed_bytes = self.freed_bytes.saturating_add(problem.measured_bytes.unwrap_or(0));
        let row = self.row(step, Some(message.clone()));
        let row = runs::DeletionRow { measured_bytes: problem.measured_bytes, ..row };
        // A failure for want of space is not the image's: it gets no back-off, so it is tried again once there is room.
        let key = step.target.store.as_ref().filter(|_| step.target.is_image() && !problem.no_space);
        let back_off = key.zip(self.context).map(|(store, context)| {
            BackOff::after(context.back_off(store, &step.target.id), self.state.now(), message)
        });
        self.journal.failed(row, back_off);
    }

    fn unproven(&mut self, step: &Step, message: &str) {
        tracing::info!(id = step.target.id, "not seen to be deleted: {message:?}");
        self.journal.unproven(message);
    }
}

/// Current usage of the filesystems, if the run has deleted something: the last point of a fall in the usage series.
fn fullness(journal: &Journal, inventory: &Inventory) -> Vec<Filesystem> {
    let known = if journal.has_acted() { inventory.filesystems.as_slice() } else { &[] };
    let read = known.iter().filter_map(|filesystem| match disk::filesystem::of(&filesystem.mount) {
        // Another filesystem may have been mounted over it meanwhile.
        Ok((now, _)) if now.mount == filesystem.mount && now.device == filesystem.device => Some(now),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!("how full {} is cannot be read: {error}", filesystem.mount.display());
            None
        }
    });
    read.collect()
}

fn started(state: &State, began: Instant) -> Timestamp {
    let now = state.now();
    now.checked_sub(began.elapsed()).unwrap_or(now)
}

/// Records that a run was refused before it did anything.
pub(crate) fn refusal(run: &CommandRun<'_>, state: &State, via: Via, message: &str) {
    let CommandRun { command, observer, .. } = *run;
    let start = Start {
        run_id: run.id.clone(),
        via: Some(via.as_str().to_owned()),
        ..Start::of(command, started(state, run.began))
    };
    let mut journal = Journal::begin(&state.directory, start);
    if command == Command::Gc && state.last_gc_failed {
        let event = failed_again(message);
        observer.event(&event);
        journal.event(event);
    }
    let (step, message) = ("begin".to_owned(), message.to_owned());
    let errors = vec![RunError { step, message, ..RunError::default() }];
    let ended = journal.end(RunEnd { errors, ..RunEnd::of(state.now(), OutcomeKind::Refused) });
    warn_of_saving(observer, &ended.degraded, &ended.warnings);
}
