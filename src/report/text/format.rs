//! Formatting of single values, and wrapping of text.

use std::fmt::Write as _;

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

use crate::model::text::display::{self, thousands};

/// Indentation of the list of deletions, below its figures.
pub(super) const INDENT: &str = "                       ";

pub use crate::model::text::display::bytes;

/// Formats a number of inodes, or `-` if it is unknown.
pub(super) fn inodes(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), thousands)
}

/// Formats bytes freed, which are negative if other processes wrote more.
pub(super) fn signed_bytes(number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", bytes(number.unsigned_abs()))
}

/// Formats a change in bytes, also a growth with its sign.
pub(super) fn signed_change(number: i64) -> String {
    let sign = if number > 0 { "+" } else { "" };
    format!("{sign}{}", signed_bytes(number))
}

/// Formats the time since `since` in a single unit: `45s`, `12m`, `5h`, `19d`.
pub fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    age_of(since.map(|since| u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0)))
}

/// Formats an age in seconds like [`age`].
pub(super) fn age_of(seconds: Option<u64>) -> String {
    let Some(seconds) = seconds else { return "-".into() };
    match seconds {
        secs @ 0..120 => format!("{secs}s"),
        secs @ 120..7200 => format!("{}m", secs / 60),
        secs @ 7200..172_800 => format!("{}h", secs / 3600),
        secs => format!("{}d", secs / 86_400),
    }
}

/// Returns the first twelve digits of an id, as the runtimes' tools print it, after its namespace or
/// snapshotter if it has one.
pub fn short_id(id: &str) -> String {
    safe(&display::short_reference(id))
}

/// Returns true for characters that control a terminal or change the direction of writing.
pub fn acts_on_terminal(c: char) -> bool {
    let bidi = matches!(c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || bidi || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Escapes text of unknown origin, so that it cannot move the cursor, ring a bell or reverse the line.
/// Control characters and characters that change the direction of writing are escaped.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts_on_terminal(c) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

pub(super) fn freed(bytes: i64, others_wrote: bool) -> String {
    if others_wrote { "unknown (others were writing)".into() } else { signed_bytes(bytes) }
}

/// Formats the bytes freed by a deletion, which are unknown if other processes wrote meanwhile.
pub(super) fn measured(bytes: Option<i64>, others_wrote: bool) -> String {
    match bytes {
        Some(_) if others_wrote => "others were writing".into(),
        Some(bytes) => signed_bytes(bytes),
        None => "-".into(),
    }
}

/// Formats a note about images to delete of which this number was never pulled.
pub(super) fn never_pulled(number: usize) -> Option<String> {
    let images = match number {
        0 => return None,
        1 => "1 image was".to_owned(),
        number => format!("{number} images were"),
    };
    Some(format!(
        "{images} built or loaded here and never pulled: perhaps no registry has such an image; \
         protect.not_repullable = \"always\" keeps such images."
    ))
}

/// Note below a table that contains a `!`.
pub(super) const DIFFERS: &str =
    "! predicted and measured differ by more than the filesystem's own fluctuation\n";

/// Formats the first element and the number of others; `none` if there are no elements.
pub(super) fn first_of<T>(all: &[T], none: &str, name: impl Fn(&T) -> String) -> String {
    match all {
        [] => none.into(),
        [only] => name(only),
        [first, more @ ..] => format!("{} +{}", name(first), more.len()),
    }
}

/// Formats the first name and the number of others.
pub(super) fn names(names: &[String]) -> String {
    first_of(names, "<none>", |name| safe(name))
}

/// Formats the names of an object, or the beginning of its id if it has none.
pub(super) fn name_or_id(names: &[String], id: &str) -> String {
    if names.is_empty() { short_id(id) } else { self::names(names) }
}

/// Formats a percentage with two decimals.
pub(super) fn percent(used: Option<f64>) -> String {
    used.map_or_else(|| "unknown".into(), |used| format!("{used:.2}%"))
}

/// Wraps text into lines of at most `width` columns.
///
/// A longer word stays whole so that it can be copied. So does a command in backquotes: if `--dry-run` were
/// on the next line, a copied `gc` would delete.
pub(super) fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let room = width.saturating_sub(indent.len());
    let mut lines: Vec<String> = Vec::new();
    for word in words(text) {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| format!("{indent}{}\n", line.trim_end())).collect()
}

/// Beginnings of a line of `explain` or `sweep` that is a command.
pub const LABELS: [&str; 3] = ["  remove  ", "  show    ", "  command  "];

/// Returns true for a line that is a command. The beginning of a wrapped command would be another command.
fn is_command(line: &str) -> bool {
    // Remedies have the same indentation, and their commands are in backquotes.
    LABELS.iter().any(|label| line.starts_with(label)) || line.starts_with(INDENT) && !line.contains('`')
}

/// Wraps the lines of a screen that are wider than `width`; the rest of a line is indented below its beginning.
///
/// Tables fit already, and commands stay whole. Escapes for bold text have no width.
pub fn wrap_lines(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if visible_width(line.trim_end_matches('\n')) <= width || is_command(line) {
            out.push_str(line);
            continue;
        }
        let indent = line.len() - line.trim_start_matches(' ').len() + 2;
        let indent = if indent * 2 > width { 0 } else { indent };
        let mut column = 0;
        for (position, word) in words(line.trim_end_matches('\n')).enumerate() {
            let word_width = visible_width(word);
            if position > 0 && column + 1 + word_width > width && column > indent {
                out.truncate(out.trim_end_matches(' ').len());
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                column = indent;
            } else if position > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += word_width;
        }
        out.push('\n');
    }
    out
}

