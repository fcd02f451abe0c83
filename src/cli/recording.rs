//! What a run does, told to the records, the log and whoever watches, while it happens.

use std::time::Instant;

use jiff::Timestamp;

use super::args::Format;
use super::collecting::Job;
use super::deciding::Mind;
use super::global::Global;
use super::leak_recording::of_leak;
use super::progress::Line;
use super::terminal;
use crate::app::database::warn_of_saving;
use crate::app::state::State;
use crate::disk;
use crate::execute::measure::Ended;
use crate::execute::{self, Witness, untag};
use crate::history::Note;
use crate::history::journal::Journal;
use crate::history::runs::{self, Certainty, Deletion, End, Kind, Outcome, RunError, Start};
use crate::history::scan_record::SeenFilesystem;
use crate::model::{Image, Inventory, Leak, Store, StoreId};
use crate::policy::Attempt;
use crate::policy::leaks;
use crate::policy::plan::{Reason, Step};
use crate::report::json::GcDoc;
use crate::report::text::{bytes, safe};
use crate::stores::containers_storage::edit::NO_SPACE;

/// The witness of a run.
pub(super) struct Recording<'a> {
    global: &'a Global,
    mind: &'a Mind<'a>,
    inventory: &'a Inventory,
    /// The stores that images are deleted from, in the order of the latest scan.
    stores: Vec<Store>,
    journal: Journal,
    line: Line,
    planned: usize,
    done: usize,
    freed_bytes: i64,
    /// The deletion that was begun last.
    step: Option<Step>,
    /// Where the journal has the deletion that is being measured.
    position: usize,
    /// Root of the store that containers go from.
    store: String,
}

/// How full the filesystems are now that a run has acted: the end of a fall in the series.
pub(super) fn fullness(journal: &Journal, inventory: &Inventory) -> Vec<SeenFilesystem> {
    let known = if journal.has_acted() { inventory.filesystems.as_slice() } else { &[] };
    let read = known.iter().filter_map(|filesystem| match disk::filesystem::of(&filesystem.mount) {
        // What was mounted over it meanwhile is another one.
        Ok((now, _)) if now.mount == filesystem.mount && now.device == filesystem.device => Some(now),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!("how full {} is cannot be read: {error}", filesystem.mount.display());
            None
        }
    });
    read.map(|now| SeenFilesystem::of(&now)).collect()
}

impl<'a> Recording<'a> {
    /// Nothing is written before something happens.
    pub(super) fn begin(
        global: &'a Global,
        mind: &'a Mind<'a>,
        inventory: &'a Inventory,
        command: runs::Command,
        began: Instant,
        planned: &GcDoc,
    ) -> Self {
        let now = mind.memory.now();
        let started = now.checked_sub(began.elapsed()).unwrap_or(now);
        let by_policy = command != runs::Command::Rm;
        let start = Start {
            run_id: planned.run_id.clone(),
            policy: Some(planned.policy.clone()).filter(|_| by_policy),
            via: Some(planned.via.clone()),
            trigger_space: planned.trigger.space,
            trigger_age: planned.trigger.age,
            mount: planned.shown().map(|filesystem| filesystem.mount.clone()),
            usage_before_percent: planned.usage_before_percent,
            wanted_bytes: Some(planned.wanted_bytes).filter(|_| by_policy),
            predicted_bytes: Some(planned.predicted_bytes),
            ..Start::of(command, started)
        };
        Self {
            global,
            mind,
            inventory,
            stores: inventory.stores.clone(),
            journal: Journal::begin(mind.memory.place(), start),
            line: Line::new(global),
            planned: planned.deleted.len(),
            done: 0,
            freed_bytes: 0,
            step: None,
            position: 0,
            store: String::new(),
        }
    }

    /// Images are of a later scan from now on.
    pub(super) fn goes_on_with(&mut self, inventory: &Inventory) {
        self.stores.clone_from(&inventory.stores);
    }

    /// Records how it ended, what is told of it included. `true`: some of it is lost.
    pub(super) fn end(self, document: &mut GcDoc) -> bool {
        let Self { mut journal, line, global, mind, inventory, .. } = self;
        drop(line);
        // The table has them too: whoever reads that from a terminal need not be told twice.
        let shown = global.format == Format::Table && terminal::is_one();
        for event in &document.events {
            if !shown {
                tracing::warn!(event = event.reason, "{}", safe(&event.message));
            }
            journal.event(event.reason, &event.message);
        }
        let errors = document.errors.iter().map(|error| RunError {
            id: error.id.clone().unwrap_or_default(),
            step: error.step.clone(),
            message: error.message.clone(),
        });
        let end = End {
            usage_after_percent: document.usage_after_percent,
            measured_bytes: document.measured_bytes,
            believed_bytes: document.believed_bytes,
            errors: errors.collect(),
            filesystems: fullness(&journal, inventory),
            ..End::of(mind.memory.now(), document.outcome)
        };
        let ended = journal.end(end);
        warn_of_saving(global, &ended.degraded, &ended.notes);
        ended.notes.iter().any(|note| matches!(note, Note::Lost(_) | Note::Dropped(_)))
    }

