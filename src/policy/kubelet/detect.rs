//! Image records of the kubelet, and its definition of "in use".

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::policy::kubelet::failure::KubeletFailure;
use crate::policy::kubelet::runtime::{ListedImage, Runtime};

/// Record of one image. A time of `None` means never, which is infinitely long ago.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletRecord {
    pub id: String,
    /// Runtime handler that its removal names.
    pub handler: String,
    pub first_detected: Option<Timestamp>,
    pub last_used: Option<Timestamp>,
    /// Size that the runtime reports.
    pub size_bytes: u64,
    /// It must not be collected.
    pub pinned: bool,
}

/// All records by key: the id, or `id,handler` if handlers count.
pub type KubeletRecords = BTreeMap<String, KubeletRecord>;

/// Updates the records, and returns the keys that are in use.
pub(super) fn detect(
    records: &mut KubeletRecords,
    by_handler: bool,
    runtime: &mut dyn Runtime,
    now: Timestamp,
) -> Result<BTreeSet<String>, KubeletFailure> {
    let images = runtime.list_images().map_err(KubeletFailure::ListImages)?;
    let containers = runtime.list_containers().map_err(KubeletFailure::ListPods)?;
    let mut in_use = BTreeSet::new();
    for container in containers {
        in_use.insert(key(by_handler, &container.image_id, &container.handler));
        // The kubelet uses the bare id even with handlers, and so misses the key of an image that was pulled for a
        // handler.
        in_use.extend(container.mounted_images);
    }
    let mut listed = BTreeSet::new();
    for ListedImage { id, size_bytes, pinned, handler } in images {
        let key = key(by_handler, &id, &handler);
        let record = records
            .entry(key.clone())
            .or_insert_with(|| KubeletRecord { first_detected: Some(now), ..KubeletRecord::default() });
        if in_use.contains(&key) {
            record.last_used = Some(now);
        }
        let handler = if by_handler { handler } else { String::new() };
        (record.id, record.handler) = (id, handler);
        (record.size_bytes, record.pinned) = (size_bytes, pinned);
        listed.insert(key);
    }
    records.retain(|key, _| listed.contains(key));
    Ok(in_use)
}

pub(super) fn key(by_handler: bool, id: &str, handler: &str) -> String {
    if by_handler && !handler.is_empty() { format!("{id},{handler}") } else { id.to_owned() }
}
