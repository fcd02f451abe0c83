//! Bytes that XFS frees for inodes.
//!
//! XFS allocates inodes in chunks of 64 and frees a chunk only when all its inodes are free. Deleting a layer frees a
//! chunk only if no other layer, and no file outside the store, has an inode in it. Example: layer A has inodes 64 to
//! 99 of a chunk and layer B inodes 100 to 127. Deleting A alone frees no chunk, deleting both frees one.
//!
//! The walk records which unit has which inodes ([`Holding`]). Afterwards `XFS_IOC_INUMBERS` returns the inodes that
//! are allocated at all: an allocated inode that the walk did not see belongs to a file outside the trees. Without
//! permission for this request, the chunks are assumed to contain only inodes that the walk saw.

mod groups;
mod holding;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::{Errno, Result};

pub use groups::ChunkGroup;
pub use holding::Holding;

use crate::disk::top::Top;
use crate::sys::beneath;
use crate::sys::quiet::Within;
use crate::sys::xfs::inumbers::{self, INODES_PER_CHUNK, InodeChunk};
use crate::sys::xfs::{self, XfsGeometry};

/// Number of holdings at which a thread merges equal windows for the first time: 64 KiB.
const FIRST_MERGE: usize = 2048;

/// Bytes of an encoded holding.
const ENCODED: usize = 3 * 8;

/// Way in which an XFS frees inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRule {
    /// Bytes that are freed when all inodes of a chunk are free.
    bytes: u64,
    /// True if `XFS_IOC_INUMBERS` is permitted.
    can_list: bool,
}

impl ChunkRule {
    /// Returns the rule of the XFS with this geometry that `fd` (open for reading) is on. `None` if
    /// `XFS_IOC_INUMBERS` is not permitted and chunks may start at any inode number (no sparse inodes).
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>, geometry: &XfsGeometry) -> Option<Self> {
        let can_list = inumbers::chunks(fd, 0)
            .inspect_err(|error| {
                tracing::debug!(%error, "XFS_IOC_INUMBERS is not available: counting \
                only the inodes that the walk found")
            })
            .is_ok();
        // XFS never frees chunks of which several fit in one block (`xfs_difree_inobt`).
        let chunk = INODES_PER_CHUNK * u64::from(geometry.inode_bytes);
        let bytes = if chunk >= u64::from(geometry.block_bytes) { chunk } else { 0 };
        (can_list || geometry.sparse_inodes).then_some(Self { bytes, can_list })
    }
}

/// Sorts by filesystem, window and unit, and merges holdings that differ in their inodes only.
fn merged(mut holdings: Vec<Holding>) -> Vec<Holding> {
    holdings.sort_unstable();
    holdings.dedup_by(|next, kept| {
        let same = next.is_same_but_inodes(kept);
        if same {
            kept.inodes |= next.inodes;
        }
        same
    });
    holdings
}

/// Inodes that one thread has seen. An inode with several links is recorded for each unit that contains one of
/// them.
#[derive(Debug, Default)]
pub struct ThreadHoldings {
    holdings: Vec<Holding>,
    merge_at: usize,
}

impl ThreadHoldings {
    #[inline]
    pub fn add(&mut self, inode: Holding) {
        // Most files of a directory have inodes in the same chunk.
        match self.holdings.last_mut() {
            Some(last) if last.is_same_but_inodes(&inode) => last.inodes |= inode.inodes,
            _ => {
                self.holdings.push(inode);
                self.shrink();
            }
        }
    }

    /// Adds the inodes that another thread has seen.
    pub fn append(&mut self, other: Self) {
        self.holdings.extend(other.holdings);
        self.shrink();
    }

    fn shrink(&mut self) {
        if self.holdings.len() > self.merge_at.max(FIRST_MERGE) {
            self.holdings = merged(std::mem::take(&mut self.holdings));
            self.merge_at = 2 * self.holdings.len();
        }
    }

    /// Returns the holdings sorted by filesystem, window and unit, without duplicates.
    #[must_use]
    pub fn into_holdings(self) -> Vec<Holding> {
        merged(self.holdings)
    }
}

