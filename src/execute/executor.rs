//! One deletion, of any kind of object: prove, remove, confirm, measure, record.
//!
//! Images, containers, logs and leaks differ in how they are proven and removed: a `Handler` for each kind does that,
//! and [`Run`] does the rest. The loops over the objects are in the modules of the kinds: `images::run` asks the
//! planner for the next step, the others follow a list of steps.
//!
//! For example, the deletion of an image: the observer records that it begins; the free space of its filesystems is
//! read; the handler scans the stores again and finds no user; it asks the runtime to remove the image, and the runtime
//! reports success; [`Run`] waits until the store's records no longer contain the image, and then until the predicted
//! bytes are free; the observer records the measured bytes. Each event is reported to the [`RunObserver`] at once, so
//! that the history of a run that is killed is complete up to that moment.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::execute::gauges::Gauges;
use crate::execute::measure::{Room, SettleEnd, SettlePatience, Settled};
use crate::execute::remover::{GONE_WITHIN, PreconditionError};
use crate::history::pins::Pins;
use crate::model::deletion::outcome::{Deletion, FreedOn, Outcome, Stopped, tolerance};
use crate::model::deletion::plan::{
    Action, Failure, Gain, Kept, Phase, Plan, Problem, Step, Target, TargetKind, bytes_on,
};
use crate::model::rules::Rule;
use crate::model::space::{Measured, Space};
use crate::model::{Aftermath, Answer, FilesystemIx, OutcomeKind, RemovalResult, StoreId};
use crate::sys::stop;

const PAUSE: Duration = Duration::from_millis(50);

/// Minimum predicted bytes of a leak for which late frees are waited for. There may be ten thousand smaller leaks, on a
/// filesystem to which other processes write: those are measured once, without waiting.
const WORTH_WAITING: u64 = 4 << 20;

pub trait RunObserver {
    /// These targets are about to be proven and moved aside together. Each of them has its turn later
    /// ([`Self::begins`]), or is withdrawn.
    fn announces(&mut self, _steps: &[Step]) {}
    /// Announced targets were not moved aside. Those that have had their turn are ignored.
    fn withdraws(&mut self, _steps: &[&Step]) {}
    /// The target is about to be proven, and then deleted at once. Returns the keep-list for the proof if recording the
    /// event has read it.
    fn begins(&mut self, _step: &Step) -> Option<Pins> {
        None
    }
    /// The last target was not deleted by layersweep: a rule keeps it now, another process deleted it, or it was
    /// repaired.
    fn kept(&mut self, _step: &Step) {}
    /// The last target is deleted, but its space is not free yet, which can take seconds. [`Self::deleted`] follows.
    /// Not called if the space is free at once.
    fn gone(&mut self, _step: &Step) {}
    /// The last target is deleted, and the freed space was measured.
    fn deleted(&mut self, _deletion: &Deletion) {}
    /// The last target could not be deleted.
    fn failed(&mut self, _step: &Step, _problem: &Problem) {}
    /// The removal of the last target was requested or begun, and the run does not see its result.
    fn unproven(&mut self, _step: &Step, _message: &str) {}
}

/// Proves and removes one kind of object.
pub(super) trait Handler {
    /// Reads again everything that may keep the target, and updates its names. `pins`: the keep-list, if it has just
    /// been read.
    ///
    /// # Errors
    /// The answer for a target that may not be deleted.
    fn prove(&mut self, step: &mut Step, pins: Option<Pins>) -> Result<(), Answer>;

    /// Removes the target, right after it was proven.
    fn remove(&mut self, step: &Step) -> RemovalResult;

    /// Returns true if the target still exists; `None` if the records are damaged. Called only for unconfirmed
    /// removals.
    ///
    /// # Errors
    /// When the store cannot be read any more.
    fn is_there(&mut self, _: &Step) -> Result<Option<bool>, PreconditionError> {
        Ok(None)
    }

    /// Bytes of layersweep's own files on the filesystem `device` (`st_dev`) that a removal may release or create
    /// again. They are not counted as freed by the removal.
    fn own_bytes(&self, _device: u64) -> u64 {
        0
    }

    /// Bytes that the removal of the target frees besides it.
    fn byproduct(&self, _: &Target) -> Vec<Gain> {
        Vec::new()
    }
}

