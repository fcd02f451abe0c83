//! From a scan to the objects of the documents.

use std::path::Path;

use super::parts::{
    BytesDoc, ContainerDoc, FilesystemDoc, ImageDoc, LayerDoc, LeakDoc, OtherDoc, RowDoc, SnapshotterDoc,
    StoreDoc, TotalsDoc, UsageStoreDoc, UserDoc,
};
use crate::model::display::two_decimals;
use crate::model::refs::{self, Fair, Refs, Root, Standing};
use crate::model::{ContainerIx, Filesystem, FilesystemIx, ImageIx, LeakIx, NodeIx, NodeKind, StoreIx};
use crate::stores::Scan;

pub(super) fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A filesystem.
pub fn filesystem(filesystem: &Filesystem) -> FilesystemDoc {
    FilesystemDoc {
        mount: path(&filesystem.mount),
        device: filesystem.device.clone(),
        fstype: filesystem.fstype.clone(),
        capacity_bytes: filesystem.capacity_bytes,
        used_bytes: filesystem.used_bytes,
        available_bytes: filesystem.available_bytes,
        reserved_bytes: filesystem.reserved_bytes(),
        used_percent: filesystem.used_percent().map(two_decimals),
        inodes: filesystem.inodes,
        inodes_free: filesystem.inodes_free,
    }
}

fn root(scan: &Scan, store: StoreIx) -> String {
    path(&scan.inventory.stores[store.get()].root)
}

fn mount(scan: &Scan, filesystem: FilesystemIx) -> String {
    path(&scan.inventory.filesystems[filesystem.get()].mount)
}

fn is_layer(kind: NodeKind) -> bool {
    matches!(kind, NodeKind::Layer | NodeKind::Snapshot | NodeKind::Blob)
}

/// A store.
pub fn store(scan: &Scan, at: StoreIx) -> StoreDoc {
    let inventory = &scan.inventory;
    let store = &inventory.stores[at.get()];
    let sums = refs::breakdown(inventory, &scan.refs, at);
    let nodes = || inventory.nodes.iter().filter(|node| node.store == at);
    let other = nodes().filter(|node| node.kind == NodeKind::Other);
    StoreDoc {
        kind: store.kind.as_str(),
        root: path(&store.root),
        driver: store.driver.clone(),
        filesystem: mount(scan, store.filesystem),
        images: inventory.images.iter().filter(|image| image.store == at).count(),
        layers: nodes().filter(|node| is_layer(node.kind)).count(),
        containers: inventory.containers.iter().filter(|container| container.store == at).count(),
        bytes: BytesDoc {
            images: sums.images.bytes,
            containers: sums.containers.bytes,
            build_cache: sums.build_cache.bytes,
            leaks: sums.leaks.bytes,
            metadata: sums.metadata.bytes,
            other: sums.other.bytes,
            total: sums.total().bytes,
        },
        snapshotters: refs::snapshotters(inventory, at)
            .into_iter()
            .map(|found| SnapshotterDoc {
                second: found.name != store.driver,
                name: found.name,
                snapshots: found.snapshots,
                bytes: found.size.bytes,
            })
            .collect(),
        other: other.map(|node| OtherDoc { name: node.id.clone(), bytes: node.size.bytes }).collect(),
        reclaimable_bytes: refs::reclaimable(inventory, &scan.refs, &[at]).frees_bytes,
        read_only: store.read_only,
        origin: store.origin.clone(),
        consistency: store.consistency,
    }
}

/// A store with its summary.
pub fn usage_store(scan: &Scan, at: StoreIx) -> UsageStoreDoc {
    let rows = refs::rows(&scan.inventory, &scan.refs, at);
    let rows = rows.into_iter().map(|row| RowDoc {
        kind: row.kind,
        name: row.name,
        count: row.count,
        bytes: row.sizes.total.bytes,
        exclusive_bytes: row.sizes.exclusive.bytes,
        reclaimable_bytes: row.sizes.exclusive.frees_bytes,
        inodes: row.sizes.total.inodes,
    });
    UsageStoreDoc { store: store(scan, at), rows: rows.collect() }
}

