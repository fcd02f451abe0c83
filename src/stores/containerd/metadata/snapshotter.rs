//! A snapshotter's own `metadata.db`: maps each snapshot to its directory. overlayfs, native,
//! btrfs, erofs, blockfile and devmapper share the schema (containerd's
//! `snapshots/storage/bolt.go`).

use jiff::Timestamp;

use super::fields::{Fields, Oddity, buckets};
use super::values;
use crate::stores::bolt::Database;

/// Labels of the erofs snapshotter of containerd 2.4 (`plugins/snapshots/erofs`): where the content
/// of a layer comes from, and where it is.
const BLOB_SOURCE: &str = "io.containerd.erofs.v1/blob.source";
const BLOB_REF: &str = "io.containerd.erofs.v1/blob.ref";

/// What a snapshot is to its snapshotter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// Mounted read-only, for a moment.
    View,
    /// Writable.
    Active,
    /// A finished layer.
    Committed,
}

/// A snapshot as its snapshotter knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSnapshot {
    /// Its key: `<namespace>/<number>/<key>`. The number is not a directory.
    pub key: String,
    /// The number that is its directory.
    pub id: u64,
    /// What it is; `None` where the record does not say.
    pub kind: Option<SnapshotKind>,
    /// Key of its parent.
    pub parent: Option<String>,
    pub created: Option<Timestamp>,
    /// The file in a cache that has its content, of the erofs snapshotter.
    pub cached_blob: Option<String>,
}

/// Reads all snapshots of `metadata.db`, and what could not be understood. A record
/// without a readable id has no directory that could be told, so it is an oddity alone.
#[must_use]
pub fn read(database: &Database) -> (Vec<BackendSnapshot>, Vec<Oddity>) {
    let mut odd = Vec::new();
    let mut snapshots = Vec::new();
    let top = database.root().bucket("v1").and_then(|top| top.bucket("snapshots"));
    for (key, bucket) in buckets(top) {
        let mut fields = Fields::new(bucket, format!("snapshots/{key}"), &mut odd);
        let kind = match fields.bytes("kind") {
            Some([1]) => Some(SnapshotKind::View),
            Some([2]) => Some(SnapshotKind::Active),
            Some([3]) => Some(SnapshotKind::Committed),
            _ => None,
        };
        if kind.is_none() {
            fields.odd("kind", "is not a kind of snapshot");
        }
        let Some(id) = fields.bytes("id").and_then(values::uvarint) else {
            fields.odd("id", "is not an id");
            continue;
        };
        let created = fields.time("createdat");
        let parent = fields.text("parent");
        let mut labels = fields.labels("labels");
        let is_cached = labels.get(BLOB_SOURCE).is_some_and(|source| source == "cache");
        let cached_blob = labels.remove(BLOB_REF).filter(|_| is_cached);
        snapshots.push(BackendSnapshot { key, id, kind, parent, created, cached_blob });
    }
    (snapshots, odd)
}
