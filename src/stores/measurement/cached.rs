//! Selection of the sizes that a scan reuses from earlier scans, and of those that it stores for later ones.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;

use crate::disk::inode_chunks::encode_by_unit;
use crate::disk::runs::EncodedRuns;
use crate::disk::size_cache::{CachedSize, SizeCache, StoreSizes};
use crate::disk::{Fingerprint, Measured, UnitExtents};
use crate::model::StoreId;

#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasurementNeeds {
    /// Files can share extents.
    pub(crate) extents: bool,
    pub(crate) inode_chunks: bool,
}

/// A finished layer that is about to be measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedUnit {
    pub(super) slot: usize,
    pub(super) store: usize,
    pub(super) key: Fingerprint,
    /// Its stamp, if it was already taken.
    pub(super) stamp: Option<Fingerprint>,
}

/// The finished layers of a scan.
#[derive(Debug, Default)]
pub(super) struct CachedSizes {
    /// `None`: no size is taken from earlier scans or stored for later ones.
    cache: Option<SizeCache>,
    stores: Vec<StoreId>,
    /// Stores from which no cached size is used.
    distrusted: HashSet<usize>,
    layers: HashMap<usize, Layer>,
    differing: Vec<Differing>,
}

/// A measured layer that differs from an earlier scan although its stamp is the same.
#[derive(Debug)]
struct Differing {
    slot: usize,
    store: usize,
    /// Description of the difference; `None` if it shares inodes now, for example after a deduplication.
    difference: Option<String>,
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
    /// The size is that of an earlier scan.
    FromCache,
    /// The walk is not finished.
    Awaited,
    /// `None` if it must be measured in each scan.
    Measured(Option<Box<CachedSize>>),
}

impl CachedSizes {
    pub(super) fn new(cache: Option<SizeCache>, stores: Vec<StoreId>) -> Self {
        Self { cache, stores, ..Self::default() }
    }

    /// Returns true if sizes are taken from earlier scans and stored for later ones.
    pub(super) fn is_on(&self) -> bool {
        self.cache.is_some()
    }

    pub(super) fn stamp(&self, slot: usize) -> Option<Fingerprint> {
        self.layers.get(&slot).map(|layer| layer.stamp)
    }

    pub(super) fn forget(&mut self) {
        self.layers.clear();
        self.differing.clear();
    }

    /// Uses no cached sizes from now on.
    pub(super) fn distrust_all(&mut self) {
        self.distrusted.extend(0..self.stores.len());
    }

    pub(super) fn seed(&self) -> u64 {
        self.cache.as_ref().map_or(0, |cache| cache.seed)
    }

    /// Returns the slots that need not be walked, with their sizes. One random layer is walked nevertheless.
    pub(super) fn take(
        &mut self,
        subjects: &[CachedUnit],
        stamps: &HashMap<usize, Fingerprint>,
        wanted: MeasurementNeeds,
    ) -> Vec<(usize, &CachedSize)> {
        let Self { cache, stores, distrusted, layers, .. } = self;
        let known: Vec<_> = stores.iter().map(|store| cache.as_ref()?.stores.get(store)).collect();
        let mut usable = Vec::new();
        layers.reserve(subjects.len());
        for CachedUnit { slot, store, key, stamp } in subjects.iter().copied() {
            let Some(stamp) = stamp.or_else(|| stamps.get(&slot).copied()) else { continue };
            let earlier = known[store]
                .filter(|_| !distrusted.contains(&store))
                .and_then(|sizes| sizes.layers.get(&key));
            let usable_size =
                earlier.filter(|size| size.is_usable(stamp, wanted.extents, wanted.inode_chunks));
            usable.extend(usable_size.map(|size| (slot, size)));
            layers.insert(slot, Layer { store, key, stamp, state: SizeState::Awaited });
        }
        let mut random = fastrand::Rng::with_seed(cache.as_ref().map_or(0, |cache| cache.seed));
        if !usable.is_empty() {
            usable.swap_remove(random.usize(..usable.len()));
        }
        for (slot, _) in &usable {
            if let Some(layer) = layers.get_mut(slot) {
                layer.state = SizeState::FromCache;
            }
        }
        usable
    }

