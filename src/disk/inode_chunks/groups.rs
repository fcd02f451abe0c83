//! Which units a chunk waits for. Pure.

use std::collections::BTreeMap;

use super::notes::Note;
use crate::sys::xfs::inumbers::{INODES_PER_CHUNK, InodeChunk};

/// Inode chunks that the same units hold: XFS gives one back when all its inodes are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeChunks {
    /// The units with an inode in each of these chunks, ascending.
    pub units: Vec<usize>,
    /// Each of them holds inodes of somebody outside the units too.
    pub outside: bool,
    /// What comes back when all these chunks are free.
    pub bytes: u64,
}

/// Bytes by who holds them.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<(Vec<usize>, bool), u64>);

impl Groups {
    /// Adds the chunks of one filesystem, of `bytes` each. `notes` are sorted by window
    /// and unit. Without `allocated` (ascending), what was noted is all, and windows are
    /// chunks.
    pub fn add(
        &mut self,
        notes: &[Note],
        allocated: Option<&[InodeChunk]>,
        bytes: u64,
        alive: &dyn Fn(usize) -> bool,
    ) {
        match allocated {
            Some(chunks) => {
                for chunk in chunks {
                    self.chunk(notes, *chunk, bytes, alive);
                }
            }
            None => {
                for window in notes.chunk_by(|a, b| a.window == b.window) {
                    let mut holders = Holders::new(alive);
                    window.iter().for_each(|note| holders.see(note.unit, note.inodes));
                    // Whoever is gone took its inodes along, as far as we know.
                    holders.outside = window.iter().any(|note| note.unit.is_none());
                    self.give(holders, bytes);
                }
            }
        }
    }

    fn chunk(&mut self, notes: &[Note], chunk: InodeChunk, bytes: u64, alive: &dyn Fn(usize) -> bool) {
        let first = chunk.start / INODES_PER_CHUNK;
        let shift = chunk.start % INODES_PER_CHUNK;
        let from = notes.partition_point(|note| note.window < first);
        let mut holders = Holders::new(alive);
        for note in notes[from..].iter().take_while(|note| note.window <= first + 1) {
            let here = match (note.window == first, shift) {
                (true, _) => note.inodes >> shift,
                (false, 0) => break,
                (false, _) => note.inodes << (INODES_PER_CHUNK - shift),
            };
            holders.see(note.unit, here & chunk.allocated);
        }
        holders.outside |= chunk.allocated & !holders.seen != 0;
        self.give(holders, bytes);
    }

    fn give(&mut self, holders: Holders<'_>, bytes: u64) {
        let Holders { mut units, outside, .. } = holders;
        if units.is_empty() || bytes == 0 {
            return;
        }
        units.sort_unstable();
        units.dedup();
        *self.0.entry((units, outside)).or_default() += bytes;
    }

    /// The result, ascending by units.
    pub fn into_chunks(self) -> Vec<InodeChunks> {
        let chunks = self.0.into_iter();
        chunks.map(|((units, outside), bytes)| InodeChunks { units, outside, bytes }).collect()
    }
}

/// Who holds one chunk.
struct Holders<'a> {
    alive: &'a dyn Fn(usize) -> bool,
    units: Vec<usize>,
    seen: u64,
    outside: bool,
}

impl<'a> Holders<'a> {
    fn new(alive: &'a dyn Fn(usize) -> bool) -> Self {
        Self { alive, units: Vec::new(), seen: 0, outside: false }
    }

