//! Numbers in the byte order of the host that wrote the file: bolt writes its structures
//! as they are laid out in memory.

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Written on amd64, arm64, riscv64, ppc64le.
    Little,
    /// Written on s390x.
    Big,
}

/// The `N` bytes at `at`, if there are that many.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl Order {
    /// The 16-bit number at `at`; `None` past the end.
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let raw = array(bytes, at)?;
        Some(match self {
            Self::Little => u16::from_le_bytes(raw),
            Self::Big => u16::from_be_bytes(raw),
        })
    }

    /// The 32-bit number at `at`; `None` past the end.
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let raw = array(bytes, at)?;
        Some(match self {
            Self::Little => u32::from_le_bytes(raw),
            Self::Big => u32::from_be_bytes(raw),
        })
    }

    /// The 64-bit number at `at`; `None` past the end.
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let raw = array(bytes, at)?;
        Some(match self {
            Self::Little => u64::from_le_bytes(raw),
            Self::Big => u64::from_be_bytes(raw),
        })
    }
}
