//! What a scan found in each store, in counts and bytes: what `layersweep metrics` remembers. One
//! row a store, replaced by the next scan.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::{Connection, Row};
use serde::{Deserialize, Serialize};

use super::values::{from_json, store, time, unsigned};
use crate::model::refs::{self, GroupBy, GroupKind, Refs};
use crate::model::{Finding, ImageIx, Inventory, LeakIx, NodeKind, StoreId, StoreIx};

/// Counts and bytes of one store; each is the field of the same name in the documents of `scan` and
/// `usage`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Mount point of its filesystem.
    pub mount: String,
    /// It may only be read.
    pub read_only: bool,
    /// Everything in it could be read: no figure is a lower bound.
    pub complete: bool,
    /// Allocated bytes by who holds them: `images`, `containers`, `leaks`, `metadata`, `other`.
    pub bytes: BTreeMap<String, u64>,
    /// The same bytes, each layer's divided equally among the images and containers that use it, by owner
    /// of the containers: `cri-o`, `podman` and so on; `none` for images that no container uses; `leaks`,
    /// `metadata` and `other` for what no image or container uses.
    #[serde(default)]
    pub fair: BTreeMap<String, u64>,
    #[serde(default)]
    pub inodes: u64,
    /// Bytes freed if all unused images and reclaimable leaks were deleted together.
    #[serde(default)]
    pub reclaimable_bytes: u64,
    /// Images by why they stay: `in_use`, `pinned`, `read_only`, `unused`.
    #[serde(default)]
    pub images: BTreeMap<String, u64>,
    /// Layers, snapshots and blobs.
    #[serde(default)]
    pub layers: u64,
    /// Containers by state.
    #[serde(default)]
    pub containers: BTreeMap<String, u64>,
    /// Leaks by class and verdict.
    #[serde(default)]
    pub leaks: Vec<LeakFigures>,
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

/// A store with what its last scan found.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreFigures {
    pub key: StoreId,
    /// When that scan began, by the wall clock.
    pub scanned: Timestamp,
    /// How long it took for all stores together, in seconds.
    pub seconds: f64,
    pub figures: Figures,
}

/// Counts every store of an inventory, in their order.
#[must_use]
pub fn of(inventory: &Inventory, refs: &Refs) -> Vec<Figures> {
    let mut images: Vec<BTreeMap<String, u64>> = vec![BTreeMap::new(); inventory.stores.len()];
    for (at, image) in inventory.images.iter().enumerate() {
        let standing = refs::standing(inventory, refs, ImageIx::from(at));
        *images[image.store.get()].entry(standing.as_str().to_owned()).or_default() += 1;
    }
    let mut leaks: Vec<BTreeMap<_, (u64, u64)>> = vec![BTreeMap::new(); inventory.stores.len()];
    for (at, leak) in inventory.leaks.iter().enumerate() {
        let sum = leaks[leak.store.get()].entry((leak.class.as_str(), leak.verdict.as_str())).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(leak_bytes(inventory, LeakIx::from(at)));
    }
    let stores = inventory.stores.iter().zip(images).zip(leaks).enumerate();
    let stores = stores.map(|(at, ((store, images), leaks))| {
        let at = StoreIx::from(at);
        let sums = refs::breakdown(inventory, refs, at);
        let mut containers = BTreeMap::new();
        for container in inventory.containers.iter().filter(|container| container.store == at) {
            *containers.entry(container.state.as_str().to_owned()).or_default() += 1;
        }
        Figures {
            mount: inventory[store.filesystem].mount.to_string_lossy().into_owned(),
            read_only: store.read_only,
            complete: !inventory.findings.iter().any(|finding| concerns(inventory, at, finding)),
            bytes: sums.by_holder().map(|(holder, size)| (holder.to_owned(), size.bytes)).into(),
            fair: by_owner(inventory, refs, at),
            inodes: sums.total().inodes,
            reclaimable_bytes: refs::reclaimable(inventory, refs, &[at]).frees_bytes,
            images,
            layers: inventory.nodes.iter().filter(|node| node.store == at && is_layer(node.kind)).count()
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
        }
    });
    stores.collect()
}

/// A store's bytes by owner.
fn by_owner(inventory: &Inventory, refs: &Refs, store: StoreIx) -> BTreeMap<String, u64> {
    let fair = refs::fair(inventory, refs, |node| match inventory[node].store == store {
        true => refs::size_in_store(inventory, node),
        false => 0,
    });
    let owners = refs::groups(inventory, &fair, GroupBy::Owner).into_iter();
    let owners = owners.map(|group| match group.kind {
        GroupKind::Named => (group.name, group.bytes),
        GroupKind::Nameless | GroupKind::Unused => ("none".to_owned(), group.bytes),
    });
    let rest = [
        ("build_cache", fair.build_cache),
        ("leaks", fair.leaks),
        ("metadata", fair.metadata),
        ("other", fair.other),
    ];
    owners.chain(rest.map(|(name, bytes)| (name.to_owned(), bytes))).collect()
}

fn is_layer(kind: NodeKind) -> bool {
    matches!(kind, NodeKind::Layer | NodeKind::Snapshot | NodeKind::Blob)
}

fn leak_bytes(inventory: &Inventory, at: LeakIx) -> u64 {
    Refs::held_bytes(inventory, &inventory[at].holds)
}

/// Whether the figures of a store are lower bounds because of a finding: it lies in the store, or in
/// none, and then it may be about any.
fn concerns(inventory: &Inventory, store: StoreIx, finding: &Finding) -> bool {
    let inside = |at: usize| finding.path.starts_with(&inventory.stores[at].root);
    finding.incomplete && (inside(store.get()) || !(0..inventory.stores.len()).any(inside))
}

/// What is remembered of the stores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllFigures {
    /// Every store that can be read, by root and driver.
    pub stores: Vec<StoreFigures>,
    /// So many that cannot; the next scan writes them anew.
    pub unreadable: usize,
}

/// What is remembered of every store. What cannot be read of one says nothing about the others.
pub fn all(from: &Connection) -> rusqlite::Result<AllFigures> {
    let mut rows = from.prepare_cached(
        "SELECT kind, root, driver, wall, seconds, figures FROM store_figures
         JOIN stores ON stores.id = store ORDER BY root, kind, driver",
    )?;
    let mut all = AllFigures::default();
    for store in rows.query_map([], |row| Ok(one(row)))? {
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

fn one(row: &Row<'_>) -> rusqlite::Result<StoreFigures> {
    Ok(StoreFigures {
        key: store(row, "kind")?,
        scanned: time(row, "wall")?,
        seconds: row.get("seconds")?,
        figures: from_json(row, "figures")?,
    })
}

/// An image that is there, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigImage {
    pub key: StoreId,
    pub id: String,
    /// Its first name, or empty.
    pub name: String,
    /// What only it reaches.
    pub exclusive_bytes: u64,
}

/// The `most` images with the most exclusive bytes, of stores that are remembered.
pub fn biggest(from: &Connection, most: u16) -> rusqlite::Result<Vec<BigImage>> {
    from.prepare_cached(
        "SELECT kind, root, driver, image_id, coalesce(names ->> '$[0]', '') AS name, exclusive_bytes
         FROM images JOIN stores ON stores.id = images.store
         WHERE gone_since IS NULL AND images.store IN (SELECT store FROM store_figures)
         ORDER BY exclusive_bytes DESC, image_id, kind, root, driver LIMIT ?1",
    )?
    .query_map([most], |row| {
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
