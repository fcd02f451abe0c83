//! What XFS frees for inodes: chunks of 64, each when all its inodes are free.
//!
//! The walk notes which unit holds which inodes ([`Holding`]). Afterwards the filesystem is
//! asked which inodes are allocated at all, which shows where somebody else holds inodes of a
//! chunk. Without the permission to ask, the inodes that were seen are taken for all.

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

/// Holdings of one thread before equal windows are merged for the first time: 64 KiB.
const FIRST_MERGE: usize = 2048;

/// Bytes of one encoded holding of a unit.
const ENCODED: usize = 3 * 8;

/// How one XFS frees inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRule {
    /// What is freed when all inodes of a chunk are free.
    bytes: u64,
    /// `XFS_IOC_INUMBERS` is permitted.
    is_asked: bool,
}

impl ChunkRule {
    /// The rule of the XFS with this geometry that `fd` (open for reading) is on. `None`
    /// where chunks may start anywhere and we may not ask where.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>, geometry: &XfsGeometry) -> Option<Self> {
        let is_asked = inumbers::chunks(fd, 0)
            .inspect_err(|error| {
                tracing::debug!(%error, "XFS_IOC_INUMBERS is not available: counting \
                only the inodes that the walk found")
            })
            .is_ok();
        // Several chunks in one block are never freed (`xfs_difree_inobt`).
        let chunk = INODES_PER_CHUNK * u64::from(geometry.inode_bytes);
        let bytes = if chunk >= u64::from(geometry.block_bytes) { chunk } else { 0 };
        (is_asked || geometry.sparse_inodes).then_some(Self { bytes, is_asked })
    }
}

/// Sorted by filesystem, window and unit, each once.
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

/// What one thread sees. An inode with several links is noted for each unit that holds one
/// of them.
#[derive(Debug, Default)]
pub struct ThreadHoldings {
    holdings: Vec<Holding>,
    merge_at: usize,
}

impl ThreadHoldings {
    /// Notes an inode.
    #[inline]
    pub fn add(&mut self, one: Holding) {
        // Files of one directory mostly have inodes of one chunk.
        match self.holdings.last_mut() {
            Some(last) if last.is_same_but_inodes(&one) => last.inodes |= one.inodes,
            _ => {
                self.holdings.push(one);
                self.shrink();
            }
        }
    }

    /// Adds what another thread saw.
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

    /// Sorted by filesystem, window and unit, each once.
    #[must_use]
    pub fn into_holdings(self) -> Vec<Holding> {
        merged(self.holdings)
    }
}

/// What single units hold, encoded to be kept: device, window and inodes, 8 bytes each.
#[must_use]
pub fn encode_by_unit(holdings: &[Holding], is_wanted: impl Fn(usize) -> bool) -> HashMap<usize, Box<[u8]>> {
    let mut units: HashMap<usize, Vec<u8>> = HashMap::new();
    for one in holdings {
        if let Some(unit) = one.unit.map(|unit| unit as usize).filter(|unit| is_wanted(*unit)) {
            let numbers = [one.device, one.window, one.inodes];
            units.entry(unit).or_default().extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
    }
    units.into_iter().map(|(unit, bytes)| (unit, bytes.into_boxed_slice())).collect()
}

/// Reads [`encode_by_unit`] for the unit that has the number `unit` now.
pub fn decode(bytes: &[u8], unit: usize) -> impl Iterator<Item = Holding> + '_ {
    let unit = u32::try_from(unit).ok();
    bytes.as_chunks::<ENCODED>().0.iter().map(move |one| {
        let number = |at: usize| one.as_chunks::<8>().0.get(at).map_or(0, |eight| u64::from_le_bytes(*eight));
        Holding { device: number(0), window: number(1), unit, inodes: number(2) }
    })
}

/// An XFS whose inodes are counted by chunks.
#[derive(Clone, Debug)]
struct Filesystem {
    rule: ChunkRule,
    fd: Arc<OwnedFd>,
}

/// The holders of inodes, on filesystems that free inodes by chunks.
#[derive(Clone, Debug, Default)]
pub struct InodeChunks {
    /// By `st_dev`.
    filesystems: BTreeMap<u64, Filesystem>,
    holdings: Vec<Holding>,
}

