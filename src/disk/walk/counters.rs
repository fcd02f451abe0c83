//! Counters that all threads add to, once for each directory.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::links::lock;
use super::types::{Progress, Tally};

/// Tallies of all units, and the progress that another thread may read.
#[derive(Debug)]
pub struct Counters<'a> {
    /// Tally and latest change of each unit.
    units: Vec<Mutex<(Tally, i64)>>,
    progress: Option<&'a Progress>,
}

impl<'a> Counters<'a> {
    pub fn new(units: Option<usize>, progress: Option<&'a Progress>) -> Self {
        let units = (0..units.unwrap_or(0)).map(|_| Mutex::new((Tally::default(), i64::MIN))).collect();
        Self { units, progress }
    }

    /// Adds the tally of a directory and its latest change.
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

    /// Returns the tallies and the latest changes, by unit number.
    pub fn into_tallies(self) -> (Vec<Tally>, Vec<i64>) {
        let newest = self.units.iter().map(|unit| lock(unit).1).collect();
        // Collected in place: a second list would be a noticeable part of the memory for a large store.
        (self.units.into_iter().map(|unit| lock(&unit).0).collect(), newest)
    }
}