    /// Containers go from the store at `root`.
    pub(super) fn of_store(&mut self, root: &str) {
        root.clone_into(&mut self.store);
    }

    pub(super) fn runtime_store(&self) -> String {
        self.store.clone()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.mind.memory.now()
    }

    /// Tells what is about to be deleted.
    pub(super) fn says(&mut self, what: &str, deletion: Deletion) {
        self.journal.begins(deletion);
        let degraded = self.journal.take_degraded();
        if !degraded.is_empty() {
            self.line.hidden(|| warn_of_saving(self.global, &degraded, &[]));
        }
        let back = bytes(u64::try_from(self.freed_bytes).unwrap_or(0));
        self.line.say(format!("deleting {} of {}: {what}; {back} back so far", self.done + 1, self.planned));
    }

    /// Something other than an image is gone.
    pub(super) fn has_gone(&mut self, deletion: Deletion) {
        self.done += 1;
        self.position = self.journal.gone(deletion, None);
    }

    /// And gave back so much.
    pub(super) fn has_come(&mut self, measured_bytes: Option<i64>, usage_after_percent: Option<f64>) {
        self.freed_bytes = self.freed_bytes.saturating_add(measured_bytes.unwrap_or(0));
        self.journal.measured(self.position, measured_bytes, 0, usage_after_percent);
    }

    /// Names are about to be taken from an image that keeps others.
    pub(super) fn untags(&mut self, image: &Image, names: &[String]) {
        let deletion = self.of_names(image, names, None);
        self.journal.begins(deletion);
    }

    /// What came of it.
    pub(super) fn untagged(&mut self, image: &Image, names: &[String], outcome: &untag::Outcome) {
        match outcome {
            untag::Outcome::Kept(_) => self.journal.spared(),
            untag::Outcome::Refused(why) => {
                let deletion = self.of_names(image, names, Some(why.clone()));
                self.journal.refused(deletion, None);
            }
            untag::Outcome::Done => {
                for name in names {
                    tracing::info!(id = image.id.as_str(), "untagged {}", safe(name));
                }
                self.done += names.len();
                let deletion = self.of_names(image, names, None);
                self.journal.gone(deletion, None);
            }
        }
    }

    fn of_names(&self, image: &Image, names: &[String], error: Option<String>) -> Deletion {
        Deletion {
            at: self.mind.memory.now(),
            kind: Kind::Name,
            store: self.stores[image.store.get()].root.to_string_lossy().into_owned(),
            id: image.id.to_string(),
            names: names.to_vec(),
            reason: runs::Reason::Request,
            predicted_bytes: 0,
            measured_bytes: Some(0).filter(|_| error.is_none()),
            byproduct_bytes: 0,
            usage_after_percent: None,
            error,
            outcome: Certainty::Seen,
        }
    }

    /// Or would not go. It is tried again with the next run.
    pub(super) fn was_refused(&mut self, deletion: Deletion) {
        self.journal.refused(deletion, None);
    }

    /// Or was not touched after all.
    pub(super) fn was_spared(&mut self) {
        self.journal.spared();
    }

    /// Or nobody knows.
    pub(super) fn is_unknown(&mut self, why: &str) {
        self.journal.unproven(why);
    }

    fn deletion(&self, image: &Image, step: &Step) -> Deletion {
        Deletion {
            at: self.mind.memory.now(),
            kind: Kind::Image,
            store: self.stores[image.store.get()].root.to_string_lossy().into_owned(),
            id: image.id.to_string(),
            names: image.names.clone(),
            reason: reason(step.reason),
            predicted_bytes: step.predicted_bytes(),
            measured_bytes: None,
            byproduct_bytes: 0,
            usage_after_percent: None,
            error: None,
            outcome: Certainty::Seen,
        }
    }

    fn key(&self, image: &Image) -> StoreId {
        StoreId::of(&self.stores[image.store.get()])
    }
}

impl std::fmt::Debug for Recording<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("journal", &self.journal).finish_non_exhaustive()
    }
}

