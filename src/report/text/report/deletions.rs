//! Text of the ranked list, the least risk first: what layersweep deletes, what can be made again, stopped containers,
//! what only a person can judge, and what is not deleted now.

use crate::model::text::display::thousands;
use crate::policy::thresholds::Counted;
use crate::report::text::format::{INDENT, bytes, safe, wrapped};
use crate::report::text::screen::Screen;
use crate::report::text::table::heading;
use crate::services::diagnosis::{Cause, CauseGroup};

pub(in crate::report::text) struct Deletions<'a> {
    /// Causes in order.
    pub(in crate::report::text) causes: Vec<&'a Cause>,
    pub(in crate::report::text) scarce: Counted,
    /// Low threshold for it, if it is passed.
    pub(in crate::report::text) low: Option<f64>,
}

impl Deletions<'_> {
    /// Formats the deletions below the line `title`. An empty string if nothing can be deleted.
    pub(in crate::report::text) fn list(&self, title: &str, screen: &Screen, width: usize) -> String {
        let groups = [
            (CauseGroup::Layersweep, "layersweep deletes, because nothing uses it:\n"),
            (CauseGroup::CanBeMadeAgain, "Can be made again:\n"),
            (CauseGroup::StoppedContainer, "Stopped containers, if nothing needs what they hold:\n"),
            (CauseGroup::OnlyYouCanJudge, "Only you can judge; the commands only show it:\n"),
        ];
        let mut out = String::new();
        for (group, head) in groups {
            let causes = self.causes.iter().filter(|cause| cause.listed_group(self.scarce) == group);
            let mut rows = causes.peekable();
            if rows.peek().is_some() {
                out.push_str(head);
            }
            rows.for_each(|cause| out.push_str(&self.deletion(cause, screen, width)));
        }
        if out.is_empty() {
            return out;
        }
        let columns = match self.scarce {
            Counted::Bytes => "     FREES  THEN USED",
            Counted::Inodes => "    INODES  THEN USED",
        };
        format!("\n{}{columns}\n{out}", heading(title))
    }

    fn deletion(&self, cause: &Cause, screen: &Screen, width: usize) -> String {
        let frees = match self.scarce {
            Counted::Bytes => bytes(cause.frees_bytes),
            Counted::Inodes => thousands(cause.frees_inodes),
        };
        let used = cause.used_after_percent.map_or_else(|| "-".to_owned(), |used| format!("{used:.1}%"));
        let mut out = row(&format!("{frees:>10}  {used:>9}"), cause, screen, width);
        out.push_str(&command(cause));
        let reached = self.low.and_then(|low| {
            let together = cause.used_after_percent.is_some_and(|used| used <= low);
            match (cause.reaches_low, together) {
                (true, _) => Some(format!("this alone reaches {low}%")),
                (false, true) => Some(format!("with those above, this reaches {low}%")),
                _ => None,
            }
        });
        let notes: Vec<_> =
            reached.into_iter().chain((!cause.remedy.is_empty()).then(|| safe(&cause.remedy))).collect();
        out + &note(&notes.join("; "), width)
    }

    pub(in crate::report::text) fn rest(&self, title: &str, screen: &Screen, width: usize) -> String {
        let mut out = String::new();
        let kept = self.causes.iter().filter(|cause| cause.listed_group(self.scarce) == CauseGroup::Kept);
        for cause in kept {
            out.push_str(&row(&format!("{:>10}", bytes(cause.bytes)), cause, screen, width));
            if !cause.group.deletes() {
                out.push_str(&command(cause));
            }
            out.push_str(&note(&safe(&cause.remedy), width));
        }
        if out.is_empty() { out } else { format!("\n{}{out}", heading(title)) }
    }
}

/// Formats a command. It is never shortened or wrapped, so that it can be copied.
fn command(cause: &Cause) -> String {
    cause.command.as_ref().map_or_else(String::new, |command| format!("{INDENT}{}\n", safe(command.text())))
}

fn note(text: &str, width: usize) -> String {
    if text.is_empty() { String::new() } else { wrapped(text, width, INDENT) }
}

/// Formats a cause after its figures: its text, which has its owner, time or state, and its path. On a terminal the path is
/// shortened to a line; in a file it is whole, for searching.
fn row(figures: &str, cause: &Cause, screen: &Screen, width: usize) -> String {
    let text = match cause.path.as_deref() {
        Some(path) => {
            let shown = match screen.width {
                Some(_) => screen.shorten(&safe(path), width.saturating_sub(INDENT.len())),
                None => safe(path),
            };
            if cause.text.contains(path) {
                safe(&cause.text).replace(&safe(path), &shown)
            } else if screen.width.is_none() || cause.group == CauseGroup::OnlyYouCanJudge {
                format!("{}, {shown}", safe(&cause.text))
            } else {
                safe(&cause.text)
            }
        }
        None => safe(&cause.text),
    };
    format!("{figures:<23}{}", wrapped(&text, width, INDENT).trim_start())
}
