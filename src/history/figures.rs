//! Counts and bytes of each store at its last scan, for `layersweep metrics`. Each store has one row, which the next
//! scan replaces.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rusqlite::{Connection, Row};
use serde::{Deserialize, Serialize};

use super::values::{from_json, store, time, unsigned};
use crate::model::refs::{self, Fair, GroupBy, GroupKeys, GroupKind, Refs, Root};
use crate::model::{ImageIx, Inventory, LeakIx, StoreId, StoreIx};

/// Counts and bytes of a store. Each field has the meaning of the field with the same name in the documents of `scan`
/// and `usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Mount point of the store's filesystem.
    pub mount: String,
    pub read_only: bool,
    /// The whole store could be read. If not, the figures are lower bounds.
    pub complete: bool,
    /// Allocated bytes by kind of object: `images`, `containers`, `leaks`, `metadata`, `other`.
    pub bytes: BTreeMap<String, u64>,
    /// The same bytes by owner. The bytes of a layer are divided equally among the images and containers that use it,
    /// and go to the owner of the container: `cri-o`, `podman` and so on; `none` for images without a container;
    /// `leaks`, `metadata` and `other` for the rest.
    #[serde(default)]
    pub fair: BTreeMap<String, u64>,
    /// Bytes of the images and containers by namespace of the pods, divided in the same way: the largest namespaces,
    /// [`OTHER`] for all others, and [`NONE`] for images and containers in no namespace. No namespace of Kubernetes has
    /// such a name.
    #[serde(default)]
    pub namespaces: BTreeMap<String, u64>,
    #[serde(default)]
    pub inodes: u64,
    /// Bytes that the deletion of all unused images and reclaimable leaks would free together.
    #[serde(default)]
    pub reclaimable_bytes: u64,
    /// Number of images by standing: `in_use`, `pinned`, `read_only`, `unused`.
    #[serde(default)]
    pub images: BTreeMap<String, u64>,
    /// Number of layers, snapshots and blobs.
    #[serde(default)]
    pub layers: u64,
    #[serde(default)]
    pub containers: BTreeMap<String, u64>,
    #[serde(default)]
    pub leaks: Vec<LeakFigures>,
    /// Used bytes of the store's filesystem that are not in any store, by kind: `journal`, `logs`, `core_dumps`,
    /// `deleted_open` and `other`.
    #[serde(default)]
    pub outside: BTreeMap<String, u64>,
    /// Places with the most bytes and the most inodes on the store's filesystem: at most [`MAX_PLACES`] of each.
    #[serde(default)]
    pub places: Vec<PlaceFigures>,
    /// Paths of the store's reserve files, also of those that do not exist yet.
    #[serde(default)]
    pub reserve_files: Vec<PathBuf>,
}

/// Name of all namespaces that are not among the largest.
pub const OTHER: &str = "_other";
/// Name of no namespace.
pub const NONE: &str = "_none";
/// Maximum number of namespaces with their own bytes.
pub const MAX_NAMESPACES: usize = 100;

/// Maximum number of places of a filesystem with the most bytes, and of those with the most inodes.
pub const MAX_PLACES: usize = 20;

/// A container, volume, log or path with bytes and inodes of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceFigures {
    /// `container`, `volume`, `pod_log`, `pod_volume` or `path`.
    pub kind: String,
    /// Namespace of a container, or of the pod of a log or volume; empty for other places.
    pub namespace: String,
    pub name: String,
    pub bytes: u64,
    pub inodes: u64,
}

/// Returns the places with the most bytes, and those with the most inodes: at most `most` of each.
pub fn largest_places(mut places: Vec<PlaceFigures>, most: usize) -> Vec<PlaceFigures> {
    places.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    let mut by_inodes = places.split_off(most.min(places.len()));
    let least = places.iter().map(|place| place.inodes).fold(0, u64::max);
    by_inodes.retain(|place| place.inodes > least);
    by_inodes.sort_by(|a, b| b.inodes.cmp(&a.inodes).then_with(|| a.name.cmp(&b.name)));
    by_inodes.truncate(most);
    places.extend(by_inodes);
    places
}