    /// Records the results of a walk for the layers that were waiting for it.
    pub(super) fn absorb(&mut self, measured: &Measured, wanted: MeasurementNeeds, started: Timestamp) {
        let Self { cache: Some(cache), stores, layers, differing, .. } = self else { return };
        let sharing: HashSet<usize> =
            measured.shared_inodes.iter().flat_map(|group| group.units.iter().copied()).collect();
        let errors = measured.errors.iter().map(|error| error.unit);
        let faulty: HashSet<usize> = errors.chain(measured.mounts.iter().map(|mount| mount.0)).collect();
        let settled_before = started.as_second().saturating_sub(cache.settled_after.as_secs());
        let mut inodes_by_slot = encode_by_unit(&measured.inodes, |slot| {
            layers.get(&slot).is_some_and(|layer| matches!(layer.state, SizeState::Awaited))
        });
        let awaited = layers.iter_mut().filter(|(_, layer)| matches!(layer.state, SizeState::Awaited));
        for (slot, layer) in awaited {
            let size = CachedSize {
                stamp: layer.stamp,
                extents: wanted.extents.then(|| {
                    // The runs follow when all of them are known.
                    let samples = measured.extents.get(&Some(*slot)).map(|extents| extents.samples.clone());
                    Arc::new(UnitExtents { runs: Vec::new(), samples: samples.unwrap_or_default() })
                }),
                inode_chunks: wanted.inode_chunks,
                tally: measured.units.get(*slot).copied().unwrap_or_default(),
                inodes: inodes_by_slot.remove(slot).unwrap_or_default(),
            };
            // Errors are reported as errors, not as a modification.
            let (shares, is_faulty) = (sharing.contains(slot), faulty.contains(slot));
            let earlier =
                cache.stores.get(&stores[layer.store]).and_then(|sizes| sizes.layers.get(&layer.key));
            if let Some(earlier) = earlier.filter(|earlier| earlier.stamp == layer.stamp && !is_faulty) {
                let difference = earlier.difference(&size).filter(|_| !shares);
                if shares || difference.is_some() {
                    differing.push(Differing { slot: *slot, store: layer.store, difference });
                }
            }
            let is_settled = measured.newest.get(*slot).is_some_and(|newest| *newest < settled_before);
            let is_cacheable = is_settled && !shares && !is_faulty && size.tally.inodes > 0;
            layer.state = SizeState::Measured(is_cacheable.then(|| Box::new(size)));
        }
    }

    /// Uses no more cached sizes of stores with a differing layer. Returns true if there is a new such store.
    pub(super) fn distrust_differing(&mut self) -> bool {
        let before = self.distrusted.len();
        self.distrusted.extend(self.differing.iter().map(|differing| differing.store));
        self.distrusted.len() > before
    }

    /// Returns the layers to which another process wrote since an earlier scan, with the difference.
    pub(super) fn modified(&self) -> Vec<(usize, &str)> {
        let differing = self.differing.iter();
        let mut found: Vec<_> =
            differing.filter_map(|layer| Some((layer.slot, layer.difference.as_deref()?))).collect();
        found.sort_unstable();
        found
    }

    pub(super) fn taken(&self) -> impl Iterator<Item = usize> {
        let taken = self.layers.iter().filter(|(_, layer)| matches!(layer.state, SizeState::FromCache));
        taken.map(|(slot, _)| *slot)
    }

    /// Records the runs of measured layers, as they are to be stored.
    pub(super) fn settle(&mut self, settled: std::collections::HashMap<usize, Vec<EncodedRuns>>) {
        for (slot, runs) in settled {
            if let Some(Layer { state: SizeState::Measured(Some(size)), .. }) = self.layers.get_mut(&slot)
                && let Some(extents) = &mut size.extents
            {
                Arc::make_mut(extents).runs = runs;
            }
        }
    }

    /// Returns the sizes of the `alive` slots to store, by store; `None` for an unchanged store.
    pub(super) fn leave(self, alive: &HashSet<usize>) -> Option<Vec<(StoreId, Option<StoreSizes>)>> {
        let cache = self.cache?;
        // A size from the cache is not copied: it is unchanged, and most stores change little.
        let mut left: Vec<_> = self.stores.into_iter().map(|store| (store, Vec::new())).collect();
        for (slot, layer) in self.layers {
            let Some((store, left)) = left.get_mut(layer.store).filter(|_| alive.contains(&slot)) else {
                continue;
            };
            let known = || cache.stores.get(store)?.layers.get(&layer.key);
            let new = match layer.state {
                SizeState::FromCache => None,
                SizeState::Awaited | SizeState::Measured(None) => continue,
                SizeState::Measured(Some(size)) => {
                    (!known().is_some_and(|known| known.is_same(&size))).then_some(size)
                }
            };
            left.push((layer.key, new));
        }
        let changed = left.into_iter().map(|(store, layers)| {
            let before = cache.stores.get(&store);
            let is_same = before.is_some_and(|before| {
                layers.iter().all(|(_, new)| new.is_none()) && before.layers.len() == layers.len()
            });
            if is_same {
                return (store, None);
            }
            let layers = layers
                .into_iter()
                .filter_map(|(key, new)| {
                    let size = match new {
                        Some(size) => *size,
                        None => before?.layers.get(&key).cloned()?,
                    };
                    Some((key, size))
                })
                .collect();
            (store, Some(StoreSizes { layers }))
        });
        Some(changed.collect())
    }
}
