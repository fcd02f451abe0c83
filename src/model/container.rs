//! Container records.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use super::build_cache::is_for_ctr;
use super::ids::{ContainerId, ImageId, ImageIx, NodeIx, StoreIx};
use crate::model::text::display::{shell_word, short_id};
use crate::model::text::names::names;

names! {
    Owner {
        /// CRI-O, for the kubelet.
        CriO = "cri-o",
        Podman = "podman",
        /// Buildah: a working container.
        Buildah = "buildah",
        /// containerd: containers of CRI, and of every client except Docker.
        Containerd = "containerd",
        /// Docker, with the containers of either of its stores.
        Docker = "docker",
        Unknown = "unknown",
    }
}

#[derive(Clone, Debug)]
pub struct Container {
    pub id: ContainerId,
    pub store: StoreIx,
    /// Name of the container; its id if it has no name.
    pub name: String,
    pub owner: Owner,
    /// Image it was made from, as recorded; the store may not contain it.
    pub image_id: Option<ImageId>,
    /// Position of that image, if the inventory contains it.
    pub image: Option<ImageIx>,
    /// Images mounted into it as volumes.
    pub volumes: Vec<ImageIx>,
    pub created: Option<Timestamp>,
    /// `Unknown` unless the disk proves another state.
    pub state: ContainerState,
    /// It is a pod sandbox (the pause container).
    pub sandbox: bool,
    /// Id of its pod sandbox according to its own record; a sandbox may name itself.
    pub sandbox_id: Option<String>,
    /// Namespace of its pod; `containerd:<namespace>` for a container of containerd outside any pod.
    pub namespace: Option<String>,
    /// Apparent bytes of the writable layer's content, the size that `podman ps -s` prints.
    pub listed_bytes: Option<u64>,
    /// Log that the runtime writes among the container's own files.
    pub log: Option<ContainerLog>,
    /// Its own nodes: metadata and writable layer.
    pub holds: Vec<NodeIx>,
}

/// Log of a container in the store itself: conmon's default for podman (`ctr.log`, the driver k8s-file).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLog {
    pub path: PathBuf,
    pub bytes: u64,
}

impl Container {
    /// Returns the images it uses, each once: first the image it was made from, then its volumes.
    pub fn images(&self) -> impl Iterator<Item = ImageIx> + '_ {
        let volumes = self.volumes.iter().copied().filter(|volume| self.image != Some(*volume));
        self.image.into_iter().chain(volumes)
    }

    /// Returns whether it was made from an image or has it mounted as a volume.
    #[must_use]
    pub fn uses(&self, image: ImageIx) -> bool {
        self.images().any(|used| used == image)
    }
}

/// Graphroot as the tools of its owner name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnersStore {
    /// Root of the store, as the node itself names it.
    pub graphroot: PathBuf,
    /// The user other than root and the caller who owns the store. Only that user's own commands are safe: a tool that
    /// runs as root follows the user's symlinks.
    pub user: Option<String>,
}

impl OwnersStore {
    /// Returns the start of a command with `podman` or `buildah`: with the user who has to type it, and with the option
    /// that names the graphroot unless it is the default of that user.
    #[must_use]
    pub fn tool(&self, program: &str) -> String {
        let user = self.user.as_ref().map_or_else(String::new, |user| format!("as {user}: "));
        format!("{user}{program}{}", self.flag("--root"))
    }

    /// Returns the command with which the user deletes images by policy; `None` if root or the caller owns the store.
    #[must_use]
    pub fn gc_of_user(&self) -> Option<String> {
        let user = self.user.as_ref()?;
        Some(format!("as {user}: podman unshare layersweep gc{}", self.flag("--graphroot")))
    }

