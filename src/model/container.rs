//! Container records.

use std::path::Path;

use jiff::Timestamp;

use super::build_cache::is_for_ctr;
use super::display::{shell_word, short_id};
use super::ids::{ContainerId, ImageId, ImageIx, NodeIx, StoreIx};
use super::names::names;

names! {
    /// Who made a container.
    Owner {
        /// CRI-O: the kubelet's.
        CriO = "cri-o",
        Podman = "podman",
        /// A buildah working container.
        Buildah = "buildah",
        /// containerd: CRI's, and those of any client but Docker.
        Containerd = "containerd",
        /// Docker, which keeps its containers in containerd.
        Docker = "docker",
        /// The records do not tell.
        Unknown = "unknown",
    }
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
    /// Namespace of its pod; `containerd:<namespace>` of a container of containerd that is in no pod.
    pub namespace: Option<String>,
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

/// Returns the command of its maker that removes a container which has ended; `None` where the maker is unknown, or is a
/// program that uses a namespace of its own in containerd. `graphroot` is that of its store.
#[must_use]
pub fn removal_command(owner: Owner, id: &str, sandbox: bool, graphroot: &Path) -> Option<String> {
    // Outside of the kubelet's namespace, containerd's ids begin with their namespace.
    let (namespace, whole) = match id.rsplit_once('/') {
        Some((namespace, id)) => (Some(namespace), id),
        None => (None, id),
    };
    let id = shell_word(&short_id(whole));
    match (owner, namespace) {
        (Owner::CriO, _) | (Owner::Containerd, None) if sandbox => Some(format!("crictl rmp {id}")),
        (Owner::CriO, _) | (Owner::Containerd, None) => Some(format!("crictl rm {id}")),
        (Owner::Podman, _) => Some(format!("{} rm {id}", with_root("podman", graphroot))),
        (Owner::Buildah, _) => Some(format!("{} rm {id}", with_root("buildah", graphroot))),
        (Owner::Docker, _) => Some(format!("docker rm {id}")),
        (Owner::Containerd, Some(namespace)) if is_for_ctr(namespace) => {
            Some(format!("ctr -n {} containers rm {}", shell_word(namespace), shell_word(whole)))
        }
        (Owner::Containerd | Owner::Unknown, _) => None,
    }
}

/// `podman` or `buildah`, with the option that names this graphroot where it is not root's usual one.
#[must_use]
pub fn with_root(program: &str, graphroot: &Path) -> String {
    match graphroot == Path::new("/var/lib/containers/storage") {
        true => program.to_owned(),
        false => format!("{program} --root {}", shell_word(&graphroot.to_string_lossy())),
    }
}

names! {
    /// What the disk proves about a container's state.
    #[derive(Default)]
    ContainerState {
        /// A record of the runtime says created, not yet started.
        Created = "created",
        /// A record of the runtime says running, or its root filesystem is mounted now.
        Running = "running",
        /// A record of the runtime says it has ended.
        Exited = "exited",
        /// The disk does not tell.
        #[default]
        Unknown = "unknown",
    }
}
