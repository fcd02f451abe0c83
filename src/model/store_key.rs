//! What names a store where positions do not: in records and caches. Pure.

use std::path::{Path, PathBuf};

use super::{Store, StoreKind};

/// What makes a store the same store from one scan to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreKey {
    kind: StoreKind,
    root: PathBuf,
    driver: String,
}

impl StoreKey {
    /// Of a store by its parts. One graphroot can hold the stores of several drivers, with images
    /// of the same id; a containerd root is one store, whatever snapshotters are used in it, and
    /// which of them comes first changes with the first container. So its driver says nothing.
    #[must_use]
    pub fn new(kind: StoreKind, root: PathBuf, driver: String) -> Self {
        let driver = match kind {
            StoreKind::ContainersStorage => driver,
            StoreKind::Containerd => String::new(),
        };
        Self { kind, root, driver }
    }

    /// Of a store.
    #[must_use]
    pub fn of(store: &Store) -> Self {
        Self::new(store.kind, store.root.clone(), store.driver.clone())
    }

    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Its root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Storage driver; empty for containerd.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_graphroot_is_several_stores() {
        let key = |kind, driver: &str| StoreKey::new(kind, "/store".into(), driver.into());
        for (kind, same) in [(StoreKind::ContainersStorage, false), (StoreKind::Containerd, true)] {
            assert_eq!(key(kind, "overlayfs") == key(kind, "native"), same, "{kind:?}");
        }
    }
}
