//! What a run does, told to the records, the log and whoever watches, while it happens.

use std::io::Write;
use std::time::Instant;

use super::args::Global;
use super::collecting::Job;
use super::deciding::Mind;
use super::progress::Line;
use super::records;
use crate::gc::Attempts;
use crate::gc::plan::{Reason, Step};
use crate::gc::run::{self, Witness};
use crate::inventory::{Image, Inventory, StoreKey};
use crate::records::attempts::Attempt;
use crate::records::journal::Journal;
use crate::records::runs::{self, Deletion, End, Kind, Outcome, RunError, Start};
use crate::records::{Degraded, Note};
use crate::report::json::GcDoc;
use crate::report::text::{bytes, safe};

/// The witness of a run.
pub(super) struct Recording<'a> {
    global: &'a Global,
    mind: &'a Mind<'a>,
    inventory: &'a Inventory,
    journal: Journal,
    line: Line,
    planned: usize,
    done: usize,
    freed_bytes: i64,
    /// The deletion that was begun last.
    step: Option<Step>,
    /// Where the journal has the deletion that is being measured.
    position: usize,
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
        let start = Start {
            run_id: planned.run_id.clone(),
            policy: Some(planned.policy.clone()),
            via: Some(planned.via.clone()),
            trigger_space: planned.trigger.space,
            trigger_age: planned.trigger.age,
            mount: planned.shown().map(|filesystem| filesystem.mount.clone()),
            usage_before_percent: planned.usage_before_percent,
            wanted_bytes: Some(planned.wanted_bytes),
            predicted_bytes: Some(planned.predicted_bytes),
            ..Start::of(command, started)
        };
        Self {
            global,
            mind,
            inventory,
            journal: Journal::begin(mind.memory.place(), start),
            line: Line::new(global),
            planned: planned.deleted.len(),
            done: 0,
            freed_bytes: 0,
            step: None,
            position: 0,
        }
    }

    /// Records how it ended, what is told of it included. `true`: some of it is lost.
    pub(super) fn end(self, document: &mut GcDoc) -> bool {
        let Self { mut journal, line, global, mind, .. } = self;
        drop(line);
        for event in &document.events {
            tracing::warn!(event = event.reason, "{}", safe(&event.message));
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
            ..End::of(mind.memory.now(), outcome(document.outcome))
        };
        let ended = journal.end(end);
        tell(global, &ended.degraded, &ended.notes);
        ended.notes.iter().any(|note| matches!(note, Note::Lost(_) | Note::Dropped(_)))
    }

    fn deletion(&self, image: &Image, step: &Step) -> Deletion {
        Deletion {
            at: self.mind.memory.now(),
            kind: Kind::Image,
            store: self.inventory.stores[image.store.get()].root.to_string_lossy().into_owned(),
            id: image.id.clone(),
            names: image.names.clone(),
            reason: reason(step.reason),
            predicted_bytes: step.predicted_bytes(),
            measured_bytes: None,
            byproduct_bytes: 0,
            usage_after_percent: None,
            error: None,
        }
    }

    fn key(&self, image: &Image) -> StoreKey {
        StoreKey::of(&self.inventory.stores[image.store.get()])
    }
}

impl std::fmt::Debug for Recording<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("journal", &self.journal).finish_non_exhaustive()
    }
}

impl Witness for Recording<'_> {
    fn begins(&mut self, image: &Image, step: &Step) {
        self.journal.acting();
        let degraded = self.journal.take_degraded();
        if !degraded.is_empty() {
            self.line.hidden(|| tell(self.global, &degraded, &[]));
        }
        self.step = Some(step.clone());
        let name = safe(image.names.first().unwrap_or(&image.id));
        tracing::info!(id = image.id, predicted_bytes = step.predicted_bytes(), "deleting {name}");
        let back = bytes(u64::try_from(self.freed_bytes).unwrap_or(0));
        self.line.say(format!("deleting {} of {}: {name}; {back} back so far", self.done + 1, self.planned));
    }

    fn gone(&mut self, image: &Image, step: &Step) {
        self.done += 1;
        let (deletion, key) = (self.deletion(image, step), self.key(image));
        self.position = self.journal.gone(deletion, Some(&key));
    }

    fn deleted(&mut self, deletion: &run::Deletion) {
        self.freed_bytes = self.freed_bytes.saturating_add(deletion.measured_bytes);
        tracing::info!(
            id = deletion.id,
            predicted_bytes = deletion.step.predicted_bytes(),
            measured_bytes = deletion.measured_bytes,
            "deleted"
        );
        self.journal.measured(
            self.position,
            Some(deletion.measured_bytes),
            deletion.byproduct_bytes,
            deletion.usage_after_percent,
        );
    }

    fn spared(&mut self, _: &Image) {
        self.step = None;
    }

    fn unproven(&mut self, image: &Image, message: &str) {
        let Some(step) = self.step.take() else { return };
        let deletion = Deletion { error: Some(message.to_owned()), ..self.deletion(image, &step) };
        self.journal.refused(deletion, None);
    }

    fn refused(&mut self, image: &Image, message: &str) {
        if crate::cri::is_no_space(message) {
            // The disk's fault: there is no reason to leave the image alone once there is room.
            self.unproven(image, message);
            return;
        }
        let Some(step) = self.step.take() else { return };
        let key = self.key(image);
        let earlier = self.mind.attempts.get(&(key.clone(), image.id.clone()));
        let Attempts { failures, next_try, last_error } =
            Attempts::after(earlier, self.mind.memory.now(), message);
        let deletion = Deletion { error: Some(message.to_owned()), ..self.deletion(image, &step) };
        self.journal.refused(deletion, Some((&key, Attempt { failures, next_try, last_error })));
    }
}

fn reason(reason: Reason) -> runs::Reason {
    match reason {
        Reason::Age => runs::Reason::Age,
        Reason::Space => runs::Reason::Space,
        Reason::Request => runs::Reason::Request,
    }
}

fn outcome(word: &str) -> Outcome {
    match word {
        "not_needed" => Outcome::NotNeeded,
        "reached" => Outcome::Reached,
        "not_reached" => Outcome::NotReached,
        "refused" => Outcome::Refused,
        _ => Outcome::Failed,
    }
}

/// Records that a run was refused before it did anything.
pub(super) fn refusal(job: &Job<'_>, document: &GcDoc) {
    let (global, command) = (job.global, job.command);
    // Nothing is written beside records that cannot be read.
    let Ok(memory) = records::Memory::open(global, &mut Vec::new()) else { return };
    if memory.is_blind() {
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
    tell(global, &ended.degraded, &ended.notes);
}

/// What is wrong with the records goes to stderr, with its remedy.
fn tell(global: &Global, degraded: &[Degraded], notes: &[Note]) {
    if global.quiet && degraded.is_empty() {
        return;
    }
    let mut stderr = std::io::stderr().lock();
    for why in degraded {
        // A stderr that is gone cannot be told so.
        let _ = writeln!(stderr, "warning: {}", safe(&why.to_string()));
        let _ = writeln!(stderr, "hint: {}", safe(&why.remedy()));
    }
    for note in notes {
        let _ = writeln!(stderr, "warning: {}", safe(&note.to_string()));
    }
}
