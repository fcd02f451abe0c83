//! Single values as text, and text in lines.

use std::fmt::Write as _;

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

use crate::model::display;

pub use crate::model::display::bytes;

/// Bytes freed; negative if others wrote more.
pub(super) fn signed_bytes(number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", bytes(number.unsigned_abs()))
}

/// Time since `since` in one unit: `45s`, `12m`, `5h`, `19d`.
pub fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let past = |since| u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0);
    age_of(since.map(past))
}

/// The same of a number of seconds.
pub(super) fn age_of(seconds: Option<u64>) -> String {
    let Some(seconds) = seconds else { return "-".into() };
    match seconds {
        secs @ 0..120 => format!("{secs}s"),
        secs @ 120..7200 => format!("{}m", secs / 60),
        secs @ 7200..172_800 => format!("{}h", secs / 3600),
        secs => format!("{}d", secs / 86_400),
    }
}

/// The first twelve digits of an id, as the runtimes' tools print it. A namespace or
/// snapshotter in front of it stays.
pub fn short_id(id: &str) -> String {
    safe(&display::short_reference(id))
}

/// Whether a terminal would obey a character, or write in another direction after it.
pub fn acts_on_terminal(c: char) -> bool {
    let bidi = matches!(c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || bidi || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// A foreign text that cannot move the cursor, ring a bell or turn the line around:
/// control characters and those that change the direction of writing are escaped.
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

/// What one deletion freed; where others wrote meanwhile, nobody knows.
pub(super) fn measured(bytes: Option<i64>, others_wrote: bool) -> String {
    match bytes {
        Some(_) if others_wrote => "others were writing".into(),
        Some(bytes) => signed_bytes(bytes),
        None => "-".into(),
    }
}

/// Below a table with a `!` in it.
pub(super) const DIFFERS: &str =
    "! predicted and measured differ by more than the filesystem's own fluctuation\n";

/// The first of several, and how many more there are; `none` where there is none.
pub(super) fn first_of<T>(all: &[T], none: &str, name: impl Fn(&T) -> String) -> String {
    match all {
        [] => none.into(),
        [one] => name(one),
        [first, more @ ..] => format!("{} +{}", name(first), more.len()),
    }
}

/// The first name, and how many more there are.
pub(super) fn names(names: &[String]) -> String {
    first_of(names, "<none>", |name| safe(name))
}

/// Its names, else the beginning of its id.
pub(super) fn name_or_id(names: &[String], id: &str) -> String {
    if names.is_empty() { short_id(id) } else { self::names(names) }
}

/// A percentage with two decimals.
pub(super) fn percent(used: Option<f64>) -> String {
    used.map_or_else(|| "unknown".into(), |used| format!("{used:.2}%"))
}

/// Lines of at most `width` columns; a word that is longer stays whole, so that it can be copied, and so does a
/// command in backquotes: `gc` without the `--dry-run` on the next line deletes.
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

/// What no line ends within: words, and all between two backquotes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let (is_paired, mut is_quoted) = (text.matches('`').count().is_multiple_of(2), false);
    text.split(move |sign| {
        is_quoted ^= is_paired && sign == '`';
        sign == ' ' && !is_quoted
    })
}

/// What of killed runs was finished first, as a line; empty where that is nothing.
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
    fn a_command_is_not_broken() {
        let text = "see `layersweep gc --dry-run` or that";
        assert_eq!(wrapped(text, 12, ""), "see\n`layersweep gc --dry-run`\nor that\n");
        assert_eq!(wrapped("one ` alone", 5, ""), "one `\nalone\n");
        assert_eq!(wrapped("", 5, ""), "\n");
    }

    #[test]
    fn bytes_have_one_decimal_and_the_right_unit() {
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
    fn foreign_text_cannot_act_on_the_terminal() {
        assert_eq!(safe("a\x1b[31mb\n\u{202e}c"), "a\\u{1b}[31mb\\u{a}\\u{202e}c");
        assert_eq!(safe("quay.io/ü/画像:1"), "quay.io/ü/画像:1");
        assert_eq!(short_id("sha256:0123456789abcdef"), "0123456789ab");
        assert_eq!(short_id("moby/sha256:0123456789abcdef"), "moby/0123456789ab");
    }
}
