//! What one survey takes from earlier ones, and what it leaves for later ones.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::Request;
use super::reading::Reading;
use super::recall::{
    Age, Contradiction, Facts, Shared, contradiction, is_usable, retain_whole, sample, together,
};
use super::weigh::Wanted;
use crate::disk::inode_chunks::UnitInodes;
use crate::disk::kept::{
    How, KeptEntry, KeptGroup, KeptUnit, MOST_MEMBERS, Remembered, ToKeep, UnitKey, scope,
};
use crate::disk::{Extents, Fingerprint, Measured, SharedInodes};
use crate::model::{FilesystemIx, StoreId};

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

/// A layer of a reading.
type Name = (usize, Fingerprint);

/// What is taken from earlier surveys.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    /// Sizes by slot.
    pub(super) sizes: Vec<(usize, Arc<KeptUnit>)>,
    /// What these layers share among themselves.
    pub(super) shared: Vec<SharedInodes>,
}

/// The sizes of one survey that can be told apart from earlier ones.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// `None`: nothing is taken, nothing is left.
    remembered: Option<Arc<Remembered>>,
    stores: Vec<StoreId>,
    /// Readings of which nothing is taken.
    distrusted: HashSet<usize>,
    layers: HashMap<usize, Layer>,
}

#[derive(Debug)]
struct Layer {
    reading: usize,
    key: UnitKey,
    name: Fingerprint,
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
    Measured { facts: Facts, inodes: UnitInodes, groups: Vec<KeptGroup>, at: Timestamp },
}

impl Memory {
    pub(super) fn new(request: &Request, readings: &[Box<dyn Reading>]) -> Self {
        let stores = readings.iter().map(|reading| reading.store(FilesystemIx::from(0)));
        let stores = stores.map(|store| StoreId::of(&store));
        let Some(remembered) = request.remembered.clone() else { return Self::default() };
        let distrusted = if request.full { (0..readings.len()).collect() } else { HashSet::new() };
        Self { remembered: Some(remembered), stores: stores.collect(), distrusted, layers: HashMap::new() }
    }

    /// Whether anything is taken or left.
    pub(super) fn is_on(&self) -> bool {
        self.remembered.is_some()
    }

    /// The store of a reading.
    pub(super) fn store(&self, reading: usize) -> Option<&StoreId> {
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
    ) -> Recalled {
        let Some(remembered) = self.remembered.clone() else { return Recalled::default() };
        let mut met: HashMap<Name, usize> = HashMap::new();
        for subject in subjects {
            let Some(evidence) = evidence.get(&subject.slot).copied() else { continue };
            let Subject { slot, reading, key, record } = subject;
            let kept = self.stores.get(reading).and_then(|store| remembered.get(store, &key)).cloned();
            let kept = kept.filter(|kept| {
                is_usable(kept, record, evidence, wanted, now)
                    && (!wanted.inode_chunks || kept.inodes.devices().all(can_recall))
            });
            let name = key.name();
            met.insert((reading, name), slot);
            let layer =
                Layer { reading, key, name, record, evidence, remembered: kept, state: State::Awaited };
            self.layers.insert(slot, layer);
        }
        // Of those that share, all or none.
        let groups = |slot: &usize| Some(self.layers.get(slot)?.remembered.as_ref()?.groups.clone());
        let mut whole: HashMap<Name, Vec<KeptGroup>> =
            met.iter().filter_map(|(name, slot)| Some((*name, groups(slot)?))).collect();
        retain_whole(&mut whole, |(reading, _), member| (reading, member));
        for (name, slot) in &met {
            if let Some(layer) = self.layers.get_mut(slot).filter(|_| !whole.contains_key(name)) {
                layer.remembered = None;
            }
        }
        whole.retain(|(reading, _), _| !self.distrusted.contains(reading));
        let partners = |reading: usize, groups: &[KeptGroup]| {
            let members = groups.iter().flat_map(|group| &group.members);
            members.filter_map(|member| met.get(&(reading, *member)).copied()).collect()
        };
        let usable: BTreeMap<usize, Vec<usize>> = whole
            .iter()
            .filter_map(|(name, groups)| Some((*met.get(name)?, partners(name.0, groups))))
            .collect();
        self.take(&usable, &met, remembered.seed)
    }

