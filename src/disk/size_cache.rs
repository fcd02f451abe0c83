//! Sizes of finished layers (and of what else changes with its stamp) that earlier scans measured, and
//! when one of them may be used. Data and rules alone; who stores it is unknown.
//!
//! The size of a layer is cached if the layer is finished, was read without errors and shares
//! nothing. It is valid as long as the layer's record and its [`stamp`](super::stamp) are unchanged. Each
//! scan measures one random layer again to detect changes that neither shows.

use hashbrown::HashMap;
use jiff::{SignedDuration, Timestamp};

use super::{Extents, Fingerprint, Tally};
use crate::model::StoreId;

/// What changed so shortly before it was measured may have changed again within the same
/// tick of the clock, and belongs to somebody who is writing.
const RACY: SignedDuration = SignedDuration::from_secs(2);

/// What is written goes to the disk within 30 s (`dirty_expire_centisecs`) and the next run
/// of the flusher, and can take other blocks then: ext4 and XFS allocate late, XFS frees
/// what it took in advance, btrfs puts small files into the metadata. No time of the file
/// changes then.
const SETTLED: SignedDuration = SignedDuration::from_mins(1);

/// The cached size of a layer that shares nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedSize {
    /// Of its directories.
    pub stamp: Fingerprint,
    /// Which files were looked at for shared extents; there were none.
    pub extents: Extents,
    /// Its inodes on XFS were noted.
    pub inode_chunks: bool,
    /// By the wall clock, which file times go by too.
    pub measured_at: Timestamp,
    /// By then everything of it was old enough to be on the disk as it stays.
    pub settled: bool,
    pub tally: Tally,
    /// Its inodes on XFS, as [`encode_by_unit`](super::inode_chunks::encode_by_unit) has them.
    pub inodes: Box<[u8]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSizes {
    /// By fingerprint of the layer and its record.
    pub layers: HashMap<Fingerprint, CachedSize>,
    /// What was shared with files outside when all stores were last measured in one walk.
    pub outside: Fingerprint,
}

/// Sizes from earlier scans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SizeCache {
    pub stores: HashMap<StoreId, StoreSizes>,
    /// Chooses the layer that is measured again: another number in each scan.
    pub seed: u64,
}

/// How old a layer was when it was measured, by the latest change to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// Another process may be writing.
    Racy,
    /// Blocks may still move.
    Young,
    /// It stays as it is.
    Settled,
}

impl Age {
    /// Of a layer that last changed at `newest` (seconds), measured between two moments. A
    /// change from the future cannot be followed by one of the same time.
    #[must_use]
    pub fn of(newest: i64, started: Timestamp, ended: Timestamp) -> Self {
        let after = |limit: SignedDuration| newest >= started.as_second().saturating_sub(limit.as_secs());
        if newest > ended.as_second().saturating_add(RACY.as_secs()) {
            return Self::Settled;
        }
        match (after(RACY), after(SETTLED)) {
            (true, _) => Self::Racy,
            (false, true) => Self::Young,
            (false, false) => Self::Settled,
        }
    }
}

/// Why an unchanged layer differs from an earlier scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// It shares extents now, for example after a deduplication.
    Shares,
    /// It was modified; both measurements.
    Differs(String),
}

/// What a layer takes in the encoding, without its inodes.
const LAYER_BYTES: usize = 16 + 16 + 1 + 7 * 8;

/// Version of the encoding: its first byte.
const VERSION: u8 = 1;

