//! Which sizes a scan reuses from earlier scans, and which it stores for later ones.

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;

use crate::disk::inode_chunks::encode_by_unit;
use crate::disk::size_cache::{Age, CachedSize, Contradiction, SizeCache, StoreSizes};
use crate::disk::{Extents, Fingerprint, Measured};
use crate::model::StoreId;

/// What the filesystems of a scan make necessary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasurementNeeds {
    pub(crate) extents: Extents,
    pub(crate) inode_chunks: bool,
}

/// A finished layer that is about to be measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) slot: usize,
    /// Position of its store.
    pub(super) store: usize,
    /// Fingerprint of the layer and its record.
    pub(super) key: Fingerprint,
    /// Its stamp, where that was taken already.
    pub(super) stamp: Option<Fingerprint>,
}

/// The finished layers of a scan.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// `None`: nothing is taken, nothing is left.
    cache: Option<SizeCache>,
    stores: Vec<StoreId>,
    /// Stores of which nothing is taken.
    distrusted: HashSet<usize>,
    /// By slot.
    layers: HashMap<usize, Layer>,
}

#[derive(Debug)]
struct Layer {
    store: usize,
    key: Fingerprint,
    stamp: Fingerprint,
    state: SizeState,
}

#[derive(Debug)]
enum SizeState {
    /// Its size is that of an earlier scan, which looked at these files for shared extents.
    FromCache(Extents),
    /// It is being walked.
    Awaited,
    Measured(Box<Outcome>),
}

/// What a walk says of a layer.
#[derive(Debug)]
struct Outcome {
    size: CachedSize,
    /// It has inodes or extents in common with somebody.
    shares: bool,
    /// Something of it could not be read, or something is mounted in it.
    is_faulty: bool,
    is_racy: bool,
}

impl Cached {
    pub(super) fn new(cache: Option<SizeCache>, stores: Vec<StoreId>) -> Self {
        Self { cache, stores, ..Self::default() }
    }

    /// Whether anything is taken or left.
    pub(super) fn is_on(&self) -> bool {
        self.cache.is_some()
    }

    fn sizes(&self, store: usize) -> Option<&StoreSizes> {
        self.cache.as_ref()?.stores.get(self.stores.get(store)?)
    }

    /// What an earlier scan found of the layer as it is now.
    fn earlier(&self, layer: &Layer) -> Option<&CachedSize> {
        let found = self.sizes(layer.store)?.layers.get(&layer.key);
        found.filter(|size| size.stamp == layer.stamp)
    }

    pub(super) fn stamp(&self, slot: usize) -> Option<Fingerprint> {
        self.layers.get(&slot).map(|layer| layer.stamp)
    }

    /// Drops all that belongs to slots.
    pub(super) fn forget(&mut self) {
        self.layers.clear();
    }

    /// Takes nothing of these stores from now on.
    pub(super) fn distrust(&mut self, stores: impl IntoIterator<Item = usize>) {
        self.distrusted.extend(stores);
    }

    /// Takes nothing at all from now on.
    pub(super) fn distrust_all(&mut self) {
        self.distrusted.extend(0..self.stores.len());
    }

    /// The slots that need not be walked, with their sizes. One layer at random is walked all
    /// the same.
    pub(super) fn take(
        &mut self,
        subjects: &[Subject],
        stamps: &HashMap<usize, Fingerprint>,
        wanted: MeasurementNeeds,
        now: Timestamp,
    ) -> Vec<(usize, &CachedSize)> {
        let Self { cache, stores, distrusted, layers } = self;
        let known: Vec<_> = stores.iter().map(|store| cache.as_ref()?.stores.get(store)).collect();
        let mut usable = Vec::new();
        layers.reserve(subjects.len());
        for Subject { slot, store, key, stamp } in subjects.iter().copied() {
            let Some(stamp) = stamp.or_else(|| stamps.get(&slot).copied()) else { continue };
            let earlier = known[store].filter(|_| !distrusted.contains(&store));
            let earlier = earlier.and_then(|sizes| sizes.layers.get(&key));
            let is_usable =
                |size: &&CachedSize| size.is_usable(stamp, wanted.extents, wanted.inode_chunks, now);
            usable.extend(earlier.filter(is_usable).map(|size| (slot, size)));
            layers.insert(slot, Layer { store, key, stamp, state: SizeState::Awaited });
        }
        if !usable.is_empty() {
            let seed = cache.as_ref().map_or(0, |cache| cache.seed);
            usable.swap_remove(fastrand::Rng::with_seed(seed).usize(..usable.len()));
        }
        for (slot, size) in &usable {
            if let Some(layer) = layers.get_mut(slot) {
                layer.state = SizeState::FromCache(size.extents);
            }
        }
        usable
    }

