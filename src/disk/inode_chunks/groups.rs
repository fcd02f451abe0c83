//! Groups inode chunks by the units that hold their inodes. Pure.

use std::collections::BTreeMap;

use super::holding::Holding;
use crate::sys::xfs::inumbers::{INODES_PER_CHUNK, InodeChunk};

/// Inode chunks that the same holders have inodes in: XFS frees one when all its inodes are
/// free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkGroup<H> {
    /// Those with an inode in each of these chunks, ascending.
    pub holders: Vec<H>,
    /// Each of them holds inodes of somebody else too.
    pub outside: bool,
    /// What is freed when all these chunks are free.
    pub bytes: u64,
}

/// Bytes by holders, and whether somebody else holds inodes too.
pub(super) type Groups<H> = BTreeMap<(Vec<H>, bool), u64>;

/// Adds the chunks of one filesystem, of `bytes` each. `holdings` are sorted. Without
/// `allocated` (ascending), what is held is all, and windows are chunks.
pub(super) fn add<H: Ord + Copy>(
    groups: &mut Groups<H>,
    holdings: &[Holding],
    allocated: Option<&[InodeChunk]>,
    bytes: u64,
    holder: &dyn Fn(usize) -> Option<H>,
) {
    let mut add = |held: &mut dyn Iterator<Item = (Option<u32>, u64)>, allocated: Option<u64>| {
        let (mut holders, mut seen, mut outside) = (Vec::new(), 0, false);
        for (unit, inodes) in held.filter(|(_, inodes)| *inodes != 0) {
            match unit.map(|unit| holder(unit as usize)) {
                None => outside = true,
                Some(Some(holder)) => {
                    holders.push(holder);
                    seen |= inodes;
                }
                // Gone: so are its inodes, unless they are allocated still.
                Some(None) => {}
            }
        }
        outside |= allocated.is_some_and(|allocated| allocated & !seen != 0);
        if !holders.is_empty() && bytes != 0 {
            holders.sort_unstable();
            holders.dedup();
            *groups.entry((holders, outside)).or_default() += bytes;
        }
    };
    let Some(chunks) = allocated else {
        for window in holdings.chunk_by(|a, b| a.window == b.window) {
            add(&mut window.iter().map(|one| (one.unit, one.inodes)), None);
        }
        return;
    };
    for chunk in chunks {
        // A chunk may start inside a window.
        let (first, shift) = (chunk.start / INODES_PER_CHUNK, chunk.start % INODES_PER_CHUNK);
        let from = holdings.partition_point(|one| one.window < first);
        let mut held = holdings[from..].iter().take_while(|one| one.window <= first + 1).map(|one| {
            let inodes = match (one.window == first, shift) {
                (true, _) => one.inodes >> shift,
                (false, 0) => 0,
                (false, _) => one.inodes << (INODES_PER_CHUNK - shift),
            };
            (one.unit, inodes & chunk.allocated)
        });
        add(&mut held, Some(chunk.allocated));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(window: u64, unit: u32, inodes: u64) -> Holding {
        Holding { device: 0, window, unit: (unit != NOBODY).then_some(unit), inodes }
    }

    const NOBODY: u32 = u32::MAX;
    /// A unit that is gone.
    const GONE: u32 = 99;

    fn chunk(start: u64, allocated: u64) -> InodeChunk {
        InodeChunk { start, allocated }
    }

    fn group(holdings: &[Holding], allocated: Option<&[InodeChunk]>) -> Vec<(Vec<usize>, bool, u64)> {
        let mut groups = Groups::default();
        let holdings = super::super::merged(holdings.to_vec());
        let holder = |unit| (unit != GONE as usize).then_some(unit);
        add(&mut groups, &holdings, allocated, 100, &holder);
        groups.into_iter().map(|((units, outside), bytes)| (units, outside, bytes)).collect()
    }

    #[test]
    fn table_when_the_filesystem_tells() {
        let cases = [
            // Alone in two chunks; they are one group.
            (
                vec![held(1, 5, 0b11), held(2, 5, 0b1)],
                vec![chunk(64, 0b11), chunk(128, 0b1)],
                vec![(vec![5], false, 200)],
            ),
            // Two units in a chunk.
            (vec![held(1, 7, 0b10), held(1, 5, 0b1)], vec![chunk(64, 0b11)], vec![(vec![5, 7], false, 100)]),
            // An inode with links in both of them, and nothing else.
            (vec![held(1, 7, 0b1), held(1, 5, 0b1)], vec![chunk(64, 0b1)], vec![(vec![5, 7], false, 100)]),
            // Somebody holds an inode that was not seen.
            (vec![held(1, 5, 0b1)], vec![chunk(64, 0b101)], vec![(vec![5], true, 100)]),
            // Somebody holds a link of an inode that was seen.
            (
                vec![held(1, 5, 0b11), held(1, NOBODY, 0b10)],
                vec![chunk(64, 0b11)],
                vec![(vec![5], true, 100)],
            ),
            // Gone since it was seen: that inode, or the whole chunk.
            (vec![held(1, 5, 0b1), held(1, 7, 0b10)], vec![chunk(64, 0b10)], vec![(vec![7], false, 100)]),
            (vec![held(1, 5, 0b1)], vec![], vec![]),
            // A unit that is gone, but its inodes are not yet, and one that took them along.
            (vec![held(1, 5, 0b1), held(1, GONE, 0b10)], vec![chunk(64, 0b11)], vec![(vec![5], true, 100)]),
            (vec![held(1, 5, 0b1), held(1, GONE, 0b10)], vec![chunk(64, 0b1)], vec![(vec![5], false, 100)]),
            // A chunk that starts inside a window: 96 to 159.
            (
                vec![held(1, 4, 0b1), held(1, 5, 1 << 32), held(2, 6, 1 << 31), held(2, 7, 1 << 32)],
                vec![chunk(96, 1 << 63 | 1)],
                vec![(vec![5, 6], false, 100)],
            ),
            // A chunk of others, in between.
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
    fn table_when_it_does_not() {
        let cases = [
            (vec![held(1, 5, 0b1), held(2, 5, 0b1)], vec![(vec![5], false, 200)]),
            (vec![held(1, 5, 0b1), held(1, 7, 0b10)], vec![(vec![5, 7], false, 100)]),
            (vec![held(1, 5, 0b1), held(1, NOBODY, 0b1)], vec![(vec![5], true, 100)]),
            (vec![held(1, 5, 0b1), held(1, GONE, 0b10)], vec![(vec![5], false, 100)]),
        ];
        for (holdings, expected) in cases {
            assert_eq!(group(&holdings, None), expected, "{holdings:?}");
        }
    }
}
