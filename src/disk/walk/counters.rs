//! Counters that all threads add to, once per directory.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::links::lock;
use super::types::{Progress, Tally};

/// One tally a unit, and the progress that others watch.
#[derive(Debug)]
pub struct Counters<'a> {
    /// With the latest change.
    units: Vec<Mutex<(Tally, i64)>>,
    progress: Option<&'a Progress>,
}

impl<'a> Counters<'a> {
    /// For units 0 up to `units`; none if `None`.
    pub fn new(units: Option<usize>, progress: Option<&'a Progress>) -> Self {
        let units = (0..units.unwrap_or(0)).map(|_| Mutex::new((Tally::default(), i64::MIN))).collect();
        Self { units, progress }
    }

    /// Adds what a directory holds, which changed as late as `newest`.
    pub fn add(&self, unit: usize, tally: Tally, newest: i64) {
        if let Some(unit) = self.units.get(unit) {
            let mut unit = lock(unit);
            unit.0 += tally;
            unit.1 = unit.1.max(newest);
        }
        if let Some(progress) = self.progress {
            progress.inodes.fetch_add(tally.inodes, Ordering::Relaxed);
            progress.bytes.fetch_add(tally.bytes, Ordering::Relaxed);
        }
    }

    /// The tallies and the latest changes, by unit number.
    pub fn into_tallies(self) -> (Vec<Tally>, Vec<i64>) {
        let newest = self.units.iter().map(|unit| lock(unit).1).collect();
        // Collected in place: a second list shows in the memory that a large store takes.
        (self.units.into_iter().map(|unit| lock(&unit).0).collect(), newest)
    }

    /// Takes from the progress what a walk has added that starts again.
    pub fn take_back(self) {
        let Some(progress) = self.progress else { return };
        for tally in self.into_tallies().0 {
            progress.inodes.fetch_sub(tally.inodes, Ordering::Relaxed);
            progress.bytes.fetch_sub(tally.bytes, Ordering::Relaxed);
        }
    }
}
