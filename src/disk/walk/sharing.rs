//! Finds the units that share extents, by a sweep over the references from files to the disk. Pure.
//!
//! Between two neighbouring starts or ends of references, the same files refer to the disk. Example: a reference of
//! unit 1 to bytes 0 to 10 and one of unit 2 to bytes 5 to 15 give three stretches: 0 to 5 (unit 1), 5 to 10 (both)
//! and 10 to 15 (unit 2). The filesystem reports all of them as shared, so a file outside shares the first and
//! third.

use std::collections::{BTreeMap, HashMap};

use super::types::SharedExtents;

/// Reference of a file to a stretch of the disk that the filesystem reports as shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Position on the disk, in bytes.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Unit of the file; `None` for an inode that belongs to several units or to none.
    pub unit: Option<u32>,
    /// Compressed: `length` is the length in the file, not on the disk.
    pub encoded: bool,
}

/// Number of references to a stretch, by unit.
type Holders = BTreeMap<Option<u32>, u64>;

/// Groups by sharing units, ascending, and by whether a file outside shares too.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<(Vec<usize>, bool), SharingGroup>);

#[derive(Debug, Default)]
struct SharingGroup {
    counted: BTreeMap<usize, u64>,
    physical: u64,
}

impl Groups {
    pub fn add(&mut self, references: Vec<Reference>) {
        let references = references.into_iter().filter(|reference| reference.length > 0);
        let (encoded, plain): (Vec<_>, Vec<_>) = references.partition(|reference| reference.encoded);
        self.sweep(plain);
        self.add_encoded(encoded);
    }

    pub fn into_shared(self) -> Vec<SharedExtents> {
        self.0
            .into_iter()
            .map(|((_, outside), group)| SharedExtents {
                counted: group.counted.into_iter().collect(),
                outside,
                physical_bytes: group.physical,
            })
            .collect()
    }

    /// Adds the stretches of uncompressed references.
    fn sweep(&mut self, mut begins: Vec<Reference>) {
        begins.sort_unstable_by_key(|reference| reference.start);
        let mut ends: Vec<(u64, Option<u32>)> =
            begins.iter().map(|begin| (begin.start.saturating_add(begin.length), begin.unit)).collect();
        ends.sort_unstable();
        let mut holders = Holders::new();
        let mut begins = begins.into_iter().peekable();
        let mut ends = ends.into_iter().peekable();
        let mut from = 0;
        // Every begin is followed by its end, so the ends are exhausted last.
        while let Some(&(end, _)) = ends.peek() {
            let here = begins.peek().map_or(end, |reference| reference.start.min(end));
            self.stretch(&holders, here - from);
            from = here;
            while let Some((_, unit)) = ends.next_if(|&(end, _)| end == here) {
                release(&mut holders, unit);
            }
            while let Some(reference) = begins.next_if(|reference| reference.start == here) {
                *holders.entry(reference.unit).or_default() += 1;
            }
        }
    }

    /// Adds compressed references. Their length on the disk is unknown: only equal ones are shared.
    fn add_encoded(&mut self, references: Vec<Reference>) {
        let mut stretches: HashMap<(u64, u64), Holders> = HashMap::new();
        for reference in references {
            let holders = stretches.entry((reference.start, reference.length)).or_default();
            *holders.entry(reference.unit).or_default() += 1;
        }
        for ((_, length), holders) in stretches {
            self.stretch(&holders, length);
        }
    }

    fn stretch(&mut self, holders: &Holders, length: u64) {
        if length == 0 {
            return;
        }
        let units: Vec<usize> = holders.keys().flatten().map(|&unit| unit as usize).collect();
        if units.is_empty() {
            return;
        }
        let references: u64 = holders.values().sum();
        let outside = references < 2 || holders.contains_key(&None);
        let group = self.0.entry((units, outside)).or_default();
        group.physical += length;
        for (unit, count) in holders {
            if let Some(unit) = unit {
                *group.counted.entry(*unit as usize).or_default() += count * length;
            }
        }
    }
}

