//! Random numbers that are the same on every machine: SplitMix64.

/// A stream of numbers that is determined by its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from `start` up to `end`, which is excluded.
    pub fn between(&mut self, start: u64, end: u64) -> u64 {
        start + self.below(end - start)
    }

    /// Returns true `per_mille` times in 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns 64 hexadecimal digits, as in digests and ids.
    pub fn hex64(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.next())).collect()
    }
}
