//! Numbers as the host lays them out in memory: so bolt writes its structures. A file of a machine with the other
//! byte order has a wrong magic number.

/// The `N` bytes at `at`, if there are that many.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The 16-bit number at `at`; `None` past the end.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_ne_bytes)
}

/// The 32-bit number at `at`; `None` past the end.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

/// The 64-bit number at `at`; `None` past the end.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_ne_bytes)
}
