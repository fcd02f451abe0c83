//! Everything that one scan found.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::build_cache::BuildCache;
use super::container::Container;
use super::evidence::{Evidence, EvidenceKind};
use super::filesystem::Filesystem;
use super::ids::{ContainerIx, FilesystemIx, ImageIx, LeakIx, NodeIx, StoreIx};
use super::image::Image;
use super::leak::Leak;
use super::node::{Node, NodeKind};
use super::store::{Consistency, Store, StoreId, StoreKind, UnreadUser};

/// Everything that one scan found.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The filesystems that hold at least one store.
    pub filesystems: Vec<Filesystem>,
    /// The stores, in the order they were found.
    pub stores: Vec<Store>,
    /// Everything that costs bytes, each byte in exactly one node.
    pub nodes: Vec<Node>,
    /// Image records.
    pub images: Vec<Image>,
    /// Manifest lists of containers/storage, whose members are images of their own.
    pub lists: Vec<ManifestList>,
    /// Container records.
    pub containers: Vec<Container>,
    /// Leaks: unused or inconsistent objects.
    pub leaks: Vec<Leak>,
    /// Caches of builders.
    pub build_caches: Vec<BuildCache>,
    /// Nodes that something other than an image, container or leak holds: the store's own
    /// bookkeeping, layers of read-only stores, inodes with links outside every store.
    /// No deletion of ours frees them.
    pub anchored: Vec<NodeIx>,
    /// Stores whose images another store may use, where not all containers of that store are known.
    pub unread_users: Vec<UnreadUser>,
    /// Why `gc` cannot delete an image here, as a clause without its subject, where the command has asked
    /// what deletes here. Images in other namespaces of containerd are out of reach without being in it.
    pub out_of_reach: BTreeMap<ImageIx, String>,
    /// Rules of the configuration and of the node's files that keep an image, as a clause, where the command has asked
    /// for them.
    pub protected: BTreeMap<ImageIx, String>,
    /// Stores of containers/storage whose leaks `sweep` cannot delete, where the command has asked.
    pub closed_stores: Vec<StoreIx>,
    /// What uses images and layers from elsewhere: other stores, podman's database, mounts of images.
    pub uses: Vec<Use>,
    /// What could not be read or does not fit together; `scan` prints them as warnings.
    pub findings: Vec<Finding>,
}

/// Something that could not be read in full, or that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "WarningDoc"))]
pub struct Finding {
    /// The file or object concerned.
    #[serde(serialize_with = "lossy")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub path: PathBuf,
    /// What is wrong with it, and what that means for the figures.
    pub message: String,
    /// The figures are lower bounds because of this: exit code 3.
    pub incomplete: bool,
}

impl Finding {
    /// One that leaves the figures right.
    pub fn new(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), incomplete: false }
    }

    /// One that makes the figures lower bounds.
    pub fn incomplete(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self { incomplete: true, ..Self::new(path, message) }
    }
}

/// Why an image of another namespace of containerd than CRI's is out of reach.
#[must_use]
pub fn in_namespace(namespace: &str) -> String {
    format!("in containerd's namespace {namespace}, not CRI's")
}

/// A path as text; bytes that are no UTF-8 become replacement characters.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

macro_rules! table {
    ($index:ty, $rows:ident, $row:ty) => {
        impl Index<$index> for Inventory {
            type Output = $row;

            fn index(&self, at: $index) -> &$row {
                &self.$rows[at.get()]
            }
        }

        impl IndexMut<$index> for Inventory {
            fn index_mut(&mut self, at: $index) -> &mut $row {
                &mut self.$rows[at.get()]
            }
        }
    };
}

table!(FilesystemIx, filesystems, Filesystem);
table!(StoreIx, stores, Store);
table!(NodeIx, nodes, Node);
table!(ImageIx, images, Image);
table!(ContainerIx, containers, Container);
table!(LeakIx, leaks, Leak);

impl Inventory {
    /// Why layersweep cannot delete an image here, whatever the policy says: the backend does not reach it, or
    /// the records do not prove that it is unused. A clause without its subject.
    #[must_use]
    pub fn obstacle(&self, at: ImageIx) -> Option<String> {
        let image = &self[at];
        if self[image.store].consistency == Consistency::Damaged {
            return Some("the records of its store could not be read in full".into());
        }
        if let Some(user) = self.unread_users.iter().find(|user| user.store == image.store) {
            let path = user.path.display();
            return Some(format!("another store may use it: {path} could not be read in full"));
        }
        let namespace = || image.id.namespace().map(in_namespace);
        self.out_of_reach.get(&at).cloned().or_else(namespace)
    }

