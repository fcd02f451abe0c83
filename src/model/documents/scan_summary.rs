//! Summary of a scan for comparison: its objects and their bytes. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::container::Container;
use crate::model::ids::{FilesystemIx, ImageIx, StoreIx};
use crate::model::inventory::{Inventory, RecordBound};
use crate::model::node::Size;
use crate::model::refs::{self, Refs, Root};
use crate::model::text::display::short_reference;

/// Maximum length of the ids and names of a kind that are kept of a store of another user. About seventy summaries are
/// kept.
const MOST_TEXT: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SummaryKind {
    /// A filesystem, by its mount point, outside every store. Bytes used; the extra is the capacity.
    Filesystem,
    /// Part of a store's bytes, by holder: `images`, `containers`, `leaks`, `metadata`, `other`. The parts add up
    /// to the store's bytes.
    Share,
    /// An image: everything that it reaches; the extra is what only it reaches.
    Image,
    /// A layer, snapshot or blob; the extra is its reference count.
    Layer,
    /// A container: its own files and writable layer.
    Container,
    /// A leak, by class and id.
    Leak,
    /// A volume of podman, by its path: part of the share `other`.
    Volume,
    /// A path outside every store. Bytes in no other path; the extra is 0. The mount point of a filesystem has
    /// everything else, and its extra is the minimum bytes of a path with an entry; without that entry, not all
    /// directories were read.
    Path,
    /// Path with logs of a pod or container outside every store; the name is `<namespace>/<pod>[/<container>]`.
    PodLog,
    /// Path with data of a pod outside every store; the name is `<namespace>/<pod>[/<volume>]`.
    PodVolume,
    /// Bytes by which the stores of a filesystem, by its mount point, use less than their parts add up to: extents that
    /// files share, and compression.
    Saved,
    /// Used inodes of a filesystem with a fixed number of them, by its mount point; the extra is this number. Documents
    /// of scans have no inodes.
    Inodes,
}

/// Store of an entry: its root, as the node itself names it, and its driver. A containerd root is one store with
/// any driver. A filesystem is in no store; both are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SummaryStore {
    /// `containers-storage`, `containerd` or `docker`.
    pub kind: String,
    /// Path of its root directory.
    pub root: String,
    /// Storage driver; empty for containerd.
    pub driver: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub place: Arc<SummaryStore>,
    pub kind: SummaryKind,
    pub id: String,
}

impl Key {
    /// Creates the key of a filesystem or path, which is in no store.
    #[must_use]
    pub fn outside(kind: SummaryKind, id: String) -> Self {
        Self { place: Arc::default(), kind, id }
    }

    /// Returns true for a path outside every store. It belongs to the filesystem with the nearest mount point above it.
    #[must_use]
    pub fn is_path(&self) -> bool {
        self.place.root.is_empty() && self.kind != SummaryKind::Filesystem
    }
}

/// Returns the nearest mount point above a path.
#[must_use]
pub fn mount_above<'a>(mounts: &BTreeSet<&'a str>, path: &str) -> Option<&'a str> {
    Path::new(path).ancestors().find_map(|path| mounts.get(path.to_str()?).copied())
}

/// Size and name of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummaryEntry {
    /// Allocated bytes; see [`SummaryKind`].
    pub bytes: u64,
    pub inodes: u64,
    pub extra: u64,
    /// Name for display; for an image, its names in the form of [`join_names`]; for a layer, its kind and image in the
    /// form of [`layer_name`].
    pub name: String,
}

