//! What names a store where positions do not: in records and caches. Pure.

use std::path::PathBuf;

use super::{Store, StoreKind};

/// What makes a store the same store from one scan to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey {
    /// What kind it is.
    pub kind: StoreKind,
    /// Its root.
    pub root: PathBuf,
    /// Storage driver or snapshotter.
    pub driver: String,
}

impl StoreKey {
    /// Of a store.
    #[must_use]
    pub fn of(store: &Store) -> Self {
        Self { kind: store.kind, root: store.root.clone(), driver: store.driver.clone() }
    }
}