/// Leaks of one class and verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakFigures {
    pub class: String,
    /// `reclaim`, `repair`, `keep` or `report`.
    pub verdict: String,
    pub count: u64,
    /// Allocated bytes of the objects themselves.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StoreFigures {
    pub key: StoreId,
    /// Start of the scan, by the wall clock.
    pub scanned: Timestamp,
    /// Duration of the scan of all stores together, in seconds.
    pub seconds: f64,
    pub figures: Figures,
}

/// Returns the figures of every store of an inventory, in the order of the stores.
#[must_use]
pub fn of(inventory: &Inventory, refs: &Refs) -> Vec<Figures> {
    let mut images: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new(); inventory.stores.len()];
    for (image_ix, image) in inventory.images.iter().enumerate() {
        let standing = refs::standing(inventory, refs, ImageIx::from(image_ix));
        *images[image.store.get()].entry(standing.as_str().to_owned()).or_default() += 1;
    }
    let mut leaks: Vec<BTreeMap<_, (u64, u64)>> = vec![BTreeMap::new(); inventory.stores.len()];
    for (leak_ix, leak) in inventory.leaks.iter().enumerate() {
        let sum = leaks[leak.store.get()].entry((leak.class.as_str(), leak.verdict.as_str())).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(leak_bytes(inventory, LeakIx::from(leak_ix)));
    }
    let keys = [GroupBy::Owner, GroupBy::Namespace].map(|by| GroupKeys::new(inventory, by));
    let incomplete = incomplete_stores(inventory);
    let stores = inventory.stores.iter().zip(images).zip(leaks).enumerate();
    let stores = stores.map(|(store_ix, ((store, images), leaks))| {
        let store_ix = StoreIx::from(store_ix);
        let sums = refs::breakdown(inventory, refs, store_ix);
        let mut containers = BTreeMap::new();
        for root in refs.roots_of(store_ix) {
            let Root::Container(container) = root else { continue };
            let container = &inventory[*container];
            *containers.entry(container.state.as_str().to_owned()).or_default() += 1;
        }
        let nodes = refs.nodes_of(store_ix).iter().copied();
        let fair = refs::fair_of(inventory, refs, nodes, |node| refs::bytes_on_disk(inventory, node));
        Figures {
            mount: inventory[store.filesystem].mount.to_string_lossy().into_owned(),
            read_only: store.read_only,
            complete: !incomplete[store_ix.get()],
            bytes: sums.by_holder().map(|(holder, size)| (holder.to_owned(), size.bytes)).into(),
            fair: by_owner(&keys[0], &fair),
            namespaces: by_namespace(&keys[1], &fair),
            inodes: sums.total().inodes,
            reclaimable_bytes: refs::reclaimable(inventory, refs, &[store_ix]).frees_bytes,
            images,
            layers: refs.nodes_of(store_ix).iter().filter(|node| inventory[**node].kind.is_layer()).count()
                as u64,
            containers,
            leaks: leaks
                .into_iter()
                .map(|((class, verdict), (count, bytes))| LeakFigures {
                    class: class.to_owned(),
                    verdict: verdict.to_owned(),
                    count,
                    bytes,
                })
                .collect(),
            outside: BTreeMap::new(),
            places: Vec::new(),
            reserve_files: Vec::new(),
        }
    });
    stores.collect()
}

fn by_owner(keys: &GroupKeys<'_>, fair: &Fair) -> BTreeMap<String, u64> {
    let owners = refs::groups(keys, fair).into_iter().map(|group| match group.kind {
        GroupKind::Group => (group.name, group.bytes),
        GroupKind::Unnamed | GroupKind::Unused => ("none".to_owned(), group.bytes),
    });
    let rest = [
        ("build_cache", fair.build_cache),
        ("leaks", fair.leaks),
        ("metadata", fair.metadata),
        ("other", fair.other),
    ];
    owners.chain(rest.map(|(name, bytes)| (name.to_owned(), bytes))).collect()
}

/// Returns the bytes of a store's images and containers by namespace.
fn by_namespace(keys: &GroupKeys<'_>, fair: &Fair) -> BTreeMap<String, u64> {
    let groups =
        refs::groups(keys, fair).into_iter().filter(|group| group.bytes > 0).map(|group| match group.kind {
            GroupKind::Group => (group.name, group.bytes),
            GroupKind::Unnamed | GroupKind::Unused => (NONE.to_owned(), group.bytes),
        });
    largest_namespaces(groups, MAX_NAMESPACES)
}

