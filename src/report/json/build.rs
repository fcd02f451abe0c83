//! Conversion of a scan into the objects of the JSON documents.

use std::path::Path;

use super::parts::{
    BytesDoc, ContainerDoc, FilesystemDoc, ImageDoc, LayerDoc, LeakDoc, OtherDoc, RowDoc, SnapshotterDoc,
    StoreDoc, TotalsDoc, UsageStoreDoc, UserDoc, UserKind,
};
use crate::model::deletion::plan::TargetKind;
use crate::model::refs::{self, Fair, Refs, Root, Standing};
use crate::model::text::display::two_decimals;
use crate::model::{ContainerIx, Filesystem, FilesystemIx, ImageIx, LeakIx, NodeIx, NodeKind, StoreIx};
use crate::stores::Scan;

pub(super) fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

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

pub fn store(scan: &Scan, store_ix: StoreIx) -> StoreDoc {
    let inventory = &scan.inventory;
    let store = &inventory[store_ix];
    let sums = refs::breakdown(inventory, &scan.refs, store_ix);
    let nodes = scan.refs.nodes_of(store_ix).iter().map(|node| &inventory[*node]);
    let roots = scan.refs.roots_of(store_ix).iter();
    let other = nodes.clone().filter(|node| node.kind == NodeKind::Other);
    StoreDoc {
        kind: store.kind,
        root: path(&store.root),
        driver: store.driver.clone(),
        filesystem: mount(scan, store.filesystem),
        images: roots.clone().filter(|root| matches!(root, Root::Image(_))).count(),
        layers: nodes.filter(|node| node.kind.is_layer()).count(),
        containers: roots.filter(|root| matches!(root, Root::Container(_))).count(),
        bytes: BytesDoc {
            images: sums.images.bytes,
            containers: sums.containers.bytes,
            build_cache: sums.build_cache.bytes,
            leaks: sums.leaks.bytes,
            metadata: sums.metadata.bytes,
            other: sums.other.bytes,
            total: sums.total().bytes,
        },
        snapshotters: refs::snapshotters(inventory, &scan.refs, store_ix)
            .into_iter()
            .map(|found| SnapshotterDoc {
                second: found.name != store.driver,
                name: found.name,
                snapshots: found.snapshots,
                bytes: found.size.bytes,
            })
            .collect(),
        other: other.map(|node| OtherDoc { name: node.id.clone(), bytes: node.size.bytes }).collect(),
        reclaimable_bytes: refs::reclaimable(inventory, &scan.refs, &[store_ix]).frees_bytes,
        read_only: store.read_only,
        origin: store.origin.clone(),
        consistency: store.consistency,
    }
}

/// Builds the object of a store with its summary.
pub fn usage_store(scan: &Scan, store_ix: StoreIx) -> UsageStoreDoc {
    let rows = refs::rows(&scan.inventory, &scan.refs, store_ix).into_iter().map(|row| RowDoc {
        kind: row.kind,
        name: row.name,
        count: row.count,
        bytes: row.sizes.total.bytes,
        exclusive_bytes: row.sizes.exclusive.bytes,
        reclaimable_bytes: row.sizes.exclusive.frees_bytes,
        inodes: row.sizes.total.inodes,
    });
    UsageStoreDoc { store: store(scan, store_ix), rows: rows.collect() }
}

/// Divides the bytes of the stores among images and containers.
pub fn fair(scan: &Scan) -> Fair {
    let inventory = &scan.inventory;
    refs::fair(inventory, &scan.refs, |node| refs::bytes_on_disk(inventory, node))
}

/// Builds the object of an image, with its part of `fair`.
pub fn image(scan: &Scan, fair: &Fair, image_ix: ImageIx) -> ImageDoc {
    let inventory = &scan.inventory;
    let image = &inventory[image_ix];
    let sizes = scan.refs.sizes(inventory, Root::Image(image_ix));
    // Most images have no user: search the containers only for the others.
    let is_named = scan.refs.is_named(image_ix);
    let containers = if is_named { &inventory.containers[..] } else { &[] };
    let mut used_by: Vec<_> = containers
        .iter()
        .enumerate()
        .filter(|(_, container)| container.uses(image_ix))
        .map(|(container, _)| user(scan, Root::Container(container.into())))
        .collect();
    let mut elsewhere: Vec<_> = if is_named { inventory.uses_of(image_ix).collect() } else { Vec::new() };
    if elsewhere.is_empty() && used_by.is_empty() {
        elsewhere.extend(scan.refs.needed_elsewhere(inventory, image_ix));
    }
    used_by.extend(elsewhere.into_iter().map(|usage| UserDoc {
        kind: UserKind::External,
        id: String::new(),
        name: usage.by.clone(),
        owner: None,
    }));
    let mut pinned_by = image.pin_texts();
    // `usage` counts images of read-only stores as pinned.
    if inventory[image.store].read_only && pinned_by.is_empty() {
        pinned_by.push(format!("a read-only store ({})", inventory[image.store].origin));
    }
    ImageDoc {
        id: image.id.to_string(),
        names: image.names.clone(),
        kind: TargetKind::of_image(inventory, image_ix),
        digests: image.digests.clone(),
        store: root(scan, image.store),
        origin: image.origin.clone(),
        manifest_list: image.is_list,
        created_at: image.created,
        first_detected: None,
        first_detected_from: None,
        last_used: None,
        use_count: None,
        lives: None,
        in_use: !used_by.is_empty(),
        used_by,
        out_of_reach: inventory.obstacle(image_ix),
        pinned: !pinned_by.is_empty(),
        pinned_by,
        layers: image.layers.clone(),
        total_bytes: sizes.total.bytes,
        shared_bytes: sizes.shared.bytes,
        exclusive_bytes: sizes.exclusive.bytes,
        fair_bytes: fair.of_image(image_ix),
        frees_bytes: scan
            .refs
            .is_measured(inventory, Root::Image(image_ix))
            .then_some(sizes.exclusive.frees_bytes),
        listed_bytes: image.listed_bytes,
    }
}

