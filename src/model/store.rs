//! Stores, and what names one from scan to scan.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ids::{FilesystemIx, StoreIx};
use super::names::names;
use super::path_text;

names! {
    /// What kind of store a [`Store`] is.
    StoreKind {
        /// containers/storage: CRI-O, Podman, Buildah.
        ContainersStorage = "containers-storage",
        /// containerd's content store and snapshots.
        Containerd = "containerd",
    }
}

/// One store: a graphroot with one driver, or a containerd root.
#[derive(Clone, Debug)]
pub struct Store {
    pub kind: StoreKind,
    /// Its root, as a path that can be opened here (below the sysroot, if one was given).
    pub root: PathBuf,
    /// Storage driver or snapshotter, for example `overlay`.
    pub driver: String,
    /// The filesystem that holds the root.
    pub filesystem: FilesystemIx,
    /// An additional image store: it may serve our images, but is never ours to delete from.
    pub read_only: bool,
    /// Who configured it, for example `/etc/crio/crio.conf` or `--graphroot`.
    pub origin: String,
    /// How far the records can be trusted to belong together.
    pub consistency: Consistency,
}

/// The driver of a store of OCI artifacts.
pub const ARTIFACTS: &str = "artifacts";

impl Store {
    /// Whether its images are OCI artifacts.
    #[must_use]
    pub fn is_of_artifacts(&self) -> bool {
        self.kind == StoreKind::ContainersStorage && self.driver == ARTIFACTS
    }
}

/// A store whose images another one may use that could not be read, or not in full, or that is not known: an
/// additional image store of that one, or its imagestore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadUser {
    /// The store that has the images.
    pub store: StoreIx,
    /// What could not be read: the root of the one whose containers are not all known, or the configuration that may
    /// name one.
    pub path: PathBuf,
}

names! {
    /// How far the records of a store are known to belong together.
    Consistency {
        /// Read without concurrent writes: one moment in time.
        Consistent = "consistent",
        /// A writer was active all the time. Each file is whole, but two files may show
        /// two moments, so nothing that is missing from one of them proves a leak.
        WriterActive = "writer-active",
        /// At least one record file could not be read in full. Nothing that is missing from
        /// it proves anything.
        Damaged = "damaged",
    }
}

/// What makes a store the same store from one scan to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreId {
    kind: StoreKind,
    #[serde(with = "path_text")]
    root: PathBuf,
    driver: String,
}

impl StoreId {
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

    #[must_use]
    pub fn of(store: &Store) -> Self {
        Self::new(store.kind, store.root.clone(), store.driver.clone())
    }

    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

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
        let key = |kind, driver: &str| StoreId::new(kind, "/store".into(), driver.into());
        for (kind, same) in [(StoreKind::ContainersStorage, false), (StoreKind::Containerd, true)] {
            assert_eq!(key(kind, "overlayfs") == key(kind, "native"), same, "{kind:?}");
        }
    }
}
