//! Makes scans by hand, and opens records to write them to.
#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::ops::{Deref, DerefMut};
use std::path::Path;

use jiff::Timestamp;
use layersweep::history::clock::advance;
use layersweep::history::known::{self, KnownImages};
use layersweep::history::observe::observe;
use layersweep::history::scan_run::ScanRun;
use layersweep::history::{Access, PATIENCE, Records, StateDirectory};
use layersweep::model::refs::Refs;
use layersweep::model::{
    Consistency, Container, ContainerState, Evidence, EvidenceKind, Filesystem, Image, Inventory, Labels,
    Node, NodeIx, NodeKind, Origin, Owner, Size, Store, StoreId, StoreIx, StoreKind,
};
use layersweep::sys::clock::ClockReading;

/// 2026-03-01T12:00:00Z in seconds.
pub const NOON: i64 = 1_772_366_400;

/// Returns the time `seconds` after noon.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOON + seconds).unwrap()
}

/// A scan made by hand.
#[derive(Clone, Debug)]
pub struct Seen {
    pub inventory: Inventory,
    pub clock: ClockReading,
    pub record_time: Timestamp,
    pub is_measured: bool,
}

impl Deref for Seen {
    type Target = Inventory;

    fn deref(&self) -> &Inventory {
        &self.inventory
    }
}

impl DerefMut for Seen {
    fn deref_mut(&mut self) -> &mut Inventory {
        &mut self.inventory
    }
}

