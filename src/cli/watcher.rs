//! What a run that deletes says while it works: a line on a terminal, warnings above it.

use std::cell::RefCell;
use std::sync::Arc;

use super::args::Format;
use super::global::Global;
use super::progress::Line;
use super::terminal;
use crate::app::observer::{Audience, Deleting, Observer, Shown};
use crate::disk::Progress;
use crate::history::runs::Event;
use crate::model::Finding;
use crate::report::text::{bytes, safe};

/// The observer of a run that deletes.
#[derive(Debug)]
pub(super) struct Watcher<'a> {
    global: &'a Global,
    /// While something is being deleted.
    line: RefCell<Option<Line>>,
}

impl<'a> Watcher<'a> {
    pub(super) fn new(global: &'a Global) -> Self {
        Self { global, line: RefCell::new(None) }
    }

    /// Shows the line while `act` runs.
    pub(super) fn watch<T>(&self, act: impl FnOnce() -> T) -> T {
        *self.line.borrow_mut() = Some(Line::new(self.global));
        let done = act();
        *self.line.borrow_mut() = None;
        done
    }

    fn hidden(&self, write: impl FnOnce()) {
        match &*self.line.borrow() {
            Some(line) => line.hidden(write),
            None => write(),
        }
    }
}

impl Observer for Watcher<'_> {
    fn note(&self, message: &str) {
        self.hidden(|| self.global.note(message));
    }

    fn warn(&self, audience: Audience, message: &str, hint: &str) {
        self.hidden(|| self.global.warn(audience, message, hint));
    }

    fn finding(&self, audience: Audience, finding: &Finding) {
        self.hidden(|| self.global.finding(audience, finding));
    }

    fn measuring(&self, progress: &Arc<Progress>) -> Shown {
        self.global.measuring(progress)
    }

    fn deleting(&self, deleting: &Deleting<'_>) {
        let Deleting { number, planned, target, freed_bytes } = deleting;
        if let Some(line) = &*self.line.borrow() {
            let (kind, name, freed) = (target.kind, safe(target.title()), bytes(*freed_bytes));
            line.say(format!("deleting {number} of {planned}: {kind} {name}; {freed} freed so far"));
        }
    }

    fn event(&self, event: &Event) {
        // The table has them too: whoever reads that from a terminal need not be told twice.
        if self.global.format != Format::Table || !terminal::is_one() {
            self.hidden(|| tracing::warn!(event = event.reason, "{}", safe(&event.message)));
        }
    }
}
