//! Durations (`90s`, `5m30s`, `36h`, `14d`, `2w`) and sizes (`10GiB`, `500MB`).

use jiff::SignedDuration;

/// Parses a duration: whole numbers, each with a unit `w`, `d`, `h`, `m` or `s`.
///
/// # Errors
/// If the text is not a duration, or the duration exceeds an `i64` of seconds.
pub fn duration(text: &str) -> Result<SignedDuration, String> {
    fn wrong(text: &str) -> String {
        format!("{text:?} is not a duration like 90s, 5m30s, 36h, 14d or 2w")
    }
    fn too_long(text: &str) -> String {
        format!("{text:?} is too long for a duration")
    }
    let mut seconds: i64 = 0;
    let mut number = String::new();
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ => return Err(wrong(text)),
        };
        if number.is_empty() {
            return Err(wrong(text));
        }
        let total = number.parse::<i64>().ok().and_then(|count| count.checked_mul(unit));
        seconds = total.and_then(|more| seconds.checked_add(more)).ok_or_else(|| too_long(text))?;
        number.clear();
    }
    if text.is_empty() || !number.is_empty() {
        return Err(wrong(text));
    }
    Ok(SignedDuration::from_secs(seconds))
}

/// Formats a duration so that [`duration`] parses it, for example `5m30s`.
pub(super) fn duration_text(duration: SignedDuration) -> String {
    let mut rest = duration.as_secs();
    let mut text = String::new();
    for (unit, seconds) in [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
        // "24h" and "36h" are usual; fewer than two days are not shown in days.
        if rest >= if unit == "d" { 2 * seconds } else { seconds } {
            text.push_str(&format!("{}{unit}", rest / seconds));
            rest %= seconds;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Formats a size so that [`size`] parses it, in the largest unit that shows it exactly.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let exact = units.into_iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    exact.map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Parses a size: a number, which may have a fraction, and a unit. Without a unit it is in bytes.
///
/// # Errors
/// If the text is not a size, or the size exceeds a `u64` of bytes.
pub fn size(text: &str) -> Result<u64, String> {
    fn wrong(text: &str) -> String {
        format!("{text:?} is not a size like 10GiB, 500MB or 4096")
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1000_u64.pow(2),
        "GB" => 1000_u64.pow(3),
        "TB" => 1000_u64.pow(4),
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        _ => return Err(wrong(text)),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(|| wrong(text));
    }
    let fraction: f64 = number.parse().map_err(|_| wrong(text))?;
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // A size with a fraction need not be exact to the byte, and `number` has no sign.
    Ok((fraction * unit as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in
            [("90s", 90), ("5m30s", 330), ("36h", 129_600), ("14d", 1_209_600), ("2w", 1_209_600), ("0s", 0)]
        {
            assert_eq!(duration(text).unwrap().as_secs(), seconds, "{text}");
        }
        for text in ["0s", "5m30s", "24h", "36h", "2d1s", "14d"] {
            assert_eq!(duration_text(duration(text).unwrap()), text);
        }
        for text in ["", "5", "m", "1y", "-1s", "1.5h"] {
            assert!(duration(text).unwrap_err().contains("is not a duration like"), "{text}");
        }
        for text in ["99999999999999999d", "99999999999999999999w", "9223372036854775807w"] {
            assert_eq!(duration(text).unwrap_err(), format!("{text:?} is too long for a duration"));
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("10GiB", 10 << 30), ("500MB", 500_000_000), ("4096", 4096), ("1.5 KiB", 1536), ("0B", 0)]
        {
            assert_eq!(size(text).unwrap(), bytes, "{text}");
        }
        for text in ["0", "10GiB", "500000000", "1536", "3TiB"] {
            assert_eq!(size_text(size(text).unwrap()), text);
        }
        for text in ["", "GiB", "1XB", "-1", "1..2K", "99999999999TiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