pub struct Run<'a> {
    observer: &'a mut dyn RunObserver,
    pub(super) gauges: Gauges,
    pub(super) patience: SettlePatience,
    deletions: Vec<Deletion>,
    pub(super) repaired: Vec<Target>,
    problems: Vec<Problem>,
    /// Stores in which nothing can be deleted, with the reason. Each lock is waited for only once, and a store
    /// without room for the deletion of one image has no room for the next one: there may be thousands.
    skipped: Vec<(StoreId, Failure)>,
    pub(super) stopped: Option<Stopped>,
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("stopped", &self.stopped).finish_non_exhaustive()
    }
}

/// A filesystem on which bytes are expected to be freed, with its room and the handler's own bytes before the deletion.
type RoomBefore = (Option<FilesystemIx>, Option<Room>, i64);

/// State before a deletion, for measuring it.
struct Gauged {
    before: Vec<RoomBefore>,
    /// Change of free bytes of these filesystems while nothing was deleted.
    moved_bytes: u64,
    byproduct: Vec<Gain>,
}

impl<'a> Run<'a> {
    pub fn new(gauges: Gauges, patience: SettlePatience, observer: &'a mut dyn RunObserver) -> Self {
        Self {
            observer,
            gauges,
            patience,
            deletions: Vec::new(),
            repaired: Vec::new(),
            problems: Vec::new(),
            skipped: Vec::new(),
            stopped: None,
        }
    }

    #[must_use]
    pub fn measure(&self) -> Vec<Measured> {
        self.gauges.measure()
    }

    /// Returns true if the run must not begin another deletion, after a signal for example.
    pub fn is_stopped(&mut self) -> bool {
        if self.stopped.is_none() && stop::is_requested() {
            self.stopped = Some(Stopped::Signal);
        }
        self.stopped.is_some()
    }

    /// Stops the run because nothing can be proven any more. A signal interrupts requests as well: then the signal is
    /// the reason.
    pub(super) fn stop_unproven(&mut self, why: impl Into<Failure>) {
        self.stopped =
            Some(if stop::is_requested() { Stopped::Signal } else { Stopped::Unproven(why.into()) });
    }

    /// Ends the run. `plan`: as it was carried out. `before`: space of the filesystems before the run.
    #[must_use]
    pub fn finish(self, mut plan: Plan, before: Vec<Measured>) -> Outcome {
        let after = self.gauges.measure();
        // Images are not in `problems`: an image that cannot be deleted gets a back-off, and does not fail the run.
        let has_failed = !self.problems.is_empty();
        plan.problems.extend(self.problems);
        if self.stopped == Some(Stopped::Signal) {
            let message = "the run was interrupted by a signal before its plan was complete";
            plan.problems.push(Problem::new(None, Phase::Stop, message));
        }
        let in_part = plan.problems.iter().any(|problem| problem.in_part);
        plan.outcome = match (&self.stopped, plan.outcome) {
            (Some(_), _) => OutcomeKind::Failed,
            (None, _) if has_failed || in_part || self.skipped.iter().any(|(_, why)| why.is_failure()) => {
                OutcomeKind::Failed
            }
            // The objects of a skipped store were not deleted, even if the threshold was reached on other filesystems.
            (None, outcome) if !self.skipped.is_empty() && outcome != OutcomeKind::Failed => {
                OutcomeKind::Refused
            }
            (None, outcome) => outcome,
        };
        Outcome {
            plan,
            deletions: self.deletions,
            repaired: self.repaired,
            before,
            after,
            stopped: self.stopped,
        }
    }

    /// Deletes one target that is not an image, and adds the result to `plan`.
    pub(super) fn carry_out(&mut self, step: Step, handler: &mut dyn Handler, plan: &mut Plan) -> Answer {
        let answer = self.step(&step, handler);
        match answer.clone() {
            Answer::Removed | Answer::RemovedInPart(_) => plan.steps.push(step),
            Answer::Kept(ruling) => plan.kept.push(Kept::new(step.target, ruling)),
            Answer::StoreSkipped(why) => {
                plan.problems.push(Problem::new(Some(step.target.id), why.phase_of_store(), why));
            }
            Answer::AlreadyGone | Answer::StopRun(_) | Answer::Failed(..) => {}
        }
        answer
    }

