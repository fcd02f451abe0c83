//! Result of one scan.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{Index, IndexMut};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::build_cache::{BuildCache, CRI_NAMESPACE, is_for_ctr};
use super::container::{Container, ContainerState, Owner};
use super::evidence::{Evidence, EvidenceKind};
use super::filesystem::Filesystem;
use super::ids::{ContainerId, ContainerIx, FilesystemIx, ImageId, ImageIx, LeakIx, NodeIx, StoreIx};
use super::image::{Image, IndexedManifest};
use super::leak::Leak;
use super::node::{Node, NodeKind};
use super::rules::Ruling;
use super::store::{Consistency, Store, StoreId, UnreadUser};
use crate::model::text::display::shell_word;
use crate::model::text::reference::is_removed_by_cri;

#[derive(Clone, Debug, Default)]
pub struct Inventory {
    pub filesystems: Vec<Filesystem>,
    /// Stores in the order in which they were found.
    pub stores: Vec<Store>,
    /// Stores whose records another user writes. What is recorded of them is bounded ([`RecordBound`]).
    pub of_other_users: BTreeSet<StoreIx>,
    /// Everything that costs bytes. Each byte is in exactly one node.
    pub nodes: Vec<Node>,
    /// Bytes by which the stores on a filesystem use less of it than the sum of their files' `st_blocks`: shared
    /// extents and compression.
    pub saved_bytes: BTreeMap<FilesystemIx, u64>,
    pub images: Vec<Image>,
    /// Manifest lists of containers/storage. Their members are separate images.
    pub lists: Vec<ManifestList>,
    pub containers: Vec<Container>,
    /// Containers that only podman's database knows. They are not in `containers`, since nothing of them is in a store.
    pub lost_containers: Vec<LostContainer>,
    /// Volumes that podman's database contains. A store without an entry has no readable database.
    pub volumes: BTreeMap<StoreIx, Vec<Volume>>,
    /// Unused or inconsistent objects.
    pub leaks: Vec<Leak>,
    pub build_caches: Vec<BuildCache>,
    /// Nodes that something other than an image, container or leak keeps: the store's own bookkeeping, layers of
    /// read-only stores, inodes with links outside every store. layersweep cannot free them.
    pub anchored: Vec<NodeIx>,
    /// Stores whose images another store may use, because not all containers of that other store are known.
    pub unread_users: Vec<UnreadUser>,
    /// Reason why `gc` cannot delete an image here, as a clause without its subject. Filled only if the command has
    /// found out which backends delete here. Images in other containerd namespaces cannot be deleted either, but
    /// are not in this map.
    pub out_of_reach: BTreeMap<ImageIx, String>,
    /// All names in the records of the images in CRI's namespace of containerd, as CRI itself does not list them: also
    /// names with digests beside tags, and ids.
    pub record_names: BTreeMap<ImageIx, Vec<String>>,
    /// Manifests of the images whose target is an index, as far as their content is here.
    pub manifests: BTreeMap<ImageIx, Vec<IndexedManifest>>,
    /// Rulings of the configuration and of the node's files that keep an image. Filled only if the command evaluates
    /// them.
    pub protected: BTreeMap<ImageIx, Ruling>,
    /// Stores of containers/storage whose leaks `sweep` cannot delete. Filled only if the command has checked.
    pub closed_stores: Vec<StoreIx>,
    /// Stores of a runtime that should answer, and does not. Filled only if the command has asked.
    pub silent_stores: Vec<StoreIx>,
    /// Stores of a kind with a tool ([`KindFacts::tool`](super::KindFacts::tool)) whose objects the tool neither lists nor
    /// deletes when root runs it, with the reason as a clause without its subject. No command of the tool is printed.
    pub out_of_tool: BTreeMap<StoreIx, String>,
    /// Uses of images and layers from elsewhere: other stores, podman's database, mounts of images.
    pub uses: Vec<Use>,
    /// Problems with files and objects, which `scan` prints as warnings.
    pub findings: Vec<Finding>,
}

/// Bound of what is recorded of a store of another user: in each scan, and in all scans together. Its user can give
/// it other images before each scan.
#[derive(Clone, Copy, Debug)]
pub struct RecordBound {
    objects: u32,
    text: usize,
}

impl RecordBound {
    /// Maximum number of objects of a kind, those that are gone included.
    pub const OBJECTS: u32 = 2_000;

    /// Creates a bound of [`Self::OBJECTS`] objects with `text` bytes of names and ids.
    #[must_use]
    pub fn new(text: usize) -> Self {
        Self { objects: Self::OBJECTS, text }
    }

    /// Returns true if an object with so many bytes of text is recorded too.
    pub fn admits(&mut self, text: usize) -> bool {
        let left = self.objects.checked_sub(1).zip(self.text.checked_sub(text));
        (self.objects, self.text) = left.unwrap_or((0, 0));
        left.is_some()
    }
}

