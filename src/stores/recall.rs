//! Which sizes of an earlier survey are used, which are put to the proof, and which are
//! kept for later ones. Pure.
//!
//! A size is kept of a layer that is finished, was read without a fault and shares nothing,
//! or only inodes with layers of its store of which the same is true. It is used as long as the layer's record and its evidence on the disk
//! are what they were. What that cannot show is found by samples, and by new links: where
//! something that was measured now shares with somebody unknown, that may be a layer whose
//! size was not measured but remembered, so everything is measured in one walk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;

use jiff::{SignedDuration, Timestamp};

use super::weigh::Wanted;
use crate::disk::inode_chunks::UnitInodes;
use crate::disk::kept::{How, KeptGroup, KeptUnit};
use crate::disk::{Fingerprint, Tally};

/// What changed so shortly before it was measured may have changed again within the same
/// tick of the clock, and belongs to somebody who is writing.
const RACY: SignedDuration = SignedDuration::from_secs(2);

/// What is written goes to the disk within 30 s (`dirty_expire_centisecs`) and the next run
/// of the flusher, and can take other blocks then: ext4 and XFS allocate late, XFS gives
/// back what it took in advance, btrfs puts small files into the metadata. No time of the
/// file changes then.
const SETTLED: SignedDuration = SignedDuration::from_mins(1);

/// Of the inodes that are not looked at, one in so many is.
const SAMPLE: u64 = 100;

/// Inodes that are measured in no time: a layer of so many or fewer is small.
const SMALL: u64 = 1000;

/// How old a layer was when it was measured, by the latest change to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// Somebody may be writing.
    Racy,
    /// Blocks may still move.
    Young,
    /// It stays as it is.
    Settled,
}

impl Age {
    /// Of a layer that last changed at `newest` (seconds), measured between two moments. A
    /// change from the future cannot be followed by one of the same time.
    pub(super) fn of(newest: i64, started: Timestamp, ended: Timestamp) -> Self {
        let second = |time: Timestamp| time.as_second();
        let after = |limit: SignedDuration| newest >= second(started).saturating_sub(limit.as_secs());
        if newest > second(ended).saturating_add(RACY.as_secs()) {
            return Self::Settled;
        }
        match (after(RACY), after(SETTLED)) {
            (true, _) => Self::Racy,
            (false, true) => Self::Young,
            (false, false) => Self::Settled,
        }
    }
}

/// Whether a size may be used instead of a measurement.
pub(super) fn is_usable(
    kept: &KeptUnit,
    record: Fingerprint,
    evidence: Fingerprint,
    wanted: Wanted,
    now: Timestamp,
) -> bool {
    // A young one is as good as a walk a moment later, and no longer.
    let since = now.duration_since(kept.measured_at);
    let fresh = SignedDuration::ZERO <= since && since < SETTLED;
    kept.record == record
        && kept.evidence == evidence
        && kept.how.extents >= wanted.extents
        && (kept.how.inode_chunks || !wanted.inode_chunks)
        && (kept.settled || fresh)
}

/// Leaves out, one after another, the units with a group that another member does not have.
pub(super) fn retain_whole<K: Copy + Eq + Hash>(
    units: &mut HashMap<K, Vec<KeptGroup>>,
    member: impl Fn(K, Fingerprint) -> K,
) {
    loop {
        let has = |unit: K, group: &KeptGroup| units.get(&unit).is_some_and(|groups| groups.contains(group));
        let broken = |unit: K, group: &KeptGroup| {
            let mut members = group.members.iter();
            !members.all(|one| has(member(unit, *one), group)) || !has(unit, group)
        };
        let gone: Vec<K> = units
            .iter()
            .filter(|(unit, groups)| groups.iter().any(|group| broken(**unit, group)))
            .map(|(unit, _)| *unit)
            .collect();
        if gone.is_empty() {
            return;
        }
        gone.iter().for_each(|unit| drop(units.remove(unit)));
    }
}