    /// Deletes one target: proves it, removes it, waits for its store to confirm that, measures and records it.
    pub(super) fn step(&mut self, step: &Step, handler: &mut dyn Handler) -> Answer {
        if self.is_stopped() {
            return Answer::StopRun("the run has ended".into());
        }
        let store = step.target.store.as_ref();
        if let Some((_, why)) = self.skipped.iter().find(|(skipped, _)| Some(skipped) == store) {
            return Answer::StoreSkipped(why.clone());
        }
        let mut step = step.clone();
        let pins = self.observer.begins(&step);
        let byproduct = handler.byproduct(&step.target);
        let before = self.rooms(&step, &byproduct, handler);
        let mut gauged = Gauged { before, moved_bytes: 0, byproduct };
        let answer = match handler.prove(&mut step, pins) {
            Ok(()) => {
                gauged.moved_bytes = self.moved_bytes(&gauged.before, handler);
                remove(&step, handler)
            }
            Err(answer) => answer,
        };
        match answer {
            Answer::Removed | Answer::RemovedInPart(_) if step.action == Action::Repair => {
                self.observer.kept(&step);
                self.repaired.push(step.target);
                Answer::Removed
            }
            Answer::Removed => self.removed(step, &gauged, handler, false),
            Answer::RemovedInPart(failure) => {
                let is_cut_short = stop::is_requested();
                let message = if is_cut_short { CUT_SHORT.into() } else { in_part(&failure.message) };
                let failure = Failure { message, ..failure };
                let problem = Problem::new(Some(step.target.id.clone()), Phase::Remove, failure);
                self.problems.push(Problem { in_part: true, ..problem });
                self.removed(step, &gauged, handler, is_cut_short)
            }
            Answer::Failed(problem, aftermath) => self.failed(&step, problem, aftermath, handler, &gauged),
            Answer::AlreadyGone | Answer::Kept(_) => {
                self.observer.kept(&step);
                answer
            }
            Answer::StoreSkipped(ref why) => {
                self.skip_store(&step, why.clone());
                self.observer.kept(&step);
                answer
            }
            Answer::StopRun(ref why) => {
                self.stop_unproven(why.clone());
                self.observer.kept(&step);
                answer
            }
        }
    }

    /// Reports that targets are about to be moved aside together. Returns false if none may be, since nothing can be
    /// deleted any more in their store.
    pub(super) fn announce(&mut self, steps: &[Step]) -> bool {
        let store = steps.first().and_then(|step| step.target.store.as_ref());
        let is_skipped = self.skipped.iter().any(|(skipped, _)| Some(skipped) == store);
        if !is_skipped {
            self.observer.announces(steps);
        }
        !is_skipped
    }

    /// Reports that announced targets were not moved aside.
    pub(super) fn withdraw(&mut self, steps: &[&Step]) {
        self.observer.withdraws(steps);
    }

    fn skip_store(&mut self, step: &Step, why: Failure) {
        self.skipped.extend(step.target.store.clone().map(|store| (store, why)));
    }

    fn removed(&mut self, step: Step, gauged: &Gauged, handler: &dyn Handler, is_cut_short: bool) -> Answer {
        let deletion = self.freed(step, gauged, handler, !is_cut_short);
        let deletion = Deletion { is_cut_short, ..deletion };
        self.observer.deleted(&deletion);
        self.deletions.push(deletion);
        Answer::Removed
    }

    fn failed(
        &mut self,
        step: &Step,
        mut problem: Problem,
        aftermath: Aftermath,
        handler: &dyn Handler,
        gauged: &Gauged,
    ) -> Answer {
        match aftermath {
            Aftermath::Unseen => {
                self.observer.unproven(step, &problem.message);
                self.stop_unproven(problem.message.clone());
                return Answer::Failed(problem, aftermath);
            }
            // The requested removal may still happen.
            Aftermath::StillThere | Aftermath::Begun if stop::is_requested() => {
                self.observer.unproven(step, &problem.message);
                self.stopped = Some(Stopped::Signal);
                return Answer::kept(Rule::RunEnded, problem.message);
            }
            // The next scan shows whether the target was deleted.
            Aftermath::Begun => self.observer.unproven(step, &problem.message),
            Aftermath::LeftOver => {
                let part = self.freed(step.clone(), gauged, handler, false);
                problem.message = in_part(&problem.message);
                problem.in_part = true;
                problem.measured_bytes = part.measured_bytes;
                self.observer.failed(step, &problem);
            }
            Aftermath::StillThere | Aftermath::Untouched => self.observer.failed(step, &problem),
        }
        // The plan reports images.
        if !step.target.is_image() {
            self.problems.push(problem.clone());
        } else if problem.no_space {
            self.skip_store(
                step,
                Failure { message: problem.message.clone(), no_space: true, ..Failure::default() },
            );
        }
        Answer::Failed(problem, aftermath)
    }