    /// Where its filesystems are mounted.
    #[must_use]
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.filesystems.iter().map(|one| one.mount.clone()).collect()
    }

    /// Whether an image is an OCI artifact.
    #[must_use]
    pub fn is_artifact(&self, image: ImageIx) -> bool {
        self[self[image].store].is_of_artifacts()
    }

    /// The ids of its stores, in their order.
    #[must_use]
    pub fn store_ids(&self) -> Vec<StoreId> {
        self.stores.iter().map(StoreId::of).collect()
    }

    #[must_use]
    pub fn find_store(&self, id: &StoreId) -> Option<StoreIx> {
        self.stores.iter().position(|store| StoreId::of(store) == *id).map(StoreIx::from)
    }

    #[must_use]
    pub fn find_image(&self, store: StoreIx, id: &str) -> Option<ImageIx> {
        let same = |image: &Image| image.id == id && image.store == store;
        self.images.iter().position(same).map(ImageIx::from)
    }

    /// Uses from elsewhere that name an image.
    pub fn uses_of(&self, image: ImageIx) -> impl Iterator<Item = &Use> {
        self.uses.iter().filter(move |one| one.images.contains(&image))
    }

    /// The manifest lists that an image is a member of.
    pub fn lists_of(&self, image: ImageIx) -> impl Iterator<Item = ImageIx> {
        self.lists.iter().filter(move |list| list.members.contains(&image)).map(|list| list.image)
    }

    /// Whether a node is one that stores share: another store's layer can lie on it. Shared inodes
    /// and extents are a matter of the filesystem, and not a use.
    pub(super) fn is_lendable(&self, node: NodeIx) -> bool {
        matches!(self[node].kind, NodeKind::Layer | NodeKind::Snapshot | NodeKind::Blob | NodeKind::Orphan)
    }

    /// Whether a node is in the image's own store.
    pub(super) fn is_own(&self, image: &Image, node: NodeIx) -> bool {
        self[node].store == image.store
    }

    /// Adds to every image the evidence for its first detection.
    pub fn gather_evidence(&mut self) {
        let mut containers: Vec<Option<Timestamp>> = vec![None; self.images.len()];
        for container in &self.containers {
            // A volume may be mounted long after the container, or the pod, was made.
            let (Some(image), Some(created)) = (container.image, container.created) else { continue };
            let first = &mut containers[image.get()];
            *first = Some(first.map_or(created, |known| known.min(created)));
        }
        for (image, container) in self.images.iter_mut().zip(containers) {
            let nodes = image.holds.iter().map(|node| &self.nodes[node.get()]);
            let mut layers = nodes.filter(|node| matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot));
            let top = layers.next().and_then(|node| node.layer.as_ref()?.created);
            let here = self.stores[image.store.get()].kind == StoreKind::Containerd;
            let record = image.created.filter(|_| here);
            let found = [
                (EvidenceKind::ImageRecord, record),
                (EvidenceKind::TopLayer, top),
                (EvidenceKind::Container, container),
            ];
            image
                .evidence
                .extend(found.into_iter().filter_map(|(what, at)| Some(Evidence { kind: what, at: at? })));
            image.evidence.sort_unstable();
        }
    }
}

/// An image that is made of others: `podman run` and `podman manifest push` of it need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestList {
    pub image: ImageIx,
    /// Those of its members that are in its store.
    pub members: Vec<ImageIx>,
}

/// Something that needs images or layers of a store and is no image or container of that store: a
/// container of another store, one that only podman's database knows, a mount of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The user, for messages: `the podman container web in the store
    /// /home/a/.local/share/containers/storage`.
    pub by: String,
    /// The id of a container whose volumes a runtime lists as well.
    pub container: Option<String>,
    /// The images that it names.
    pub images: Vec<ImageIx>,
    /// The nodes that it cannot do without.
    pub holds: Vec<NodeIx>,
    /// An image or container of the inventory holds these nodes for it already, in another store.
    pub is_listed: bool,
}