/// Returns the `most` namespaces with the most bytes, and the sum of the others.
pub fn largest_namespaces(
    groups: impl IntoIterator<Item = (String, u64)>,
    most: usize,
) -> BTreeMap<String, u64> {
    let (mut namespaces, rest): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(|(name, _)| name != NONE && name != OTHER);
    namespaces.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let others = namespaces
        .split_off(most.min(namespaces.len()))
        .into_iter()
        .map(|(_, bytes)| (OTHER.to_owned(), bytes));
    let mut sums: BTreeMap<_, u64> = namespaces.into_iter().collect();
    for (name, bytes) in rest.into_iter().chain(others) {
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
    sums
}

fn leak_bytes(inventory: &Inventory, leak: LeakIx) -> u64 {
    Refs::held_bytes(inventory, &inventory[leak].holds)
}

/// Returns for each store whether a finding makes its figures lower bounds. A finding outside of all stores may concern
/// any of them.
fn incomplete_stores(inventory: &Inventory) -> Vec<bool> {
    let mut by_root: HashMap<&Path, Vec<usize>> = HashMap::new();
    for (position, store) in inventory.stores.iter().enumerate() {
        by_root.entry(&store.root).or_default().push(position);
    }
    let mut incomplete = vec![false; inventory.stores.len()];
    for finding in inventory.findings.iter().filter(|finding| finding.incomplete) {
        let around: Vec<_> =
            finding.path.ancestors().filter_map(|path| by_root.get(path)).flatten().copied().collect();
        if around.is_empty() {
            incomplete.fill(true);
        }
        around.into_iter().for_each(|store| incomplete[store] = true);
    }
    incomplete
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllFigures {
    pub stores: Vec<StoreFigures>,
    /// Number of stores whose figures cannot be read; the next scan replaces them.
    pub unreadable: usize,
}

/// Loads the figures of all stores. An unreadable row does not prevent the use of the others.
pub fn all(from: &Connection) -> rusqlite::Result<AllFigures> {
    let mut rows = from.prepare_cached(
        "SELECT kind, root, driver, wall, seconds, figures FROM store_figures
         JOIN stores ON stores.id = store ORDER BY root, kind, driver",
    )?;
    let mut all = AllFigures::default();
    for store in rows.query_map([], |row| Ok(store_figures(row)))? {
        match store? {
            Ok(store) => all.stores.push(store),
            Err(error) => {
                tracing::debug!("figures of a store: {error}");
                all.unreadable += 1;
            }
        }
    }
    Ok(all)
}

fn store_figures(row: &Row<'_>) -> rusqlite::Result<StoreFigures> {
    Ok(StoreFigures {
        key: store(row, "kind")?,
        scanned: time(row, "wall")?,
        seconds: row.get("seconds")?,
        figures: from_json(row, "figures")?,
    })
}

/// A present image, and its exclusive bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigImage {
    pub key: StoreId,
    pub id: String,
    /// First name; empty if it has none.
    pub name: String,
    /// Bytes that only this image reaches.
    pub exclusive_bytes: u64,
}

/// Returns the `limit` measured images with the most exclusive bytes, in stores with stored figures.
pub fn biggest(from: &Connection, limit: u16) -> rusqlite::Result<Vec<BigImage>> {
    from.prepare_cached(
        "SELECT kind, root, driver, image_id, coalesce(names ->> '$[0]', '') AS name, exclusive_bytes
         FROM images JOIN stores ON stores.id = images.store
         WHERE gone_since IS NULL AND exclusive_bytes >= 0 AND images.store IN (SELECT store FROM store_figures)
         ORDER BY exclusive_bytes DESC, image_id, kind, root, driver LIMIT ?1",
    )?
    .query_map([limit], |row| {
        Ok(BigImage {
            key: store(row, "kind")?,
            id: row.get("image_id")?,
            name: row.get("name")?,
            exclusive_bytes: unsigned(row, "exclusive_bytes")?,
        })
    })?
    .collect()
}

#[cfg(test)]
mod tests;
