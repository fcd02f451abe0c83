use super::*;
use crate::disk::Extents;
use crate::disk::inode_chunks::Window;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

const WANTED: Wanted = Wanted { extents: Extents::Probe, inode_chunks: true };
const HOW: How = How { extents: Extents::Probe, inode_chunks: true };
const TALLY: Tally = Tally { bytes: 4096, apparent_bytes: 10, inodes: 2, metadata_bytes: 0, inline_bytes: 0 };

fn kept() -> KeptUnit {
    KeptUnit {
        record: Fingerprint([1; 16]),
        evidence: Fingerprint([2; 16]),
        how: HOW,
        measured_at: at(0),
        settled: true,
        tally: TALLY,
        inodes: UnitInodes::default(),
        groups: Vec::new(),
    }
}

#[test]
fn table_of_ages() {
    // Measured from second 100 to second 110.
    let cases = [
        (i64::MIN, Age::Settled),
        (39, Age::Settled),
        (40, Age::Young),
        (97, Age::Young),
        (98, Age::Racy),
        (105, Age::Racy),
        (112, Age::Racy),
        (113, Age::Settled),
    ];
    for (newest, expected) in cases {
        let newest = if newest == i64::MIN { newest } else { newest + 1_000_000 };
        assert_eq!(Age::of(newest, at(100), at(110)), expected, "{newest}");
    }
}

#[test]
fn table_of_use() {
    let young = KeptUnit { settled: false, ..kept() };
    let how = |extents, inode_chunks| KeptUnit { how: How { extents, inode_chunks }, ..kept() };
    let wanted = |extents, inode_chunks| Wanted { extents, inode_chunks };
    let cases = [
        ("the same", kept(), WANTED, at(1_000_000), true),
        ("another record", KeptUnit { record: Fingerprint([9; 16]), ..kept() }, WANTED, at(0), false),
        ("other evidence", KeptUnit { evidence: Fingerprint([9; 16]), ..kept() }, WANTED, at(0), false),
        ("no file was asked", how(Extents::Off, true), WANTED, at(0), false),
        ("all were asked", how(Extents::All, true), WANTED, at(0), true),
        ("only some were asked", kept(), wanted(Extents::All, true), at(0), false),
        ("inodes were not noted", how(Extents::Probe, false), WANTED, at(0), false),
        ("and are not wanted", how(Extents::Probe, false), wanted(Extents::Off, false), at(0), true),
        ("young, a moment later", young.clone(), WANTED, at(59), true),
        ("young, and time has passed", young.clone(), WANTED, at(60), false),
        ("young, and the clock went back", young, WANTED, at(-1), false),
        ("settled, and the clock went back", kept(), WANTED, at(-1000), true),
    ];
    for (what, kept, wanted, now, expected) in cases {
        let usable = is_usable(&kept, Fingerprint([1; 16]), Fingerprint([2; 16]), wanted, now);
        assert_eq!(usable, expected, "{what}");
    }
}

#[test]
fn samples_are_small_repeatable_and_reach_everything() {
    let mut units: Vec<(Vec<usize>, u64)> = (0..200).map(|unit| (vec![unit], 50 + unit as u64)).collect();
    // One layer that is most of the store.
    units.push((vec![200], 1_000_000));
    let all: u64 = units.iter().map(|(_, inodes)| inodes).sum();
    let mut met = std::collections::BTreeSet::new();
    let (mut inodes, mut big) = (0, 0);
    for seed in 0..5000 {
        let chosen = sample(units.clone(), seed);
        assert_eq!(chosen, sample(units.clone(), seed), "the same seed chooses the same");
        assert!(!chosen.is_empty());
        inodes += chosen.iter().map(|unit| units[*unit].1).sum::<u64>();
        big += u64::from(chosen.contains(&200));
        met.extend(chosen);
    }
    assert_eq!(met.len(), units.len(), "each has its turn");
    assert!((20..100).contains(&big), "the big one in one of a hundred scans: {big} of 5000");
    assert!(inodes / 5000 < all / 50, "{} of {all} a scan", inodes / 5000);
    assert_eq!(sample(vec![(vec![5, 7], 10)], 1), [5, 7], "one set that is small at least");
    assert_eq!(sample(vec![], 1), [] as [usize; 0]);
    assert_eq!(sample(vec![(vec![5], 0)], 1), [5]);
}

#[test]
fn table_of_what_is_kept() {
    let good = Facts { tally: TALLY, age: Age::Settled, how: HOW, shares: false, faulty: false };
    let cases = [
        ("settled", good, Some(true)),
        ("young", Facts { age: Age::Young, ..good }, Some(false)),
        ("being written", Facts { age: Age::Racy, ..good }, None),
        ("shares", Facts { shares: true, ..good }, None),
        ("could not be read", Facts { faulty: true, ..good }, None),
        ("gone", Facts { tally: Tally::default(), ..good }, None),
    ];
    for (what, facts, expected) in cases {
        assert_eq!(facts.keepable(), expected, "{what}");
    }
}