    fn see(&mut self, unit: Option<u32>, inodes: u64) {
        if inodes == 0 {
            return;
        }
        match unit {
            None => self.outside = true,
            Some(unit) if (self.alive)(unit as usize) => {
                self.units.push(unit as usize);
                self.seen |= inodes;
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(window: u64, unit: u32, inodes: u64) -> Note {
        Note { filesystem: 0, window, unit: (unit != NOBODY).then_some(unit), inodes }
    }

    const NOBODY: u32 = u32::MAX;
    /// A unit that is gone.
    const GONE: u32 = 99;

    fn chunk(start: u64, allocated: u64) -> InodeChunk {
        InodeChunk { start, allocated }
    }

    fn group(notes: &[Note], allocated: Option<&[InodeChunk]>) -> Vec<(Vec<usize>, bool, u64)> {
        let mut groups = Groups::default();
        let notes = super::super::notes::merged(notes.to_vec());
        groups.add(&notes, allocated, 100, &|unit| unit != GONE as usize);
        groups.into_chunks().into_iter().map(|one| (one.units, one.outside, one.bytes)).collect()
    }

    #[test]
    fn table_when_the_filesystem_tells() {
        let cases = [
            // Alone in two chunks; they are one group.
            (
                vec![note(1, 5, 0b11), note(2, 5, 0b1)],
                vec![chunk(64, 0b11), chunk(128, 0b1)],
                vec![(vec![5], false, 200)],
            ),
            // Two units in a chunk.
            (vec![note(1, 7, 0b10), note(1, 5, 0b1)], vec![chunk(64, 0b11)], vec![(vec![5, 7], false, 100)]),
            // An inode with links in both of them, and nothing else.
            (vec![note(1, 7, 0b1), note(1, 5, 0b1)], vec![chunk(64, 0b1)], vec![(vec![5, 7], false, 100)]),
            // Somebody holds an inode that was not seen.
            (vec![note(1, 5, 0b1)], vec![chunk(64, 0b101)], vec![(vec![5], true, 100)]),
            // Somebody holds a link of an inode that was seen.
            (
                vec![note(1, 5, 0b11), note(1, NOBODY, 0b10)],
                vec![chunk(64, 0b11)],
                vec![(vec![5], true, 100)],
            ),
            // Gone since it was seen: that inode, or the whole chunk.
            (vec![note(1, 5, 0b1), note(1, 7, 0b10)], vec![chunk(64, 0b10)], vec![(vec![7], false, 100)]),
            (vec![note(1, 5, 0b1)], vec![], vec![]),
            // A unit that is gone, but its inodes are not yet, and one that took them along.
            (vec![note(1, 5, 0b1), note(1, GONE, 0b10)], vec![chunk(64, 0b11)], vec![(vec![5], true, 100)]),
            (vec![note(1, 5, 0b1), note(1, GONE, 0b10)], vec![chunk(64, 0b1)], vec![(vec![5], false, 100)]),
            // A chunk that starts inside a window: 96 to 159.
            (
                vec![note(1, 4, 0b1), note(1, 5, 1 << 32), note(2, 6, 1 << 31), note(2, 7, 1 << 32)],
                vec![chunk(96, 1 << 63 | 1)],
                vec![(vec![5, 6], false, 100)],
            ),
            // A chunk of others, in between.
            (
                vec![note(1, 5, 0b1), note(3, 5, 0b1)],
                vec![chunk(64, 0b1), chunk(128, 0b1), chunk(192, 0b1)],
                vec![(vec![5], false, 200)],
            ),
        ];
        for (notes, allocated, expected) in cases {
            assert_eq!(group(&notes, Some(&allocated)), expected, "{notes:?} {allocated:?}");
        }
    }

    #[test]
    fn table_when_it_does_not() {
        let cases = [
            (vec![note(1, 5, 0b1), note(2, 5, 0b1)], vec![(vec![5], false, 200)]),
            (vec![note(1, 5, 0b1), note(1, 7, 0b10)], vec![(vec![5, 7], false, 100)]),
            (vec![note(1, 5, 0b1), note(1, NOBODY, 0b1)], vec![(vec![5], true, 100)]),
            (vec![note(1, 5, 0b1), note(1, GONE, 0b10)], vec![(vec![5], false, 100)]),
        ];
        for (notes, expected) in cases {
            assert_eq!(group(&notes, None), expected, "{notes:?}");
        }
    }
}
