//! What is wrong with a node, the worst first.

use super::format::{safe, wrapped};
use super::screen::Screen;
use super::table::heading;
use crate::app::doctor::{Check, Status};
use crate::model::display::count;
use crate::report::json::DoctorDoc;

/// Width where no terminal says one: what is wrapped by a log or a mail is hard to read.
const WIDTH: usize = 80;
const INDENT: &str = "  ";

/// The findings by severity, then a line that counts them. `quiet`: only what is to be fixed.
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
    fn the_worst_comes_first_and_fits() {
        let named = |name, check: Check| Check { name, ..check };
        let long = "word ".repeat(30);
        let checks = vec![
            named("clock", Check::ok("", "synchronised")),
            named("reserve", Check::note("/a", "none")),
            named("runtime", Check::warning("/run/a\u{1b}[31m.sock", long.trim_end(), "start it")),
            named("stores", Check::error("", "no store", "name one")),
        ];
        let screen = |width| Screen { width, unicode: true, truncates: true, zone: TimeZone::UTC };
        let document = json::doctor(Timestamp::UNIX_EPOCH, false, checks);
        assert_eq!(document.status, Status::Error);
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        let shown = plain(&doctor(&document, &screen(None), false));
        assert!(
            shown.starts_with("Errors\n  stores\n    no store\n    fix: name one\n\nWarnings\n"),
            "{shown}"
        );
        assert!(
            shown.ends_with("1 error, 1 warning, 1 note, 1 ok; something could not be read\n"),
            "{shown}"
        );
        assert!(shown.contains("/run/a\\u{1b}[31m.sock"), "{shown}");
        for width in [Some(40), Some(80), None] {
            let shown = plain(&doctor(&document, &screen(width), false));
            assert!(shown.lines().all(|line| line.width() <= width.unwrap_or(80)), "{shown}");
        }
        let quiet = plain(&doctor(&document, &screen(None), true));
        assert!(
            !quiet.contains("clock") && !quiet.contains("reserve") && quiet.contains("stores"),
            "{quiet}"
        );
        let fine = json::doctor(Timestamp::UNIX_EPOCH, true, vec![Check::ok("", "synchronised")]);
        assert_eq!(doctor(&fine, &screen(None), true), "");
    }
}