/// Returns the width of text without its escapes.
fn visible_width(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().width()
}

/// Splits text into the units that are never broken: words, and everything between two backquotes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let (is_paired, mut is_quoted) = (text.matches('`').count().is_multiple_of(2), false);
    text.split(move |sign| {
        is_quoted ^= is_paired && sign == '`';
        sign == ' ' && !is_quoted
    })
}

/// Formats the number of objects whose deletion an earlier run left unfinished; empty for 0.
pub fn resumed(objects: usize) -> String {
    match objects {
        0 => String::new(),
        _ => format!("Finished an interrupted run: {}.\n", display::count(objects, "object", "objects")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_in_backquotes_is_not_wrapped() {
        let text = "see `layersweep gc --dry-run` or that";
        assert_eq!(wrapped(text, 12, ""), "see\n`layersweep gc --dry-run`\nor that\n");
        assert_eq!(wrapped("one ` alone", 5, ""), "one `\nalone\n");
        assert_eq!(wrapped("", 5, ""), "\n");
    }

    #[test]
    fn long_line_is_wrapped_below_its_beginning() {
        let bold = "\u{1b}[1mStore\u{1b}[0m /a (overlay)\n";
        assert_eq!(wrap_lines(bold, 18), bold, "escapes have no width");
        assert_eq!(wrap_lines("  why   it is old\nx\n", 12), "  why   it\n    is old\nx\n");
        assert_eq!(wrap_lines("run `layersweep gc -y` now\n", 12), "run\n  `layersweep gc -y`\n  now\n");
        let commands = [
            format!("{INDENT}layersweep gc --via direct\n"),
            format!("{INDENT}as alice: podman --root '/a b' rm 0a\n"),
            "  remove  podman rm 0123456789ab\n".into(),
            "  show    as alice: podman volume inspect a\n".into(),
            "  command  layersweep rm 0123456789ab\n".into(),
        ];
        for line in commands {
            assert_eq!(wrap_lines(&line, 32), line, "a command stays whole");
        }
        let remedy = format!("{INDENT}use `layersweep scan` or wait\n");
        assert!(wrap_lines(&remedy, 32).lines().count() > 1);
    }

    #[test]
    fn bytes_have_one_decimal_and_a_unit() {
        for (given, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1_048_575, "1.0 MiB"),
            (1 << 20, "1.0 MiB"),
            (5_905_580_032, "5.5 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(given), shown);
        }
    }

    #[test]
    fn ages_use_one_unit() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        for (since, shown) in [
            ("2026-11-21T11:59:15Z", "45s"),
            ("2026-11-21T11:48:00Z", "12m"),
            ("2026-11-21T02:00:00Z", "10h"),
            ("2026-11-02T12:00:00Z", "19d"),
            ("2027-01-01T00:00:00Z", "0s"),
        ] {
            assert_eq!(age(since.parse().ok(), now), shown);
        }
        assert_eq!(age(None, now), "-");
    }

    #[test]
    fn text_from_images_cannot_control_the_terminal() {
        assert_eq!(safe("a\x1b[31mb\n\u{202e}c"), "a\\u{1b}[31mb\\u{a}\\u{202e}c");
        assert_eq!(safe("quay.io/ü/画像:1"), "quay.io/ü/画像:1");
        assert_eq!(short_id("sha256:0123456789abcdef"), "0123456789ab");
        assert_eq!(short_id("moby/sha256:0123456789abcdef"), "moby/0123456789ab");
    }
}