#[test]
fn table_of_contradictions() {
    let now = Facts { tally: TALLY, age: Age::Settled, how: HOW, shares: false, faulty: false };
    let more = Facts { tally: Tally { bytes: 8192, ..TALLY }, ..now };
    let young = KeptUnit { settled: false, ..kept() };
    let unasked = Facts { how: How { inode_chunks: false, ..HOW }, ..now };
    let shares = Facts { shares: true, ..now };
    let differs = |words: &str| Some(Contradiction::Differs(words.into()));
    let cases = [
        ("the same", kept(), now, true, None),
        (
            "more bytes",
            kept(),
            more,
            true,
            differs("holds 8192 bytes in 2 inodes, where an earlier scan found 4096 in 2"),
        ),
        (
            "other inodes",
            kept(),
            now,
            false,
            differs("holds 4096 bytes in 2 inodes of other files, where an earlier scan found 4096 in 2"),
        ),
        ("other inodes that nobody noted", kept(), unasked, false, None),
        ("blocks that were on the move", young.clone(), more, false, None),
        ("shares", kept(), shares, true, Some(Contradiction::Shares)),
        ("shares, young", young, shares, true, Some(Contradiction::Shares)),
    ];
    let group = |inodes| KeptGroup {
        members: vec![Fingerprint([1; 16]), Fingerprint([2; 16])],
        tally: Tally { inodes, ..TALLY },
    };
    for (before, after, same) in [(vec![], vec![group(1)], false), (vec![group(1)], vec![group(2)], false)]
        .into_iter()
        .chain([(vec![group(1)], vec![], false), (vec![group(1)], vec![group(1)], true)])
    {
        let kept = KeptUnit { groups: before, ..kept() };
        let shared = Shared { inodes: &kept.inodes, groups: &after };
        assert_eq!(contradiction(&kept, &now, &shared).is_none(), same, "{kept:?} {after:?}");
    }
    for (what, kept, now, same_inodes, expected) in cases {
        let other = UnitInodes::new(vec![Window { device: 1, window: 1, inodes: 1 }]);
        let inodes = if same_inodes { &kept.inodes } else { &other };
        let shared = Shared { inodes, groups: &kept.groups };
        assert_eq!(contradiction(&kept, &now, &shared), expected, "{what}");
    }
}

#[test]
fn table_of_groups_that_are_whole() {
    let name = |at: u8| Fingerprint([at; 16]);
    let group = |members: &[u8], inodes| KeptGroup {
        members: members.iter().map(|at| name(*at)).collect(),
        tally: Tally { inodes, ..TALLY },
    };
    let (ab, bc) = (group(&[1, 2], 1), group(&[2, 3], 1));
    type Units = Vec<(u8, Vec<KeptGroup>)>;
    let cases: Vec<(&str, Units, Vec<u8>)> = vec![
        ("alone", vec![(1, vec![])], vec![1]),
        ("both there", vec![(1, vec![ab.clone()]), (2, vec![ab.clone()])], vec![1, 2]),
        ("one missing", vec![(1, vec![ab.clone()]), (4, vec![])], vec![4]),
        (
            "one missing, and one after the other goes",
            vec![(1, vec![ab.clone()]), (2, vec![ab.clone(), bc.clone()]), (4, vec![])],
            vec![4],
        ),
        ("they do not say the same", vec![(1, vec![ab.clone()]), (2, vec![group(&[1, 2], 2)])], vec![]),
        ("one knows of nothing", vec![(1, vec![ab.clone()]), (2, vec![])], vec![2]),
        (
            "a group of others",
            vec![(1, vec![bc.clone()]), (2, vec![bc.clone()]), (3, vec![bc])],
            vec![1, 2, 3],
        ),
    ];
    for (what, units, expected) in cases {
        let mut units: HashMap<Fingerprint, Vec<KeptGroup>> =
            units.into_iter().map(|(at, groups)| (name(at), groups)).collect();
        retain_whole(&mut units, |_, member| member);
        let mut left: Vec<u8> = units.keys().map(|name| name.0[0]).collect();
        left.sort_unstable();
        assert_eq!(left, expected, "{what}");
    }
}

#[test]
fn what_shares_is_together() {
    let units =
        BTreeMap::from([(1, vec![]), (2, vec![2, 5]), (5, vec![5, 2, 7]), (7, vec![7, 5]), (9, vec![9])]);
    let mut sets = together(&units);
    sets.iter_mut().for_each(|set| set.sort_unstable());
    assert_eq!(sets, [vec![1], vec![2, 5, 7], vec![9]]);
}
