//! Messages of the commands on stderr, one on each line; stdout contains only results.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::global::Global;
use crate::cli::input::args::Format;
use crate::cli::screen::progress::{self, ProgressLine};
use crate::cli::screen::{output, terminal};
use crate::disk::Progress;
use crate::history::runs::Event;
use crate::model::Finding;
use crate::report::text::{bytes, safe};
use crate::services::error::{Error, Exit};
use crate::services::observer::{Audience, Deleting, Observer, Shown};

impl Observer for Global {
    fn note(&self, message: &str) {
        if !self.quiet {
            self.hidden(|| say("note", message, ""));
        }
    }

    fn warn(&self, audience: Audience, message: &str, hint: &str) {
        if self.hears(audience) {
            self.hidden(|| say("warning", message, hint));
        }
    }

    fn finding(&self, audience: Audience, finding: &Finding) {
        if self.hears(audience) {
            self.hidden(|| warn_of(finding));
        }
    }

    fn working(&self, message: Box<dyn Fn() -> String + Send>) -> Shown {
        progress::show(self.has_progress() && self.format == Format::Table, message)
    }

    fn measuring(&self, progress: &Arc<Progress>) -> Shown {
        let progress = Arc::clone(progress);
        self.working(Box::new(move || {
            let inodes = progress.inodes.load(Ordering::Relaxed);
            format!("measuring: {inodes} inodes, {}", bytes(progress.bytes.load(Ordering::Relaxed)))
        }))
    }

    fn deleting(&self, deleting: &Deleting<'_>) {
        let Deleting { number, planned, target, freed_bytes } = deleting;
        if let Some(line) = &*self.line.borrow() {
            let (kind, name, freed) = (target.kind, safe(target.title()), bytes(*freed_bytes));
            line.say(format!("deleting {number} of {planned}: {kind} {name}; {freed} freed so far"));
        }
    }

    fn event(&self, event: &Event) {
        // A table contains the events too: on a terminal, they are not printed twice.
        if self.format != Format::Table || !terminal::is_one() {
            let message = safe(&event.message);
            self.hidden(|| tracing::warn!(event = event.reason, "{}", output::shown(&message)));
        }
    }
}

impl Global {
    fn hears(&self, audience: Audience) -> bool {
        !self.quiet || audience == Audience::Always
    }

    fn has_progress(&self) -> bool {
        !self.no_progress && !self.quiet
    }

    pub(super) fn watch<T>(&self, act: impl FnOnce() -> T) -> T {
        *self.line.borrow_mut() = Some(ProgressLine::new(self.has_progress()));
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

pub(super) fn warn_of(finding: &Finding) {
    let mut line = String::new();
    if !finding.path.as_os_str().is_empty() {
        let _ = write!(line, "{}: ", finding.path.display());
    }
    line.push_str(&finding.message);
    if finding.incomplete {
        line.push_str(" (figures are lower bounds)");
    }
    say("warning", &line, "");
}

pub(super) fn report(error: &Error) -> Exit {
    // A reader that closes the pipe does not need a message.
    if error.exit != Exit::Done {
        for error in std::iter::once(error).chain(&error.others) {
            say("error", &error.line(), error.hint.as_deref().unwrap_or_default());
        }
    }
    error.exit
}

fn say(kind: &str, message: &str, hint: &str) {
    let mut text = format!("{kind}: {}\n", safe(message));
    if !hint.is_empty() {
        let _ = writeln!(text, "hint: {}", safe(hint));
    }
    // A closed stderr cannot show the message: ignore it.
    let _ = output::on_stderr(&text);
}
