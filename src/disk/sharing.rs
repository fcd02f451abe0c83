//! Finds the units that share extents, by a sweep over the runs of all units of a filesystem. Pure.
//!
//! Between two neighbouring starts or ends of runs, the same units refer to the disk. Example: a run of unit 1 at bytes
//! 0 to 10 and one of unit 2 at bytes 5 to 15 give three stretches: 0 to 5 (unit 1), 5 to 10 (both) and 10 to 15
//! (unit 2). If the filesystem reports all of them as shared, a file outside shares the first and third.
//!
//! Positions are compared, so the units may have been measured at different times, as long as no file's extents
//! have moved since. [`Probe`]s test that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::runs::{self, DiskRun, EncodedRuns, RunEncoder, Runs};

/// Extents that do not belong to a single file with the bytes that `st_blocks` counts, grouped by the units that refer
/// to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedExtents {
    /// Each unit, ascending, with the bytes of this group that `st_blocks` of its files counts in total: 2 ×
    /// `physical_bytes` for two copies.
    pub counted: Vec<(usize, u64)>,
    /// True if a file outside the trees shares the extents: the filesystem reports them as shared, but there is only one
    /// reference in the trees. Also true if an inode of several units has a reference, because that inode is not part
    /// of any unit's tally.
    pub outside: bool,
    /// Bytes that the extents use on the disk, counted once.
    pub physical_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct UnitRuns<'a> {
    /// `None` for inodes that belong to several units or to none.
    pub unit: Option<usize>,
    pub runs: &'a EncodedRuns,
    /// The runs are as the filesystem reports them now, and those to keep are wanted ([`Sharing::settled`]). Otherwise they
    /// were kept.
    pub is_fresh: bool,
}

/// Present state of a stretch of a sampled file, whose unit has kept runs.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub filesystem: u64,
    pub unit: usize,
    pub run: DiskRun,
}

#[derive(Debug, Default)]
pub struct Sharing {
    pub groups: Vec<SharedExtents>,
    /// Runs of the fresh units to keep: only what is shared with files outside is called shared.
    pub settled: HashMap<usize, Vec<EncodedRuns>>,
    pub differing: Vec<usize>,
}

/// Finds what the units share, and the probes that differ from their runs.
#[must_use]
pub fn find(units: &[UnitRuns<'_>], probes: Vec<Probe>) -> Sharing {
    let probes = disjoint(probes);
    let mut filesystems: Vec<u64> = units.iter().map(|unit| unit.runs.filesystem).collect();
    filesystems.sort_unstable();
    filesystems.dedup();
    let mut sharing = Sharing::default();
    let mut groups = Groups::default();
    for filesystem in filesystems {
        let here = units.iter().filter(|unit| unit.runs.filesystem == filesystem);
        let asked = probes.iter().filter(|probe| probe.filesystem == filesystem);
        let mut sweep = RunSweep::new(here.copied().collect(), asked.copied().collect());
        sweep.run(&mut groups);
        for (unit, encoder) in sweep.settled {
            let bytes = encoder.finish();
            sharing.settled.entry(unit).or_default().push(EncodedRuns { filesystem, bytes });
        }
        sharing
            .differing
            .extend(sweep.probes.iter().filter(|(_, left)| *left > 0).map(|(probe, _)| probe.unit));
    }
    sharing.groups = groups.into_shared();
    sharing
}

/// Groups by units and by whether a file outside shares too, with what each unit counts and what the disk holds.
#[derive(Debug, Default)]
struct Groups(HashMap<(Vec<usize>, bool), (Vec<u64>, u64)>);

impl Groups {
    fn into_shared(self) -> Vec<SharedExtents> {
        let mut shared: Vec<_> = self
            .0
            .into_iter()
            .map(|((units, outside), (counted, physical_bytes))| SharedExtents {
                counted: units.into_iter().zip(counted).collect(),
                outside,
                physical_bytes,
            })
            .collect();
        shared.sort_by_cached_key(|group| {
            (group.counted.iter().map(|(unit, _)| *unit).collect::<Vec<_>>(), group.outside)
        });
        shared
    }
}

#[derive(Clone, Copy, Debug)]
struct OpenRun {
    unit: Option<usize>,
    run: DiskRun,
    is_fresh: bool,
}

struct RunSweep<'a> {
    units: Vec<UnitRuns<'a>>,
    runs: Vec<Runs<'a>>,
    /// The next run of each unit, by its start and the unit's position.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    heads: Vec<Option<DiskRun>>,
    open: Vec<OpenRun>,
    /// Ascending, each with the bytes that have not been met in a run that agrees.
    probes: Vec<(Probe, u64)>,
    /// Positions of the probes that the sweep is inside, and of the first one after it.
    open_probes: Vec<usize>,
    next_probe: usize,
    settled: HashMap<usize, RunEncoder>,
}

