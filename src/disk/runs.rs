//! Stretches of a disk that the files of a unit refer to. Pure.
//!
//! XFS shares and frees single blocks. btrfs shares and frees extents: one extent has the same run in each file that
//! refers to any part of it, and may be smaller on the disk (compressed) or larger than what the files use of it.

/// Stretch of a disk, with the references of one unit to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRun {
    /// Byte position on the filesystem.
    pub start: u64,
    /// Bytes on the disk, counted once.
    pub length: u64,
    /// Bytes that `st_blocks` counts for it in all files of the unit.
    pub counted: u64,
    /// Number of references: XFS counts each, btrfs one for each file.
    pub references: u32,
    /// Right after the measurement: the filesystem says that there is another reference. In a kept run: there was one
    /// from outside the trees.
    pub shared: bool,
}

/// Runs of a unit on one filesystem, sorted and disjoint, as encoded by [`RunEncoder`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRuns {
    /// Key of the filesystem: its device number in the mount table.
    pub filesystem: u64,
    pub bytes: Box<[u8]>,
}

impl DiskRun {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.length)
    }

    fn is_plain(&self) -> bool {
        Some(self.counted) == self.length.checked_mul(u64::from(self.references))
    }

    /// Returns the part of `counted` for `length` bytes of the run.
    pub fn counted_in(&self, length: u64) -> u64 {
        if length == self.length {
            return self.counted;
        }
        let part = u128::from(self.counted) * u128::from(length) / u128::from(self.length.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// Appends `next` if the two differ in their position only. Returns false otherwise.
    fn join(&mut self, next: &Self) -> bool {
        let is_same = self.end() == next.start
            && (self.references, self.shared) == (next.references, next.shared)
            && self.is_plain()
            && next.is_plain();
        if is_same {
            self.length += next.length;
            self.counted = self.counted.saturating_add(next.counted);
        }
        is_same
    }
}

/// Sorts the runs of one unit on one filesystem and makes them disjoint.
#[must_use]
pub fn merged(mut runs: Vec<DiskRun>) -> Vec<DiskRun> {
    runs.retain(|run| run.length > 0);
    runs.sort_unstable_by_key(|run| (run.start, run.length));
    runs.dedup_by(|next, kept| {
        let is_same = (next.start, next.length) == (kept.start, kept.length);
        if is_same {
            kept.counted = kept.counted.saturating_add(next.counted);
            kept.references = kept.references.saturating_add(next.references);
            kept.shared |= next.shared;
        }
        is_same
    });
    if !runs.is_sorted_by(|run, next| run.end() <= next.start) {
        runs = divided(&runs);
    }
    runs.dedup_by(|next, kept| kept.join(next));
    runs.shrink_to_fit();
    runs
}

/// Divides overlapping runs, sorted by their start, where one of them begins or ends.
fn divided(runs: &[DiskRun]) -> Vec<DiskRun> {
    let mut ends: Vec<&DiskRun> = runs.iter().collect();
    ends.sort_unstable_by_key(|run| run.end());
    let mut begins = runs.iter().peekable();
    let mut ends = ends.into_iter().peekable();
    let (mut references, mut sharing, mut from) = (0_u32, 0_u32, 0);
    let mut stretches = Vec::with_capacity(runs.len());
    // Every begin is followed by its end, so the ends are exhausted last.
    while let Some(end) = ends.peek().map(|run| run.end()) {
        let here = begins.peek().map_or(end, |run| run.start.min(end));
        if here > from && references > 0 {
            let length = here - from;
            let counted = length.saturating_mul(u64::from(references));
            stretches.push(DiskRun { start: from, length, counted, references, shared: sharing > 0 });
        }
        from = here;
        while let Some(run) = ends.next_if(|run| run.end() == here) {
            references = references.saturating_sub(run.references);
            sharing -= u32::from(run.shared);
        }
        while let Some(run) = begins.next_if(|run| run.start == here) {
            references = references.saturating_add(run.references);
            sharing += u32::from(run.shared);
        }
    }
    stretches
}

/// Encodes runs in ascending order: for each the gap after the previous one, the length, and twice the number of
/// references plus one if it is shared; all as LEB128. A run that is not plain has its `counted` last, after a 0 in place
/// of the number of references.
#[derive(Debug, Default)]
pub struct RunEncoder {
    bytes: Vec<u8>,
    end: u64,
    pending: Option<DiskRun>,
}

impl RunEncoder {
    pub fn push(&mut self, run: DiskRun) {
        if self.pending.as_mut().is_some_and(|pending| pending.join(&run)) {
            return;
        }
        if let Some(done) = self.pending.replace(run) {
            self.write(&done);
        }
    }

    #[must_use]
    pub fn finish(mut self) -> Box<[u8]> {
        if let Some(done) = self.pending.take() {
            self.write(&done);
        }
        self.bytes.into()
    }

    fn write(&mut self, run: &DiskRun) {
        put(&mut self.bytes, run.start.saturating_sub(self.end));
        put(&mut self.bytes, run.length);
        let flags = u64::from(run.references) << 1 | u64::from(run.shared);
        if run.is_plain() {
            put(&mut self.bytes, flags);
        } else {
            put(&mut self.bytes, 0);
            put(&mut self.bytes, flags);
            put(&mut self.bytes, run.counted);
        }
        self.end = run.end();
    }
}

#[must_use]
pub fn encode(runs: Vec<DiskRun>) -> Box<[u8]> {
    let mut encoder = RunEncoder::default();
    runs.into_iter().for_each(|run| encoder.push(run));
    encoder.finish()
}

/// Decodes the result of [`encode`]; ends at the first bytes that do not make sense.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    bytes: &'a [u8],
    end: u64,
}

