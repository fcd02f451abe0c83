//! The display forms of sizes, durations and errors, shared by documents, records and messages. Pure.

use std::fmt;

use jiff::SignedDuration;

use super::reference::bare_id;

/// An error with its causes in one line. Causes that the error text already contains are not repeated.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    line
}

/// A number rounded to two decimals, as documents print percentages.
#[must_use]
pub fn two_decimals(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// `1 layer`, `2 layers`.
#[must_use]
pub fn count<T: fmt::Display + PartialEq + From<u8>>(number: T, one: &str, many: &str) -> String {
    let what = if number == T::from(1) { one } else { many };
    format!("{number} {what}")
}

/// `a`, `a and b`, `a, b and c`.
#[must_use]
pub fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [front @ .., last] => format!("{} and {last}", front.join(", ")),
    }
}

/// A text as one word of a shell, for commands that are printed to be typed: names come from others.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%=,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The first twelve digits of an id, as the runtimes' tools print it.
#[must_use]
pub fn short_id(id: &str) -> String {
    bare_id(id).chars().take(12).collect()
}

/// An id as [`short_id`] cuts it, with the namespace of containerd that it begins with: fit to be typed.
#[must_use]
pub fn short_reference(id: &str) -> String {
    match id.rsplit_once('/') {
        Some((namespace, id)) => format!("{namespace}/{}", short_id(id)),
        None => short_id(id),
    }
}

/// Bytes with an IEC unit and one decimal: `84.1 MiB`. Exact below 1024.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[allow(clippy::cast_precision_loss)] // one decimal is shown
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be shown as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration for people, without fractions of a second.
#[must_use]
pub fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let parts = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let mut rest = seconds;
    let mut text = String::new();
    // Two units are precise enough.
    for (unit, name) in parts.into_iter().skip_while(|(unit, _)| *unit > seconds).take(2) {
        if rest / unit > 0 {
            text.push_str(&format!("{}{name}", rest / unit));
        }
        rest %= unit;
    }
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_it_for_one_word() {
        for (text, word) in [
            ("/var/log/a-1.log", "/var/log/a-1.log"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(reboot)`x`;\n", "'$(reboot)`x`;\n'"),
            ("it's", "'it'\\''s'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn spans_have_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (120, "2m"),
            (125, "2m5s"),
            (3600, "1h"),
            (3605, "1h"),
            (90_000, "1d1h"),
            (8_640_000, "100d"),
        ] {
            assert_eq!(span(SignedDuration::from_secs(seconds)), text);
        }
    }
}
