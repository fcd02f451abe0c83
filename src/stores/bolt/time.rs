//! Times in bolt files.

use jiff::Timestamp;

/// Seconds from 0001-01-01 to 1970-01-01, both UTC.
const YEAR_ONE: i64 = 62_135_596_800;

/// Parses a time as written by Go's `time.Time.MarshalBinary`: version, seconds since the year 1, nanoseconds, offset
/// of the zone in minutes (version 2: plus a byte of seconds). The instant does not depend on the offset.
///
/// Returns `None` if it is not a time, and `Some(None)` for Go's zero time.
pub fn go_time(bytes: &[u8]) -> Option<Option<Timestamp>> {
    let whole = matches!((bytes.first()?, bytes.len()), (1, 15) | (2, 16));
    let seconds = i64::from_be_bytes(bytes.get(1..9)?.try_into().ok()?);
    let nanoseconds = i32::from_be_bytes(bytes.get(9..13)?.try_into().ok()?);
    if !whole || nanoseconds < 0 {
        return None;
    }
    if seconds == 0 && nanoseconds == 0 {
        return Some(None);
    }
    Timestamp::new(seconds.checked_sub(YEAR_ONE)?, nanoseconds).ok().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed() {
        fn of(hex: &str) -> Option<Option<String>> {
            let digits: Vec<_> =
                hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
            let bytes: Vec<u8> =
                digits.into_iter().map(|pair| u8::from_str_radix(pair, 16).expect("hex")).collect();
            go_time(&bytes).map(|time| time.map(|time| time.to_string()))
        }
        let real = Some(Some("2026-11-20T23:18:19.290018425Z".to_owned()));
        assert_eq!(of("010000000ee292cc3b11495479ffff"), real);
        assert_eq!(of("010000000ee292cc3b114954790078"), real, "two hours east");
        assert_eq!(of("020000000ee292cc3b11495479007800"), real, "with seconds of offset");
        assert_eq!(of("010000000000000000000000000000"), Some(None), "zero");
        assert_eq!(of("030000000ee292cc3b11495479ffff"), None, "version 3");
        assert_eq!(of("010000000ee292cc3b11495479ff"), None, "cut off");
        assert_eq!(of("017fffffffffffffff11495479ffff"), None, "beyond the calendar");
        assert_eq!(of("010000000ee292cc3bffffffffffff"), None, "negative nanoseconds");
        assert_eq!(of(""), None);
    }
}
