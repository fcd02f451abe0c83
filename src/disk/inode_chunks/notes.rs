//! What the threads of a walk write down about inodes. Pure.

use crate::sys::xfs::inumbers::INODES_PER_CHUNK;

/// Number of one XFS among those that a walk meets.
pub type FsNumber = u32;

/// Notes of one thread before equal windows are merged for the first time: 64 KiB.
const FIRST_MERGE: usize = 2048;

/// Inodes of one window that one unit holds. A window is 64 inodes from a multiple of 64
/// on: on most filesystems the same as a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    pub filesystem: FsNumber,
    /// Number of the first inode, divided by 64.
    pub window: u64,
    /// `None` for somebody outside the trees.
    pub unit: Option<u32>,
    /// Bit n: the n-th inode.
    pub inodes: u64,
}

/// The notes of one thread. An inode with several links is noted once for each unit that
/// holds one of them, however often it is seen.
#[derive(Debug)]
pub struct Notes {
    notes: Vec<Note>,
    merge_at: usize,
}

impl Default for Notes {
    fn default() -> Self {
        Self { notes: Vec::new(), merge_at: FIRST_MERGE }
    }
}

impl Notes {
    /// Notes an inode of `unit`; `None` for somebody outside the trees.
    #[inline]
    pub fn see(&mut self, filesystem: FsNumber, unit: Option<usize>, inode: u64) {
        // More than 2^32 units: they are somebody else then, which promises too little.
        let unit = unit.and_then(|unit| u32::try_from(unit).ok());
        let window = inode / INODES_PER_CHUNK;
        let inodes = 1 << (inode % INODES_PER_CHUNK);
        // Files of one directory mostly have inodes of one chunk.
        match self.notes.last_mut() {
            Some(last) if (last.filesystem, last.window, last.unit) == (filesystem, window, unit) => {
                last.inodes |= inodes;
            }
            _ => self.push(Note { filesystem, window, unit, inodes }),
        }
    }

    #[cold]
    fn push(&mut self, note: Note) {
        if self.notes.len() >= self.merge_at {
            self.notes = merged(std::mem::take(&mut self.notes));
            self.merge_at = FIRST_MERGE.max(2 * self.notes.len());
        }
        self.notes.push(note);
    }

    /// Adds another thread's notes.
    pub fn append(&mut self, other: Self) {
        self.notes.extend(other.notes);
        if self.notes.len() >= self.merge_at {
            self.notes = merged(std::mem::take(&mut self.notes));
            self.merge_at = FIRST_MERGE.max(2 * self.notes.len());
        }
    }

    /// By filesystem, window and unit, each once.
    pub fn into_sorted(self) -> Vec<Note> {
        merged(self.notes)
    }
}

/// Sorted by filesystem, window and unit, each once.
pub fn merged(mut notes: Vec<Note>) -> Vec<Note> {
    notes.sort_unstable();
    notes.dedup_by(|next, kept| {
        let same = (next.filesystem, next.window, next.unit) == (kept.filesystem, kept.window, kept.unit);
        if same {
            kept.inodes |= next.inodes;
        }
        same
    });
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_and_unit_once() {
        let mut notes = Notes::default();
        for inode in [64, 65, 200, 64, 127] {
            notes.see(0, Some(7), inode);
        }
        notes.see(0, Some(3), 65);
        notes.see(0, None, 66);
        notes.see(1, Some(7), 64);
        let note = |filesystem, window, unit, inodes| Note { filesystem, window, unit, inodes };
        let expected = [
            note(0, 1, None, 0b100),
            note(0, 1, Some(3), 0b10),
            note(0, 1, Some(7), 1 << 63 | 0b11),
            note(0, 3, Some(7), 1 << 8),
            note(1, 1, Some(7), 1),
        ];
        assert_eq!(notes.into_sorted(), expected);
    }

    #[test]
    fn memory_grows_with_windows_not_with_inodes() {
        let mut notes = Notes::default();
        for round in 0..100_000_u64 {
            notes.see(0, Some(1), (round * 64 + round % 64) % 64_000);
        }
        assert!(notes.notes.len() <= FIRST_MERGE.max(2000), "{}", notes.notes.len());
        let mut all = Notes::default();
        all.append(notes);
        let sorted = all.into_sorted();
        assert_eq!(sorted.len(), 1000);
        assert!(sorted.is_sorted());
    }
}
