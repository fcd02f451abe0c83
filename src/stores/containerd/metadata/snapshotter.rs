//! Reads a snapshotter's own `metadata.db`, which maps each snapshot to its directory. overlayfs, native, btrfs,
//! erofs, blockfile and devmapper use the same schema (containerd's `snapshots/storage/bolt.go`).

use jiff::Timestamp;

use super::fields::{Oddity, RecordFields, buckets};
use super::values;
use crate::stores::bolt::BoltDatabase;

/// Labels of the erofs snapshotter of containerd 2.4 (`plugins/snapshots/erofs`): source and path of a layer's
/// content.
const BLOB_SOURCE: &str = "io.containerd.erofs.v1/blob.source";
const BLOB_REF: &str = "io.containerd.erofs.v1/blob.ref";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// Mounted read-only for a short time.
    View,
    Active,
    /// A finished layer.
    Committed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSnapshot {
    /// Key: `<namespace>/<number>/<key>`. The number is not that of the directory.
    pub key: String,
    pub id: u64,
    /// Kind; `None` if the record does not contain a valid one.
    pub kind: Option<SnapshotKind>,
    pub parent: Option<String>,
    pub created: Option<Timestamp>,
    /// Path of the file in a cache that contains its content (erofs snapshotter).
    pub cached_blob: Option<String>,
}

/// Reads all snapshots of `metadata.db`, and the fields that cannot be parsed. A record without a readable id is only
/// an oddity, because its directory is unknown.
#[must_use]
pub fn read(database: &BoltDatabase) -> (Vec<BackendSnapshot>, Vec<Oddity>) {
    let mut odd = Vec::new();
    let mut snapshots = Vec::new();
    let top = database.root().bucket("v1").and_then(|top| top.bucket("snapshots"));
    for (key, bucket) in buckets(top) {
        let mut fields = RecordFields::new(bucket, format!("snapshots/{key}"), &mut odd);
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
