//! The kubelet's pull records, as evidence of when images were pulled.

use std::path::Path;

use super::Scan;
use crate::model::reference::bare_id;
use crate::model::{Evidence, EvidenceKind, Image};
use crate::node::pulls::{self, Pulled};
use crate::sys::root::Root;

/// Adds to each image when the kubelet wrote down that it had pulled it. `kubelet` is the kubelet's own
/// directory, where it is configured for us. Stores of users are not the kubelet's.
pub fn note_pulls(scan: &mut Scan, kubelet: Option<&Path>) {
    let pulled = pulls::pulled(&scan.sysroot, kubelet);
    if pulled.is_empty() {
        return;
    }
    let stores = scan.inventory.stores.iter();
    let of_root: Vec<bool> =
        stores.map(|store| Root::open(&store.root).is_ok_and(|root| root.owner() == 0)).collect();
    for image in scan.inventory.images.iter_mut().filter(|image| of_root[image.store.get()]) {
        let of_this = pulled.iter().filter(|one| means(one, image));
        let found = of_this.map(|one| Evidence { kind: EvidenceKind::PullRecord, at: one.updated }).min();
        image.evidence.extend(found);
        image.evidence.sort_unstable();
    }
}

/// CRI's runtimes answer a pull with the image's id, or with a name and a digest of its manifest.
fn means(pulled: &Pulled, image: &Image) -> bool {
    match pulled.image.split_once('@') {
        Some((_, digest)) => image.digests.iter().any(|known| known == digest),
        None => bare_id(&pulled.image) == image.id.as_str(),
    }
}
