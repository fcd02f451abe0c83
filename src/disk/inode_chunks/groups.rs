//! Groups inode chunks by the units that have inodes in them. Pure.

use std::collections::BTreeMap;

use super::holding::Holding;
use crate::sys::xfs::inumbers::{INODES_PER_CHUNK, InodeChunk};

/// Inode chunks in which the same holders have inodes. XFS frees a chunk when all its inodes are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkGroup<H> {
    /// Holders with an inode in each of these chunks, ascending.
    pub holders: Vec<H>,
    /// True if each of the chunks contains inodes of files outside too.
    pub outside: bool,
    /// Bytes freed when all these chunks are free.
    pub bytes: u64,
}

/// Bytes by holders, and by whether files outside have inodes too.
pub(super) type Groups<H> = BTreeMap<(Vec<H>, bool), u64>;

/// Adds the chunks of a filesystem, of `bytes` each. `holdings` must be sorted. Without `allocated` (ascending), the
/// holdings are assumed to be complete and windows to be chunks.
pub(super) fn add<H: Ord + Copy>(
    groups: &mut Groups<H>,
    holdings: &[Holding],
    allocated: Option<&[InodeChunk]>,
    bytes: u64,
    holder: &dyn Fn(usize) -> Option<H>,
) {
    let Some(chunks) = allocated else {
        for window in holdings.chunk_by(|a, b| a.window == b.window) {
            let held = window.iter().map(|holding| (holding.unit, holding.inodes));
            add_chunk(groups, held, None, bytes, holder);
        }
        return;
    };
    for chunk in chunks {
        // A chunk may start inside a window.
        let (first, shift) = (chunk.start / INODES_PER_CHUNK, chunk.start % INODES_PER_CHUNK);
        let from = holdings.partition_point(|holding| holding.window < first);
        let window = holdings[from..].iter().take_while(|holding| holding.window <= first + 1);
        let held = window.map(|holding| {
            let inodes = match (holding.window == first, shift) {
                (true, _) => holding.inodes >> shift,
                (false, 0) => 0,
                (false, _) => holding.inodes << (INODES_PER_CHUNK - shift),
            };
            (holding.unit, inodes & chunk.allocated)
        });
        add_chunk(groups, held, Some(chunk.allocated), bytes, holder);
    }
}

/// Adds a chunk of `bytes` in which the units of `held` have these inodes.
fn add_chunk<H: Ord + Copy>(
    groups: &mut Groups<H>,
    held: impl Iterator<Item = (Option<u32>, u64)>,
    allocated: Option<u64>,
    bytes: u64,
    holder: &dyn Fn(usize) -> Option<H>,
) {
    let (mut holders, mut seen, mut outside) = (Vec::new(), 0, false);
    for (unit, inodes) in held.filter(|(_, inodes)| *inodes != 0) {
        match unit.map(|unit| holder(unit as usize)) {
            None => outside = true,
            Some(Some(holder)) => {
                holders.push(holder);
                seen |= inodes;
            }
            // The unit was deleted, and its inodes with it unless they are still allocated.
            Some(None) => {}
        }
    }
    outside |= allocated.is_some_and(|allocated| allocated & !seen != 0);
    if !holders.is_empty() && bytes != 0 {
        holders.sort_unstable();
        holders.dedup();
        *groups.entry((holders, outside)).or_default() += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(window: u64, unit: u32, inodes: u64) -> Holding {
        Holding { device: 0, window, unit: (unit != OUTSIDE).then_some(unit), inodes }
    }

    /// A file outside the trees.
    const OUTSIDE: u32 = u32::MAX;
    /// A deleted unit.
    const DELETED: u32 = 99;

    fn chunk(start: u64, allocated: u64) -> InodeChunk {
        InodeChunk { start, allocated }
    }

    fn group(holdings: &[Holding], allocated: Option<&[InodeChunk]>) -> Vec<(Vec<usize>, bool, u64)> {
        let mut groups = Groups::default();
        let holdings = super::super::merged(holdings.to_vec());
        let holder = |unit| (unit != DELETED as usize).then_some(unit);
        add(&mut groups, &holdings, allocated, 100, &holder);
        groups.into_iter().map(|((units, outside), bytes)| (units, outside, bytes)).collect()
    }

    #[test]
    fn table_with_allocated_inodes() {
        let cases = [
            // Alone in two chunks, which form one group.
            (
                vec![held(1, 5, 0b11), held(2, 5, 0b1)],
                vec![chunk(64, 0b11), chunk(128, 0b1)],
                vec![(vec![5], false, 200)],
            ),
            // Two units in one chunk.
            (vec![held(1, 7, 0b10), held(1, 5, 0b1)], vec![chunk(64, 0b11)], vec![(vec![5, 7], false, 100)]),
            // A single inode with links in both units.
            (vec![held(1, 7, 0b1), held(1, 5, 0b1)], vec![chunk(64, 0b1)], vec![(vec![5, 7], false, 100)]),
            // An allocated inode that the walk did not see.
            (vec![held(1, 5, 0b1)], vec![chunk(64, 0b101)], vec![(vec![5], true, 100)]),
            // A link outside the trees of an inode that was seen.
            (
                vec![held(1, 5, 0b11), held(1, OUTSIDE, 0b10)],
                vec![chunk(64, 0b11)],
                vec![(vec![5], true, 100)],
            ),
            // Deleted since the walk: an inode, or the whole chunk.
            (vec![held(1, 5, 0b1), held(1, 7, 0b10)], vec![chunk(64, 0b10)], vec![(vec![7], false, 100)]),
            (vec![held(1, 5, 0b1)], vec![], vec![]),
            // A deleted unit whose inode is still allocated, and one whose inode is not.
            (
                vec![held(1, 5, 0b1), held(1, DELETED, 0b10)],
                vec![chunk(64, 0b11)],
                vec![(vec![5], true, 100)],
            ),
            (
                vec![held(1, 5, 0b1), held(1, DELETED, 0b10)],
                vec![chunk(64, 0b1)],
                vec![(vec![5], false, 100)],
            ),
            // A chunk that starts inside a window: 96 to 159.
            (
                vec![held(1, 4, 0b1), held(1, 5, 1 << 32), held(2, 6, 1 << 31), held(2, 7, 1 << 32)],
                vec![chunk(96, 1 << 63 | 1)],
                vec![(vec![5, 6], false, 100)],
            ),
            // A chunk of other files in between.
            (
                vec![held(1, 5, 0b1), held(3, 5, 0b1)],
                vec![chunk(64, 0b1), chunk(128, 0b1), chunk(192, 0b1)],
                vec![(vec![5], false, 200)],
            ),
        ];
        for (holdings, allocated, expected) in cases {
            assert_eq!(group(&holdings, Some(&allocated)), expected, "{holdings:?} {allocated:?}");
        }
    }

    #[test]
    fn table_without_allocated_inodes() {
        let cases = [
            (vec![held(1, 5, 0b1), held(2, 5, 0b1)], vec![(vec![5], false, 200)]),
            (vec![held(1, 5, 0b1), held(1, 7, 0b10)], vec![(vec![5, 7], false, 100)]),
            (vec![held(1, 5, 0b1), held(1, OUTSIDE, 0b1)], vec![(vec![5], true, 100)]),
            (vec![held(1, 5, 0b1), held(1, DELETED, 0b10)], vec![(vec![5], false, 100)]),
        ];
        for (holdings, expected) in cases {
            assert_eq!(group(&holdings, None), expected, "{holdings:?}");
        }
    }
}
