//! Values in containerd's databases: varints, and protobuf's `Any`.

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