    /// The filesystems on which bytes are expected to be freed, and their room now.
    fn rooms(&self, step: &Step, byproduct: &[Gain], handler: &dyn Handler) -> Vec<RoomBefore> {
        let gains = step.gains.iter().chain(byproduct);
        let mut filesystems: Vec<_> = gains.map(|gain| Some(gain.filesystem)).collect();
        filesystems.sort_unstable();
        filesystems.dedup();
        filesystems.extend((step.log_bytes > 0).then_some(None));
        filesystems
            .into_iter()
            .map(|filesystem| (filesystem, self.gauges.room(filesystem), self.own_bytes(filesystem, handler)))
            .collect()
    }

    fn own_bytes(&self, filesystem: Option<FilesystemIx>, handler: &dyn Handler) -> i64 {
        let device = self.gauges.device(filesystem);
        i64::try_from(device.map_or(0, |device| handler.own_bytes(device))).unwrap_or(i64::MAX)
    }

    /// Change of free bytes since `before`, in either direction: other processes write and delete.
    fn moved_bytes(&self, before: &[RoomBefore], handler: &dyn Handler) -> u64 {
        let moved = before.iter().filter_map(|(filesystem, room, own_before)| {
            let freed = self.gauges.room(*filesystem)?.freed_since(room.as_ref()?);
            let own_bytes = self.own_bytes(*filesystem, handler).saturating_sub(*own_before);
            Some(freed.saturating_add(own_bytes).unsigned_abs())
        });
        moved.fold(0, u64::saturating_add)
    }

    /// Waits until the bytes of the deleted target are free, and measures them. `reports`: notifies the observer if
    /// that takes time.
    fn freed(&mut self, step: Step, gauged: &Gauged, handler: &dyn Handler, reports: bool) -> Deletion {
        let at = Timestamp::now();
        if reports && self.is_late(&step, gauged) {
            self.observer.gone(&step);
        }
        let patience = match step.target.kind {
            TargetKind::Leak if step.predicted_bytes() < WORTH_WAITING => {
                SettlePatience { deadline: Duration::ZERO, ..self.patience }
            }
            _ => self.patience,
        };
        let mut freed = Freed { beside_bytes: gauged.moved_bytes, ..Freed::default() };
        for (filesystem, room, own_before) in &gauged.before {
            let (Some(gauge), Some(room)) = (self.gauges.of(*filesystem), room) else {
                tracing::warn!("a filesystem cannot be measured; what is freed there is not counted");
                continue;
            };
            let predicted = gauged.predicted(&step, *filesystem);
            match gauge.settle(room, predicted.sum(), patience) {
                Ok(settled) => {
                    let own_bytes = self.own_bytes(*filesystem, handler).saturating_sub(*own_before);
                    freed.add(*filesystem, predicted, own_bytes, &settled);
                }
                Err(error) => tracing::warn!("measuring {}: {error}", gauge.path().display()),
            }
        }
        if let Some(filesystem) = step.filesystem {
            freed.usage = self.gauges.room(Some(filesystem)).and_then(|room| room.space().ok());
        }
        // No bytes were expected, and none were measured.
        freed.bytes = freed.bytes.or(gauged.before.is_empty().then_some(0));
        freed.deletion(step, at)
    }

    /// Returns true if bytes of the deleted target are not free yet.
    fn is_late(&self, step: &Step, gauged: &Gauged) -> bool {
        gauged.before.iter().any(|(filesystem, room, _)| {
            let freed = room.zip(self.gauges.room(*filesystem)).map(|(before, now)| now.freed_since(&before));
            let predicted = gauged.predicted(step, *filesystem).sum();
            let enough = predicted.saturating_sub(tolerance(predicted));
            freed.is_some_and(|freed| i128::from(freed) < i128::from(enough))
        })
    }
}

impl Gauged {
    /// The predictions for a filesystem; `None` means that of the pods' logs.
    fn predicted(&self, step: &Step, filesystem: Option<FilesystemIx>) -> Predicted {
        match filesystem {
            Some(filesystem) => Predicted {
                bytes: step.predicted_on(filesystem),
                byproduct_bytes: bytes_on(&self.byproduct, filesystem),
            },
            None => Predicted { bytes: step.log_bytes, byproduct_bytes: 0 },
        }
    }
}

