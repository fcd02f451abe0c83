//! Finds which units share which extents: a sweep over the references of files to the
//! disk. Pure.

use std::collections::{BTreeMap, HashMap};

use super::types::SharedExtents;

/// A file's reference to a stretch of the disk that the filesystem calls shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Byte position on the disk.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Whose file it is; `None` for an inode that is itself no unit's own.
    pub unit: Option<u32>,
    /// Compressed: `length` is the file's, and says nothing of the room at `start`.
    pub encoded: bool,
}

/// The units that hold a stretch, ascending, each with how many references.
type Holders = BTreeMap<Option<u32>, u64>;

/// Groups by sharing units, ascending, and by whether somebody outside shares too.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<(Vec<usize>, bool), SharingGroup>);

#[derive(Debug, Default)]
struct SharingGroup {
    counted: BTreeMap<usize, u64>,
    physical: u64,
}

impl Groups {
    /// Adds the references to one filesystem.
    pub fn add(&mut self, references: Vec<Reference>) {
        let (encoded, plain): (Vec<_>, Vec<_>) =
            references.into_iter().filter(|one| one.length > 0).partition(|one| one.encoded);
        self.sweep(plain);
        self.add_encoded(encoded);
    }

    /// The result, sorted.
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

    /// Goes along the disk; between two neighbouring starts or ends the holders are the
    /// same.
    fn sweep(&mut self, mut begins: Vec<Reference>) {
        begins.sort_unstable_by_key(|one| one.start);
        let mut ends: Vec<(u64, Option<u32>)> =
            begins.iter().map(|one| (one.start.saturating_add(one.length), one.unit)).collect();
        ends.sort_unstable();
        let mut holders = Holders::new();
        let mut begins = begins.into_iter().peekable();
        let mut ends = ends.into_iter().peekable();
        let mut from = 0;
        // Every begin has its end behind it, so the ends run out last.
        while let Some(&(end, _)) = ends.peek() {
            let here = begins.peek().map_or(end, |one| one.start.min(end));
            self.stretch(&holders, here - from);
            from = here;
            while let Some((_, unit)) = ends.next_if(|&(end, _)| end == here) {
                release(&mut holders, unit);
            }
            while let Some(one) = begins.next_if(|one| one.start == here) {
                *holders.entry(one.unit).or_default() += 1;
            }
        }
    }

    /// Compressed stretches have no known length on the disk; equal ones are the same.
    fn add_encoded(&mut self, references: Vec<Reference>) {
        let mut stretches: HashMap<(u64, u64), Holders> = HashMap::new();
        for one in references {
            let holders = stretches.entry((one.start, one.length)).or_default();
            *holders.entry(one.unit).or_default() += 1;
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
        let nobody = Reference { unit: None, ..reference(0, 10, 0) };
        let encoded = |start, unit| Reference { encoded: true, ..reference(start, 100, unit) };
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
            // Touching is not sharing.
            (
                vec![reference(0, 10, 1), reference(10, 10, 2)],
                vec![shared(&[(1, 10)], true, 10), shared(&[(2, 10)], true, 10)],
            ),
            // An inode of several units keeps the stretch.
            (vec![reference(0, 10, 1), nobody], vec![shared(&[(1, 10)], true, 10)]),
            (vec![nobody, nobody], vec![]),
            // Compressed: overlapping lengths say nothing, equal starts do.
            (
                vec![encoded(0, 1), encoded(0, 2), encoded(50, 3), encoded(50, 4)],
                vec![shared(&[(1, 100), (2, 100)], false, 100), shared(&[(3, 100), (4, 100)], false, 100)],
            ),
        ];
        for (references, expected) in cases {
            assert_eq!(group(references.clone()), expected, "{references:?}");
        }
    }

    /// Byte for byte.
    fn naive(references: &[Reference]) -> Vec<SharedExtents> {
        let mut groups: BTreeMap<(Vec<usize>, bool), SharingGroup> = BTreeMap::new();
        for byte in 0..100 {
            let here: Vec<usize> = references
                .iter()
                .filter(|one| (one.start..one.start + one.length).contains(&byte))
                .filter_map(|one| one.unit.map(|unit| unit as usize))
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