    /// Returns the flag that names the graphroot; empty if it is the default of the owner.
    fn flag(&self, name: &str) -> String {
        let is_default = match self.user {
            Some(_) => self.graphroot.ends_with(".local/share/containers/storage"),
            None => self.graphroot == Path::new("/var/lib/containers/storage"),
        };
        if is_default {
            return String::new();
        }
        format!(" {name} {}", shell_word(&self.graphroot.to_string_lossy()))
    }
}

/// Returns the command that removes an exited container with the program that made it. `None` if that program is
/// unknown or uses its own containerd namespace. `store` contains the container.
#[must_use]
pub fn removal_command(owner: Owner, id: &str, sandbox: bool, store: &OwnersStore) -> Option<String> {
    removal_words(owner, id, sandbox, store).map(|(tool, container)| format!("{tool} {container}"))
}

/// Returns the command of [`removal_command`] without the container, and the word for the container: the command takes
/// several of these words.
#[must_use]
pub fn removal_words(owner: Owner, id: &str, sandbox: bool, store: &OwnersStore) -> Option<(String, String)> {
    // Outside the kubelet's namespace, the ids of containerd's containers begin with their namespace.
    let (namespace, whole) = match id.rsplit_once('/') {
        Some((namespace, id)) => (Some(namespace), id),
        None => (None, id),
    };
    let id = shell_word(&short_id(whole));
    match (owner, namespace) {
        (Owner::CriO, _) | (Owner::Containerd, None) if sandbox => Some(("crictl rmp".into(), id)),
        (Owner::CriO, _) | (Owner::Containerd, None) => Some(("crictl rm".into(), id)),
        (Owner::Podman, _) => Some((format!("{} rm", store.tool("podman")), id)),
        (Owner::Buildah, _) => Some((format!("{} rm", store.tool("buildah")), id)),
        // Root's Docker does not know it.
        (Owner::Docker, _) if store.user.is_some() => None,
        (Owner::Docker, _) => Some(("docker rm".into(), id)),
        (Owner::Containerd, Some(namespace)) if is_for_ctr(namespace) => {
            Some((format!("ctr -n {} containers rm", shell_word(namespace)), shell_word(whole)))
        }
        (Owner::Containerd | Owner::Unknown, _) => None,
    }
}

/// Command that a screen prints for an object.
///
/// A deleting command is printed only for data that can be made again and for stopped containers, in the form in which
/// the owner's tool refuses what is in use. For all other data the screen shows what it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PrintedCommand {
    /// It deletes the object.
    Deletes(String),
    /// It shows what the object is, or who uses it, and changes nothing.
    Shows(String),
}

impl PrintedCommand {
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Deletes(command) | Self::Shows(command) => command,
        }
    }
}

names! {
    /// State of a container, as far as the disk proves it.
    #[derive(Default)]
    ContainerState {
        /// A record of the runtime says created, not yet started.
        Created = "created",
        /// A record of the runtime says running, or its root filesystem is mounted now.
        Running = "running",
        /// A record of the runtime says it has exited.
        Exited = "exited",
        /// The disk does not show it.
        #[default]
        Unknown = "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_in_a_users_store_is_the_users() {
        for (graphroot, user, expected) in [
            ("/var/lib/containers/storage", None, "podman rm 0a"),
            ("/srv/a b", None, "podman --root '/srv/a b' rm 0a"),
            ("/home/alice/.local/share/containers/storage", Some("alice"), "as alice: podman rm 0a"),
            ("/data/alice", Some("uid 1500"), "as uid 1500: podman --root /data/alice rm 0a"),
        ] {
            let store = OwnersStore { graphroot: graphroot.into(), user: user.map(Into::into) };
            let command = removal_command(Owner::Podman, "0a", false, &store);
            assert_eq!(command.as_deref(), Some(expected));
            let graphroot = if graphroot.contains(".local") { "" } else { " --graphroot /data/alice" };
            let deletion = format!("podman unshare layersweep gc{graphroot}");
            assert_eq!(store.gc_of_user(), user.map(|user| format!("as {user}: {deletion}")));
        }
    }
}