impl InodeChunks {
    /// Nobody holds anything yet, on the filesystems that `roots` are on.
    #[must_use]
    pub fn on(roots: &[PathBuf], within: &Within) -> Self {
        let mut filesystems = BTreeMap::new();
        for top in Top::all(roots, within).iter().flatten() {
            if let Ok(device) = rustix::fs::fstat(top.fd()).map(|stat| stat.st_dev)
                && !filesystems.contains_key(&device)
                && let Ok(Some(found)) = Filesystem::of(top.fd())
            {
                filesystems.insert(device, found);
            }
        }
        Self { filesystems, holdings: Vec::new() }
    }

    /// Whether inodes of the filesystem with this `st_dev` are counted by chunks.
    #[must_use]
    pub fn counts(&self, device: u64) -> bool {
        self.filesystems.contains_key(&device)
    }

    /// Adds holdings; what is on none of the filesystems is left out.
    pub fn add(&mut self, holdings: impl IntoIterator<Item = Holding>) {
        let known = holdings.into_iter().filter(|one| self.filesystems.contains_key(&one.device));
        self.holdings.extend(known);
        self.holdings = merged(std::mem::take(&mut self.holdings));
    }

    /// Forgets all holdings.
    pub fn clear(&mut self) {
        self.holdings.clear();
    }

    /// Makes inodes (`st_dev`, `st_ino`) the unit's alone; inodes without a holder are left out.
    pub fn hand_over(&mut self, inodes: impl IntoIterator<Item = (u64, u64, usize)>) {
        let mut given = Vec::new();
        for (device, inode, unit) in inodes {
            let to = Holding::of(device, inode, Some(unit));
            let from = self.holdings.partition_point(|one| (one.device, one.window) < (device, to.window));
            let window = self.holdings[from..].iter_mut();
            let window = window.take_while(|one| (one.device, one.window) == (device, to.window));
            let mut is_held = false;
            for one in window {
                is_held |= one.inodes & to.inodes != 0;
                one.inodes &= !to.inodes;
            }
            given.extend(is_held.then_some(to));
        }
        self.add(given);
        self.holdings.retain(|one| one.inodes != 0);
    }

    /// Bytes freed by set of holders, and whether others hold inodes of the chunk. Inodes
    /// of units without a holder count as held by others.
    #[must_use]
    pub fn groups<H: Ord + Copy>(&self, holder: &dyn Fn(usize) -> Option<H>) -> Vec<ChunkGroup<H>> {
        let mut groups = BTreeMap::new();
        for (device, filesystem) in &self.filesystems {
            let from = self.holdings.partition_point(|one| one.device < *device);
            let to = self.holdings.partition_point(|one| one.device <= *device);
            let holdings = &self.holdings[from..to];
            let allocated = filesystem.allocated(holdings);
            let bytes = filesystem.rule.bytes;
            groups::add(&mut groups, holdings, allocated.as_deref(), bytes, holder);
        }
        let groups = groups.into_iter();
        groups.map(|((holders, outside), bytes)| ChunkGroup { holders, outside, bytes }).collect()
    }
}

impl Filesystem {
    /// `None` where `top` is no XFS, or one whose chunks are unknown.
    fn of(top: BorrowedFd<'_>) -> Result<Option<Self>> {
        if !xfs::is_xfs(top)? {
            return Ok(None);
        }
        let fd = beneath::reopen(top)?;
        let rule = ChunkRule::of(fd.as_fd(), &xfs::geometry(fd.as_fd())?);
        Ok(rule.map(|rule| Self { rule, fd: Arc::new(fd) }))
    }

    /// The chunks that hold these inodes; `None` where the filesystem does not say.
    fn allocated(&self, holdings: &[Holding]) -> Option<Vec<InodeChunk>> {
        if !self.rule.is_asked {
            return None;
        }
        let mut windows: Vec<u64> = holdings.iter().map(|one| one.window).collect();
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
            // A chunk that reaches into the next window comes again with that one.
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
    fn each_window_and_unit_is_noted_once() {
        let mut seen = ThreadHoldings::default();
        for inode in [64, 65, 200, 64, 127] {
            seen.add(Holding::of(0, inode, Some(7)));
        }
        let others = [(0, 65, Some(3)), (0, 66, None), (1, 64, Some(7))];
        others.iter().for_each(|(device, inode, unit)| seen.add(Holding::of(*device, *inode, *unit)));
        let holding = |device, window, unit, inodes| Holding { device, window, unit, inodes };
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
        let moved = |at: usize| Holding { unit: Some(9), ..expected[at] };
        assert_eq!(decoded, [moved(2), moved(3), moved(4)]);
    }

    #[test]
    fn memory_grows_with_windows_not_with_inodes() {
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
