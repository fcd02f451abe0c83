//! Index from layer ids to positions of records.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::records::LayerRecord;

/// Positions of layers in a table of records, by id.
///
/// The hash table contains only positions; the ids stay in the records. A large store has 100,000 layers, and walking
/// its directories looks up each of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Positions {
    table: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl Positions {
    /// Indexes layers. Their ids must be unique.
    pub(super) fn of(layers: &[LayerRecord]) -> Self {
        let hasher = DefaultHashBuilder::default();
        let mut table = HashTable::with_capacity(layers.len());
        for (position, layer) in layers.iter().enumerate() {
            table.insert_unique(hash(&hasher, layer), position, |position| hash(&hasher, &layers[*position]));
        }
        Self { table, hasher }
    }

    /// Returns the position of the layer with this id. `layers` is the table that was indexed.
    pub(super) fn get(&self, layers: &[LayerRecord], id: &[u8]) -> Option<usize> {
        let found = self.table.find(self.hasher.hash_one(id), |position| {
            layers.get(*position).is_some_and(|layer| layer.id.as_bytes() == id)
        });
        found.copied()
    }
}

fn hash(hasher: &DefaultHashBuilder, layer: &LayerRecord) -> u64 {
    hasher.hash_one(layer.id.as_bytes())
}