impl StoreSizes {
    /// As bytes: the version, `outside`, and for each layer its fingerprint, its stamp, how it was
    /// measured (extents, 4: inodes were noted, 8: settled), seven numbers of 8 bytes (when, the
    /// tally, bytes of `inodes`) and `inodes`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.outside.0);
        for (layer, size) in &self.layers {
            bytes.extend(layer.0);
            bytes.extend(size.stamp.0);
            bytes.push(size.extents as u8 | u8::from(size.inode_chunks) << 2 | u8::from(size.settled) << 3);
            bytes.extend(size.measured_at.as_microsecond().to_le_bytes());
            let Tally { bytes: allocated, apparent_bytes, inodes, metadata_bytes, inline_bytes } = size.tally;
            let held = size.inodes.len() as u64;
            for number in [allocated, apparent_bytes, inodes, metadata_bytes, inline_bytes, held] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(&size.inodes);
        }
        bytes
    }

    /// Reads [`Self::encode`]; `None` for what it does not write.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (first, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(*first)
        }
        let mut rest = bytes.strip_prefix(&[VERSION])?;
        let bytes = &mut rest;
        let outside = Fingerprint(take(bytes)?);
        let mut layers = HashMap::with_capacity(bytes.len() / LAYER_BYTES);
        while !bytes.is_empty() {
            let (layer, stamp) = (Fingerprint(take(bytes)?), Fingerprint(take(bytes)?));
            let [how] = take(bytes)?;
            let extents = *[Extents::Off, Extents::Probe, Extents::All].get(usize::from(how & 3))?;
            let measured_at = Timestamp::from_microsecond(i64::from_le_bytes(take(bytes)?)).ok()?;
            let mut number = || take(bytes).map(u64::from_le_bytes);
            let tally = Tally {
                bytes: number()?,
                apparent_bytes: number()?,
                inodes: number()?,
                metadata_bytes: number()?,
                inline_bytes: number()?,
            };
            let (inodes, after) =
                usize::try_from(number()?).ok().and_then(|held| bytes.split_at_checked(held))?;
            *bytes = after;
            let (inode_chunks, settled, inodes) = (how & 4 != 0, how & 8 != 0, inodes.into());
            let size = CachedSize { stamp, extents, inode_chunks, measured_at, settled, tally, inodes };
            layers.insert(layer, size);
        }
        Some(Self { layers, outside })
    }
}

impl CachedSize {
    /// Whether it may be used instead of a measurement that looks at these files for shared
    /// extents, and notes inodes.
    #[must_use]
    pub fn is_usable(
        &self,
        stamp: Fingerprint,
        extents: Extents,
        inode_chunks: bool,
        now: Timestamp,
    ) -> bool {
        // A young one is as good as a walk a moment later, and no longer.
        let since = now.duration_since(self.measured_at);
        let is_fresh = SignedDuration::ZERO <= since && since < SETTLED;
        self.stamp == stamp
            && self.extents >= extents
            && (self.inode_chunks || !inode_chunks)
            && (self.settled || is_fresh)
    }