impl<'a> RunSweep<'a> {
    fn new(mut units: Vec<UnitRuns<'a>>, probes: Vec<Probe>) -> Self {
        units.sort_unstable_by_key(|unit| unit.unit);
        let mut runs: Vec<_> = units.iter().map(|unit| Runs::of(&unit.runs.bytes)).collect();
        let heads: Vec<_> = runs.iter_mut().map(Iterator::next).collect();
        let next =
            heads.iter().enumerate().filter_map(|(position, run)| Some(Reverse(((*run)?.start, position))));
        Self {
            next: next.collect(),
            heads,
            runs,
            units,
            open: Vec::new(),
            probes: probes.into_iter().map(|probe| (probe, probe.run.length)).collect(),
            open_probes: Vec::new(),
            next_probe: 0,
            settled: HashMap::new(),
        }
    }

    fn run(&mut self, groups: &mut Groups) {
        let mut from = 0;
        loop {
            let start = self.next.peek().map(|Reverse((start, _))| *start);
            let end = self.open.iter().map(|open| open.run.end()).min();
            let Some(here) = [start, end].into_iter().flatten().min() else { return };
            if here > from && !self.open.is_empty() {
                self.stretch(from, here, groups);
            }
            from = here;
            self.open.retain(|open| open.run.end() > here);
            while let Some(position) = self.next.peek().filter(|head| head.0.0 <= here).map(|head| head.0.1) {
                self.next.pop();
                self.begin(position);
            }
        }
    }

    fn begin(&mut self, position: usize) {
        let UnitRuns { unit, is_fresh, .. } = self.units[position];
        if let Some(run) = self.heads[position].take().filter(|run| run.length > 0) {
            let place = self.open.partition_point(|open| open.unit < unit);
            self.open.insert(place, OpenRun { unit, run, is_fresh });
        }
        self.heads[position] = self.runs[position].next();
        if let Some(run) = self.heads[position] {
            self.next.push(Reverse((run.start, position)));
        }
    }

    fn stretch(&mut self, from: u64, to: u64, groups: &mut Groups) {
        let length = to - from;
        let references: u64 = self.open.iter().map(|open| u64::from(open.run.references)).sum();
        let is_outside = references == 1 && self.open.iter().any(|open| open.run.shared);
        self.compare(from, to, is_outside || references > 1);
        for open in self.open.iter().filter(|open| open.is_fresh) {
            let Some(unit) = open.unit else { continue };
            let counted = open.run.counted_in(length);
            let run =
                DiskRun { start: from, length, counted, references: open.run.references, shared: is_outside };
            self.settled.entry(unit).or_default().push(run);
        }
        let of_several = self.open.first().is_some_and(|open| open.unit.is_none());
        let outside = is_outside || of_several;
        if let [only] = &self.open[..]
            && (of_several || !outside && only.run.counted_in(length) == length)
        {
            return;
        }
        let holders = self.open.iter().filter_map(|open| Some((open.unit?, open.run.counted_in(length))));
        let units = holders.clone().map(|(unit, _)| unit).collect();
        let (counted, physical) = groups.0.entry((units, outside)).or_default();
        *physical = physical.saturating_add(length);
        counted.resize(counted.len().max(holders.clone().count()), 0);
        for (sum, (_, bytes)) in counted.iter_mut().zip(holders) {
            *sum = sum.saturating_add(bytes);
        }
    }

