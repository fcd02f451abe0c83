//! Numbers in the byte order of the host, which bolt uses for its structures. A file written on a machine with the
//! other byte order has a wrong magic number.

/// Returns the `N` bytes at `offset`, or `None` past the end.
fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// Returns the 16-bit number at `offset`, or `None` past the end.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_ne_bytes)
}

/// Returns the 32-bit number at `offset`, or `None` past the end.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_ne_bytes)
}

/// Returns the 64-bit number at `offset`, or `None` past the end.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_ne_bytes)
}