/// Builds the object that names a root.
pub fn user(scan: &Scan, root: Root) -> UserDoc {
    let inventory = &scan.inventory;
    match root {
        Root::Image(image_ix) => {
            let image = &inventory[image_ix];
            let name = image.names.first().cloned().unwrap_or_else(|| "<none>".into());
            UserDoc { kind: UserKind::Image, id: image.id.to_string(), name, owner: None }
        }
        Root::Container(container_ix) => {
            let container = &inventory[container_ix];
            UserDoc {
                kind: UserKind::Container,
                id: container.id.to_string(),
                name: container.name.clone(),
                owner: Some(container.owner),
            }
        }
        Root::Leak(leak_ix) => {
            let leak = &inventory[leak_ix];
            UserDoc { kind: UserKind::Leak, id: leak.id.clone(), name: leak.class.to_string(), owner: None }
        }
    }
}

/// Builds the object of a layer, snapshot or blob; `None` for other nodes.
pub fn layer(scan: &Scan, node_ix: NodeIx) -> Option<LayerDoc> {
    let inventory = &scan.inventory;
    let node = &inventory[node_ix];
    let facts = node.layer.as_ref()?;
    let mut images = Vec::new();
    let mut containers = Vec::new();
    for root in scan.refs.reached_by(node_ix) {
        match root {
            Root::Image(image_ix) => images.push(inventory[image_ix].id.clone()),
            Root::Container(container_ix) => containers.push(inventory[container_ix].id.clone()),
            Root::Leak(_) => {}
        }
    }
    let size = Refs::alone(inventory, node_ix);
    Some(LayerDoc {
        id: node.id.clone(),
        store: root(scan, node.store),
        kind: node.kind.of_layer(),
        parent: facts.parent.clone(),
        diff_id: facts.diff_id.clone(),
        created_at: facts.created,
        read_write: facts.read_write,
        refcount: scan.refs.refcount(node_ix),
        build_cache: scan.refs.is_cached(node_ix),
        images,
        containers,
        bytes: size.bytes,
        apparent_bytes: size.apparent_bytes,
        inodes: size.inodes,
        path: path(&node.path),
        content_path: facts.elsewhere.as_deref().map(path),
        unmeasured: facts.is_unmeasured,
    })
}

/// Builds the object of a container, with its part of `fair`.
pub fn container(scan: &Scan, fair: &Fair, container_ix: ContainerIx) -> ContainerDoc {
    let inventory = &scan.inventory;
    let container = &inventory[container_ix];
    let image = container.image.map(|image_ix| &inventory[image_ix]);
    let named = image.and_then(|image| image.names.first()).cloned();
    ContainerDoc {
        id: container.id.to_string(),
        name: container.name.clone(),
        store: root(scan, container.store),
        image: named.or_else(|| container.image_id.as_ref().map(ToString::to_string)),
        image_id: container.image_id.as_ref().map(ToString::to_string),
        owner: container.owner,
        state: container.state,
        sandbox: container.sandbox,
        created_at: container.created,
        bytes: Refs::held_bytes(inventory, &container.holds),
        fair_bytes: fair.of_container(container_ix),
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

pub fn leak(scan: &Scan, leak_ix: LeakIx) -> LeakDoc {
    let inventory = &scan.inventory;
    let leak = &inventory[leak_ix];
    let age = leak.since.map(|since| scan.taken_at.duration_since(since).as_secs());
    LeakDoc {
        class: leak.class,
        store: root(scan, leak.store),
        path: path(&leak.path),
        id: leak.id.clone(),
        bytes: Refs::held_bytes(inventory, &leak.holds),
        age_seconds: age.map(|age| u64::try_from(age).unwrap_or(0)),
        verdict: leak.verdict,
        evidence: leak.evidence.clone(),
    }
}

/// Sums up all stores.
pub fn totals(scan: &Scan) -> TotalsDoc {
    let inventory = &scan.inventory;
    let stores: Vec<_> = (0..inventory.stores.len()).map(StoreIx::from).collect();
    let images = (0..inventory.images.len()).map(ImageIx::from);
    let nodes = inventory.nodes.iter().filter(|node| node.kind != NodeKind::TemporaryFile);
    TotalsDoc {
        images: inventory.images.len(),
        images_unused: images
            .filter(|image_ix| refs::standing(inventory, &scan.refs, *image_ix) == Standing::Unused)
            .count(),
        layers: inventory.nodes.iter().filter(|node| node.kind.is_layer()).count(),
        containers: inventory.containers.len(),
        leaks: inventory.leaks.iter().filter(|leak| leak.class.is_counted()).count(),
        bytes: nodes.clone().map(|node| node.size.bytes).sum(),
        inodes: nodes.map(|node| node.size.inodes).sum(),
        reclaimable_bytes: refs::reclaimable(inventory, &scan.refs, &stores).frees_bytes,
    }
}
