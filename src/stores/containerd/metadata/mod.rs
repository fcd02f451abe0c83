//! Content of containerd's databases as plain data.
//!
//! `meta.db` has one bucket `v1`, in which each bucket is a namespace. Unknown keys are skipped: newer versions add
//! keys, and none of the known ones changes the meaning of the others. Schema: containerd's `metadata/buckets.go`,
//! versions 1.6 to 2.4.

mod cri;
mod fields;
mod namespace;
mod records;
pub mod snapshotter;
pub mod values;

pub use cri::CriContainer;
pub use fields::{Oddity, RecordLabels};
pub use records::{
    BlobRecord, ContainerRecord, ImageRecord, IngestRecord, LeaseRecord, Namespace, SnapshotRecord,
};

use crate::stores::bolt::BoltDatabase;

#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// Version of the schema: 3 in containerd 1.6 and 1.7, 4 from 2.0.
    pub version: Option<i64>,
    pub namespaces: Vec<Namespace>,
    pub oddities: Vec<Oddity>,
}

impl Metadata {
    #[must_use]
    pub fn read(database: &BoltDatabase) -> Self {
        let mut metadata = Self::default();
        let Some(top) = database.root().bucket("v1") else {
            // A new database is empty.
            return metadata;
        };
        metadata.version = top.value("version").and_then(values::varint);
        for (name, bucket) in top.buckets() {
            let namespace = namespace::read(&fields::text(name), bucket, &mut metadata.oddities);
            metadata.namespaces.push(namespace);
        }
        metadata
    }

    /// Returns the names and digests of the images of a namespace; a digest that cannot be read is empty.
    pub fn targets<'a>(
        database: &'a BoltDatabase,
        namespace: &str,
    ) -> impl Iterator<Item = (String, String)> + use<'a> {
        let bucket = database.root().bucket("v1").and_then(|top| top.bucket(namespace));
        bucket.into_iter().flat_map(namespace::targets)
    }

    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.name == name)
    }
}

#[cfg(test)]
mod tests;