/// File or object that could not be read in full, or that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "WarningDoc"))]
pub struct Finding {
    /// The file or object concerned.
    #[serde(serialize_with = "lossy")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub path: PathBuf,
    /// Description of the problem, and its effect on the figures.
    pub message: String,
    /// The figures are lower bounds because of this (exit code 3).
    pub incomplete: bool,
}

impl Finding {
    /// Creates a finding that leaves the figures correct.
    pub fn new(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), incomplete: false }
    }

    /// Creates a finding that makes the figures lower bounds.
    pub fn incomplete(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self { incomplete: true, ..Self::new(path, message) }
    }
}

/// Returns the reason why an image in a containerd namespace other than CRI's cannot be deleted.
#[must_use]
pub fn in_namespace(namespace: &str) -> String {
    format!("in containerd's namespace {namespace}, not CRI's")
}

/// Serializes a path as text. Bytes that are not UTF-8 become replacement characters.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

macro_rules! table {
    ($index:ty, $rows:ident, $row:ty) => {
        impl Index<$index> for Inventory {
            type Output = $row;

            fn index(&self, position: $index) -> &$row {
                &self.$rows[position.get()]
            }
        }

        impl IndexMut<$index> for Inventory {
            fn index_mut(&mut self, position: $index) -> &mut $row {
                &mut self.$rows[position.get()]
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
    /// Returns the reason why layersweep cannot delete an image here regardless of policy: the backend cannot
    /// delete it, or the records do not prove that it is unused. A clause without its subject.
    #[must_use]
    pub fn obstacle(&self, image_ix: ImageIx) -> Option<String> {
        let image = &self[image_ix];
        if self[image.store].consistency == Consistency::Damaged {
            return Some("the records of its store could not be read in full".into());
        }
        if let Some(user) = self.unread_users.iter().find(|user| user.store == image.store) {
            let path = user.path.display();
            return Some(format!("another store may use it: {path} could not be read in full"));
        }
        if let Some(obstacle) = self.obstacle_of_store(image.store) {
            return Some(obstacle);
        }
        self.out_of_reach.get(&image_ix).cloned().or_else(|| image.id.namespace().map(in_namespace))
    }

    /// Returns the reason why layersweep deletes no image of a store, neither itself nor through a runtime: a clause without
    /// its subject.
    #[must_use]
    pub fn obstacle_of_store(&self, store_ix: StoreIx) -> Option<String> {
        self.out_of_tool.get(&store_ix).cloned().or_else(|| self[store_ix].kind.obstacle())
    }

    /// Returns the tool that alone deletes in a store, if it knows what is in it.
    #[must_use]
    pub fn tool(&self, store_ix: StoreIx) -> Option<&'static str> {
        let store = &self[store_ix];
        let is_known = store.consistency != Consistency::Damaged && !self.out_of_tool.contains_key(&store_ix);
        store.kind.facts().tool.filter(|_| is_known)
    }

    /// Returns true if the store is that of a runtime of Kubernetes: one of a kind that only runtimes have, or a graphroot
    /// with containers of CRI-O.
    #[must_use]
    pub fn is_of_runtime(&self, store_ix: StoreIx) -> bool {
        let mut containers = self.containers.iter();
        self[store_ix].kind.facts().is_of_runtime
            || containers.any(|container| container.store == store_ix && container.owner == Owner::CriO)
    }

    /// Returns true if CRI leaves one of the image's names, and so the image, when it removes it.
    #[must_use]
    pub fn is_left_by_cri(&self, image_ix: ImageIx) -> bool {
        let names = self.record_names.get(&image_ix);
        names.is_some_and(|names| names.iter().any(|name| !is_removed_by_cri(name)))
    }

    /// Returns a clause with the command that removes an image that CRI does not remove; `None` if containerd has no
    /// record of it, or if another program has to remove it.
    #[must_use]
    pub fn removal_by_ctr(&self, image_ix: ImageIx) -> Option<String> {
        let (namespace, names) = self.words_for_ctr(image_ix)?;
        let words: Vec<_> = names.iter().map(|name| shell_word(name)).collect();
        let perhaps_lost = if self[image_ix].origin.was_never_pulled() {
            "; it was never pulled, so perhaps no registry has it"
        } else {
            ""
        };
        Some(format!("`ctr -n {namespace} images rm {}` removes it{perhaps_lost}", words.join(" ")))
    }

    /// Returns the namespace of an image of containerd as a word of the shell, and its names there. `None` if containerd
    /// has no record of it, or if another program than `ctr` has to remove it.
    fn words_for_ctr(&self, image_ix: ImageIx) -> Option<(String, &[String])> {
        let image = &self[image_ix];
        let (namespace, names) = match image.id.namespace() {
            None => (CRI_NAMESPACE, self.record_names.get(&image_ix)?),
            Some(namespace) => (namespace, &image.names),
        };
        (is_for_ctr(namespace) && !names.is_empty()).then(|| (shell_word(namespace), names.as_slice()))
    }

    /// Returns a clause with the command that shows an image that CRI does not remove, and the words that remove it;
    /// `None` if containerd has no record of it.
    #[must_use]
    pub fn listing_by_ctr(&self, image_ix: ImageIx) -> Option<String> {
        let (namespace, names) = self.words_for_ctr(image_ix)?;
        let filters: Vec<_> = names.iter().map(|name| shell_word(&format!("name=={name}"))).collect();
        Some(format!(
            "`ctr -n {namespace} images ls {}` shows it, and `ctr images rm` of these names removes it: perhaps no \
             registry has it",
            filters.join(" ")
        ))
    }

    /// Returns the content that an image has only for other platforms than the used one, and for attestations: the
    /// nodes of its other manifests.
    #[must_use]
    pub fn of_other_platforms(&self, image_ix: ImageIx) -> HashSet<NodeIx> {
        let manifests = self.manifests.get(&image_ix).map_or(&[][..], Vec::as_slice);
        let (used, others): (Vec<_>, Vec<_>) = manifests.iter().partition(|manifest| manifest.is_used);
        let used: HashSet<_> = used.iter().flat_map(|manifest| &manifest.holds).collect();
        let others = others.iter().flat_map(|manifest| &manifest.holds);
        others.filter(|node| !used.contains(node)).copied().collect()
    }

    /// Returns the named images that were never pulled, or may not have been, so that no registry may have them: store
    /// and id.
    #[must_use]
    pub fn never_pulled(&self) -> HashSet<(StoreId, String)> {
        let images =
            self.images.iter().filter(|image| image.origin.may_lack_a_registry() && !image.names.is_empty());
        images.map(|image| (StoreId::of(&self[image.store]), image.id.to_string())).collect()
    }

    #[must_use]
    pub fn has_store(&self, filesystem: FilesystemIx) -> bool {
        self.stores.iter().any(|store| store.filesystem == filesystem)
            || self.nodes.iter().any(|node| node.filesystem == filesystem)
    }

    #[must_use]
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.filesystems.iter().map(|filesystem| filesystem.mount.clone()).collect()
    }

    #[must_use]
    pub fn is_artifact(&self, image: ImageIx) -> bool {
        self[self[image].store].is_of_artifacts()
    }

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
        let position = self.images.iter().position(|image| image.id == id && image.store == store);
        position.map(ImageIx::from)
    }

    pub fn uses_of(&self, image: ImageIx) -> impl Iterator<Item = &Use> {
        self.uses.iter().filter(move |user| user.images.contains(&image))
    }

    pub fn lists_of(&self, image: ImageIx) -> impl Iterator<Item = ImageIx> {
        self.lists.iter().filter(move |list| list.members.contains(&image)).map(|list| list.image)
    }

    /// Returns whether another store's layer can build on a node. Shared inodes and extents do not count: the
    /// filesystem shares them, not the store.
    pub(super) fn is_lendable(&self, node: NodeIx) -> bool {
        self[node].kind.is_layer() || self[node].kind == NodeKind::Orphan
    }

    /// Returns whether a node is in the image's own store.
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
            let found = [(EvidenceKind::TopLayer, top), (EvidenceKind::Container, container)].into_iter();
            image.evidence.extend(found.filter_map(|(kind, time)| Some(Evidence { kind, at: time? })));
            image.evidence.sort_unstable();
        }
    }
}

/// Container that only podman's database knows: the store has no record of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostContainer {
    pub id: ContainerId,
    pub store: StoreIx,
    pub name: String,
    pub image_id: Option<ImageId>,
    pub state: ContainerState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    /// Names of the containers that use it.
    pub containers: Vec<String>,
    /// Container of the store whose writable layer has its data (driver `image`); `None` for a directory.
    pub kept_by: Option<ContainerId>,
}

/// Image that consists of other images: `podman run` and `podman manifest push` of it need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestList {
    pub image: ImageIx,
    /// Members that are in its store, and the members of those that are lists.
    pub members: Vec<ImageIx>,
}

/// User of images or layers of a store that is not an image or container of that store: a container of another
/// store, a container that only podman's database knows, a mount of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Name of the user, for messages: `the podman container web in the store
    /// /home/a/.local/share/containers/storage`.
    pub by: String,
    /// Id of a container whose volumes a runtime lists as well.
    pub container: Option<String>,
    pub images: Vec<ImageIx>,
    pub holds: Vec<NodeIx>,
    /// An image or container of the inventory, in another store, already keeps these nodes for it.
    pub is_listed: bool,
}
