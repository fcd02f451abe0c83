//! Text of `doctor`: the findings about a node, the worst first.

use super::format::{age_of, safe, wrapped};
use super::screen::Screen;
use super::table::heading;
use crate::app::doctor::{Check, Status};
use crate::model::text::display::count;
use crate::report::json::{DoctorDoc, DoctorSuggestDoc};

/// Width if the output is not a terminal: lines wrapped by a log or a mail program are hard to read.
const WIDTH: usize = 80;
const INDENT: &str = "  ";

/// Formats two drop-ins whose comments are the reasons. Without suggestions all lines are comments.
pub fn suggest(document: &DoctorSuggestDoc) -> String {
    let found = &document.suggestions;
    let mut out = format!("# From {} of this node's past, replayed.\n", age_of(Some(found.covered_seconds)));
    for why in &found.omitted {
        out.push_str(&format!("# Nothing is suggested for {why}.\n"));
    }
    if found.suggestions.is_empty() {
        return out;
    }
    out.push_str("\n# /etc/layersweep/layersweep.toml.d/50-suggested.toml\n[images]\n");
    for suggestion in &found.suggestions {
        out.push_str(&format!("# {}\n{}\n", suggestion.reason, suggestion.layersweep.join("\n")));
    }
    out.push_str(
        "\n# For a kubelet with --config-dir=DIR: DIR/50-suggested.conf. It acts if layersweep does not.\n\
         apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
    );
    for suggestion in &found.suggestions {
        out.push_str(&format!("# {}\n{}\n", suggestion.reason, suggestion.kubelet.join("\n")));
    }
    out
}

/// Formats the checks by severity, then their number. With `quiet`, only errors and warnings.
pub fn doctor(document: &DoctorDoc, screen: &Screen, quiet: bool) -> String {
    let width = screen.width.unwrap_or(WIDTH).max(40);
    let mut out = String::new();
    let groups = [
        (Status::Error, "Errors"),
        (Status::Warning, "Warnings"),
        (Status::Note, "Notes"),
        (Status::Ok, "Nothing wrong"),
    ];
    for (status, title) in groups.iter().take(if quiet { 2 } else { groups.len() }) {
        let checks: Vec<_> = document.checks.iter().filter(|check| check.status == *status).collect();
        if checks.is_empty() {
            continue;
        }
        out.push_str(&heading(title));
        for check in checks {
            out.push_str(&entry(check, width));
        }
        out.push('\n');
    }
    if !quiet {
        let counts = &document.counts;
        let unread = if document.complete { "" } else { "; something could not be read" };
        let line = format!(
            "{}, {}, {}, {} ok{unread}",
            count(counts.error, "error", "errors"),
            count(counts.warning, "warning", "warnings"),
            count(counts.note, "note", "notes"),
            counts.ok,
        );
        out.push_str(&wrapped(&line, width, ""));
    }
    out
}

fn entry(check: &Check, width: usize) -> String {
    let mut head = check.name.to_owned();
    if !check.object.is_empty() {
        head.push_str("  ");
        head.push_str(&safe(&check.object));
    }
    let mut out = wrapped(&head, width, INDENT);
    let deeper = INDENT.repeat(2);
    out.push_str(&wrapped(&safe(&check.message), width, &deeper));
    if !check.remedy.is_empty() {
        out.push_str(&wrapped(&format!("fix: {}", safe(&check.remedy)), width, &deeper));
    }
    out
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::report::json;

    #[test]
    fn worst_findings_are_first_and_wrapped() {
        let long = "word ".repeat(30);
        let checks = vec![
            Check { name: "clock", ..Check::ok("", "synchronised") },
            Check { name: "reserve", ..Check::note("/a", "none") },
            Check { name: "runtime", ..Check::warning("/run/a\u{1b}[31m.sock", long.trim_end(), "start it") },
            Check { name: "stores", ..Check::error("", "no store", "name one") },
        ];
        fn shown(document: &DoctorDoc, width: Option<usize>, quiet: bool) -> String {
            let screen = Screen { width, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
            anstream::adapter::strip_str(&doctor(document, &screen, quiet)).to_string()
        }
        let document = json::doctor(Timestamp::UNIX_EPOCH, false, checks);
        assert_eq!(document.status, Status::Error);
        let text = shown(&document, None, false);
        assert!(
            text.starts_with("Errors\n  stores\n    no store\n    fix: name one\n\nWarnings\n"),
            "{text}"
        );
        assert!(text.ends_with("1 error, 1 warning, 1 note, 1 ok; something could not be read\n"), "{text}");
        assert!(text.contains("/run/a\\u{1b}[31m.sock"), "{text}");
        for width in [Some(40), Some(80), None] {
            let text = shown(&document, width, false);
            assert!(text.lines().all(|line| line.width() <= width.unwrap_or(80)), "{text}");
        }
        let quiet = shown(&document, None, true);
        assert!(
            !quiet.contains("clock") && !quiet.contains("reserve") && quiet.contains("stores"),
            "{quiet}"
        );
        let fine = json::doctor(Timestamp::UNIX_EPOCH, true, vec![Check::ok("", "synchronised")]);
        assert_eq!(shown(&fine, None, true), "");
    }
}