/// Encodes the holdings of the wanted units for the size cache: device, window and inodes, 8 bytes each.
#[must_use]
pub fn encode_by_unit(holdings: &[Holding], is_wanted: impl Fn(usize) -> bool) -> HashMap<usize, Box<[u8]>> {
    let mut units: HashMap<usize, Vec<u8>> = HashMap::new();
    for holding in holdings {
        if let Some(unit) = holding.unit.map(|unit| unit as usize).filter(|unit| is_wanted(*unit)) {
            let numbers = [holding.device, holding.window, holding.inodes];
            units.entry(unit).or_default().extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
    }
    units.into_iter().map(|(unit, bytes)| (unit, bytes.into_boxed_slice())).collect()
}

/// Decodes the result of [`encode_by_unit`] for the unit that now has the number `unit`.
pub fn decode(bytes: &[u8], unit: usize) -> impl Iterator<Item = Holding> + '_ {
    fn number(encoded: &[u8; ENCODED], index: usize) -> u64 {
        encoded.as_chunks::<8>().0.get(index).map_or(0, |number| u64::from_le_bytes(*number))
    }
    let unit = u32::try_from(unit).ok();
    bytes.as_chunks::<ENCODED>().0.iter().map(move |encoded| Holding {
        device: number(encoded, 0),
        window: number(encoded, 1),
        unit,
        inodes: number(encoded, 2),
    })
}

#[derive(Clone, Debug)]
struct ChunkedXfs {
    rule: ChunkRule,
    fd: Arc<OwnedFd>,
}

/// Units with inodes on filesystems that free inodes by chunk.
#[derive(Clone, Debug, Default)]
pub struct InodeChunks {
    /// By `st_dev`.
    filesystems: BTreeMap<u64, ChunkedXfs>,
    holdings: Vec<Holding>,
}

impl InodeChunks {
    /// Starts without holdings, for the filesystems that `roots` are on.
    #[must_use]
    pub fn on(roots: &[PathBuf], within: &Within) -> Self {
        let mut filesystems = BTreeMap::new();
        for top in Top::all(roots, within).iter().flatten() {
            if let Ok(device) = rustix::fs::fstat(top.fd()).map(|stat| stat.st_dev)
                && !filesystems.contains_key(&device)
                && let Ok(Some(found)) = ChunkedXfs::of(top.fd())
            {
                filesystems.insert(device, found);
            }
        }
        Self { filesystems, holdings: Vec::new() }
    }

    /// Returns true if inodes of the filesystem with this `st_dev` are counted by chunk.
    #[must_use]
    pub fn counts(&self, device: u64) -> bool {
        self.filesystems.contains_key(&device)
    }

    /// Adds holdings on these filesystems; ignores all others.
    pub fn add(&mut self, holdings: impl IntoIterator<Item = Holding>) {
        let known = holdings.into_iter().filter(|holding| self.filesystems.contains_key(&holding.device));
        self.holdings.extend(known);
        self.holdings = merged(std::mem::take(&mut self.holdings));
    }

    pub fn clear(&mut self) {
        self.holdings.clear();
    }

    /// Assigns inodes (`st_dev`, `st_ino`) to a unit alone. Inodes that no unit has are ignored.
    pub fn hand_over(&mut self, inodes: impl IntoIterator<Item = (u64, u64, usize)>) {
        let mut given = Vec::new();
        for (device, inode, unit) in inodes {
            let to = Holding::of(device, inode, Some(unit));
            let from = self
                .holdings
                .partition_point(|holding| (holding.device, holding.window) < (device, to.window));
            let window = self.holdings[from..]
                .iter_mut()
                .take_while(|holding| (holding.device, holding.window) == (device, to.window));
            let mut is_held = false;
            for holding in window {
                is_held |= holding.inodes & to.inodes != 0;
                holding.inodes &= !to.inodes;
            }
            given.extend(is_held.then_some(to));
        }
        self.add(given);
        self.holdings.retain(|holding| holding.inodes != 0);
    }

    /// Returns the bytes freed for each set of holders, and whether files outside have inodes in the chunks too.
    /// Inodes of units without a holder, if still allocated, count as outside.
    #[must_use]
    pub fn groups<H: Ord + Copy>(&self, holder: &dyn Fn(usize) -> Option<H>) -> Vec<ChunkGroup<H>> {
        let mut groups = BTreeMap::new();
        for (device, filesystem) in &self.filesystems {
            let from = self.holdings.partition_point(|holding| holding.device < *device);
            let to = self.holdings.partition_point(|holding| holding.device <= *device);
            let holdings = &self.holdings[from..to];
            let allocated = filesystem.allocated(holdings);
            let bytes = filesystem.rule.bytes;
            groups::add(&mut groups, holdings, allocated.as_deref(), bytes, holder);
        }
        let groups = groups.into_iter();
        groups.map(|((holders, outside), bytes)| ChunkGroup { holders, outside, bytes }).collect()
    }
}

