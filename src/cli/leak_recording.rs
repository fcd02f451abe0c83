//! What a run of `sweep` does, told to the records, the log and whoever watches, while it happens.

use std::time::Instant;

use jiff::Timestamp;

use super::global::Global;
use super::progress::Line;
use super::recording::fullness;
use crate::app::database::warn_of_saving;
use crate::app::state::State;
use crate::execute::leaks::{Deletion, Problem, ProblemKind, Witness};
use crate::history::Note;
use crate::history::journal::Journal;
use crate::history::runs::{self, Certainty, Command, End, Kind, Outcome, Reason, RunError, Start};
use crate::model::{Inventory, Leak};
use crate::policy::leaks::plan::{Entry, Plan};
use crate::report::json::SweepDoc;
use crate::report::text::{bytes, safe};

/// The witness of a sweep.
pub(super) struct LeakRecording<'a> {
    global: &'a Global,
    memory: &'a State,
    inventory: &'a Inventory,
    journal: Journal,
    line: Line,
    planned: usize,
    done: usize,
    freed_bytes: i64,
    /// Where the journal has the deletion that is being measured.
    position: usize,
}

impl<'a> LeakRecording<'a> {
    /// Nothing is written before something happens.
    pub(super) fn begin(
        global: &'a Global,
        memory: &'a State,
        inventory: &'a Inventory,
        run_id: &str,
        began: Instant,
        plan: &Plan,
    ) -> Self {
        let now = memory.now();
        let started = now.checked_sub(began.elapsed()).unwrap_or(now);
        let start = Start {
            run_id: run_id.to_owned(),
            via: Some("direct".into()),
            predicted_bytes: Some(plan.predicted_bytes()),
            ..Start::of(Command::Sweep, started)
        };
        Self {
            global,
            memory,
            inventory,
            journal: Journal::begin(memory.place(), start),
            line: Line::new(global),
            planned: plan.order.len(),
            done: 0,
            freed_bytes: 0,
            position: 0,
        }
    }

    /// Records how it ended. `true`: some of it is lost.
    pub(super) fn end(self, document: &SweepDoc) -> bool {
        let Self { journal, line, global, memory, inventory, .. } = self;
        drop(line);
        let errors = document.errors.iter().map(|error| RunError {
            id: error.id.clone().unwrap_or_default(),
            step: error.step.clone(),
            message: error.message.clone(),
        });
        let outcome = match document.outcome {
            Outcome::Done if !document.complete => Outcome::Incomplete,
            outcome => outcome,
        };
        let end = End {
            measured_bytes: document.measured_bytes,
            errors: errors.collect(),
            filesystems: fullness(&journal, inventory),
            ..End::of(memory.now(), outcome)
        };
        let ended = journal.end(end);
        warn_of_saving(global, &ended.degraded, &ended.notes);
        ended.notes.iter().any(|note| matches!(note, Note::Lost(_) | Note::Dropped(_)))
    }
}

impl std::fmt::Debug for LeakRecording<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeakRecording").field("journal", &self.journal).finish_non_exhaustive()
    }
}

impl Witness for LeakRecording<'_> {
    fn begins(&mut self, leak: &Leak, entry: &Entry) {
        self.journal.begins(of_leak(self.memory.now(), self.inventory, leak, entry));
        tracing::info!(
            class = leak.class.as_str(),
            id = leak.id,
            predicted = entry.gain.frees_bytes,
            "removing"
        );
        let back = bytes(u64::try_from(self.freed_bytes).unwrap_or(0));
        let (class, id) = (leak.class, safe(&leak.id));
        self.line.say(format!("{} of {}: {class} {id}; {back} back so far", self.done + 1, self.planned));
    }

    fn gone(&mut self, leak: &Leak, entry: &Entry) {
        self.done += 1;
        let deletion = of_leak(self.memory.now(), self.inventory, leak, entry);
        self.position = self.journal.gone(deletion, None);
    }

    fn deleted(&mut self, leak: &Leak, deletion: &Deletion) {
        let measured = deletion.measured_bytes;
        self.freed_bytes = self.freed_bytes.saturating_add(measured.unwrap_or(0));
        tracing::info!(class = leak.class.as_str(), id = leak.id, measured, "removed");
        self.journal.measured(self.position, measured, 0, deletion.usage_after_percent);
    }

    fn spared(&mut self, _: &Leak) {
        self.journal.spared();
    }

    fn unproven(&mut self, _: &Leak, message: &str) {
        self.journal.unproven(message);
    }

    fn failed(&mut self, leak: &Leak, entry: &Entry, problem: &Problem) {
        tracing::info!(class = leak.class.as_str(), id = leak.id, "stays: {}", problem.message);
        if problem.kind == ProblemKind::Kept {
            self.journal.spared();
        }
        self.freed_bytes = self.freed_bytes.saturating_add(problem.measured_bytes.unwrap_or(0));
        if problem.kind != ProblemKind::Kept {
            let error = Some(problem.message.clone());
            self.journal.refused(
                runs::Deletion {
                    error,
                    measured_bytes: problem.measured_bytes,
                    ..of_leak(self.memory.now(), self.inventory, leak, entry)
                },
                None,
            );
        }
    }
}

/// A leak's deletion as the records have it, before it was measured; `at` is record time.
pub(super) fn of_leak(at: Timestamp, inventory: &Inventory, leak: &Leak, entry: &Entry) -> runs::Deletion {
    runs::Deletion {
        at,
        kind: Kind::Leak,
        store: inventory.stores[leak.store.get()].root.to_string_lossy().into_owned(),
        id: leak.id.clone(),
        // An id that nobody knows says little.
        names: vec![leak.title()],
        reason: Reason::Leak,
        predicted_bytes: entry.gain.frees_bytes,
        measured_bytes: None,
        byproduct_bytes: 0,
        usage_after_percent: None,
        error: None,
        outcome: Certainty::Seen,
    }
}