    /// Notes what a walk between two moments says of the layers that it was to measure.
    pub(super) fn absorb(
        &mut self,
        measured: &Measured,
        wanted: MeasurementNeeds,
        started: Timestamp,
        ended: Timestamp,
    ) {
        let inodes = measured.shared_inodes.iter().flat_map(|group| group.units.iter().copied());
        let extents = measured.shared_extents.iter().flat_map(|group| group.counted.iter().map(|one| one.0));
        let sharing: HashSet<usize> = inodes.chain(extents).collect();
        let errors = measured.errors.iter().map(|error| error.unit);
        let faulty: HashSet<usize> = errors.chain(measured.mounts.iter().map(|mount| mount.0)).collect();
        let is_awaited = |layer: &Layer| matches!(layer.state, SizeState::Awaited);
        let mut held =
            encode_by_unit(&measured.inodes, |slot| self.layers.get(&slot).is_some_and(is_awaited));
        for (slot, layer) in self.layers.iter_mut().filter(|(_, layer)| is_awaited(layer)) {
            let newest = measured.newest.get(*slot).copied().unwrap_or(i64::MIN);
            let age = Age::of(newest, started, ended);
            let size = CachedSize {
                stamp: layer.stamp,
                extents: measured.extents,
                inode_chunks: wanted.inode_chunks,
                measured_at: started,
                settled: age == Age::Settled,
                tally: measured.units.get(*slot).copied().unwrap_or_default(),
                inodes: held.remove(slot).unwrap_or_default(),
            };
            layer.state = SizeState::Measured(Box::new(Outcome {
                size,
                shares: sharing.contains(slot),
                is_faulty: faulty.contains(slot),
                is_racy: age == Age::Racy,
            }));
        }
    }

    fn contradiction(&self, layer: &Layer) -> Option<Contradiction> {
        match &layer.state {
            // A fault is reported as such.
            SizeState::Measured(found) if !found.is_faulty => {
                self.earlier(layer)?.contradiction(&found.size, found.shares)
            }
            _ => None,
        }
    }

    /// Stores with a layer that was measured again and is not what an earlier scan found.
    pub(super) fn doubted(&self) -> HashSet<usize> {
        let trusted = self.layers.values().filter(|layer| !self.distrusted.contains(&layer.store));
        trusted.filter(|layer| self.contradiction(layer).is_some()).map(|layer| layer.store).collect()
    }

    /// Layers that another process wrote to since an earlier scan, and what shows it.
    pub(super) fn contradictions(&self) -> Vec<(usize, String)> {
        let found = self.layers.iter().filter_map(|(slot, layer)| match self.contradiction(layer)? {
            Contradiction::Differs(how) => Some((*slot, how)),
            Contradiction::Shares => None,
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        found
    }

    /// Slots whose size was taken from an earlier scan.
    pub(super) fn taken(&self) -> impl Iterator<Item = usize> {
        let taken = self.layers.iter().filter(|(_, layer)| matches!(layer.state, SizeState::FromCache(_)));
        taken.map(|(slot, _)| *slot)
    }

    /// Some size is from a walk that looked at fewer files for shared extents.
    pub(super) fn looked_less_than(&self, extents: Extents) -> bool {
        let less = |layer: &Layer| matches!(layer.state, SizeState::FromCache(looked) if looked < extents);
        self.layers.values().any(less)
    }

    /// Whether that much was shared with somebody outside when all was last measured in one walk.
    pub(super) fn knows_outside(&self, outside: Fingerprint) -> bool {
        let is_known = |store| self.sizes(store).is_some_and(|sizes| sizes.outside == outside);
        outside == Fingerprint::default() || (0..self.stores.len()).all(is_known)
    }

    /// What to leave of the `alive` slots, by store; `None` for a store as it was. `outside` is given
    /// after a walk over everything.
    pub(super) fn leave(
        self,
        alive: &HashSet<usize>,
        outside: Option<Fingerprint>,
    ) -> Option<Vec<(StoreId, Option<StoreSizes>)>> {
        let cache = self.cache?;
        // A layer without an outcome stays as it was: most stores do, and are not copied for that.
        let mut left: Vec<_> = self.stores.into_iter().map(|store| (store, Vec::new())).collect();
        for (slot, layer) in self.layers {
            let Some((store, left)) = left.get_mut(layer.store).filter(|_| alive.contains(&slot)) else {
                continue;
            };
            let before = || cache.stores.get(store)?.layers.get(&layer.key);
            let new = match layer.state {
                SizeState::FromCache(_) => None,
                SizeState::Awaited => continue,
                SizeState::Measured(found) if found.shares || found.is_faulty || found.is_racy => continue,
                SizeState::Measured(found)
                    if before().is_some_and(|before| before.says_the_same(&found.size)) =>
                {
                    None
                }
                SizeState::Measured(found) if found.size.tally.inodes > 0 => Some(found),
                SizeState::Measured(_) => continue,
            };
            left.push((layer.key, new));
        }
        let changed = left.into_iter().map(|(store, layers)| {
            let before = cache.stores.get(&store);
            let outside = outside.or(before.map(|before| before.outside)).unwrap_or_default();
            let is_same = before.is_some_and(|before| {
                let stay = layers.iter().all(|(_, new)| new.is_none());
                stay && before.layers.len() == layers.len() && before.outside == outside
            });
            let sizes = || {
                let layers = layers.into_iter().filter_map(|(key, new)| {
                    let known = || before?.layers.get(&key).cloned();
                    Some((key, new.map(|found| found.size).or_else(known)?))
                });
                StoreSizes { layers: layers.collect(), outside }
            };
            let changed = (!is_same).then(sizes);
            (store, changed)
        });
        Some(changed.collect())
    }
}
