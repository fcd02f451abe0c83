//! The kubelet's image records, and its idea of "in use".

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::policy::kubelet::failure::Failure;
use crate::policy::kubelet::runtime::{ListedImage, Runtime};

/// What is remembered of one image. `None` as a time means never, which is infinitely long ago.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it was first seen.
    pub first_detected: Option<Timestamp>,
    /// When it was last seen in use.
    pub last_used: Option<Timestamp>,
    /// The size that the runtime tells.
    pub size_bytes: u64,
    /// Not to be collected.
    pub pinned: bool,
}

/// All that is remembered, by image id.
pub type Records = BTreeMap<String, Record>;

/// Updates the records, and returns the ids that are in use. `first_detected` is what images
/// get that were not known.
pub(super) fn detect(
    records: &mut Records,
    runtime: &mut dyn Runtime,
    first_detected: Option<Timestamp>,
    now: Timestamp,
) -> Result<BTreeSet<String>, Failure> {
    let images = runtime.list_images().map_err(Failure::ListImages)?;
    let containers = runtime.list_containers().map_err(Failure::ListPods)?;
    let in_use = BTreeSet::from_iter(containers);
    let mut listed = BTreeSet::new();
    for ListedImage { id, size_bytes, pinned } in images {
        let record =
            records.entry(id.clone()).or_insert_with(|| Record { first_detected, ..Record::default() });
        if in_use.contains(&id) {
            record.last_used = Some(now);
        }
        (record.size_bytes, record.pinned) = (size_bytes, pinned);
        listed.insert(id);
    }
    records.retain(|id, _| listed.contains(id));
    Ok(in_use)
}