    /// Takes the sizes of `usable` layers, each given with its partners, but for a sample.
    fn take(
        &mut self,
        usable: &BTreeMap<usize, Vec<usize>>,
        met: &HashMap<Name, usize>,
        seed: u64,
    ) -> Recalled {
        let kept = |slot: &usize| self.layers.get(slot).and_then(|layer| layer.remembered.clone());
        let inodes = |set: &Vec<usize>| set.iter().filter_map(kept).map(|kept| kept.tally.inodes).sum();
        let sets = together(usable).into_iter().map(|set| (inodes(&set), set));
        let chosen = sample(sets.map(|(inodes, set)| (set, inodes)).collect(), seed);
        let chosen: HashSet<usize> = chosen.into_iter().collect();
        let mut recalled = Recalled::default();
        for slot in usable.keys().filter(|slot| !chosen.contains(slot)) {
            let Some(layer) = self.layers.get_mut(slot) else { continue };
            let Some(kept) = layer.remembered.clone() else { continue };
            layer.state = State::Recalled;
            // Each group once, by its first member.
            for group in kept.groups.iter().filter(|group| group.members.first() == Some(&layer.name)) {
                let members = group.members.iter();
                let mut units: Vec<usize> =
                    members.filter_map(|member| met.get(&(layer.reading, *member)).copied()).collect();
                units.sort_unstable();
                recalled.shared.push(SharedInodes { units, outside: false, tally: group.tally });
            }
            recalled.sizes.push((*slot, kept));
        }
        recalled
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
        let (mut groups, mut sharing) = self.groups(measured);
        let extents = measured.shared_extents.iter().flat_map(|group| group.counted.iter().map(|one| one.0));
        sharing.extend(extents);
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
            layer.state = State::Measured {
                facts,
                inodes: held.remove(slot).unwrap_or_default(),
                groups: groups.remove(slot).unwrap_or_default(),
                at: started,
            };
        }
    }

    /// Groups that can be kept, by slot, and the slots that have others.
    fn groups(&self, measured: &Measured) -> (HashMap<usize, Vec<KeptGroup>>, HashSet<usize>) {
        let mut groups: HashMap<usize, Vec<KeptGroup>> = HashMap::new();
        let mut sharing = HashSet::new();
        for group in &measured.shared_inodes {
            let layers: Option<Vec<&Layer>> = group.units.iter().map(|slot| self.layers.get(slot)).collect();
            let layers = layers.filter(|layers| {
                !group.outside
                    && (2..=MOST_MEMBERS).contains(&layers.len())
                    && layers.iter().all(|layer| {
                        layer.reading == layers[0].reading && matches!(layer.state, State::Awaited)
                    })
            });
            let Some(layers) = layers else {
                sharing.extend(group.units.iter().copied());
                continue;
            };
            let mut members: Vec<Fingerprint> = layers.iter().map(|layer| layer.name).collect();
            members.sort_unstable();
            for slot in &group.units {
                let group = KeptGroup { members: members.clone(), tally: group.tally };
                groups.entry(*slot).or_default().push(group);
            }
        }
        for groups in groups.values_mut() {
            groups.sort_unstable_by(|a, b| a.members.cmp(&b.members));
        }
        (groups, sharing)
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
        self.remembered.as_ref()?.outside.get(&scope(&self.stores))
    }

    /// What to leave: of `alive` slots. `outside` is given after a walk over everything.
    pub(super) fn leave(
        self,
        alive: &HashSet<usize>,
        outside: Option<HashSet<Fingerprint>>,
    ) -> Option<ToKeep> {
        self.remembered.as_ref()?;
        let outside = outside.filter(|found| self.outside() != Some(found));
        let outside = outside.map(|found| (scope(&self.stores), found));
        let mut stores: Vec<_> = self.stores.into_iter().map(|store| (store, Vec::new())).collect();
        let mut layers: Vec<_> = self.layers.into_iter().filter(|(slot, _)| alive.contains(slot)).collect();
        layers.sort_unstable_by_key(|(slot, _)| *slot);
        for (_, layer) in layers {
            if let Some((_, entries)) = stores.get_mut(layer.reading) {
                entries.extend(layer.entry());
            }
        }
        for (_, entries) in &mut stores {
            let groups =
                entries.iter().map(|entry: &KeptEntry| (entry.key.name(), entry.unit.groups.clone()));
            let mut whole: HashMap<Fingerprint, Vec<KeptGroup>> = groups.collect();
            retain_whole(&mut whole, |_, member| member);
            entries.retain(|entry| whole.contains_key(&entry.key.name()));
        }
        Some(ToKeep { stores, outside })
    }
}

impl Layer {
    /// What was measured against what was remembered. A fault is reported as such.
    fn contradiction(&self) -> Option<Contradiction> {
        match (&self.remembered, &self.state) {
            (Some(kept), State::Measured { facts, inodes, groups, .. }) if !facts.faulty => {
                contradiction(kept, facts, &Shared { inodes, groups })
            }
            _ => None,
        }
    }

    fn entry(self) -> Option<KeptEntry> {
        let Self { key, record, evidence, remembered, state, .. } = self;
        let (facts, inodes, groups, measured_at) = match state {
            State::Recalled => return Some(KeptEntry { key, unit: remembered?, changed: false }),
            State::Awaited => return None,
            State::Measured { facts, inodes, groups, at } => (facts, inodes, groups, at),
        };
        let settled = facts.keepable()?;
        let (how, tally) = (facts.how, facts.tally);
        let unit = KeptUnit { record, evidence, how, measured_at, settled, tally, inodes, groups };
        Some(match remembered {
            Some(kept) if kept.says_the_same(&unit) => KeptEntry { key, unit: kept, changed: false },
            _ => KeptEntry { key, unit: Arc::new(unit), changed: true },
        })
    }
}
