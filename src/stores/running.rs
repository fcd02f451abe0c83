//! Stores of programs that run on this node, as those tell.

use std::path::PathBuf;

use crate::model::StoreKind;

/// Facts from running programs, beside what files say: command lines and answers of runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningPrograms {
    /// Command lines of containerd, k3s and RKE2: a program and its arguments each.
    pub containerds: Vec<Vec<String>>,
    /// The stores of the runtimes that answer on the sockets of this node.
    pub stores: Vec<RuntimeStore>,
}

/// Directory of a runtime's images, as it reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStore {
    pub store_type: StoreKind,
    /// Its root: graphroot, or containerd's root. Symlinks are followed if it exists for us.
    pub root: PathBuf,
    /// containerd's state directory, if it tells.
    pub state: Option<PathBuf>,
    /// Storage driver or snapshotter, if the runtime tells.
    pub driver: Option<String>,
    /// A separate store of the image layers (CRI-O's `imagestore`).
    pub image_root: Option<PathBuf>,
    /// The image that it makes pod sandboxes from, if it tells.
    pub sandbox_image: Option<String>,
    /// The source of this, for messages.
    pub origin: String,
}