impl SummaryEntry {
    #[must_use]
    pub fn of_bytes(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanSummary {
    pub complete: bool,
    #[serde(with = "by_place")]
    pub entries: BTreeMap<Key, SummaryEntry>,
    /// Users of the containers, by the id of the container. Scans of earlier versions do not contain them.
    #[serde(default)]
    pub users: BTreeMap<String, ContainerUser>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    /// Pod and container, `web-0/app`; the name of a container outside any pod.
    pub name: String,
    /// Namespace of the pod; see [`Container::namespace`].
    pub namespace: Option<String>,
    pub owner: String,
    /// Beginnings of the ids of the images that it uses: first the image that it was made from, then its volumes.
    pub images: Vec<String>,
}

impl ContainerUser {
    /// Returns the users of all containers, in their order.
    #[must_use]
    pub fn all(inventory: &Inventory) -> Vec<Self> {
        let sandboxes = inventory.containers.iter().filter(|container| container.sandbox);
        let sandboxes: HashMap<_, _> =
            sandboxes.map(|sandbox| (sandbox.id.as_str(), sandbox.name.as_str())).collect();
        let users = inventory.containers.iter().map(|container| {
            let sandbox = container.sandbox_id.as_deref().and_then(|id| sandboxes.get(id)).copied();
            Self::of(inventory, container, sandbox)
        });
        users.collect()
    }

    /// Creates the user of a container whose pod has the sandbox `sandbox`.
    fn of(inventory: &Inventory, container: &Container, sandbox: Option<&str>) -> Self {
        let (name, _) = pod_container(&container.name).unwrap_or_else(|| {
            let name = &container.name;
            let name = match sandbox {
                _ if container.sandbox => format!("{name} (sandbox)"),
                Some(pod) => format!("{pod}/{name}"),
                None => name.clone(),
            };
            (name, String::new())
        });
        Self {
            name,
            namespace: container.namespace.clone(),
            owner: container.owner.as_str().to_owned(),
            images: container.images().map(|image| short_reference(inventory[image].id.as_str())).collect(),
        }
    }
}

/// Returns pod and container (`web-0/app`), and the namespace, of a name that CRI-O gives to a container:
/// `k8s_app_web-0_shop_<uid>_<attempt>`. No part of a name in Kubernetes contains an underscore.
#[must_use]
pub fn pod_container(name: &str) -> Option<(String, String)> {
    let parts: Vec<_> = name.split('_').collect();
    let ["k8s", container, pod, namespace, _, _] = parts.as_slice() else { return None };
    let name = match *container {
        "POD" => format!("{pod} (sandbox)"),
        container => format!("{pod}/{container}"),
    };
    Some((name, (*namespace).to_owned()))
}

/// Serializes the entries of each store together: JSON has no map with objects as keys, and a large store has
/// 100,000 entries.
mod by_place {
    use serde::ser::SerializeSeq;

    use super::{
        Arc, BTreeMap, Deserialize, Deserializer, Key, Serialize, Serializer, SummaryEntry, SummaryKind,
        SummaryStore,
    };

    struct Rows<'a>(&'a [(&'a Key, &'a SummaryEntry)]);

    impl Serialize for Rows<'_> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            let rows = self.0.iter().copied();
            to.collect_seq(
                rows.map(|(key, entry)| {
                    (key.kind, &key.id, entry.bytes, entry.inodes, entry.extra, &entry.name)
                }),
            )
        }
    }

    pub(crate) fn serialize<S: Serializer>(
        entries: &BTreeMap<Key, SummaryEntry>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let entries: Vec<_> = entries.iter().collect();
        let mut places = to.serialize_seq(None)?;
        for of_place in entries.chunk_by(|entry, next| entry.0.place == next.0.place) {
            places.serialize_element(&(&*of_place[0].0.place, Rows(of_place)))?;
        }
        places.end()
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Key, SummaryEntry>, D::Error> {
        type Row = (SummaryKind, String, u64, u64, u64, String);
        let mut entries = BTreeMap::new();
        for (place, rows) in Vec::<(SummaryStore, Vec<Row>)>::deserialize(from)? {
            let place = Arc::new(place);
            entries.extend(rows.into_iter().map(|(kind, id, bytes, inodes, extra, name)| {
                (Key { place: Arc::clone(&place), kind, id }, SummaryEntry { bytes, inodes, extra, name })
            }));
        }
        Ok(entries)
    }
}

/// Summary with the id and time of its scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedScan {
    /// Id of the scan, or name of the file.
    pub id: String,
    pub taken_at: Timestamp,
    pub summary: ScanSummary,
}

