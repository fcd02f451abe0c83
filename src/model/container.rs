//! Container records.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ids::{ContainerId, ImageId, ImageIx, NodeIx, StoreIx};

/// Who made a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// CRI-O: the kubelet's.
    CriO,
    Podman,
    /// A buildah working container.
    Buildah,
    /// containerd, any namespace.
    Containerd,
    /// The records do not tell.
    Unknown,
}

/// A container record.
#[derive(Clone, Debug)]
pub struct Container {
    pub id: ContainerId,
    pub store: StoreIx,
    /// Its name; the id where it has none.
    pub name: String,
    /// Who made it.
    pub owner: Owner,
    /// The image it was made from, as recorded; may be unknown to the store.
    pub image_id: Option<ImageId>,
    /// The same as a position, where the image exists.
    pub image: Option<ImageIx>,
    /// Images that are mounted into it as volumes.
    pub volumes: Vec<ImageIx>,
    pub created: Option<Timestamp>,
    /// `running`, `exited`, `created` where the disk proves it, else `unknown`.
    pub state: ContainerState,
    /// Pod sandbox (the pause container).
    pub sandbox: bool,
    /// Id of the pod sandbox that it is in, by its own record; a sandbox may name itself.
    pub sandbox_id: Option<String>,
    /// Apparent bytes of the writable layer's content, the size that `podman ps -s` prints.
    pub listed_bytes: Option<u64>,
    /// The nodes that it holds directly: metadata, writable layer.
    pub holds: Vec<NodeIx>,
}

impl Container {
    /// The images that it uses: the one that it was made from, then its volumes; each once.
    pub fn images(&self) -> impl Iterator<Item = ImageIx> + '_ {
        let volumes = self.volumes.iter().copied().filter(|volume| self.image != Some(*volume));
        self.image.into_iter().chain(volumes)
    }

    /// Whether it was made from an image, or has it mounted as a volume.
    #[must_use]
    pub fn uses(&self, image: ImageIx) -> bool {
        self.images().any(|one| one == image)
    }
}

/// What the disk proves about a container's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContainerState {
    /// A record of the runtime says created, not yet started.
    Created,
    /// A record of the runtime says running, or its root filesystem is mounted now.
    Running,
    /// A record of the runtime says it has ended.
    Exited,
    /// The disk does not tell.
    #[default]
    Unknown,
}
