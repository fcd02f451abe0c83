//! The kubelet's pull records, as evidence of the time of a pull.

use std::path::Path;

use super::Scan;
use crate::model::reference::bare_id;
use crate::model::{Evidence, EvidenceKind, Image};
use crate::node::pulls::{self, Pulled};
use crate::sys::root::Root;

/// Adds to each image the time at which the kubelet recorded that it had pulled it. `kubelet` is the kubelet's
/// directory, if it is configured. Stores that do not belong to root are skipped: the kubelet does not use them.
pub fn note_pulls(scan: &mut Scan, kubelet: Option<&Path>) {
    let pulled = pulls::pulled(&scan.sysroot, kubelet);
    if pulled.is_empty() {
        return;
    }
    let stores = scan.inventory.stores.iter();
    let of_root: Vec<bool> =
        stores.map(|store| Root::open(&store.root).is_ok_and(|root| root.owner() == 0)).collect();
    for image in scan.inventory.images.iter_mut().filter(|image| of_root[image.store.get()]) {
        let records = pulled.iter().filter(|record| names_image(record, image));
        let found =
            records.map(|record| Evidence { kind: EvidenceKind::PullRecord, at: record.updated }).min();
        image.evidence.extend(found);
        image.evidence.sort_unstable();
    }
}

/// Returns true if a pull record names `image`. CRI runtimes answer a pull with the image's id, or with a name and
/// the digest of a manifest.
fn names_image(pulled: &Pulled, image: &Image) -> bool {
    match pulled.image.split_once('@') {
        Some((_, digest)) => image.digests.iter().any(|known| known == digest),
        None => bare_id(&pulled.image) == image.id.as_str(),
    }
}
