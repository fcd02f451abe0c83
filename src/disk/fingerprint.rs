//! Fingerprints: the first 16 bytes of a SHA-256. They are stored, so a value has the same fingerprint on every
//! machine and in every version.

use sha2::{Digest, Sha256};

/// Equal fingerprints mean equal values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 16]);

/// Builds a fingerprint from values. The result depends on their order; `kind` names the kinds and the order of the
/// values and must change with them.
#[derive(Clone, Debug)]
pub struct Fingerprinter(Sha256);

impl Fingerprinter {
    #[must_use]
    pub fn new(kind: &str) -> Self {
        let mut this = Self(Sha256::new());
        this.bytes(kind.as_bytes());
        this
    }

    /// Adds bytes and their length.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
        self
    }

    pub fn number(&mut self, number: u64) -> &mut Self {
        self.0.update(number.to_le_bytes());
        self
    }

    pub fn maybe(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        self.number(u64::from(bytes.is_some()));
        self.bytes(bytes.unwrap_or_default())
    }

    #[must_use]
    pub fn finish(self) -> Fingerprint {
        let digest = self.0.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        Fingerprint(short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, pieces: &[&str]) -> Fingerprint {
        let mut taker = Fingerprinter::new(kind);
        for piece in pieces {
            taker.bytes(piece.as_bytes());
        }
        taker.finish()
    }

    #[test]
    fn fingerprints_differ_and_never_change() {
        let all = [of("a", &[]), of("b", &[]), of("a", &["b", "c"]), of("a", &["bc"]), of("a", &["", "bc"])];
        for (index, fingerprint) in all.iter().enumerate() {
            assert!(!all[index + 1..].contains(fingerprint), "{index}");
        }
        let absent = Fingerprinter::new("a").maybe(None).clone().finish();
        assert_ne!(absent, Fingerprinter::new("a").maybe(Some(b"")).clone().finish());
        // Fingerprints are stored: every version must compute the same.
        let expected =
            [0x3d, 0x10, 0xf2, 0xe9, 0x66, 0x12, 0xf8, 0x28, 0x4b, 0xd5, 0x23, 0x3f, 0x0c, 0x75, 0xd6, 0x28];
        assert_eq!(of("a", &["b", "c"]).0, expected);
    }
}