/// Puts together the units that share inodes, each given with those that it shares with.
pub(super) fn together(units: &BTreeMap<usize, Vec<usize>>) -> Vec<Vec<usize>> {
    let mut seen: HashSet<usize> = HashSet::new();
    let mut sets = Vec::new();
    for first in units.keys() {
        let mut set = Vec::new();
        let mut left = vec![*first];
        while let Some(unit) = left.pop() {
            if seen.insert(unit) {
                set.push(unit);
                left.extend(units.get(&unit).into_iter().flatten());
            }
        }
        if !set.is_empty() {
            sets.push(set);
        }
    }
    sets
}

/// Chooses sets of units, given with their inodes, to be measured all the same: each with a
/// chance of one in a hundred, so that it is a hundredth of all inodes in the long run and a big
/// layer has its turn as seldom as a small one. Where chance chooses none, one that is small, if
/// there is one, so that every scan proves something.
pub(super) fn sample(sets: Vec<(Vec<usize>, u64)>, seed: u64) -> Vec<usize> {
    let all: u64 = sets.iter().map(|(_, inodes)| inodes).sum();
    let mut chance = fastrand::Rng::with_seed(seed);
    let small: Vec<usize> = (0..sets.len()).filter(|at| sets[*at].1 <= (all / SAMPLE).max(SMALL)).collect();
    let mut chosen: Vec<usize> = (0..sets.len()).filter(|_| chance.u64(..SAMPLE) == 0).collect();
    if chosen.is_empty() && !small.is_empty() {
        chosen.push(small[chance.usize(..small.len())]);
    }
    chosen.into_iter().flat_map(|at| sets[at].0.iter().copied()).collect()
}

/// What a walk says of a layer besides its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) tally: Tally,
    pub(super) age: Age,
    pub(super) how: How,
    /// It has inodes or extents in common with somebody, other than the groups that can be
    /// kept.
    pub(super) shares: bool,
    /// Something of it could not be read, or something is mounted in it.
    pub(super) faulty: bool,
}

impl Facts {
    /// Whether the size can be kept; if so, whether it is settled.
    pub(super) fn keepable(&self) -> Option<bool> {
        if self.shares || self.faulty || self.tally.inodes == 0 {
            return None;
        }
        match self.age {
            Age::Racy => None,
            Age::Young => Some(false),
            Age::Settled => Some(true),
        }
    }
}

/// Why an unchanged layer is not what was remembered of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contradiction {
    /// It shares with somebody now, as after a deduplication.
    Shares,
    /// Somebody wrote to it; what the two measurements say.
    Differs(String),
}

/// What a layer holds that others may hold, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared<'a> {
    pub(super) inodes: &'a UnitInodes,
    pub(super) groups: &'a [KeptGroup],
}

/// Compares a layer that was measured with what was remembered of it.
pub(super) fn contradiction(kept: &KeptUnit, now: &Facts, shared: &Shared<'_>) -> Option<Contradiction> {
    let with = |group: &KeptGroup| (group.members.clone(), group.tally.inodes, group.tally.bytes);
    if now.shares || !kept.groups.iter().map(with).eq(shared.groups.iter().map(with)) {
        return Some(Contradiction::Shares);
    }
    let same_inodes = *shared.inodes == kept.inodes;
    // Whose metadata a further link is depends on which was met first.
    let own = |tally: Tally| match kept.groups.is_empty() {
        true => tally,
        false => Tally { metadata_bytes: 0, ..tally },
    };
    let same_tally = own(now.tally) == own(kept.tally);
    let other_inodes = kept.how.inode_chunks && now.how.inode_chunks && !same_inodes;
    // The blocks of a young one were known to be on the move.
    if !kept.settled || (same_tally && !other_inodes) {
        return None;
    }
    let other = if same_tally { " of other files" } else { "" };
    let (tally, before) = (now.tally, kept.tally);
    let message = format!(
        "holds {} bytes in {} inodes{other}, where an earlier scan found {} in {}",
        tally.bytes, tally.inodes, before.bytes, before.inodes
    );
    Some(Contradiction::Differs(message))
}

#[cfg(test)]
mod tests;
