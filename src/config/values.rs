//! Durations (`90s`, `5m30s`, `36h`, `14d`, `2w`) and sizes (`10GiB`, `500MB`).

use jiff::SignedDuration;

/// Parses a duration: whole numbers, each with its unit `w`, `d`, `h`, `m` or `s`.
///
/// # Errors
/// When it is none, or too long to be counted.
pub fn duration(text: &str) -> Result<SignedDuration, String> {
    let wrong = || format!("{text:?} is not a duration like 90s, 5m30s, 36h, 14d or 2w");
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
            _ => return Err(wrong()),
        };
        let count: i64 = number.parse().map_err(|_| wrong())?;
        seconds = count.checked_mul(unit).and_then(|more| seconds.checked_add(more)).ok_or_else(wrong)?;
        number.clear();
    }
    if text.is_empty() || !number.is_empty() {
        return Err(wrong());
    }
    Ok(SignedDuration::from_secs(seconds))
}

/// Parses a size: a number, fractions allowed, with a unit; without one it is bytes.
///
/// # Errors
/// When it is none, or too large to be counted.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size like 10GiB, 500MB or 4096");
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
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(wrong);
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // a size with a fraction is not meant to the byte; the digits have no sign
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
        for text in ["", "5", "m", "1y", "-1s", "1.5h", "99999999999999999999w", "9223372036854775807w"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("10GiB", 10 << 30), ("500MB", 500_000_000), ("4096", 4096), ("1.5 KiB", 1536), ("0B", 0)]
        {
            assert_eq!(size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "GiB", "1XB", "-1", "1..2K", "99999999999TiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
