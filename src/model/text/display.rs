//! Display forms of sizes, durations and errors, for documents, records and messages. Pure.

use std::fmt;

use jiff::SignedDuration;

use crate::model::text::reference::bare_id;

/// Formats an error and its causes in one line. A cause that the error's text already contains is not repeated.
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

/// Rounds a number to two decimals, as documents print percentages.
#[must_use]
pub fn two_decimals(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Formats a count: `1 layer`, `2 layers`.
#[must_use]
pub fn count<T: fmt::Display + PartialEq + From<u8>>(number: T, singular: &str, plural: &str) -> String {
    let noun = if number == T::from(1) { singular } else { plural };
    format!("{number} {noun}")
}

/// Joins names for a sentence: `a`, `a and b`, `a, b and c`.
#[must_use]
pub fn listed(names: &[String]) -> String {
    joined(names, "and")
}

/// Joins names for a sentence: `a`, `a or b`, `a, b or c`.
#[must_use]
pub fn alternatives(names: &[String]) -> String {
    joined(names, "or")
}

fn joined(names: &[String], conjunction: &str) -> String {
    match names {
        [] => String::new(),
        [name] => name.clone(),
        [front @ .., last] => format!("{} {conjunction} {last}", front.join(", ")),
    }
}

/// Formats a number with a comma between thousands: `195,946`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Quotes a text as one word of a shell. Commands are printed for the user to run, and the names in them are not
/// trusted.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:@%=,".contains(c));
    if is_plain && !text.is_empty() { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Returns the first twelve digits of an id, as the runtimes' tools print it. `<id>-init`, Docker's layer below the writable
/// layer of a container, keeps its end: both begin with the same digits.
#[must_use]
pub fn short_id(id: &str) -> String {
    let is_whole = |id: &&str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let end = bare_id(id).strip_suffix("-init").filter(is_whole).map_or("", |_| "-init");
    bare_id(id).chars().take(12).chain(end.chars()).collect()
}

/// Shortens an id with [`short_id`] and keeps the containerd namespace before it, so that the user can type it.
#[must_use]
pub fn short_reference(id: &str) -> String {
    match id.rsplit_once('/') {
        Some((namespace, id)) => format!("{namespace}/{}", short_id(id)),
        None => short_id(id),
    }
}

/// Quotes [`short_reference`] as one word of a shell: ids are names in files.
#[must_use]
pub fn shell_reference(id: &str) -> String {
    shell_word(&short_reference(id))
}

/// Formats bytes with an IEC unit and one decimal: `84.1 MiB`. Exact below 1024.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[allow(clippy::cast_precision_loss)] // one decimal is shown
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be printed as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a duration for people, without fractions of a second.
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
    fn shell_word_is_one_word_to_a_shell() {
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