impl ScanSummary {
    /// Summarizes an inventory whose paths are those of the node.
    #[must_use]
    pub fn of(inventory: &Inventory, refs: &Refs, complete: bool) -> Self {
        let mut entries = Vec::with_capacity(inventory.nodes.len() + inventory.images.len());
        let mut add = |place: &Arc<SummaryStore>, kind, id: String, entry: SummaryEntry| {
            entries.push((Key { place: Arc::clone(place), kind, id }, entry));
        };
        for (ix, filesystem) in inventory.filesystems.iter().enumerate() {
            let saved = inventory.saved_bytes.get(&FilesystemIx::from(ix)).copied().unwrap_or(0);
            let entry = SummaryEntry::of_bytes(saved);
            add(&Arc::default(), SummaryKind::Saved, filesystem.mount.to_string_lossy().into(), entry);
            if filesystem.inodes > 0 {
                let entry = SummaryEntry {
                    inodes: filesystem.inodes.saturating_sub(filesystem.inodes_free),
                    extra: filesystem.inodes,
                    ..SummaryEntry::default()
                };
                add(&Arc::default(), SummaryKind::Inodes, filesystem.mount.to_string_lossy().into(), entry);
            }
            let entry = SummaryEntry {
                bytes: filesystem.used_bytes,
                inodes: 0,
                extra: filesystem.capacity_bytes,
                name: filesystem.fstype.clone(),
            };
            add(&Arc::default(), SummaryKind::Filesystem, filesystem.mount.to_string_lossy().into(), entry);
        }
        let places: Vec<_> = inventory
            .stores
            .iter()
            .map(|store| Arc::new(SummaryStore::of(&crate::model::StoreId::of(store))))
            .collect();
        for (ix, place) in places.iter().enumerate() {
            for (id, size) in refs::breakdown(inventory, refs, StoreIx::from(ix)).by_holder() {
                let entry = SummaryEntry { inodes: size.inodes, ..SummaryEntry::of_bytes(size.bytes) };
                add(place, SummaryKind::Share, id.into(), entry);
            }
        }
        for (ix, image) in inventory.images.iter().enumerate() {
            let sizes = refs.sizes(inventory, Root::Image(ImageIx::from(ix)));
            let entry = SummaryEntry {
                bytes: sizes.total.bytes,
                inodes: sizes.total.inodes,
                extra: sizes.exclusive.bytes,
                name: join_names(&image.names),
            };
            add(&places[image.store.get()], SummaryKind::Image, image.id.to_string(), entry);
        }
        for (ix, node) in inventory.nodes.iter().enumerate().filter(|(_, node)| node.layer.is_some()) {
            let image = refs.reached_by(ix.into()).find_map(|root| match root {
                Root::Image(image_ix) => Some(inventory[image_ix].id.as_str()),
                _ => None,
            });
            let size = Refs::alone(inventory, ix.into());
            let entry = SummaryEntry {
                bytes: size.bytes,
                inodes: size.inodes,
                extra: u64::from(refs.refcount(ix.into())),
                name: layer_name(node.kind.of_layer().as_str(), image),
            };
            add(&places[node.store.get()], SummaryKind::Layer, node.id.clone(), entry);
        }
        for container in &inventory.containers {
            let Size { bytes, inodes, .. } = Refs::held(inventory, &container.holds);
            let entry = SummaryEntry { bytes, inodes, extra: 0, name: container.name.clone() };
            add(&places[container.store.get()], SummaryKind::Container, container.id.to_string(), entry);
        }
        for leak in &inventory.leaks {
            let Size { bytes, inodes, .. } = Refs::held(inventory, &leak.holds);
            let entry = SummaryEntry { bytes, inodes, extra: 0, name: leak.class.to_string() };
            add(&places[leak.store.get()], SummaryKind::Leak, leak_id(leak.class.as_str(), &leak.id), entry);
        }
        entries.sort_by(|entry, next| entry.0.cmp(&next.0));
        // Entries with the same id (a layer in two records) count together, so that the sums are correct.
        entries.dedup_by(|next, known| {
            let is_same = next.0 == known.0;
            if is_same {
                known.1.bytes = known.1.bytes.saturating_add(next.1.bytes);
                known.1.inodes = known.1.inodes.saturating_add(next.1.inodes);
                known.1.extra = known.1.extra.max(next.1.extra);
                known.1.name = std::mem::take(&mut next.1.name);
            }
            is_same
        });
        let users_places =
            inventory.of_other_users.iter().map(|store| (&*places[store.get()], HashMap::new()));
        let mut bounds: HashMap<&SummaryStore, HashMap<SummaryKind, RecordBound>> = users_places.collect();
        entries.retain(|(key, entry)| {
            let Some(bounds) = bounds.get_mut(&*key.place) else { return true };
            let bound = bounds.entry(key.kind).or_insert_with(|| RecordBound::new(MOST_TEXT));
            bound.admits(key.id.len().saturating_add(entry.name.len()))
        });
        let entries = BTreeMap::from_iter(entries);
        let users = inventory.containers.iter().zip(ContainerUser::all(inventory));
        let kept = users.filter(|(container, _)| {
            let place = places[container.store.get()].clone();
            entries.contains_key(&Key { place, kind: SummaryKind::Container, id: container.id.to_string() })
        });
        let users = kept.map(|(container, user)| (container.id.to_string(), user)).collect();
        Self { complete, entries, users }
    }

    #[must_use]
    pub fn places(&self) -> BTreeSet<&SummaryStore> {
        self.entries.keys().map(|key| &*key.place).filter(|place| !place.root.is_empty()).collect()
    }

    /// Returns the stores, and the filesystems by their mount points; each once, in order.
    #[must_use]
    pub fn outline(&self) -> Vec<(&SummaryStore, &str)> {
        fn mount_point(key: &Key) -> &str {
            if key.kind == SummaryKind::Filesystem { &key.id } else { "" }
        }
        // Most keys share the allocation of their store, so that this compares pointers.
        let keys = self.entries.keys().filter(|key| !key.is_path());
        let mut outline: Vec<_> = keys.map(|key| (&key.place, mount_point(key))).collect();
        outline.dedup();
        outline.into_iter().map(|(place, id)| (&**place, id)).collect()
    }