impl<'a> Runs<'a> {
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, end: 0 }
    }
}

impl Iterator for Runs<'_> {
    type Item = DiskRun;

    fn next(&mut self) -> Option<DiskRun> {
        let bytes = &mut self.bytes;
        let start = self.end.checked_add(take(bytes)?)?;
        let length = take(bytes)?;
        self.end = start.checked_add(length)?;
        let first = take(bytes)?;
        let flags = if first == 0 { take(bytes)? } else { first };
        let references = u32::try_from(flags >> 1).ok()?;
        let plain = length.saturating_mul(u64::from(references));
        let counted = if first == 0 { take(bytes)? } else { plain };
        Some(DiskRun { start, length, counted, references, shared: flags & 1 != 0 })
    }
}

pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

pub(super) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(start: u64, length: u64) -> DiskRun {
        DiskRun { start, length, counted: length, references: 1, shared: false }
    }

    fn twice(run: DiskRun) -> DiskRun {
        DiskRun { counted: 2 * run.counted, references: 2, ..run }
    }

    #[test]
    fn table_of_merges() {
        let shared = DiskRun { shared: true, ..run(0, 10) };
        let packed = DiskRun { counted: 100, ..run(0, 10) };
        let cases = [
            (vec![], vec![]),
            (vec![run(10, 10), run(0, 10)], vec![run(0, 20)]),
            (vec![run(0, 10), run(20, 10)], vec![run(0, 10), run(20, 10)]),
            (vec![run(0, 10), run(0, 10)], vec![twice(run(0, 10))]),
            (vec![run(0, 10), run(5, 10)], vec![run(0, 5), twice(run(5, 5)), run(10, 5)]),
            (vec![shared, run(10, 10)], vec![shared, run(10, 10)]),
            (vec![packed, packed], vec![DiskRun { counted: 200, references: 2, ..packed }]),
            // Two compressed extents stay two: another unit may refer to one of them only.
            (vec![packed, DiskRun { start: 10, ..packed }], vec![packed, DiskRun { start: 10, ..packed }]),
        ];
        for (runs, expected) in cases {
            assert_eq!(merged(runs.clone()), expected, "{runs:?}");
        }
    }

    #[test]
    fn damaged_bytes_end_the_runs() {
        let bytes = encode(vec![run(5, 10), DiskRun { counted: 7, shared: true, ..run(300, 1 << 40) }]);
        assert_eq!(Runs::of(&bytes).count(), 2);
        for length in 0..bytes.len() {
            assert!(Runs::of(&bytes[..length]).count() < 2, "cut after {length}");
        }
        assert_eq!(Runs::of(&[0xff; 40]).count(), 0);
    }

    proptest! {
        #[test]
        fn merged_runs_cover_the_same_bytes_and_survive_encoding(
            runs in proptest::collection::vec((0..60_u64, 0..20_u64, any::<bool>()), 0..20)
        ) {
            let runs: Vec<DiskRun> =
                runs.into_iter().map(|(start, length, shared)| DiskRun { shared, ..run(start, length) }).collect();
            let merged = merged(runs.clone());
            for byte in 0..100 {
                fn covers(run: &&DiskRun, byte: u64) -> bool {
                    (run.start..run.end()).contains(&byte)
                }
                let here: Vec<_> = runs.iter().filter(|run| covers(run, byte)).collect();
                let found: Vec<_> = merged.iter().filter(|run| covers(run, byte)).collect();
                prop_assert!(found.len() == usize::from(!here.is_empty()));
                prop_assert_eq!(found.iter().map(|run| run.references as usize).sum::<usize>(), here.len());
                prop_assert_eq!(found.iter().any(|run| run.shared), here.iter().any(|run| run.shared));
            }
            prop_assert_eq!(Runs::of(&encode(merged.clone())).collect::<Vec<_>>(), merged);
        }
    }
}