    /// The same result, whenever it was measured.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        Self { measured_at: other.measured_at, ..self.clone() } == *other
    }

    /// What a measurement of the unchanged layer shows to be wrong with it.
    #[must_use]
    pub fn contradiction(&self, now: &Self, shares: bool) -> Option<Contradiction> {
        if shares {
            return Some(Contradiction::Shares);
        }
        let same_tally = now.tally == self.tally;
        let other_inodes = self.inode_chunks && now.inode_chunks && now.inodes != self.inodes;
        // The blocks of a young one were known to be on the move.
        if !self.settled || (same_tally && !other_inodes) {
            return None;
        }
        let other = if same_tally { " of other files" } else { "" };
        Some(Contradiction::Differs(format!(
            "holds {} bytes in {} inodes{other}; an earlier scan found {} in {}",
            now.tally.bytes, now.tally.inodes, self.tally.bytes, self.tally.inodes
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    const TALLY: Tally =
        Tally { bytes: 4096, apparent_bytes: 10, inodes: 2, metadata_bytes: 0, inline_bytes: 0 };
    const STAMP: Fingerprint = Fingerprint([2; 16]);

    fn cached() -> CachedSize {
        CachedSize {
            stamp: STAMP,
            extents: Extents::Probe,
            inode_chunks: true,
            measured_at: at(0),
            settled: true,
            tally: TALLY,
            inodes: Box::default(),
        }
    }

    #[test]
    fn table_of_ages() {
        // Measured from second 100 to second 110.
        let cases = [
            (i64::MIN, Age::Settled),
            (39, Age::Settled),
            (40, Age::Young),
            (97, Age::Young),
            (98, Age::Racy),
            (105, Age::Racy),
            (112, Age::Racy),
            (113, Age::Settled),
        ];
        for (newest, expected) in cases {
            let newest = if newest == i64::MIN { newest } else { newest + 1_000_000 };
            assert_eq!(Age::of(newest, at(100), at(110)), expected, "{newest}");
        }
    }

    #[test]
    fn table_of_use() {
        let young = CachedSize { settled: false, ..cached() };
        let with = |extents, inode_chunks| CachedSize { extents, inode_chunks, ..cached() };
        let (probe, usual) = (Extents::Probe, (Extents::Probe, true));
        let cases = [
            ("the same", cached(), usual, at(1_000_000), true),
            ("another stamp", CachedSize { stamp: Fingerprint([9; 16]), ..cached() }, usual, at(0), false),
            ("no file was asked", with(Extents::Off, true), usual, at(0), false),
            ("all were asked", with(Extents::All, true), usual, at(0), true),
            ("only some were asked", cached(), (Extents::All, true), at(0), false),
            ("inodes were not noted", with(probe, false), usual, at(0), false),
            ("and are not wanted", with(probe, false), (Extents::Off, false), at(0), true),
            ("young, a moment later", young.clone(), usual, at(59), true),
            ("young, and time has passed", young.clone(), usual, at(60), false),
            ("young, and the clock went back", young, usual, at(-1), false),
            ("settled, and the clock went back", cached(), usual, at(-1000), true),
        ];
        for (what, cached, (extents, inode_chunks), now, expected) in cases {
            assert_eq!(cached.is_usable(STAMP, extents, inode_chunks, now), expected, "{what}");
        }
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let big = CachedSize {
            extents: Extents::All,
            inode_chunks: false,
            settled: false,
            inodes: [7; 48].into(),
            tally: Tally { bytes: u64::MAX, ..TALLY },
            ..cached()
        };
        let layers = [(Fingerprint([1; 16]), cached()), (Fingerprint([3; 16]), big)];
        let sizes = StoreSizes { layers: layers.into(), outside: Fingerprint([4; 16]) };
        let bytes = sizes.encode();
        assert_eq!(StoreSizes::decode(&bytes), Some(sizes));
        assert_eq!(StoreSizes::decode(&StoreSizes::default().encode()), Some(StoreSizes::default()));
        let whole = [17, 17 + 89, 17 + 89 + 48];
        for length in (0..bytes.len()).filter(|length| !whole.contains(length)) {
            assert_eq!(StoreSizes::decode(&bytes[..length]), None, "cut after {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let _ = StoreSizes::decode(&damaged);
        }
        assert_eq!(StoreSizes::decode(&[2]), None, "another version");
    }

    #[test]
    fn table_of_contradictions() {
        let more = CachedSize { tally: Tally { bytes: 8192, ..TALLY }, ..cached() };
        let moved = CachedSize { inodes: [1].into(), ..cached() };
        let unnoted = CachedSize { inode_chunks: false, ..moved.clone() };
        let young = CachedSize { settled: false, ..cached() };
        let differs = |words: &str| Some(Contradiction::Differs(words.into()));
        let cases = [
            ("the same", cached(), cached(), false, None),
            (
                "more bytes",
                cached(),
                more.clone(),
                false,
                differs("holds 8192 bytes in 2 inodes; an earlier scan found 4096 in 2"),
            ),
            (
                "other inodes",
                cached(),
                moved,
                false,
                differs("holds 4096 bytes in 2 inodes of other files; an earlier scan found 4096 in 2"),
            ),
            ("other inodes that nobody noted", cached(), unnoted, false, None),
            ("blocks that were on the move", young.clone(), more, false, None),
            ("shares", cached(), cached(), true, Some(Contradiction::Shares)),
            ("shares, young", young, cached(), true, Some(Contradiction::Shares)),
        ];
        for (what, before, now, shares, expected) in cases {
            assert_eq!(before.contradiction(&now, shares), expected, "{what}");
        }
    }
}