/// How the stores' bytes are divided among images and containers.
pub fn fair(scan: &Scan) -> Fair {
    let inventory = &scan.inventory;
    refs::fair(inventory, &scan.refs, |node| refs::size_in_store(inventory, node))
}

/// An image, with its part of `fair`.
pub fn image(scan: &Scan, fair: &Fair, at: ImageIx) -> ImageDoc {
    let inventory = &scan.inventory;
    let image = &inventory.images[at.get()];
    let sizes = scan.refs.sizes(inventory, Root::Image(at));
    // Of many images and many containers few belong together.
    let is_named = scan.refs.is_named(at);
    let containers = if is_named { &inventory.containers[..] } else { &[] };
    let mut used_by: Vec<_> = containers
        .iter()
        .enumerate()
        .filter(|(_, container)| container.uses(at))
        .map(|(container, _)| user(scan, Root::Container(container.into())))
        .collect();
    let mut elsewhere: Vec<_> = if is_named { inventory.uses_of(at).collect() } else { Vec::new() };
    if elsewhere.is_empty() && used_by.is_empty() {
        elsewhere.extend(scan.refs.needed_elsewhere(inventory, at));
    }
    used_by.extend(elsewhere.into_iter().map(|one| UserDoc {
        kind: "elsewhere",
        id: String::new(),
        name: one.by.clone(),
        owner: None,
    }));
    let mut pinned_by = image.pin_texts();
    // `usage` counts them among the pinned ones.
    if inventory[image.store].read_only && pinned_by.is_empty() {
        pinned_by.push(format!("a read-only store ({})", inventory[image.store].origin));
    }
    ImageDoc {
        id: image.id.to_string(),
        names: image.names.clone(),
        kind: if inventory.is_artifact(at) { "artifact" } else { "image" },
        digests: image.digests.clone(),
        store: root(scan, image.store),
        manifest_list: image.is_list,
        created_at: image.created,
        first_detected: None,
        first_detected_from: None,
        last_used: None,
        use_count: None,
        lives: None,
        in_use: !used_by.is_empty(),
        used_by,
        out_of_reach: inventory.obstacle(at),
        pinned: !pinned_by.is_empty(),
        pinned_by,
        layers: image.layers.clone(),
        total_bytes: sizes.total.bytes,
        shared_bytes: sizes.shared.bytes,
        exclusive_bytes: sizes.exclusive.bytes,
        fair_bytes: fair.of_image(at),
        frees_bytes: sizes.exclusive.frees_bytes,
        listed_bytes: image.listed_bytes,
    }
}

/// What a root is called.
pub fn user(scan: &Scan, root: Root) -> UserDoc {
    let inventory = &scan.inventory;
    match root {
        Root::Image(at) => {
            let image = &inventory.images[at.get()];
            let name = image.names.first().cloned().unwrap_or_else(|| "<none>".into());
            UserDoc { kind: "image", id: image.id.to_string(), name, owner: None }
        }
        Root::Container(at) => {
            let container = &inventory.containers[at.get()];
            UserDoc {
                kind: "container",
                id: container.id.to_string(),
                name: container.name.clone(),
                owner: Some(container.owner.as_str()),
            }
        }
        Root::Leak(at) => {
            let leak = &inventory.leaks[at.get()];
            UserDoc { kind: "leak", id: leak.id.clone(), name: leak.class.to_string(), owner: None }
        }
    }
}

