//! What a survey leaves for later ones: the sizes of layers that do not change, and how to
//! tell that they did not. Data alone; who stores it is not known here.

mod groups;

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use jiff::Timestamp;

pub use groups::{KeptGroup, MOST_MEMBERS, decode as decode_groups, encode as encode_groups};

use super::inode_chunks::UnitInodes;
use super::{Extents, Fingerprint, Fingerprinter, Tally};
use crate::model::StoreId;
use crate::sys::clock::Leap;

/// A layer or snapshot of one store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitKey {
    /// What it is: a word.
    pub tag: String,
    /// Its id or name.
    pub id: String,
}

/// How a size was measured. One that was measured without what is wanted now is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// Which files were looked at for shared extents; there were none.
    pub extents: Extents,
    /// Inodes on XFS were noted.
    pub inode_chunks: bool,
}

/// What one layer weighs that shares nothing with anybody, or only inodes with other
/// finished layers of its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptUnit {
    /// Of its record in the store.
    pub record: Fingerprint,
    /// Of its directories' own facts: [`super::evidence`].
    pub evidence: Fingerprint,
    /// How it was measured.
    pub how: How,
    /// When it was first measured with this result, by the wall clock, which file times go
    /// by too.
    pub measured_at: Timestamp,
    /// By then everything of it was old enough to be on the disk as it stays. What is
    /// written late may still get other blocks.
    pub settled: bool,
    /// What it weighs.
    pub tally: Tally,
    /// Its inodes on XFS.
    pub inodes: UnitInodes,
    /// What it holds together with others; each of them says the same.
    pub groups: Vec<KeptGroup>,
}

/// What earlier surveys left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Sizes by store and layer.
    pub stores: HashMap<StoreId, HashMap<UnitKey, Arc<KeptUnit>>>,
    /// For each set of stores that was once measured in full ([`scope`]): who
    /// shared inodes or extents with somebody outside these stores.
    pub outside: HashMap<Fingerprint, HashSet<Fingerprint>>,
    /// Which layers are measured again in spite of all: another choice for each number.
    pub seed: u64,
    /// Leaps of the wall clock, which dates on the disk are corrected by.
    pub leaps: Vec<Leap>,
}

/// What a survey leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToKeep {
    /// All sizes of the stores that were surveyed; what else is remembered of these
    /// stores is of no use any more.
    pub stores: Vec<(StoreId, Vec<KeptEntry>)>,
    /// As [`Remembered::outside`], for one set of stores; `None` leaves it as it is.
    pub outside: Option<(Fingerprint, HashSet<Fingerprint>)>,
}

/// One size to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptEntry {
    /// Whose.
    pub key: UnitKey,
    /// What it weighs.
    pub unit: Arc<KeptUnit>,
    /// It was not remembered so.
    pub changed: bool,
}

/// A name for a set of stores, in whatever order.
#[must_use]
pub fn scope(stores: &[StoreId]) -> Fingerprint {
    let mut stores: Vec<_> = stores.iter().collect();
    stores.sort_unstable();
    let mut name = Fingerprinter::new("stores");
    for store in stores {
        tell_apart(store, &mut name);
    }
    name.finish()
}

/// Takes what tells the store from others.
pub fn tell_apart(store: &StoreId, to: &mut Fingerprinter) {
    to.bytes(store.kind().word().as_bytes())
        .bytes(store.root().as_os_str().as_bytes())
        .bytes(store.driver().as_bytes());
}

impl UnitKey {
    /// A short name, the same in every survey.
    #[must_use]
    pub fn name(&self) -> Fingerprint {
        let mut name = Fingerprinter::new("unit, 1");
        name.bytes(self.tag.as_bytes()).bytes(self.id.as_bytes());
        name.finish()
    }
}

impl KeptUnit {
    /// The same result, whenever it was measured.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        Self { measured_at: other.measured_at, ..self.clone() } == *other
    }
}

impl Remembered {
    /// What is remembered of one layer.
    #[must_use]
    pub fn get(&self, store: &StoreId, unit: &UnitKey) -> Option<&Arc<KeptUnit>> {
        self.stores.get(store)?.get(unit)
    }
}