    fn compare(&mut self, from: u64, to: u64, is_shared: bool) {
        let Self { open, probes, open_probes, next_probe, .. } = self;
        open_probes.retain(|position| probes[*position].0.run.end() > from);
        while probes.get(*next_probe).is_some_and(|(probe, _)| probe.run.start < to) {
            open_probes.push(*next_probe);
            *next_probe += 1;
        }
        for position in open_probes.iter() {
            let (probe, left) = &mut probes[*position];
            let overlap = probe.run.end().min(to).saturating_sub(probe.run.start.max(from));
            let holds = open.binary_search_by_key(&Some(probe.unit), |open| open.unit).is_ok();
            if holds && probe.run.shared == is_shared {
                *left = left.saturating_sub(overlap);
            }
        }
    }
}

/// Merges the probes of each unit, so that few of them overlap, and sorts them by filesystem and start.
fn disjoint(probes: Vec<Probe>) -> Vec<Probe> {
    let mut units: HashMap<(u64, usize), Vec<DiskRun>> = HashMap::new();
    for Probe { filesystem, unit, run } in probes {
        units.entry((filesystem, unit)).or_default().push(run);
    }
    let merged = units.into_iter().flat_map(|((filesystem, unit), runs)| {
        runs::merged(runs).into_iter().map(move |run| Probe { filesystem, unit, run })
    });
    let mut probes: Vec<_> = merged.collect();
    probes.sort_unstable_by_key(|probe| (probe.filesystem, probe.run.start));
    probes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::runs::{encode, merged};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A reference to a stretch that the filesystem calls shared.
    #[derive(Clone, Copy, Debug)]
    struct Reference {
        unit: Option<usize>,
        run: DiskRun,
    }

    fn reference(start: u64, length: u64, unit: usize) -> Reference {
        Reference {
            unit: Some(unit),
            run: DiskRun { start, length, counted: length, references: 1, shared: true },
        }
    }

    fn alone(reference: Reference) -> Reference {
        Reference { run: DiskRun { shared: false, ..reference.run }, ..reference }
    }

    fn packed(start: u64, unit: usize) -> Reference {
        let all = reference(start, 100, unit);
        Reference { run: DiskRun { counted: 1000, ..all.run }, ..all }
    }

    fn runs_of(references: &[Reference]) -> Vec<(Option<usize>, EncodedRuns)> {
        let mut units: BTreeMap<Option<usize>, Vec<DiskRun>> = BTreeMap::new();
        for Reference { unit, run } in references {
            units.entry(*unit).or_default().push(*run);
        }
        let encoded = units
            .into_iter()
            .map(|(unit, runs)| (unit, EncodedRuns { filesystem: 1, bytes: encode(merged(runs)) }));
        encoded.collect()
    }

    fn found(fresh: &[Reference], kept: &[Reference], probes: Vec<Probe>) -> Sharing {
        let (fresh, kept) = (runs_of(fresh), runs_of(kept));
        fn all<'a>(runs: &'a [(Option<usize>, EncodedRuns)], is_fresh: bool) -> Vec<UnitRuns<'a>> {
            runs.iter().map(|(unit, runs)| UnitRuns { unit: *unit, runs, is_fresh }).collect()
        }
        find(&[all(&fresh, true), all(&kept, false)].concat(), probes)
    }

    fn shared(counted: &[(usize, u64)], outside: bool, physical_bytes: u64) -> SharedExtents {
        SharedExtents { counted: counted.to_vec(), outside, physical_bytes }
    }

    #[test]
    fn table() {
        let of_several = Reference { unit: None, ..reference(0, 10, 0) };
        let cases = [
            (vec![], vec![]),
            (vec![alone(reference(0, 10, 1)), alone(reference(20, 10, 2))], vec![]),
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
            (vec![reference(0, 10, 1), of_several], vec![shared(&[(1, 10)], true, 10)]),
            (vec![of_several, of_several], vec![]),
            // Compressed: the disk holds less than the files.
            (vec![alone(packed(0, 1))], vec![shared(&[(1, 1000)], false, 100)]),
            (vec![packed(0, 1), packed(0, 2)], vec![shared(&[(1, 1000), (2, 1000)], false, 100)]),
        ];
        for (references, expected) in cases {
            assert_eq!(found(&references, &[], vec![]).groups, expected, "{references:?}");
        }
    }

    /// Each unit is kept as it was when it was measured; the others came or went since.
    #[test]
    fn kept_runs_are_compared_with_new_ones() {
        let (one, two) = (reference(0, 10, 1), reference(0, 10, 2));
        fn kept(fresh: &[Reference], unit: usize) -> Reference {
            let settled = found(fresh, &[], vec![]).settled;
            let mut runs = Runs::of(&settled[&unit][0].bytes);
            Reference { unit: Some(unit), run: runs.next().unwrap() }
        }
        let cases = [
            (
                "came",
                found(&[two], &[kept(&[alone(one)], 1)], vec![]),
                vec![shared(&[(1, 10), (2, 10)], false, 10)],
            ),
            ("went", found(&[], &[kept(&[one, two], 1)], vec![]), vec![]),
            ("outside", found(&[], &[kept(&[one], 1)], vec![]), vec![shared(&[(1, 10)], true, 10)]),
            (
                "outside, then came",
                found(&[two], &[kept(&[one], 1)], vec![]),
                vec![shared(&[(1, 10), (2, 10)], false, 10)],
            ),
        ];
        for (name, sharing, expected) in cases {
            assert_eq!(sharing.groups, expected, "{name}");
        }
    }

    #[test]
    fn probes_find_what_moved() {
        let kept = [alone(reference(0, 10, 1)), alone(reference(20, 10, 1)), alone(reference(20, 10, 2))];
        let cases = [
            ("the same", alone(reference(2, 5, 1)), false),
            ("shared among them", reference(20, 10, 1), false),
            ("moved", alone(reference(40, 10, 1)), true),
            ("moved in part", alone(reference(5, 10, 1)), true),
            ("another unit's", alone(reference(0, 10, 2)), true),
            ("shared with a stranger now", reference(0, 10, 1), true),
            ("no longer shared", alone(reference(20, 10, 1)), true),
            ("without a position", alone(reference(0, 0, 1)), false),
        ];
        for (name, now, differs) in cases {
            let probe = Probe { filesystem: 1, unit: now.unit.unwrap(), run: now.run };
            assert_eq!(!found(&[], &kept, vec![probe]).differing.is_empty(), differs, "{name}");
        }
    }

    fn naive(references: &[Reference]) -> Vec<SharedExtents> {
        type Counted = BTreeMap<usize, u64>;
        let mut groups: BTreeMap<(Vec<usize>, bool), (Counted, u64)> = BTreeMap::new();
        for byte in 0..100 {
            let here = references
                .iter()
                .filter(|reference| (reference.run.start..reference.run.end()).contains(&byte));
            let here: Vec<usize> = here.filter_map(|reference| reference.unit).collect();
            let mut units = here.clone();
            units.sort_unstable();
            units.dedup();
            if units.is_empty() {
                continue;
            }
            let group = groups.entry((units, here.len() < 2)).or_default();
            group.1 += 1;
            for unit in here {
                *group.0.entry(unit).or_default() += 1;
            }
        }
        let groups = groups.into_iter().map(|((_, outside), (counted, physical_bytes))| SharedExtents {
            counted: counted.into_iter().collect(),
            outside,
            physical_bytes,
        });
        groups.collect()
    }

    proptest! {
        #[test]
        fn agrees_with_counting_each_byte(
            references in proptest::collection::vec((0..60_u64, 1..40_u64, 0..4_usize), 0..20)
        ) {
            let references: Vec<Reference> =
                references.into_iter().map(|(start, length, unit)| reference(start, length, unit)).collect();
            prop_assert_eq!(found(&references, &[], vec![]).groups, naive(&references));
        }
    }
}