/// Bytes that a deletion and its byproduct are predicted to free on a filesystem.
#[derive(Clone, Copy)]
struct Predicted {
    bytes: u64,
    byproduct_bytes: u64,
}

impl Predicted {
    fn sum(self) -> u64 {
        self.bytes.saturating_add(self.byproduct_bytes)
    }
}

/// Bytes that a deletion freed on the filesystems measured so far.
///
/// Bytes beyond the prediction count for the byproduct, up to its size: containerd collects its garbage together with the
/// first image, and the two cannot be told apart.
#[derive(Default)]
struct Freed {
    /// Without the byproduct; `None`: nothing was measured.
    bytes: Option<i64>,
    byproduct_bytes: u64,
    beside_bytes: u64,
    /// A signal ended a measurement: the bytes freed until then say little about the deletion.
    is_interrupted: bool,
    usage: Option<Space>,
    on: Vec<FreedOn>,
}

impl Freed {
    fn add(
        &mut self,
        filesystem: Option<FilesystemIx>,
        predicted: Predicted,
        own_bytes: i64,
        settled: &Settled,
    ) {
        let measured = settled.measured_bytes.saturating_add(own_bytes);
        let unpredicted = measured.saturating_sub(i64::try_from(predicted.bytes).unwrap_or(i64::MAX));
        let byproduct_bytes = predicted.byproduct_bytes.min(u64::try_from(unpredicted).unwrap_or(0));
        let bytes = measured.saturating_sub(i64::try_from(byproduct_bytes).unwrap_or(i64::MAX));
        let space = settled.room.space().ok();
        self.bytes = Some(self.bytes.unwrap_or(0).saturating_add(bytes));
        self.byproduct_bytes = self.byproduct_bytes.saturating_add(byproduct_bytes);
        self.beside_bytes = self.beside_bytes.saturating_add(settled.fell_bytes);
        self.is_interrupted |= settled.why == SettleEnd::Signal;
        self.usage = self.usage.or(space);
        let usage_after_percent = space.map(|space| space.used_percent());
        self.on.extend(filesystem.map(|filesystem| FreedOn { filesystem, bytes, usage_after_percent }));
    }

    fn deletion(self, step: Step, at: Timestamp) -> Deletion {
        Deletion {
            step,
            at,
            freed: if self.is_interrupted { Vec::new() } else { self.on },
            measured_bytes: self.bytes.filter(|_| !self.is_interrupted),
            beside_bytes: self.beside_bytes,
            byproduct_bytes: self.byproduct_bytes,
            usage_after_percent: self.usage.map(|space| space.used_percent()),
            is_cut_short: false,
        }
    }
}

const CUT_SHORT: &str =
    "a signal ended its deletion: the next gc, rm or sweep --delete deletes the rest of it";

fn in_part(message: &str) -> String {
    format!("partially removed: {message}")
}

/// Removes the target, and waits until its store confirms the removal.
fn remove(step: &Step, handler: &mut dyn Handler) -> Answer {
    match handler.remove(step) {
        RemovalResult::Answered(answer) => answer,
        RemovalResult::Unconfirmed { within, gone, otherwise } => match is_gone(handler, step, within) {
            Ok(true) => gone,
            Ok(false) => otherwise,
            Err(error) => Answer::failed(step, error.message, Aftermath::Unseen),
        },
    }
}

/// Returns true if the store no longer has the target. Waits for at most `within`.
///
/// # Errors
/// When the store cannot be read, or its records are damaged.
fn is_gone(handler: &mut dyn Handler, step: &Step, within: Duration) -> Result<bool, PreconditionError> {
    let began = Instant::now();
    loop {
        let is_there = handler.is_there(step)?;
        // After a signal it does not wait.
        let waited = if stop::is_requested() { GONE_WITHIN } else { began.elapsed() };
        if let Some(is_there) = is_there.filter(|is_there| !is_there || waited >= within) {
            return Ok(!is_there);
        }
        // Damaged records may only be half-written at this moment.
        if waited >= GONE_WITHIN {
            return match is_there {
                Some(is_there) => Ok(!is_there),
                None => Err(PreconditionError::damaged(&step.target)),
            };
        }
        std::thread::sleep(PAUSE);
    }
}