impl Seen {
    /// Returns what `act` does with the run of the scan. An image without nodes gets 40,000,000 bytes of its own, of
    /// which its deletion frees 41,000,000, and about 460,000,000 bytes that are shared; a container gets 65,536 bytes.
    pub fn with_run<R>(mut self, run_id: &str, act: impl FnOnce(&ScanRun<'_>) -> R) -> R {
        let inventory = &mut self.inventory;
        for (position, image) in inventory.images.iter_mut().enumerate().filter(|_| self.is_measured) {
            if image.holds.is_empty() {
                let number = u64::from_str_radix(&image.id.as_str()[16..], 16).unwrap_or(position as u64);
                let nodes = &mut inventory.nodes;
                let shared = add_node(nodes, image.store, 460_000_000 + number, 0);
                inventory.anchored.push(shared);
                image.holds = vec![add_node(nodes, image.store, 40_000_000, 41_000_000), shared];
            }
        }
        for container in inventory.containers.iter_mut().filter(|container| container.holds.is_empty()) {
            container.holds = vec![add_node(&mut inventory.nodes, container.store, 65_536, 65_536)];
        }
        let refs = Refs::new(inventory);
        let wall = self.clock.wall;
        let run = ScanRun {
            record_time: self.record_time,
            is_measured: self.is_measured,
            seconds: 0.1,
            complete: true,
            ..ScanRun::new(run_id.into(), (inventory, &refs), wall, self.clock, None)
        };
        act(&run)
    }
}

/// Adds an object of this size.
pub fn add_node(nodes: &mut Vec<Node>, store: StoreIx, bytes: u64, frees_bytes: u64) -> NodeIx {
    nodes.push(Node {
        kind: NodeKind::Layer,
        id: nodes.len().to_string(),
        store,
        filesystem: 0.into(),
        path: "/x".into(),
        size: Size { bytes, frees_bytes, ..Size::default() },
        needs: Vec::new(),
        layer: None,
    });
    NodeIx::from(nodes.len() - 1)
}

/// Returns the id of the store in [`scan_at`].
pub fn store_key() -> StoreId {
    StoreId::new(StoreKind::ContainersStorage, "/var/lib/containers/storage".into(), "overlay".into())
}

/// Returns a store with this id.
pub fn store(key: &StoreId) -> Store {
    Store {
        kind: key.kind(),
        root: key.root().to_path_buf(),
        driver: key.driver().to_owned(),
        filesystem: 0.into(),
        read_only: false,
        origin: "a test".into(),
        consistency: Consistency::Consistent,
    }
}

/// Returns a scan of one empty store, `seconds` after noon, on a node whose clock is right.
pub fn scan_at(seconds: i64) -> Seen {
    let filesystem = Filesystem {
        mount: "/".into(),
        device: "/dev/vda1".into(),
        fstype: "xfs".into(),
        capacity_bytes: 1 << 40,
        used_bytes: 1 << 39,
        available_bytes: 1 << 39,
        inodes: 1 << 20,
        inodes_free: 1 << 19,
    };
    Seen {
        inventory: Inventory {
            filesystems: vec![filesystem],
            stores: vec![store(&store_key())],
            ..Inventory::default()
        },
        clock: ClockReading {
            wall: at(seconds),
            boot_id: "boot".into(),
            since_boot: (100_000_000 + seconds) * 1_000_000,
            synchronised: true,
        },
        record_time: at(seconds),
        is_measured: true,
    }
}

/// Returns an id with the length of a real one.
pub fn id(number: u64) -> String {
    format!("{:016x}{number:048x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Returns an image whose directory was created `made` seconds after noon.
pub fn image(number: u64, made: i64) -> Image {
    let evidence = [(EvidenceKind::TopLayer, made - 3), (EvidenceKind::MetadataDirectory, made)];
    Image {
        id: id(number).into(),
        store: 0.into(),
        names: vec![format!("registry.example.com/team/service-{}:build-{number}", number % 97)],
        digests: vec![format!("sha256:{}", id(number))],
        created: None,
        evidence: evidence.map(|(kind, seconds)| Evidence { kind, at: at(seconds) }).to_vec(),
        origin: Origin::default(),
        is_list: false,
        pinned_by: Vec::new(),
        labels: Labels::default(),
        layers: Vec::new(),
        listed_bytes: Some(480_000_000),
        blobs: Vec::new(),
        holds: Vec::new(),
    }
}

/// Returns a container created `created` seconds after noon from the image at a position.
pub fn container(number: u64, created: i64, image: Option<usize>) -> Container {
    Container {
        id: id(number).into(),
        store: 0.into(),
        name: format!("k8s_service_service-6c5d9f7b44-{number}_team_0"),
        owner: Owner::CriO,
        image_id: image.map(|_| id(0).into()),
        image: image.map(Into::into),
        volumes: Vec::new(),
        created: Some(at(created)),
        state: ContainerState::Running,
        sandbox: false,
        sandbox_id: None,
        namespace: None,
        listed_bytes: None,
        log: None,
        holds: Vec::new(),
    }
}

/// Opens the records in `state` for writing.
pub fn open(state: &Path) -> Records {
    let opened = Records::open(&StateDirectory::local(state), Access::Write, PATIENCE).unwrap();
    assert!(opened.records.is_kept(), "{:?}", opened.degraded);
    opened.records
}

/// Changes that a scan made in the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    pub record_time: Timestamp,
    /// Lives of images that began.
    pub images_come: i64,
    /// Lives of images that ended.
    pub images_gone: i64,
    pub containers_come: i64,
    pub containers_gone: i64,
}

/// Number of images, of images that are gone, of containers, and of containers that are gone.
fn counts(records: &Records) -> Vec<i64> {
    const ROWS: [&str; 4] =
        ["images", "images WHERE gone_since NOT NULL", "containers", "containers WHERE gone_since NOT NULL"];
    let counts = records.read(|from| {
        ROWS.iter()
            .map(|rows| from.query_row(&format!("SELECT count(*) FROM {rows}"), [], |row| row.get(0)))
            .collect::<Result<Vec<i64>, _>>()
    });
    counts.unwrap()
}

/// Writes a scan to the records.
pub fn record(records: &mut Records, seen: Seen) -> Observed {
    let before = counts(records);
    let record_time = seen.with_run("", |run| records.write(|to| observe(to, run)).unwrap());
    let after = counts(records);
    Observed {
        record_time,
        images_come: after[0] - before[0],
        images_gone: after[1] - before[1],
        containers_come: after[2] - before[2],
        containers_gone: after[3] - before[3],
    }
}

/// Writes a scan after comparing its clock with the records, as a scan does.
pub fn record_fresh(records: &mut Records, mut seen: Seen) -> Observed {
    let last = records.read(known::clock).unwrap();
    seen.record_time = advance(last.as_ref(), &seen.clock).state.record_time;
    record(records, seen)
}

/// Returns the images that the records know.
pub fn known(records: &Records) -> KnownImages {
    records.read(known::images).unwrap()
}