fn release(holders: &mut Holders, unit: Option<u32>) {
    if let Some(count) = holders.get_mut(&unit) {
        *count -= 1;
        if *count == 0 {
            holders.remove(&unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference(start: u64, length: u64, unit: u32) -> Reference {
        Reference { start, length, unit: Some(unit), encoded: false }
    }

    fn shared(counted: &[(usize, u64)], outside: bool, physical_bytes: u64) -> SharedExtents {
        SharedExtents { counted: counted.to_vec(), outside, physical_bytes }
    }

    fn group(references: Vec<Reference>) -> Vec<SharedExtents> {
        let mut groups = Groups::default();
        groups.add(references);
        groups.into_shared()
    }

    #[test]
    fn table() {
        fn encoded(start: u64, unit: u32) -> Reference {
            Reference { encoded: true, ..reference(start, 100, unit) }
        }
        let outside = Reference { unit: None, ..reference(0, 10, 0) };
        let cases = [
            (vec![], vec![]),
            (vec![reference(0, 10, 1), reference(0, 10, 2)], vec![shared(&[(1, 10), (2, 10)], false, 10)]),
            (vec![reference(0, 10, 1), reference(0, 10, 1)], vec![shared(&[(1, 20)], false, 10)]),
            // The other reference was not seen.
            (vec![reference(0, 10, 1)], vec![shared(&[(1, 10)], true, 10)]),
            (
                vec![reference(0, 10, 1), reference(5, 10, 2)],
                vec![
                    shared(&[(1, 5)], true, 5),
                    shared(&[(1, 5), (2, 5)], false, 5),
                    shared(&[(2, 5)], true, 5),
                ],
            ),
            // Adjacent stretches are not shared.
            (
                vec![reference(0, 10, 1), reference(10, 10, 2)],
                vec![shared(&[(1, 10)], true, 10), shared(&[(2, 10)], true, 10)],
            ),
            // An inode of several units refers to the stretch too.
            (vec![reference(0, 10, 1), outside], vec![shared(&[(1, 10)], true, 10)]),
            (vec![outside, outside], vec![]),
            // Compressed: overlaps mean nothing, equal stretches are shared.
            (
                vec![encoded(0, 1), encoded(0, 2), encoded(50, 3), encoded(50, 4)],
                vec![shared(&[(1, 100), (2, 100)], false, 100), shared(&[(3, 100), (4, 100)], false, 100)],
            ),
        ];
        for (references, expected) in cases {
            assert_eq!(group(references.clone()), expected, "{references:?}");
        }
    }

    /// Counts byte by byte.
    fn naive(references: &[Reference]) -> Vec<SharedExtents> {
        let mut groups: BTreeMap<(Vec<usize>, bool), SharingGroup> = BTreeMap::new();
        for byte in 0..100 {
            let here: Vec<usize> = references
                .iter()
                .filter(|reference| (reference.start..reference.start + reference.length).contains(&byte))
                .filter_map(|reference| reference.unit.map(|unit| unit as usize))
                .collect();
            let mut units = here.clone();
            units.sort_unstable();
            units.dedup();
            if units.is_empty() {
                continue;
            }
            let group = groups.entry((units, here.len() < 2)).or_default();
            group.physical += 1;
            for unit in here {
                *group.counted.entry(unit).or_default() += 1;
            }
        }
        groups
            .into_iter()
            .map(|((_, outside), group)| SharedExtents {
                counted: group.counted.into_iter().collect(),
                outside,
                physical_bytes: group.physical,
            })
            .collect()
    }

    proptest! {
        #[test]
        fn agrees_with_counting_each_byte(
            references in proptest::collection::vec((0..60_u64, 0..40_u64, 0..4_u32), 0..20)
        ) {
            let references: Vec<Reference> = references
                .into_iter()
                .map(|(start, length, unit)| reference(start, length, unit))
                .collect();
            let expected = naive(&references);
            prop_assert_eq!(group(references), expected);
        }
    }
}