impl ChunkedXfs {
    /// Returns `None` if `top` is not on XFS, or on one whose chunks are unknown.
    fn of(top: BorrowedFd<'_>) -> Result<Option<Self>> {
        if !xfs::is_xfs(top)? {
            return Ok(None);
        }
        let fd = beneath::reopen(top)?;
        let rule = ChunkRule::of(fd.as_fd(), &xfs::geometry(fd.as_fd())?);
        Ok(rule.map(|rule| Self { rule, fd: Arc::new(fd) }))
    }

    /// Returns the chunks that contain these inodes; `None` if the filesystem does not list them.
    fn allocated(&self, holdings: &[Holding]) -> Option<Vec<InodeChunk>> {
        if !self.rule.can_list {
            return None;
        }
        let mut windows: Vec<u64> = holdings.iter().map(|holding| holding.window).collect();
        windows.dedup();
        let wanted: HashSet<u64> = windows.iter().copied().collect();
        let mut found: Vec<InodeChunk> = Vec::new();
        let mut next = 0;
        while let Some(window) = windows.get(next) {
            let batch = match inumbers::chunks(self.fd.as_fd(), window * INODES_PER_CHUNK) {
                Ok(batch) => batch,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::debug!(%error, "XFS_IOC_INUMBERS failed");
                    return None;
                }
            };
            let Some(last) = batch.last() else { break };
            let end = last.start.saturating_add(INODES_PER_CHUNK);
            let past = windows.partition_point(|window| (window + 1) * INODES_PER_CHUNK <= end);
            // A chunk that extends into the next window is returned again with that window.
            let before = found.last().map(|chunk| chunk.start);
            found.extend(batch.into_iter().filter(|chunk| {
                let reaches = [chunk.start, chunk.start + INODES_PER_CHUNK - 1];
                Some(chunk.start) > before
                    && reaches.iter().any(|inode| wanted.contains(&(inode / INODES_PER_CHUNK)))
            }));
            next = past.max(next + 1);
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_and_unit_is_recorded_once() {
        let mut seen = ThreadHoldings::default();
        for inode in [64, 65, 200, 64, 127] {
            seen.add(Holding::of(0, inode, Some(7)));
        }
        let others = [(0, 65, Some(3)), (0, 66, None), (1, 64, Some(7))];
        others.iter().for_each(|(device, inode, unit)| seen.add(Holding::of(*device, *inode, *unit)));
        fn holding(device: u64, window: u64, unit: Option<u32>, inodes: u64) -> Holding {
            Holding { device, window, unit, inodes }
        }
        let expected = [
            holding(0, 1, None, 0b100),
            holding(0, 1, Some(3), 0b10),
            holding(0, 1, Some(7), 1 << 63 | 0b11),
            holding(0, 3, Some(7), 1 << 8),
            holding(1, 1, Some(7), 1),
        ];
        let found = seen.into_holdings();
        assert_eq!(found, expected);
        let encoded = encode_by_unit(&found, |unit| unit == 7);
        assert_eq!(encoded.len(), 1);
        let decoded: Vec<_> = decode(&encoded[&7], 9).collect();
        let renumbered: Vec<_> =
            expected[2..].iter().map(|holding| Holding { unit: Some(9), ..*holding }).collect();
        assert_eq!(decoded, renumbered);
    }

    #[test]
    fn memory_grows_with_windows_not_inodes() {
        let mut seen = ThreadHoldings::default();
        for round in 0..100_000_u64 {
            seen.add(Holding::of(0, (round * 64 + round % 64) % 64_000, Some(1)));
        }
        assert!(seen.holdings.len() <= FIRST_MERGE.max(2000), "{}", seen.holdings.len());
        let mut all = ThreadHoldings::default();
        all.append(seen);
        assert_eq!(all.into_holdings().len(), 1000);
    }
}
