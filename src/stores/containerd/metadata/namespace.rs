//! Reads the records of a namespace.

use super::cri::{self, KIND_LABEL};
use super::fields::{Oddity, RecordFields, buckets, text};
use super::records::{
    BlobRecord, ContainerRecord, ImageRecord, IngestRecord, LeaseRecord, Namespace, SnapshotRecord,
};
use super::values;
use crate::stores::bolt::Bucket;

pub(super) fn read(name: &str, bucket: Bucket<'_>, odd: &mut Vec<Oddity>) -> Namespace {
    let mut reader = NamespaceReader { name, bucket, odd };
    let snapshots = buckets(bucket.bucket("snapshots"));
    Namespace {
        name: name.to_owned(),
        images: reader.each(&["images"], image),
        blobs: reader.each(&["content", "blob"], blob),
        ingests: reader.each(&["content", "ingests"], ingest),
        snapshots: snapshots
            .flat_map(|(snapshotter, _)| {
                reader.each(&["snapshots", &snapshotter], |fields, key| snapshot(fields, &snapshotter, key))
            })
            .collect(),
        containers: reader.each(&["containers"], container),
        leases: reader.each(&["leases"], lease),
        sandboxes: reader.each(&["sandboxes"], sandbox),
    }
}

/// Returns only the names and digests of images.
pub(super) fn targets(namespace: Bucket<'_>) -> impl Iterator<Item = (String, String)> {
    buckets(namespace.bucket("images"))
        .map(|(name, image)| (name, image.bucket("target").map(digest).unwrap_or_default()))
}

fn digest(target: Bucket<'_>) -> String {
    target.value("digest").map(text).unwrap_or_default()
}

struct NamespaceReader<'a, 'o> {
    name: &'o str,
    bucket: Bucket<'a>,
    odd: &'o mut Vec<Oddity>,
}

impl NamespaceReader<'_, '_> {
    /// Reads each bucket below `path` as a record.
    fn each<T>(&mut self, path: &[&str], read: impl Fn(&mut RecordFields<'_, '_>, String) -> T) -> Vec<T> {
        let bucket = path.iter().try_fold(self.bucket, |bucket, key| bucket.bucket(key));
        let location = format!("{}/{}", self.name, path.join("/"));
        buckets(bucket)
            .map(|(key, bucket)| {
                let mut fields = RecordFields::new(bucket, format!("{location}/{key}"), self.odd);
                read(&mut fields, key)
            })
            .collect()
    }
}

fn image(fields: &mut RecordFields<'_, '_>, name: String) -> ImageRecord {
    let mut image = ImageRecord {
        name,
        created: fields.time("createdat"),
        labels: fields.labels("labels"),
        ..ImageRecord::default()
    };
    if let Some(target) = fields.bucket("target") {
        image.target = digest(target);
        let size = target.value("size").and_then(values::varint);
        image.target_size = size.and_then(|size| u64::try_from(size).ok());
    }
    if image.target.is_empty() {
        fields.odd("target", "the name has no digest");
    }
    image
}

fn blob(fields: &mut RecordFields<'_, '_>, digest: String) -> BlobRecord {
    BlobRecord {
        digest,
        size: fields.size("size"),
        created: fields.time("createdat"),
        labels: fields.labels("labels"),
    }
}

fn ingest(fields: &mut RecordFields<'_, '_>, key: String) -> IngestRecord {
    IngestRecord {
        key,
        backend_ref: fields.text("ref"),
        expires: fields.time("expireat"),
        expected: fields.text("expected"),
    }
}

fn snapshot(fields: &mut RecordFields<'_, '_>, snapshotter: &str, key: String) -> SnapshotRecord {
    if !fields.has("name") {
        fields.odd("name", "the snapshot has no name in its snapshotter");
    }
    SnapshotRecord {
        snapshotter: snapshotter.to_owned(),
        key,
        backend: fields.text("name"),
        parent: fields.text("parent"),
        created: fields.time("createdat"),
        labels: fields.labels("labels"),
    }
}

fn container(fields: &mut RecordFields<'_, '_>, id: String) -> ContainerRecord {
    let labels = fields.labels("labels");
    ContainerRecord {
        id,
        image: fields.text("image"),
        snapshotter: fields.text("snapshotter"),
        snapshot_key: fields.text("snapshotKey"),
        created: fields.time("createdat"),
        cri: cri::read(fields, labels.get(KIND_LABEL).map(String::as_str)),
        labels,
    }
}

fn lease(fields: &mut RecordFields<'_, '_>, id: String) -> LeaseRecord {
    let mut snapshots = Vec::new();
    for (snapshotter, bucket) in buckets(fields.bucket("snapshots")) {
        for (key, _) in bucket.entries() {
            snapshots.push((snapshotter.clone(), text(key)));
        }
    }
    LeaseRecord {
        id,
        created: fields.time("createdat"),
        labels: fields.labels("labels"),
        content: fields.keys("content"),
        snapshots,
        ingests: fields.keys("ingests"),
        images: fields.keys("images"),
    }
}

fn sandbox(fields: &mut RecordFields<'_, '_>, id: String) -> ContainerRecord {
    let labels = fields.labels("labels");
    ContainerRecord {
        id,
        created: fields.time("createdat"),
        cri: cri::read_sandbox(fields, labels.get(KIND_LABEL).map(String::as_str)),
        labels,
        ..ContainerRecord::default()
    }
}
