//! Makes scan records by hand, and opens records to write them to.
#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::path::Path;

use jiff::Timestamp;
use layersweep::history::clock::advance;
use layersweep::history::known::{self, KnownImages};
use layersweep::history::observe::observe;
use layersweep::history::scan_record::ScanRun;
use layersweep::history::scan_record::{ScanRecord, SeenContainer, SeenImage, SeenStore};
use layersweep::history::{Access, PATIENCE, Records, StateDirectory};
use layersweep::model::{
    Consistency, ContainerState, Evidence, EvidenceKind, Filesystem, Owner, StoreId, StoreKind,
};
use layersweep::sys::clock::ClockReading;

/// 2026-03-01T12:00:00Z in seconds.
pub const NOON: i64 = 1_772_366_400;

/// Returns the time `seconds` after noon.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOON + seconds).unwrap()
}

/// Returns the id of the store in [`scan_record`].
pub fn store_key() -> StoreId {
    StoreId::new(StoreKind::ContainersStorage, "/var/lib/containers/storage".into(), "overlay".into())
}

/// Returns a scan record of one empty store, `seconds` after noon, on a node whose clock is right.
pub fn scan_record(seconds: i64) -> ScanRecord {
    ScanRecord {
        taken_at: at(seconds),
        record_time: at(seconds),
        clock: ClockReading {
            wall: at(seconds),
            boot_id: "boot".into(),
            since_boot: (100_000_000 + seconds) * 1_000_000,
            synchronised: true,
        },
        filesystems: vec![Filesystem {
            mount: "/".into(),
            device: "/dev/vda1".into(),
            fstype: "xfs".into(),
            capacity_bytes: 1 << 40,
            used_bytes: 1 << 39,
            available_bytes: 1 << 39,
            inodes: 1 << 20,
            inodes_free: 1 << 19,
        }],
        stores: vec![SeenStore {
            key: store_key(),
            consistency: Consistency::Consistent,
            is_of_another_user: false,
        }],
        images: Vec::new(),
        containers: Vec::new(),
        is_measured: true,
    }
}

/// Returns a scan with this record, as it is saved.
pub fn scan(run_id: &str, scan_record: ScanRecord) -> ScanRun {
    ScanRun {
        run_id: run_id.into(),
        record: scan_record,
        seconds: 0.1,
        complete: true,
        figures: Vec::new(),
        all_stores: false,
    }
}

/// Returns an id with the length of a real one.
pub fn id(number: u64) -> String {
    format!("{:016x}{number:048x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Returns an image whose directory was created `made` seconds after noon.
pub fn image(number: u64, made: i64) -> SeenImage {
    let evidence = [(EvidenceKind::TopLayer, made - 3), (EvidenceKind::MetadataDirectory, made)];
    SeenImage {
        store: 0,
        id: id(number),
        names: vec![format!("registry.example.com/team/service-{}:build-{number}", number % 97)],
        digests: vec![format!("sha256:{}", id(number))],
        origin: None,
        evidence: evidence.map(|(kind, seconds)| Evidence { kind, at: at(seconds) }).to_vec(),
        pinned: false,
        in_use: false,
        total_bytes: 500_000_000 + number,
        exclusive_bytes: 40_000_000,
        frees_bytes: 41_000_000,
        listed_bytes: Some(480_000_000),
    }
}

/// Returns a container created `created` seconds after noon from the image at a position.
pub fn container(number: u64, created: i64, image: Option<usize>) -> SeenContainer {
    SeenContainer {
        store: 0,
        id: id(number),
        name: format!("k8s_service_service-6c5d9f7b44-{number}_team_0"),
        owner: Owner::CriO,
        image,
        volumes: Vec::new(),
        image_id: image.map(|_| id(0)),
        created: Some(at(created)),
        state: ContainerState::Running,
        sandbox: false,
        bytes: 65_536,
    }
}

/// Opens the records in `state` for writing.
pub fn open(state: &Path) -> Records {
    let opened = Records::open(&StateDirectory::local(state), Access::Write, PATIENCE).unwrap();
    assert!(opened.records.is_kept(), "{:?}", opened.degraded);
    opened.records
}

/// Changes that a scan record made in the records.
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

/// Writes a scan record to the records.
pub fn record(records: &mut Records, scan_record: &ScanRecord) -> Observed {
    let before = counts(records);
    let record_time = records.write(|to| observe(to, scan_record)).unwrap();
    let after = counts(records);
    Observed {
        record_time,
        images_come: after[0] - before[0],
        images_gone: after[1] - before[1],
        containers_come: after[2] - before[2],
        containers_gone: after[3] - before[3],
    }
}

/// Writes a scan record after comparing its clock with the records, as a scan does.
pub fn record_fresh(records: &mut Records, mut scan_record: ScanRecord) -> Observed {
    let last = records.read(known::clock).unwrap();
    scan_record.record_time = advance(last.as_ref(), &scan_record.clock).state.record_time;
    record(records, &scan_record)
}

/// Returns the images that the records know.
pub fn known(records: &Records) -> KnownImages {
    records.read(known::images).unwrap()
}