impl Witness for Recording<'_> {
    fn begins(&mut self, image: &Image, step: &Step) {
        self.step = Some(step.clone());
        let name = safe(image.title());
        tracing::info!(id = image.id.as_str(), predicted_bytes = step.predicted_bytes(), "deleting {name}");
        self.says(&name, self.deletion(image, step));
    }

    fn gone(&mut self, image: &Image, step: &Step) {
        self.done += 1;
        let (deletion, key) = (self.deletion(image, step), self.key(image));
        self.position = self.journal.gone(deletion, Some(&key));
    }

    fn deleted(&mut self, deletion: &execute::Deletion) {
        self.freed_bytes = self.freed_bytes.saturating_add(deletion.measured_bytes);
        tracing::info!(
            id = deletion.id,
            predicted_bytes = deletion.step.predicted_bytes(),
            measured_bytes = deletion.measured_bytes,
            "deleted"
        );
        // What had come when a signal ended the waiting says little.
        let measured = (deletion.ended != Ended::Signal).then_some(deletion.measured_bytes);
        self.journal.measured(
            self.position,
            measured,
            deletion.byproduct_bytes,
            deletion.usage_after_percent,
        );
    }

    fn spared(&mut self, _: &Image) {
        self.step = None;
        self.journal.spared();
    }

    fn unproven(&mut self, _: &Image, message: &str) {
        self.step = None;
        self.journal.unproven(message);
    }

    fn refused(&mut self, image: &Image, message: &str) {
        let Some(step) = self.step.take() else { return };
        if crate::cri::is_no_space(message) || message.contains(NO_SPACE) {
            // The disk's fault: there is no reason to leave the image alone once there is room.
            let deletion = Deletion { error: Some(message.to_owned()), ..self.deletion(image, &step) };
            self.journal.refused(deletion, None);
            return;
        }
        let key = self.key(image);
        let earlier = self.mind.attempts.get(&(key.clone(), image.id.to_string()));
        let attempt = Attempt::after(earlier, self.mind.memory.now(), message);
        let deletion = Deletion { error: Some(message.to_owned()), ..self.deletion(image, &step) };
        self.journal.refused(deletion, Some((&key, attempt)));
    }
}

/// Leaks that go before the images.
impl crate::execute::leaks::Witness for Recording<'_> {
    fn begins(&mut self, leak: &Leak, entry: &leaks::plan::Entry) {
        self.journal.begins(of_leak(self.mind.memory.now(), self.inventory, leak, entry));
        tracing::info!(
            class = leak.class.as_str(),
            id = leak.id,
            predicted = entry.gain.frees_bytes,
            "removing"
        );
        let (class, id) = (leak.class, safe(&leak.id));
        self.line.say(format!("{} of {}: {class} {id}", self.done + 1, self.planned));
    }

    fn gone(&mut self, leak: &Leak, entry: &leaks::plan::Entry) {
        self.done += 1;
        self.position = self.journal.gone(of_leak(self.mind.memory.now(), self.inventory, leak, entry), None);
    }

    fn deleted(&mut self, _leak: &Leak, deletion: &crate::execute::leaks::Deletion) {
        let measured = deletion.measured_bytes;
        self.freed_bytes = self.freed_bytes.saturating_add(measured.unwrap_or(0));
        self.journal.measured(self.position, measured, 0, deletion.usage_after_percent);
    }

    fn spared(&mut self, _: &Leak) {
        self.journal.spared();
    }

    fn unproven(&mut self, _: &Leak, message: &str) {
        self.journal.unproven(message);
    }

    fn failed(&mut self, leak: &Leak, entry: &leaks::plan::Entry, problem: &crate::execute::leaks::Problem) {
        tracing::info!(class = leak.class.as_str(), id = leak.id, "stays: {}", problem.message);
        if problem.kind == crate::execute::leaks::ProblemKind::Kept {
            self.journal.spared();
        }
        self.freed_bytes = self.freed_bytes.saturating_add(problem.measured_bytes.unwrap_or(0));
        if problem.kind != crate::execute::leaks::ProblemKind::Kept {
            let error = Some(problem.message.clone());
            self.journal.refused(
                Deletion {
                    error,
                    measured_bytes: problem.measured_bytes,
                    ..of_leak(self.mind.memory.now(), self.inventory, leak, entry)
                },
                None,
            );
        }
    }
}

fn reason(reason: Reason) -> runs::Reason {
    match reason {
        Reason::Age => runs::Reason::Age,
        Reason::Space => runs::Reason::Space,
        Reason::Request => runs::Reason::Request,
    }
}

/// Records that a run was refused before it did anything.
pub(super) fn refusal(job: &Job<'_>, document: &GcDoc) {
    let (global, command) = (job.global, job.command);
    // Nothing is written beside records that cannot be read.
    let Ok((memory, _)) = State::open(&global.request) else { return };
    if memory.is_unreadable() {
        return;
    }
    let now = memory.now();
    let started = now.checked_sub(job.began.elapsed()).unwrap_or(now);
    let start =
        Start { run_id: job.run_id.clone(), via: Some(document.via.clone()), ..Start::of(command, started) };
    let message = document.errors.first().map(|error| error.message.clone()).unwrap_or_default();
    let mut journal = Journal::begin(memory.place(), start);
    if command == runs::Command::Gc && memory.last_failed(command) {
        let told = format!("for the second time or more in a row: {message}");
        tracing::warn!(event = "ImageGCFailed", "{}", safe(&told));
        journal.event("ImageGCFailed", &told);
    }
    let errors = vec![RunError { id: String::new(), step: "begin".into(), message }];
    let ended = journal.end(End { errors, ..End::of(now, Outcome::Refused) });
    warn_of_saving(global, &ended.degraded, &ended.notes);
}
