//! Stores, and their identity from scan to scan.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ids::{FilesystemIx, StoreIx};
use crate::model::text::names::names;
use crate::model::text::path_text;

names! {
    StoreKind {
        /// containers/storage: CRI-O, Podman, Buildah.
        ContainersStorage = "containers-storage",
        /// containerd's content store and snapshots.
        Containerd = "containerd",
        /// Docker's own store (graph driver `overlay2`), beside or instead of the store in its containerd.
        Docker = "docker",
    }
}

/// Facts in which the kinds of stores differ. Everything above `stores` and `editor` asks for these, and never for the
/// kind: `docs/adding-a-store.md`.
#[derive(Debug)]
pub struct KindFacts {
    /// Flag that names a store of this kind.
    pub flag: &'static str,
    /// Each storage driver of a root is a store of its own. Otherwise a root is one store with any number of drivers.
    pub is_per_driver: bool,
    /// layersweep deletes in the store itself, under the locks that all programs take. Otherwise the store belongs to
    /// one daemon, and only that deletes.
    pub is_editable: bool,
    /// Podman takes images from it, and deletes them.
    pub is_of_podman: bool,
    /// Each store of this kind has a CRI runtime, unless that serves no CRI. A store of another kind has one if the
    /// runtime reports the store, or has containers in it.
    pub is_of_runtime: bool,
    /// The runtime does not delete an image that has a container.
    pub keeps_used_images: bool,
    /// The root filesystem of an exited container is not mounted.
    pub unmounts_exited: bool,
    /// Program of the daemon that alone deletes in such a store, and that does not serve CRI.
    pub tool: Option<&'static str>,
    /// Section of `docs/recovery.md` about damaged records.
    pub recovery: Option<&'static str>,
}

const CONTAINERS_STORAGE: KindFacts = KindFacts {
    flag: "--graphroot",
    is_per_driver: true,
    is_editable: true,
    is_of_podman: true,
    is_of_runtime: false,
    keeps_used_images: true,
    unmounts_exited: false,
    tool: None,
    recovery: None,
};

const CONTAINERD: KindFacts = KindFacts {
    flag: "--containerd-root",
    is_per_driver: false,
    is_editable: false,
    is_of_podman: false,
    is_of_runtime: true,
    keeps_used_images: false,
    unmounts_exited: true,
    tool: None,
    recovery: Some("containerd's records are damaged"),
};

const DOCKER: KindFacts = KindFacts {
    flag: "--docker-root",
    is_per_driver: false,
    is_editable: false,
    is_of_podman: false,
    is_of_runtime: false,
    keeps_used_images: true,
    unmounts_exited: true,
    tool: Some("docker"),
    recovery: None,
};

impl StoreKind {
    #[must_use]
    pub fn facts(self) -> &'static KindFacts {
        match self {
            Self::ContainersStorage => &CONTAINERS_STORAGE,
            Self::Containerd => &CONTAINERD,
            Self::Docker => &DOCKER,
        }
    }

    /// Returns the name of the runtime of a store of this kind.
    #[must_use]
    pub fn runtime(self) -> &'static str {
        match self {
            Self::ContainersStorage => "CRI-O",
            Self::Containerd => "containerd",
            Self::Docker => "Docker",
        }
    }

    /// Returns the reason why layersweep deletes no image of such a store, neither itself nor through a runtime: a clause
    /// without its subject.
    #[must_use]
    pub fn obstacle(self) -> Option<String> {
        let tool = self.facts().tool?;
        Some(format!("only `{tool} rmi` deletes here"))
    }
}

/// Returns the tool of the kind of store that documents call `word`: [`KindFacts::tool`].
#[must_use]
pub fn tool_of(word: &str) -> Option<&'static str> {
    StoreKind::ALL.iter().find(|kind| kind.as_str() == word)?.facts().tool
}

/// One store: a graphroot with one driver, a containerd root, or a data root of Docker.
#[derive(Clone, Debug)]
pub struct Store {
    pub kind: StoreKind,
    /// Root, as a path that can be opened here (below the sysroot, if one was given).
    pub root: PathBuf,
    /// Storage driver or snapshotter, for example `overlay`.
    pub driver: String,
    pub filesystem: FilesystemIx,
    /// It is an additional image store: our images may use its layers, but layersweep never deletes from it.
    pub read_only: bool,
    /// Source of its configuration, for example `/etc/crio/crio.conf` or `--graphroot`.
    pub origin: String,
    /// Degree to which its records are known to belong together.
    pub consistency: Consistency,
}

pub const ARTIFACTS: &str = "artifacts";

impl Store {
    /// Creates the store of a replay, which is on no disk. In a store of Kubernetes, `protect.not_repullable` keeps images.
    #[must_use]
    pub fn replayed(is_of_kubernetes: bool) -> Self {
        Self {
            kind: if is_of_kubernetes { StoreKind::Containerd } else { StoreKind::ContainersStorage },
            root: PathBuf::new(),
            driver: String::new(),
            filesystem: 0.into(),
            read_only: false,
            origin: String::new(),
            consistency: Consistency::Consistent,
        }
    }

    #[must_use]
    pub fn is_of_artifacts(&self) -> bool {
        self.kind == StoreKind::ContainersStorage && self.driver == ARTIFACTS
    }
}

/// Store whose images another store may use, as its additional image store or imagestore, while that other store is
/// unknown or could not be read in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadUser {
    pub store: StoreIx,
    /// Path that could not be read: the root of the store whose containers are not all known, or the configuration
    /// that may name such a store.
    pub path: PathBuf,
}

names! {
    /// Degree to which the records of a store are known to belong together.
    Consistency {
        /// Read without concurrent writes: the records show one moment.
        Consistent = "consistent",
        /// A writer was active during the whole read. Each file is complete, but two files may show two moments. A
        /// record that is missing from one of them therefore does not prove a leak.
        WriterActive = "writer-active",
        /// At least one record file could not be read in full. A record that is missing from it does not prove
        /// anything.
        Damaged = "damaged",
    }
}

/// Identity of a store, which is the same from one scan to the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreId {
    kind: StoreKind,
    #[serde(with = "path_text")]
    root: PathBuf,
    driver: String,
}

impl StoreId {
    /// Creates the id from its parts. One graphroot can contain the stores of several drivers, with images of the
    /// same id. A containerd root is one store with any number of snapshotters, and the first container determines
    /// which of them is first; its driver is therefore ignored.
    #[must_use]
    pub fn new(kind: StoreKind, root: PathBuf, driver: String) -> Self {
        let driver = if kind.facts().is_per_driver { driver } else { String::new() };
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

    /// Storage driver; empty if a root is one store.
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
        fn id(kind: StoreKind, driver: &str) -> StoreId {
            StoreId::new(kind, "/store".into(), driver.into())
        }
        for (kind, same) in
            [(StoreKind::ContainersStorage, false), (StoreKind::Containerd, true), (StoreKind::Docker, true)]
        {
            assert_eq!(id(kind, "overlayfs") == id(kind, "native"), same, "{kind:?}");
        }
    }
}
