//! Values in containerd's databases: Go's binary times, varints, and protobuf's `Any`.

use jiff::Timestamp;

/// Seconds from 0001-01-01 to 1970-01-01, both UTC.
const YEAR_ONE: i64 = 62_135_596_800;

/// Parses a time as written by Go's `time.Time.MarshalBinary`: version, seconds since the year 1, nanoseconds, offset
/// of the zone in minutes (version 2: plus a byte of seconds). The instant does not depend on the offset.
///
/// Returns `None` if it is not a time, and `Some(None)` for Go's zero time.
pub fn time(bytes: &[u8]) -> Option<Option<Timestamp>> {
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

/// Parses an unsigned varint: seven bits in each byte, the lowest first. Fails if bytes follow it.
pub fn uvarint(bytes: &[u8]) -> Option<u64> {
    match split_uvarint(bytes)? {
        (value, []) => Some(value),
        _ => None,
    }
}

/// Parses a signed varint: zigzag encoding in an [`uvarint`].
pub fn varint(bytes: &[u8]) -> Option<i64> {
    let zigzag = uvarint(bytes)?;
    let half = i64::try_from(zigzag >> 1).ok()?;
    Some(if zigzag & 1 == 0 { half } else { !half })
}

fn split_uvarint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (position, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        let shift = 7 * u32::try_from(position).ok()?;
        if bits > u64::MAX >> shift {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(position + 1..)?));
        }
    }
    None
}

/// Returns the value (field 2) of a protobuf `Any`; field 1 is the address of the type. Other fields are skipped.
pub fn any_value(mut bytes: &[u8]) -> Option<&[u8]> {
    let mut value = None;
    while !bytes.is_empty() {
        let (tag, rest) = split_uvarint(bytes)?;
        // An `Any` contains only fields with a length (wire type 2).
        if tag & 7 != 2 {
            return None;
        }
        let (length, rest) = split_uvarint(rest)?;
        let (field, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        if tag >> 3 == 2 {
            value = Some(field);
        }
        bytes = rest;
    }
    value
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
            time(&bytes).map(|time| time.map(|time| time.to_string()))
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

    #[test]
    fn varints_are_parsed() {
        let table: &[(&[u8], Option<i64>, Option<u64>)] = &[
            (&[0x98, 0x05], Some(332), Some(664)),
            (&[0x06], Some(3), Some(6)),
            (&[0x0d], Some(-7), Some(13)),
            (&[0x00], Some(0), Some(0)),
            (&[0x98], None, None),
            (&[], None, None),
            (&[0x01, 0x00], None, None),
            (&[0xff; 11], None, None),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], Some(i64::MIN), Some(u64::MAX)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], None, None),
        ];
        for (bytes, signed, unsigned) in table {
            assert_eq!((varint(bytes), uvarint(bytes)), (*signed, *unsigned), "{bytes:x?}");
        }
    }

    #[test]
    fn value_of_any_is_found() {
        assert_eq!(any_value(b"\x0a\x03url\x12\x02{}"), Some(b"{}".as_slice()));
        assert_eq!(any_value(b"\x12\x02{}\x1a\x01x"), Some(b"{}".as_slice()));
        for bad in [b"".as_slice(), b"\x0a\x03url", b"\x12\x7f{}", b"\x08\x01", b"\x12"] {
            assert_eq!(any_value(bad), None);
        }
    }
}
