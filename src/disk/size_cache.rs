//! Sizes of finished layers that earlier scans measured, and the rules for using them instead of a new measurement.
//! Contains data and rules only; another module stores it.
//!
//! The size of a layer is cached if the layer is finished, was read without errors and shares no inode. It is valid as
//! long as the layer's record and its [`stamp`](super::stamp) are unchanged. Other directories with a stamp are
//! cached in the same way. Each scan measures one random layer again to detect changes that neither the record nor
//! the stamp shows, and asks some files for their extents ([`probing`](super::probing)).

use hashbrown::HashMap;
use jiff::SignedDuration;

use std::sync::Arc;

use super::fingerprint::Fingerprint;
use super::runs::EncodedRuns;
use super::walk::{Tally, UnitExtents};
use crate::model::StoreId;

/// Minimum age of the last change of a measured layer. The next scan measures younger ones again.
///
/// Another process may still be writing, and its data reaches the disk only within 30 s (`dirty_expire_centisecs`)
/// plus the next run of the flusher. Its blocks can change then, without a change of the file's times: ext4 and XFS
/// allocate late, XFS frees blocks that it preallocated, btrfs moves small files into the metadata.
pub const SETTLED_AFTER: SignedDuration = SignedDuration::from_mins(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedSize {
    pub stamp: Fingerprint,
    /// `None`: its files were not asked for their extents.
    pub extents: Option<Arc<UnitExtents>>,
    /// True if its inodes on XFS were recorded.
    pub inode_chunks: bool,
    pub tally: Tally,
    /// Its inodes on XFS, as encoded by [`encode_by_unit`](super::inode_chunks::encode_by_unit).
    pub inodes: Box<[u8]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSizes {
    /// Sizes by fingerprint of the layer and its record.
    pub layers: HashMap<Fingerprint, CachedSize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SizeCache {
    pub stores: HashMap<StoreId, StoreSizes>,
    /// Selects the layer that is measured again; a different number in each scan.
    pub seed: u64,
    /// [`SETTLED_AFTER`]; shorter in tests.
    pub settled_after: SignedDuration,
}

/// Bytes of an encoded layer without its inodes.
const LAYER_BYTES: usize = 16 + 16 + 1 + 6 * 8;

/// Version of the encoding, stored in its first byte.
const VERSION: u8 = 3;

impl StoreSizes {
    /// Encodes the sizes: the version, then for each layer its fingerprint, its stamp, a byte of flags (1 if it has
    /// extents, 4 if inodes were recorded), six 8-byte numbers (the tally, bytes of `inodes`), `inodes`, and the extents:
    /// bytes of the samples, these, and for each filesystem its key, bytes of the runs, these; a 0 in place of a key
    /// is the end.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        for (layer, size) in &self.layers {
            bytes.extend(layer.0);
            bytes.extend(size.stamp.0);
            bytes.push(u8::from(size.extents.is_some()) | u8::from(size.inode_chunks) << 2);
            let Tally { bytes: allocated, apparent_bytes, inodes, metadata_bytes, inline_bytes } = size.tally;
            let inode_bytes = size.inodes.len() as u64;
            for number in [allocated, apparent_bytes, inodes, metadata_bytes, inline_bytes, inode_bytes] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(&size.inodes);
            if let Some(extents) = &size.extents {
                put_bytes(&mut bytes, &extents.samples);
                for EncodedRuns { filesystem, bytes: runs } in &extents.runs {
                    bytes.extend(filesystem.to_le_bytes());
                    put_bytes(&mut bytes, runs);
                }
                bytes.extend(0_u64.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes the result of [`Self::encode`]; `None` for any other bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&[VERSION])?;
        let bytes = &mut rest;
        let mut layers = HashMap::with_capacity(bytes.len() / LAYER_BYTES);
        while !bytes.is_empty() {
            let (layer, stamp) = (Fingerprint(take(bytes)?), Fingerprint(take(bytes)?));
            let [flags] = take(bytes)?;
            let tally = Tally {
                bytes: number(bytes)?,
                apparent_bytes: number(bytes)?,
                inodes: number(bytes)?,
                metadata_bytes: number(bytes)?,
                inline_bytes: number(bytes)?,
            };
            let (inode_chunks, inodes) = (flags & 4 != 0, take_bytes(bytes)?);
            let extents = if flags & 1 == 0 { None } else { Some(Arc::new(take_extents(bytes)?)) };
            layers.insert(layer, CachedSize { stamp, extents, inode_chunks, tally, inodes });
        }
        Some(Self { layers })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

fn put_bytes(bytes: &mut Vec<u8>, more: &[u8]) {
    bytes.extend((more.len() as u64).to_le_bytes());
    bytes.extend(more);
}

fn take_bytes(bytes: &mut &[u8]) -> Option<Box<[u8]>> {
    let length = usize::try_from(number(bytes)?).ok()?;
    let (first, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(first.into())
}

fn take_extents(bytes: &mut &[u8]) -> Option<UnitExtents> {
    let samples = take_bytes(bytes)?;
    let mut runs = Vec::new();
    loop {
        let filesystem = number(bytes)?;
        if filesystem == 0 {
            return Some(UnitExtents { runs, samples });
        }
        runs.push(EncodedRuns { filesystem, bytes: take_bytes(bytes)? });
    }
}

impl CachedSize {
    /// Returns true if this size may replace a measurement that, with `extents`, asks files for their extents and, with
    /// `inode_chunks`, records inodes.
    #[must_use]
    pub fn is_usable(&self, stamp: Fingerprint, extents: bool, inode_chunks: bool) -> bool {
        self.stamp == stamp && (self.extents.is_some() || !extents) && (self.inode_chunks || !inode_chunks)
    }

    /// Returns true if the two differ in nothing but the drawn samples.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        fn runs(size: &CachedSize) -> Option<&[EncodedRuns]> {
            size.extents.as_ref().map(|extents| &extents.runs[..])
        }
        runs(self) == runs(other) && *self == Self { extents: self.extents.clone(), ..other.clone() }
    }

    /// Describes the difference to another measurement of the unchanged layer, if there is one.
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
            extents: Some(Arc::default()),
            inode_chunks: true,
            tally: TALLY,
            inodes: Box::default(),
        }
    }

    #[test]
    fn table_of_use() {
        fn with(extents: Option<Arc<UnitExtents>>, inode_chunks: bool) -> CachedSize {
            CachedSize { extents, inode_chunks, ..cached() }
        }
        let usual = (true, true);
        let cases = [
            ("the same", cached(), usual, true),
            ("another stamp", CachedSize { stamp: Fingerprint([9; 16]), ..cached() }, usual, false),
            ("no file was asked", with(None, true), usual, false),
            ("extents are not needed", with(None, true), (false, true), true),
            ("inodes were not recorded", with(Some(Arc::default()), false), usual, false),
            ("inodes are not needed", with(None, false), (false, false), true),
        ];
        for (name, cached, (extents, inode_chunks), expected) in cases {
            assert_eq!(cached.is_usable(STAMP, extents, inode_chunks), expected, "{name}");
        }
    }

    #[test]
    fn encoded_sizes_are_decoded_unchanged() {
        let big = CachedSize {
            extents: Some(Arc::new(UnitExtents {
                runs: vec![EncodedRuns { filesystem: 9, bytes: [1; 10].into() }],
                samples: [2; 5].into(),
            })),
            inode_chunks: false,
            inodes: [7; 48].into(),
            tally: Tally { bytes: u64::MAX, ..TALLY },
            ..cached()
        };
        let bare = CachedSize { extents: None, ..cached() };
        let layers = [(Fingerprint([1; 16]), bare), (Fingerprint([3; 16]), big)];
        let sizes = StoreSizes { layers: layers.into() };
        let bytes = sizes.encode();
        assert_eq!(StoreSizes::decode(&bytes), Some(sizes));
        assert_eq!(StoreSizes::decode(&StoreSizes::default().encode()), Some(StoreSizes::default()));
        let with_extents = LAYER_BYTES + 48 + (8 + 5) + (8 + 8 + 10) + 8;
        let whole = [1, 1 + LAYER_BYTES, 1 + with_extents];
        for length in (0..bytes.len()).filter(|length| !whole.contains(length)) {
            assert_eq!(StoreSizes::decode(&bytes[..length]), None, "cut after {length}");
        }
        for position in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[position] ^= 0xff;
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
            ("other inodes, not recorded", unnoted, None),
        ];
        for (name, now, expected) in cases {
            assert_eq!(cached().difference(&now).as_deref(), expected, "{name}");
        }
    }
}
