//! Counters that all threads add to, once per directory.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::types::{Progress, Tally};

/// One tally a unit, and the progress that others watch.
#[derive(Debug)]
pub struct Counters<'a> {
    units: Vec<Unit>,
    progress: Option<&'a Progress>,
    all: Unit,
}

#[derive(Debug)]
struct Unit {
    newest: AtomicI64,
    bytes: AtomicU64,
    apparent_bytes: AtomicU64,
    inodes: AtomicU64,
    metadata_bytes: AtomicU64,
    inline_bytes: AtomicU64,
}

impl Default for Unit {
    fn default() -> Self {
        Self {
            newest: AtomicI64::new(i64::MIN),
            bytes: AtomicU64::default(),
            apparent_bytes: AtomicU64::default(),
            inodes: AtomicU64::default(),
            metadata_bytes: AtomicU64::default(),
            inline_bytes: AtomicU64::default(),
        }
    }
}

impl Unit {
    fn add(&self, tally: Tally) {
        self.bytes.fetch_add(tally.bytes, Ordering::Relaxed);
        self.apparent_bytes.fetch_add(tally.apparent_bytes, Ordering::Relaxed);
        self.inodes.fetch_add(tally.inodes, Ordering::Relaxed);
        self.metadata_bytes.fetch_add(tally.metadata_bytes, Ordering::Relaxed);
        self.inline_bytes.fetch_add(tally.inline_bytes, Ordering::Relaxed);
    }

    fn into_tally(self) -> Tally {
        Tally {
            bytes: self.bytes.into_inner(),
            apparent_bytes: self.apparent_bytes.into_inner(),
            inodes: self.inodes.into_inner(),
            metadata_bytes: self.metadata_bytes.into_inner(),
            inline_bytes: self.inline_bytes.into_inner(),
        }
    }
}

impl<'a> Counters<'a> {
    /// For units 0 up to `units`; none if `None`.
    pub fn new(units: Option<usize>, progress: Option<&'a Progress>) -> Self {
        let units = (0..units.unwrap_or(0)).map(|_| Unit::default()).collect();
        Self { units, progress, all: Unit::default() }
    }

    /// Adds what a directory holds.
    pub fn add(&self, unit: usize, tally: Tally) {
        if let Some(unit) = self.units.get(unit) {
            unit.add(tally);
        }
        if let Some(progress) = self.progress {
            self.all.add(tally);
            progress.inodes.fetch_add(tally.inodes, Ordering::Relaxed);
            progress.bytes.fetch_add(tally.bytes, Ordering::Relaxed);
        }
    }

    /// Something of the unit changed as late as `newest`.
    pub fn changed(&self, unit: usize, newest: i64) {
        if let Some(unit) = self.units.get(unit) {
            unit.newest.fetch_max(newest, Ordering::Relaxed);
        }
    }

    /// Takes from the progress what a walk has added that starts again.
    pub fn take_back(&self) {
        if let Some(progress) = self.progress {
            progress.inodes.fetch_sub(self.all.inodes.load(Ordering::Relaxed), Ordering::Relaxed);
            progress.bytes.fetch_sub(self.all.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The tallies and the latest changes, by unit number.
    pub fn into_tallies(self) -> (Vec<Tally>, Vec<i64>) {
        let newest = self.units.iter().map(|unit| unit.newest.load(Ordering::Relaxed)).collect();
        (self.units.into_iter().map(Unit::into_tally).collect(), newest)
    }
}