/// A layer, snapshot or blob; `None` for other nodes.
pub fn layer(scan: &Scan, at: NodeIx) -> Option<LayerDoc> {
    let inventory = &scan.inventory;
    let node = &inventory.nodes[at.get()];
    let facts = node.layer.as_ref()?;
    let mut images = Vec::new();
    let mut containers = Vec::new();
    for root in scan.refs.reached_by(at) {
        match root {
            Root::Image(at) => images.push(inventory.images[at.get()].id.clone()),
            Root::Container(at) => containers.push(inventory.containers[at.get()].id.clone()),
            Root::Leak(_) => {}
        }
    }
    let size = Refs::alone(inventory, at);
    Some(LayerDoc {
        id: node.id.clone(),
        store: root(scan, node.store),
        kind: node.kind.layer_name(),
        parent: facts.parent.clone(),
        diff_id: facts.diff_id.clone(),
        created_at: facts.created,
        read_write: facts.read_write,
        refcount: scan.refs.refcount(at),
        build_cache: scan.refs.is_cached(at),
        images,
        containers,
        bytes: size.bytes,
        apparent_bytes: size.apparent_bytes,
        inodes: size.inodes,
        path: path(&node.path),
    })
}

/// A container, with its part of `fair`.
pub fn container(scan: &Scan, fair: &Fair, at: ContainerIx) -> ContainerDoc {
    let inventory = &scan.inventory;
    let container = &inventory.containers[at.get()];
    let image = container.image.map(|at| &inventory.images[at.get()]);
    let named = image.and_then(|image| image.names.first()).cloned();
    ContainerDoc {
        id: container.id.to_string(),
        name: container.name.clone(),
        store: root(scan, container.store),
        image: named.or_else(|| container.image_id.as_ref().map(ToString::to_string)),
        image_id: container.image_id.as_ref().map(ToString::to_string),
        owner: container.owner.as_str(),
        state: container.state.as_str(),
        sandbox: container.sandbox,
        created_at: container.created,
        bytes: Refs::held_bytes(inventory, &container.holds),
        fair_bytes: fair.of_container(at),
        listed_bytes: container.listed_bytes,
    }
}

impl From<&Fair> for BytesDoc {
    fn from(fair: &Fair) -> Self {
        Self {
            images: fair.images(),
            containers: fair.containers(),
            build_cache: fair.build_cache,
            leaks: fair.leaks,
            metadata: fair.metadata,
            other: fair.other,
            total: fair.total(),
        }
    }
}

/// A leak.
pub fn leak(scan: &Scan, at: LeakIx) -> LeakDoc {
    let inventory = &scan.inventory;
    let leak = &inventory.leaks[at.get()];
    let age = leak.since.map(|since| scan.taken_at.duration_since(since).as_secs());
    LeakDoc {
        class: leak.class,
        store: root(scan, leak.store),
        path: path(&leak.path),
        id: leak.id.clone(),
        bytes: Refs::held_bytes(inventory, &leak.holds),
        age_seconds: age.map(|age| u64::try_from(age).unwrap_or(0)),
        verdict: leak.verdict.as_str(),
        evidence: leak.evidence.clone(),
    }
}

/// Sums over all stores.
pub fn totals(scan: &Scan) -> TotalsDoc {
    let inventory = &scan.inventory;
    let stores: Vec<_> = (0..inventory.stores.len()).map(StoreIx::from).collect();
    let images = (0..inventory.images.len()).map(ImageIx::from);
    let inside = || inventory.nodes.iter().filter(|node| node.kind != NodeKind::TemporaryFile);
    TotalsDoc {
        images: inventory.images.len(),
        images_unused: images
            .filter(|at| refs::standing(inventory, &scan.refs, *at) == Standing::Unused)
            .count(),
        layers: inventory.nodes.iter().filter(|node| is_layer(node.kind)).count(),
        containers: inventory.containers.len(),
        leaks: inventory.leaks.len(),
        bytes: inside().map(|node| node.size.bytes).sum(),
        inodes: inside().map(|node| node.size.inodes).sum(),
        reclaimable_bytes: refs::reclaimable(inventory, &scan.refs, &stores).frees_bytes,
    }
}