    /// Returns the mount points of the filesystems.
    #[must_use]
    pub fn mounts(&self) -> BTreeSet<&str> {
        let filesystems = self.entries.keys().filter(|key| key.kind == SummaryKind::Filesystem);
        filesystems.map(|key| key.id.as_str()).collect()
    }

    /// Removes stores and filesystems that the other summary does not contain. Such a store becomes a path, as it is in
    /// a scan that did not read it.
    pub fn retain_common(&mut self, other: &Self) {
        let (places, theirs) = (other.places(), other.mounts());
        let mut unread: BTreeMap<String, SummaryEntry> = BTreeMap::new();
        for (key, entry) in &self.entries {
            let is_unread = key.kind == SummaryKind::Share && !places.contains(&*key.place);
            if is_unread && places.iter().all(|place| place.root != key.place.root) {
                let sum = unread.entry(key.place.root.clone()).or_default();
                sum.bytes = sum.bytes.saturating_add(entry.bytes);
                sum.inodes = sum.inodes.saturating_add(entry.inodes);
            }
        }
        for (root, entry) in unread {
            self.entries.insert(Key::outside(SummaryKind::Path, root), entry);
        }
        let ours: BTreeSet<_> = self.mounts().into_iter().map(str::to_owned).collect();
        let ours = ours.iter().map(String::as_str).collect();
        self.entries.retain(|key, _| match key.kind {
            SummaryKind::Filesystem => other.entries.contains_key(key),
            _ if key.is_path() => mount_above(&ours, &key.id).is_some_and(|mount| theirs.contains(mount)),
            _ => places.contains(&*key.place),
        });
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        let shares = self.entries.iter().filter(|(key, _)| key.kind == SummaryKind::Share);
        shares.fold(0, |sum, (_, entry)| sum.saturating_add(entry.bytes))
    }
}

/// Joins names with blanks; into a JSON array if one of them contains a blank.
#[must_use]
pub fn join_names(names: &[String]) -> String {
    if names.iter().all(|name| !name.is_empty() && !name.contains(' ') && !name.starts_with('[')) {
        return names.join(" ");
    }
    serde_json::Value::from(names).to_string()
}

#[must_use]
pub fn split_names(text: &str) -> Vec<String> {
    let array = text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten();
    array.unwrap_or_else(|| text.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Returns the name of a layer in a summary: its kind, and the first image that reaches it. The bytes of a layer that
/// is added or removed count for that image alone, so that the changes of the images add up.
#[must_use]
pub fn layer_name(kind: &str, image: Option<&str>) -> String {
    image.map_or_else(|| kind.to_owned(), |image| format!("{kind} {}", short_reference(image)))
}

/// Splits a text of [`layer_name`] into the kind of the layer and the beginning of its image's id.
#[must_use]
pub fn split_layer_name(text: &str) -> (&str, Option<&str>) {
    text.split_once(' ').map_or((text, None), |(kind, image)| (kind, Some(image)))
}

/// Returns the id of a leak in a summary. It contains the class, since an object may have several.
#[must_use]
pub fn leak_id(class: &str, id: &str) -> String {
    format!("{class} {id}")
}

impl SummaryStore {
    #[must_use]
    pub fn of(key: &crate::model::StoreId) -> Self {
        Self {
            kind: key.kind().as_str().into(),
            root: key.root().to_string_lossy().into_owned(),
            driver: key.driver().to_owned(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn key(id: u8) -> Key {
        let place = SummaryStore {
            kind: "containers-storage".into(),
            root: format!("/{}", id % 2),
            driver: String::new(),
        };
        Key {
            place: place.into(),
            kind: if id < 8 { SummaryKind::Share } else { SummaryKind::Layer },
            id: format!("{id}"),
        }
    }

    proptest! {
        #[test]
        fn joined_names_can_be_split(
            names in proptest::collection::vec("[a :/\\[\\]\"\\\\]{0,6}|[a-z./:]{1,9}", 0..4),
        ) {
            prop_assert_eq!(split_names(&join_names(&names)), names);
        }
    }

    #[test]
    fn deserialized_entries_share_their_store() {
        let entries = [9, 10, 11].map(|id| (key(id), SummaryEntry::default()));
        let summary = ScanSummary { complete: true, entries: entries.into(), ..ScanSummary::default() };
        let text = serde_json::to_vec(&summary).unwrap();
        let read: ScanSummary = serde_json::from_slice(&text).unwrap();
        assert_eq!(read, summary);
        let [first, last] = [9, 11].map(|id| &read.entries.get_key_value(&key(id)).unwrap().0.place);
        assert!(Arc::ptr_eq(first, last));
    }
}
