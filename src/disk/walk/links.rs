//! Inodes with several hard links. Each counts once, and its unit is known only after all links were seen.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::types::{SharedInodes, Tally};
use crate::disk::runs::DiskRun;

pub type InodeKey = (u64, u64);

/// Number of locks; threads seldom wait for the same one.
const SHARDS: usize = 64;

/// Inodes of which some links have not been seen yet.
#[derive(Debug)]
pub struct Links {
    shards: Box<[Mutex<HashMap<InodeKey, LinkedInode>>]>,
    hasher: RandomState,
    /// Keep inodes whose links were all seen: their extents are still to be attached.
    keep_complete: bool,
    groups: Mutex<Groups>,
}

type Groups = HashMap<(Vec<usize>, bool), Tally>;

#[derive(Debug)]
struct LinkedInode {
    seen: u64,
    links: u64,
    units: Units,
    tally: Tally,
    extents: Option<(u64, Vec<DiskRun>)>,
}

#[derive(Debug)]
enum Units {
    One(usize),
    /// Ascending, at least two.
    Several(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    First,
    /// A further link: more are missing, or the inode belongs to several units.
    Further,
    /// The last link, and all links are in this unit: the inode's size belongs to the unit.
    Complete(Tally),
}

/// Owner of an inode that was kept to the end.
#[derive(Debug)]
pub struct SettledInode {
    /// Unit that contains all links; `None` for a shared inode.
    pub unit: Option<usize>,
    /// The inode, if it has a link outside the trees.
    pub outside: Option<InodeKey>,
    /// Size of the inode, if it belongs to the unit and was not returned by [`Links::see`].
    pub tally: Tally,
    /// Its filesystem and its extents, if it was asked.
    pub extents: Option<(u64, Vec<DiskRun>)>,
}

impl Units {
    fn add(&mut self, unit: usize) {
        match self {
            Self::One(first) if *first == unit => {}
            Self::One(first) => {
                *self = Self::Several(vec![unit.min(*first), unit.max(*first)]);
            }
            Self::Several(units) => {
                if let Err(position) = units.binary_search(&unit) {
                    units.insert(position, unit);
                }
            }
        }
    }

    fn into_vec(self) -> Vec<usize> {
        match self {
            Self::One(unit) => vec![unit],
            Self::Several(units) => units,
        }
    }
}

impl Links {
    /// With `keep_complete`, [`Self::see`] never returns [`Sight::Complete`] and [`Self::attach`] finds every inode.
    /// Without it, only inodes with missing links use memory.
    pub fn new(keep_complete: bool) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            keep_complete,
            groups: Mutex::default(),
        }
    }

    /// Records a link of the inode `key` in `unit`. The inode now has `links` links.
    pub fn see(&self, key: InodeKey, links: u64, unit: usize, tally: Tally) -> Sight {
        let mut shard = self.shard(key);
        let first = !shard.contains_key(&key);
        let entry = shard.entry(key).or_insert_with(|| LinkedInode {
            seen: 0,
            links,
            units: Units::One(unit),
            tally,
            extents: None,
        });
        entry.seen += 1;
        entry.links = links;
        entry.units.add(unit);
        if first {
            return Sight::First;
        }
        if self.keep_complete || entry.seen < links {
            return Sight::Further;
        }
        let Some(entry) = shard.remove(&key) else {
            return Sight::Further;
        };
        drop(shard);
        match entry.units {
            Units::One(_) => Sight::Complete(entry.tally),
            units @ Units::Several(_) => {
                self.group(units.into_vec(), false, entry.tally);
                Sight::Further
            }
        }
    }

    /// Adds the extents of an inode that [`Self::see`] has recorded.
    pub fn attach(&self, key: InodeKey, filesystem: u64, extents: Vec<DiskRun>) {
        if let Some(entry) = self.shard(key).get_mut(&key) {
            entry.extents = Some((filesystem, extents));
        }
    }

    /// Ends the walk: passes each remaining inode to `settle`, and returns the shared inodes in ascending order of
    /// their units.
    pub fn finish(self, mut settle: impl FnMut(SettledInode)) -> Vec<SharedInodes> {
        for shard in &self.shards {
            let entries = std::mem::take(&mut *lock(shard));
            for (key, entry) in entries {
                let LinkedInode { seen, links, units, tally, extents } = entry;
                match units {
                    Units::One(unit) if seen >= links => {
                        settle(SettledInode { unit: Some(unit), outside: None, tally, extents });
                    }
                    units => {
                        self.group(units.into_vec(), seen < links, tally);
                        let outside = (seen < links).then_some(key);
                        settle(SettledInode { unit: None, outside, tally: Tally::default(), extents });
                    }
                }
            }
        }
        let groups = self.groups.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut shared: Vec<SharedInodes> = groups
            .into_iter()
            .map(|((units, outside), tally)| SharedInodes { units, outside, tally })
            .collect();
        shared.sort_unstable_by(|a, b| (&a.units, a.outside).cmp(&(&b.units, b.outside)));
        shared
    }

    fn group(&self, units: Vec<usize>, outside: bool, tally: Tally) {
        *lock(&self.groups).entry((units, outside)).or_default() += tally;
    }

    fn shard(&self, key: InodeKey) -> MutexGuard<'_, HashMap<InodeKey, LinkedInode>> {
        #[allow(clippy::cast_possible_truncation)] // only the low bits are used
        let index = self.hasher.hash_one(key) as usize % SHARDS;
        lock(&self.shards[index])
    }
}

