//! Which sizes a scan reuses from earlier scans, and which it stores for later ones.

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;

use crate::disk::inode_chunks::encode_by_unit;
use crate::disk::size_cache::{CachedSize, SizeCache, StoreSizes};
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
    differing: Vec<Differing>,
}

/// A measured layer that is not what an earlier scan found, though its stamp is.
#[derive(Debug)]
struct Differing {
    slot: usize,
    store: usize,
    /// `None`: it shares extents now, for example after a deduplication.
    how: Option<String>,
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
    /// `None`: it has to be measured each time.
    Measured(Option<Box<CachedSize>>),
}

impl Cached {
    pub(super) fn new(cache: Option<SizeCache>, stores: Vec<StoreId>) -> Self {
        Self { cache, stores, ..Self::default() }
    }

    /// Whether anything is taken or left.
    pub(super) fn is_on(&self) -> bool {
        self.cache.is_some()
    }

    pub(super) fn stamp(&self, slot: usize) -> Option<Fingerprint> {
        self.layers.get(&slot).map(|layer| layer.stamp)
    }

    /// Drops all that belongs to slots.
    pub(super) fn forget(&mut self) {
        self.layers.clear();
        self.differing.clear();
    }

    /// Takes nothing at all from now on.
    pub(super) fn distrust_all(&mut self) {
        self.distrusted.extend(0..self.stores.len());
    }

    /// The slots that need not be walked, with their sizes. One layer at random is walked all
    /// the same, and where files can share extents one of 16: no time of a file tells of a deduplication.
    pub(super) fn take(
        &mut self,
        subjects: &[Subject],
        stamps: &HashMap<usize, Fingerprint>,
        wanted: MeasurementNeeds,
    ) -> Vec<(usize, &CachedSize)> {
        let Self { cache, stores, distrusted, layers, .. } = self;
        let known: Vec<_> = stores.iter().map(|store| cache.as_ref()?.stores.get(store)).collect();
        let mut usable = Vec::new();
        layers.reserve(subjects.len());
        for Subject { slot, store, key, stamp } in subjects.iter().copied() {
            let Some(stamp) = stamp.or_else(|| stamps.get(&slot).copied()) else { continue };
            let earlier = known[store].filter(|_| !distrusted.contains(&store));
            let earlier = earlier.and_then(|sizes| sizes.layers.get(&key));
            let is_usable = |size: &&CachedSize| size.is_usable(stamp, wanted.extents, wanted.inode_chunks);
            usable.extend(earlier.filter(is_usable).map(|size| (slot, size)));
            layers.insert(slot, Layer { store, key, stamp, state: SizeState::Awaited });
        }
        let mut random = fastrand::Rng::with_seed(cache.as_ref().map_or(0, |cache| cache.seed));
        let samples = match wanted.extents {
            Extents::Off => 1,
            Extents::Probe | Extents::All => 1 + (usable.len() / 16).min(63),
        };
        for _ in 0..samples.min(usable.len()) {
            usable.swap_remove(random.usize(..usable.len()));
        }
        for (slot, size) in &usable {
            if let Some(layer) = layers.get_mut(slot) {
                layer.state = SizeState::FromCache(size.extents);
            }
        }
        usable
    }

    /// Notes what a walk says of the layers that it was to measure.
    pub(super) fn absorb(&mut self, measured: &Measured, wanted: MeasurementNeeds, started: Timestamp) {
        let Self { cache: Some(cache), stores, layers, differing, .. } = self else { return };
        let inodes = measured.shared_inodes.iter().flat_map(|group| group.units.iter().copied());
        let extents = measured.shared_extents.iter().flat_map(|group| group.counted.iter().map(|one| one.0));
        let sharing: HashSet<usize> = inodes.chain(extents).collect();
        let errors = measured.errors.iter().map(|error| error.unit);
        let faulty: HashSet<usize> = errors.chain(measured.mounts.iter().map(|mount| mount.0)).collect();
        let settled_before = started.as_second().saturating_sub(cache.settled_after.as_secs());
        let is_awaited = |layer: &Layer| matches!(layer.state, SizeState::Awaited);
        let mut held = encode_by_unit(&measured.inodes, |slot| layers.get(&slot).is_some_and(is_awaited));
        for (slot, layer) in layers.iter_mut().filter(|(_, layer)| is_awaited(layer)) {
            let size = CachedSize {
                stamp: layer.stamp,
                extents: measured.extents,
                inode_chunks: wanted.inode_chunks,
                tally: measured.units.get(*slot).copied().unwrap_or_default(),
                inodes: held.remove(slot).unwrap_or_default(),
            };
            // A fault is reported as such.
            let (shares, is_faulty) = (sharing.contains(slot), faulty.contains(slot));
            let earlier =
                cache.stores.get(&stores[layer.store]).and_then(|sizes| sizes.layers.get(&layer.key));
            if let Some(earlier) = earlier.filter(|earlier| earlier.stamp == layer.stamp && !is_faulty) {
                let how = earlier.difference(&size).filter(|_| !shares);
                if shares || how.is_some() {
                    differing.push(Differing { slot: *slot, store: layer.store, how });
                }
            }
            let is_settled = measured.newest.get(*slot).is_some_and(|newest| *newest < settled_before);
            let stays = is_settled && !shares && !is_faulty && size.tally.inodes > 0;
            layer.state = SizeState::Measured(stays.then(|| Box::new(size)));
        }
    }

    /// Takes nothing more of stores where a measured layer differs. Whether there is another one.
    pub(super) fn distrust_differing(&mut self) -> bool {
        let before = self.distrusted.len();
        self.distrusted.extend(self.differing.iter().map(|one| one.store));
        self.distrusted.len() > before
    }

    /// Layers that another process wrote to since an earlier scan, and what shows it.
    pub(super) fn modified(&self) -> Vec<(usize, &str)> {
        let found = self.differing.iter().filter_map(|one| Some((one.slot, one.how.as_deref()?)));
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

    /// What to leave of the `alive` slots, by store; `None` for a store as it was.
    pub(super) fn leave(self, alive: &HashSet<usize>) -> Option<Vec<(StoreId, Option<StoreSizes>)>> {
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
                SizeState::Awaited | SizeState::Measured(None) => continue,
                SizeState::Measured(Some(size)) => (before() != Some(&*size)).then_some(size),
            };
            left.push((layer.key, new));
        }
        let changed = left.into_iter().map(|(store, layers)| {
            let before = cache.stores.get(&store);
            let is_same = before.is_some_and(|before| {
                layers.iter().all(|(_, new)| new.is_none()) && before.layers.len() == layers.len()
            });
            let sizes = || {
                let layers = layers.into_iter().filter_map(|(key, new)| {
                    let known = || before?.layers.get(&key).cloned();
                    Some((key, new.map(|size| *size).or_else(known)?))
                });
                StoreSizes { layers: layers.collect() }
            };
            let changed = (!is_same).then(sizes);
            (store, changed)
        });
        Some(changed.collect())
    }
}
