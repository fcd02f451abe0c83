//! What use cases say goes to stderr, one line each; stdout holds results alone.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::Arc;

use super::global::Global;
use super::{output, progress};
use crate::app::error::{Error, Exit};
use crate::app::observer::{Audience, Observer, Shown};
use crate::disk::Progress;
use crate::model::Finding;
use crate::report::text::safe;

impl Observer for Global {
    fn note(&self, message: &str) {
        if !self.quiet {
            say("note", message, "");
        }
    }

    fn warn(&self, audience: Audience, message: &str, hint: &str) {
        if self.hears(audience) {
            say("warning", message, hint);
        }
    }

    fn finding(&self, audience: Audience, finding: &Finding) {
        if self.hears(audience) {
            warn_of(finding);
        }
    }

    fn measuring(&self, progress: &Arc<Progress>) -> Shown {
        progress::show(self, progress)
    }
}

impl Global {
    fn hears(&self, audience: Audience) -> bool {
        !self.quiet || audience == Audience::Always
    }
}

/// Prints a finding as a warning.
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

/// Prints an error, and returns how to exit.
pub(super) fn report(error: &Error) -> Exit {
    // A reader who closes the pipe has seen enough.
    if error.exit != Exit::Done {
        for one in std::iter::once(error).chain(&error.others) {
            say("error", &one.line(), one.hint.as_deref().unwrap_or_default());
        }
    }
    error.exit
}

fn say(kind: &str, message: &str, hint: &str) {
    let mut text = format!("{kind}: {}\n", safe(message));
    if !hint.is_empty() {
        let _ = writeln!(text, "hint: {}", safe(hint));
    }
    // A stderr that is gone cannot be told so.
    let _ = io::stderr().write_all(output::shown(&text).as_bytes());
}
