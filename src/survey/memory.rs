//! What one survey takes from earlier ones, and what it leaves for later ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::Request;
use super::reading::Reading;
use super::recall::{Age, Contradiction, Facts, contradiction, is_usable, sample};
use super::weigh::Wanted;
use crate::inventory::FilesystemIx;
use crate::usage::inode_chunks::UnitInodes;
use crate::usage::kept::{How, KeptEntry, KeptUnit, Remembered, StoreKey, ToKeep, UnitKey};
use crate::usage::{Extents, Fingerprint, Measured};

/// A finished layer that is about to be measured.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) slot: usize,
    /// Position of its store's reading.
    pub(super) reading: usize,
    pub(super) key: UnitKey,
    /// Of its record.
    pub(super) record: Fingerprint,
}

/// The sizes of one survey that can be told apart from earlier ones.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// `None`: nothing is taken, nothing is left.
    remembered: Option<Arc<Remembered>>,
    stores: Vec<StoreKey>,
    /// Readings of which nothing is taken.
    distrusted: HashSet<usize>,
    layers: HashMap<usize, Layer>,
}

#[derive(Debug)]
struct Layer {
    reading: usize,
    key: UnitKey,
    record: Fingerprint,
    evidence: Fingerprint,
    /// What was remembered and might be used.
    remembered: Option<Arc<KeptUnit>>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Its size is the remembered one.
    Recalled,
    /// It is being walked.
    Awaited,
    /// It was walked.
    Measured { facts: Facts, inodes: UnitInodes, at: Timestamp },
}

impl Memory {
    pub(super) fn new(request: &Request, readings: &[Box<dyn Reading>]) -> Self {
        let stores = readings.iter().map(|reading| reading.store(FilesystemIx::from(0)));
        let stores = stores.map(|store| StoreKey::new(store.kind, store.root, store.driver));
        let Some(remembered) = request.remembered.clone() else { return Self::default() };
        let distrusted = if request.full { (0..readings.len()).collect() } else { HashSet::new() };
        Self { remembered: Some(remembered), stores: stores.collect(), distrusted, layers: HashMap::new() }
    }

    /// Whether anything is taken or left.
    pub(super) fn is_on(&self) -> bool {
        self.remembered.is_some()
    }

    /// The store of a reading.
    pub(super) fn store(&self, reading: usize) -> Option<&StoreKey> {
        self.stores.get(reading)
    }

    /// What the disk shows of a unit, where that was looked at.
    pub(super) fn evidence(&self, slot: usize) -> Option<Fingerprint> {
        self.layers.get(&slot).map(|layer| layer.evidence)
    }

    /// Drops all that belongs to slots.
    pub(super) fn forget(&mut self) {
        self.layers.clear();
    }

    /// Takes nothing of that reading from now on.
    pub(super) fn distrust(&mut self, reading: usize) {
        self.distrusted.insert(reading);
    }

    /// Takes nothing at all from now on.
    pub(super) fn distrust_all(&mut self) {
        self.distrusted.extend(0..self.stores.len());
    }

    /// The subjects that need not be walked, and what they weigh. `evidence` belongs to
    /// slots; `can_recall` says whether inodes of a filesystem can be made use of.
    pub(super) fn recall(
        &mut self,
        subjects: Vec<Subject>,
        evidence: &HashMap<usize, Fingerprint>,
        wanted: Wanted,
        now: Timestamp,
        can_recall: &dyn Fn(u64) -> bool,
    ) -> Vec<(usize, Arc<KeptUnit>)> {
        let Some(remembered) = self.remembered.clone() else { return Vec::new() };
        let mut usable = Vec::new();
        for subject in subjects {
            let Some(evidence) = evidence.get(&subject.slot).copied() else { continue };
            let Subject { slot, reading, key, record } = subject;
            let kept = self.stores.get(reading).and_then(|store| remembered.get(store, &key)).cloned();
            let kept = kept.filter(|kept| {
                is_usable(kept, record, evidence, wanted, now)
                    && (!wanted.inode_chunks || kept.inodes.devices().all(can_recall))
            });
            if let Some(kept) = kept.as_ref().filter(|_| !self.distrusted.contains(&reading)) {
                usable.push((slot, Arc::clone(kept)));
            }
            let layer = Layer { reading, key, record, evidence, remembered: kept, state: State::Awaited };
            self.layers.insert(slot, layer);
        }
        usable.sort_unstable_by_key(|(slot, _)| *slot);
        let inodes = usable.iter().map(|(slot, kept)| (*slot, kept.tally.inodes)).collect();
        let chosen: HashSet<usize> = sample(inodes, remembered.seed).into_iter().collect();
        usable.retain(|(slot, _)| !chosen.contains(slot));
        for (slot, _) in &usable {
            if let Some(layer) = self.layers.get_mut(slot) {
                layer.state = State::Recalled;
            }
        }
        usable
    }