/// Locks `mutex`, even after a panic: a thread that panics leaves complete values.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: Tally =
        Tally { bytes: 4096, apparent_bytes: 10, inodes: 1, metadata_bytes: 400, inline_bytes: 4096 };

    fn finish(links: Links) -> (Vec<SharedInodes>, Vec<(Option<usize>, u64)>) {
        let mut settled = Vec::new();
        let shared = links.finish(|inode| settled.push((inode.unit, inode.tally.bytes)));
        (shared, settled)
    }

    fn shared(units: &[usize], outside: bool, count: u64) -> SharedInodes {
        let tally = Tally {
            bytes: 4096 * count,
            apparent_bytes: 10 * count,
            inodes: count,
            metadata_bytes: 400 * count,
            inline_bytes: 4096 * count,
        };
        SharedInodes { units: units.to_vec(), outside, tally }
    }

    #[test]
    fn links_of_one_unit_count_once() {
        let links = Links::new(false);
        assert_eq!(links.see((1, 1), 3, 7, WEIGHT), Sight::First);
        assert_eq!(links.see((1, 1), 3, 7, WEIGHT), Sight::Further);
        assert_eq!(links.see((1, 1), 3, 7, WEIGHT), Sight::Complete(WEIGHT));
        assert!(links.shard((1, 1)).is_empty());
        assert_eq!(finish(links), (vec![], vec![]));
    }

    #[test]
    fn links_in_several_units_or_outside_are_grouped() {
        let links = Links::new(false);
        for inode in [1, 2] {
            links.see((1, inode), 2, 5, WEIGHT);
            links.see((1, inode), 2, 3, WEIGHT);
        }
        // The same inode number on another device is another inode.
        links.see((2, 1), 2, 3, WEIGHT);
        links.see((1, 3), 4, 3, WEIGHT);
        links.see((1, 3), 4, 5, WEIGHT);
        links.see((1, 3), 4, 4, WEIGHT);
        let expected = vec![shared(&[3], true, 1), shared(&[3, 4, 5], true, 1), shared(&[3, 5], false, 2)];
        assert_eq!(finish(links).0, expected);
    }

    #[test]
    fn kept_inodes_are_settled_by_finish() {
        let links = Links::new(true);
        links.see((1, 1), 2, 7, WEIGHT);
        assert_eq!(links.see((1, 1), 2, 7, WEIGHT), Sight::Further);
        links.see((1, 2), 2, 7, WEIGHT);
        links.see((1, 2), 2, 8, WEIGHT);
        let (groups, mut settled) = finish(links);
        settled.sort_unstable();
        assert_eq!(groups, [shared(&[7, 8], false, 1)]);
        assert_eq!(settled, [(None, 0), (Some(7), 4096)]);
    }

    #[test]
    fn deleted_link_completes_the_others() {
        let links = Links::new(false);
        links.see((1, 1), 3, 7, WEIGHT);
        assert_eq!(links.see((1, 1), 2, 7, WEIGHT), Sight::Complete(WEIGHT));
    }
}
