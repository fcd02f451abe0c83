//! Stores of programs that run on this node, as they report them.

use std::path::PathBuf;

use crate::model::StoreKind;

/// Facts from running programs: command lines and answers of runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningPrograms {
    /// Command lines of containerd, k3s, RKE2 and dockerd, each with program and arguments.
    pub containerds: Vec<Vec<String>>,
    /// Stores of the runtimes that answer on the sockets of this node.
    pub stores: Vec<RuntimeStore>,
}

/// Store of a runtime, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStore {
    pub kind: StoreKind,
    /// Graphroot, or containerd's root. Symlinks are resolved if it exists on this system.
    pub root: PathBuf,
    /// containerd's state directory, if reported.
    pub state: Option<PathBuf>,
    /// Storage driver or snapshotter, if reported.
    pub driver: Option<String>,
    /// A separate store of the image layers (CRI-O's `imagestore`).
    pub image_root: Option<PathBuf>,
    /// Image that the runtime uses for pod sandboxes, if reported.
    pub sandbox_image: Option<String>,
    /// Ids of the pod sandboxes that are not ready; of containerd only, whose disk does not contain their state.
    pub ended_sandboxes: Vec<String>,
    /// Source of these facts, for messages.
    pub origin: String,
}

impl RuntimeStore {
    /// Returns a root of containerd about which nothing else is known.
    #[must_use]
    pub fn of_containerd(root: PathBuf, origin: &str) -> Self {
        Self::of(StoreKind::Containerd, root, origin)
    }

    /// Returns a graphroot about which nothing else is known.
    #[must_use]
    pub fn of_graphroot(root: PathBuf, origin: &str) -> Self {
        Self::of(StoreKind::ContainersStorage, root, origin)
    }

    fn of(kind: StoreKind, root: PathBuf, origin: &str) -> Self {
        Self {
            kind,
            root,
            state: None,
            driver: None,
            image_root: None,
            sandbox_image: None,
            ended_sandboxes: Vec::new(),
            origin: origin.to_owned(),
        }
    }
}
