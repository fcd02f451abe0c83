//! Sizes of finished layers (and of what else changes with its stamp) that earlier scans measured, and
//! when one of them may be used. Data and rules alone; who stores it is unknown.
//!
//! The size of a layer is cached if the layer is finished, was read without errors and shares
//! nothing. It is valid as long as the layer's record and its [`stamp`](super::stamp) are unchanged. Each
//! scan measures one random layer again to detect changes that neither shows.

use hashbrown::HashMap;
use jiff::SignedDuration;

use super::{Extents, Fingerprint, Tally};
use crate::model::StoreId;

/// What changed within this time before it was measured is measured again by the next scan: another
/// process may be writing, and what is written goes to the disk within 30 s
/// (`dirty_expire_centisecs`) and the next run of the flusher, and can take other blocks then: ext4
/// and XFS allocate late, XFS frees what it took in advance, btrfs puts small files into the
/// metadata. No time of the file changes then.
pub const SETTLED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// The cached size of a layer that shares nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedSize {
    /// Of its directories.
    pub stamp: Fingerprint,
    /// Which files were looked at for shared extents; there were none.
    pub extents: Extents,
    /// Its inodes on XFS were noted.
    pub inode_chunks: bool,
    pub tally: Tally,
    /// Its inodes on XFS, as [`encode_by_unit`](super::inode_chunks::encode_by_unit) has them.
    pub inodes: Box<[u8]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSizes {
    /// By fingerprint of the layer and its record.
    pub layers: HashMap<Fingerprint, CachedSize>,
}

/// Sizes from earlier scans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SizeCache {
    pub stores: HashMap<StoreId, StoreSizes>,
    /// Chooses the layer that is measured again: another number in each scan.
    pub seed: u64,
    /// [`SETTLED_AFTER`]; less in tests.
    pub settled_after: SignedDuration,
}

/// What a layer takes in the encoding, without its inodes.
const LAYER_BYTES: usize = 16 + 16 + 1 + 6 * 8;

/// Version of the encoding: its first byte.
const VERSION: u8 = 2;

impl StoreSizes {
    /// As bytes: the version, and for each layer its fingerprint, its stamp, how it was measured
    /// (extents, 4: inodes were noted), six numbers of 8 bytes (the tally, bytes of `inodes`) and `inodes`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        for (layer, size) in &self.layers {
            bytes.extend(layer.0);
            bytes.extend(size.stamp.0);
            bytes.push(size.extents as u8 | u8::from(size.inode_chunks) << 2);
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
        let mut layers = HashMap::with_capacity(bytes.len() / LAYER_BYTES);
        while !bytes.is_empty() {
            let (layer, stamp) = (Fingerprint(take(bytes)?), Fingerprint(take(bytes)?));
            let [how] = take(bytes)?;
            let extents = *[Extents::Off, Extents::Probe, Extents::All].get(usize::from(how & 3))?;
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
            let (inode_chunks, inodes) = (how & 4 != 0, inodes.into());
            layers.insert(layer, CachedSize { stamp, extents, inode_chunks, tally, inodes });
        }
        Some(Self { layers })
    }
}

impl CachedSize {
    /// Whether it may be used instead of a measurement that looks at these files for shared
    /// extents, and notes inodes.
    #[must_use]
    pub fn is_usable(&self, stamp: Fingerprint, extents: Extents, inode_chunks: bool) -> bool {
        self.stamp == stamp && self.extents >= extents && (self.inode_chunks || !inode_chunks)
    }

    /// How another measurement of the unchanged layer differs.
    #[must_use]
    pub fn difference(&self, now: &Self) -> Option<String> {
        let same_tally = now.tally == self.tally;
        let other_inodes = self.inode_chunks && now.inode_chunks && now.inodes != self.inodes;
        let other = if same_tally { " of other files" } else { "" };
        (!same_tally || other_inodes).then(|| {
            format!(
                "holds {} bytes in {} inodes{other}; an earlier scan found {} in {}",
                now.tally.bytes, now.tally.inodes, self.tally.bytes, self.tally.inodes
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TALLY: Tally =
        Tally { bytes: 4096, apparent_bytes: 10, inodes: 2, metadata_bytes: 0, inline_bytes: 0 };
    const STAMP: Fingerprint = Fingerprint([2; 16]);

    fn cached() -> CachedSize {
        CachedSize {
            stamp: STAMP,
            extents: Extents::Probe,
            inode_chunks: true,
            tally: TALLY,
            inodes: Box::default(),
        }
    }

    #[test]
    fn table_of_use() {
        let with = |extents, inode_chunks| CachedSize { extents, inode_chunks, ..cached() };
        let (probe, usual) = (Extents::Probe, (Extents::Probe, true));
        let cases = [
            ("the same", cached(), usual, true),
            ("another stamp", CachedSize { stamp: Fingerprint([9; 16]), ..cached() }, usual, false),
            ("no file was asked", with(Extents::Off, true), usual, false),
            ("all were asked", with(Extents::All, true), usual, true),
            ("only some were asked", cached(), (Extents::All, true), false),
            ("inodes were not noted", with(probe, false), usual, false),
            ("and are not wanted", with(probe, false), (Extents::Off, false), true),
        ];
        for (what, cached, (extents, inode_chunks), expected) in cases {
            assert_eq!(cached.is_usable(STAMP, extents, inode_chunks), expected, "{what}");
        }
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let big = CachedSize {
            extents: Extents::All,
            inode_chunks: false,
            inodes: [7; 48].into(),
            tally: Tally { bytes: u64::MAX, ..TALLY },
            ..cached()
        };
        let layers = [(Fingerprint([1; 16]), cached()), (Fingerprint([3; 16]), big)];
        let sizes = StoreSizes { layers: layers.into() };
        let bytes = sizes.encode();
        assert_eq!(StoreSizes::decode(&bytes), Some(sizes));
        assert_eq!(StoreSizes::decode(&StoreSizes::default().encode()), Some(StoreSizes::default()));
        let whole = [1, 1 + 81, 1 + 81 + 48];
        for length in (0..bytes.len()).filter(|length| !whole.contains(length)) {
            assert_eq!(StoreSizes::decode(&bytes[..length]), None, "cut after {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let _ = StoreSizes::decode(&damaged);
        }
        assert_eq!(StoreSizes::decode(&[1]), None, "another version");
    }

    #[test]
    fn table_of_differences() {
        let more = CachedSize { tally: Tally { bytes: 8192, ..TALLY }, ..cached() };
        let moved = CachedSize { inodes: [1].into(), ..cached() };
        let unnoted = CachedSize { inode_chunks: false, ..moved.clone() };
        let cases = [
            ("the same", cached(), None),
            ("more bytes", more, Some("holds 8192 bytes in 2 inodes; an earlier scan found 4096 in 2")),
            (
                "other inodes",
                moved,
                Some("holds 4096 bytes in 2 inodes of other files; an earlier scan found 4096 in 2"),
            ),
            ("other inodes that nobody noted", unnoted, None),
        ];
        for (what, now, expected) in cases {
            assert_eq!(cached().difference(&now).as_deref(), expected, "{what}");
        }
    }
}