    /// Notes what a walk between two moments says of the layers that it was to measure.
    pub(super) fn absorb(
        &mut self,
        measured: &Measured,
        wanted: Wanted,
        started: Timestamp,
        ended: Timestamp,
    ) {
        if self.layers.is_empty() {
            return;
        }
        let inodes = measured.shared_inodes.iter().flat_map(|group| group.units.iter().copied());
        let extents = measured.shared_extents.iter().flat_map(|group| group.counted.iter().map(|one| one.0));
        let sharing: HashSet<usize> = inodes.chain(extents).collect();
        let errors = measured.errors.iter().map(|error| error.unit);
        let faulty: HashSet<usize> = errors.chain(measured.mounts.iter().map(|mount| mount.0)).collect();
        let awaited = |layer: &Layer| matches!(layer.state, State::Awaited);
        let mut held = measured.inode_holdings.of_units(&|slot| self.layers.get(&slot).is_some_and(awaited));
        for (slot, layer) in self.layers.iter_mut().filter(|(_, layer)| awaited(layer)) {
            let tally = measured.units.get(*slot).copied().unwrap_or_default();
            let newest = measured.newest.get(*slot).copied().unwrap_or(i64::MIN);
            let facts = Facts {
                tally,
                age: Age::of(newest, started, ended),
                how: How { extents: measured.extents, inode_chunks: wanted.inode_chunks },
                shares: sharing.contains(slot),
                faulty: faulty.contains(slot),
            };
            layer.state =
                State::Measured { facts, inodes: held.remove(slot).unwrap_or_default(), at: started };
        }
    }

    /// Readings with a layer that was measured as a sample and is not what was remembered.
    pub(super) fn doubted(&self) -> impl Iterator<Item = usize> {
        let trusted = self.layers.values().filter(|layer| !self.distrusted.contains(&layer.reading));
        trusted.filter(|layer| layer.contradiction().is_some()).map(|layer| layer.reading)
    }

    /// Layers that somebody wrote to since their size was remembered, and what shows it.
    pub(super) fn contradictions(&self) -> impl Iterator<Item = (usize, String)> {
        let mut found: Vec<_> = self.layers.iter().collect();
        found.sort_unstable_by_key(|(slot, _)| **slot);
        found.into_iter().filter_map(|(slot, layer)| match layer.contradiction()? {
            Contradiction::Differs(how) => Some((*slot, how)),
            Contradiction::Shares => None,
        })
    }

    /// Layers whose size was taken from an earlier scan.
    pub(super) fn recalled(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().filter(|(_, layer)| matches!(layer.state, State::Recalled)).map(|(slot, _)| *slot)
    }

    /// Some size is remembered from a walk that looked at fewer files for shared extents.
    pub(super) fn looked_less_than(&self, extents: Extents) -> bool {
        let mut recalled = self.layers.values().filter(|layer| matches!(layer.state, State::Recalled));
        recalled.any(|layer| layer.remembered.as_ref().is_some_and(|kept| kept.how.extents < extents))
    }

    /// Those who shared with somebody outside when these stores were last measured in full.
    pub(super) fn outside(&self) -> Option<&HashSet<Fingerprint>> {
        self.remembered.as_ref()?.outside.get(&StoreKey::scope(&self.stores))
    }

    /// What to leave: of `alive` slots. `outside` is given after a walk over everything.
    pub(super) fn leave(
        self,
        alive: &HashSet<usize>,
        outside: Option<HashSet<Fingerprint>>,
    ) -> Option<ToKeep> {
        self.remembered.as_ref()?;
        let outside = outside.filter(|found| self.outside() != Some(found));
        let outside = outside.map(|found| (StoreKey::scope(&self.stores), found));
        let mut stores: Vec<_> = self.stores.into_iter().map(|store| (store, Vec::new())).collect();
        let mut layers: Vec<_> = self.layers.into_iter().filter(|(slot, _)| alive.contains(slot)).collect();
        layers.sort_unstable_by_key(|(slot, _)| *slot);
        for (_, layer) in layers {
            if let Some((_, entries)) = stores.get_mut(layer.reading) {
                entries.extend(layer.entry());
            }
        }
        Some(ToKeep { stores, outside })
    }
}

impl Layer {
    /// What was measured against what was remembered. A fault is reported as such.
    fn contradiction(&self) -> Option<Contradiction> {
        match (&self.remembered, &self.state) {
            (Some(kept), State::Measured { facts, inodes, .. }) if !facts.faulty => {
                contradiction(kept, facts, *inodes == kept.inodes)
            }
            _ => None,
        }
    }

    fn entry(self) -> Option<KeptEntry> {
        let Self { key, record, evidence, remembered, state, .. } = self;
        let (facts, inodes, measured_at) = match state {
            State::Recalled => return Some(KeptEntry { key, unit: remembered?, changed: false }),
            State::Awaited => return None,
            State::Measured { facts, inodes, at } => (facts, inodes, at),
        };
        let settled = facts.keepable()?;
        let (how, tally) = (facts.how, facts.tally);
        let unit = KeptUnit { record, evidence, how, measured_at, settled, tally, inodes };
        Some(match remembered {
            Some(kept) if kept.says_the_same(&unit) => KeptEntry { key, unit: kept, changed: false },
            _ => KeptEntry { key, unit: Arc::new(unit), changed: true },
        })
    }
}
