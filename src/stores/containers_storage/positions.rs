//! Where the record of a layer is, by the layer's id.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::records::LayerRecord;

/// Positions of layers in the table that they were made of. The ids are in the table alone: of a large
/// store they are 100,000, and whoever walks its directories looks each of them up.
#[derive(Clone, Debug, Default)]
pub(super) struct Positions {
    table: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl Positions {
    /// Of layers of which no two have the same id.
    pub(super) fn of(layers: &[LayerRecord]) -> Self {
        let mut all = Self { table: HashTable::with_capacity(layers.len()), ..Self::default() };
        let hash = |at: usize| all.hasher.hash_one(layers[at].id.as_bytes());
        for at in 0..layers.len() {
            all.table.insert_unique(hash(at), at, |at| hash(*at));
        }
        all
    }

    /// Where the layer with this id is among `layers`, whose positions these are.
    pub(super) fn get(&self, layers: &[LayerRecord], id: &[u8]) -> Option<usize> {
        let is_it = |at: &usize| layers.get(*at).is_some_and(|layer| layer.id.as_bytes() == id);
        self.table.find(self.hasher.hash_one(id), is_it).copied()
    }
}
