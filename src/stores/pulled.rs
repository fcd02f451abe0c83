//! What the kubelet wrote down of its pulls, as evidence of when images came.

use std::path::Path;

use super::Survey;
use crate::model::{Evidence, EvidenceKind, Image};
use crate::node::pulls::{self, Pulled};
use crate::sys::root::Root;

/// Adds to each image when the kubelet wrote down that it had pulled it. `kubelet` is the kubelet's own
/// directory, where it is configured for us. Stores of users are not the kubelet's.
pub fn note_pulls(survey: &mut Survey, kubelet: Option<&Path>) {
    let pulled = pulls::pulled(&survey.sysroot, kubelet);
    if pulled.is_empty() {
        return;
    }
    let stores = survey.inventory.stores.iter();
    let of_root: Vec<bool> =
        stores.map(|store| Root::open(&store.root).is_ok_and(|root| root.owner() == 0)).collect();
    for image in survey.inventory.images.iter_mut().filter(|image| of_root[image.store.get()]) {
        let of_this = pulled.iter().filter(|one| means(one, image));
        let found = of_this.map(|one| Evidence { what: EvidenceKind::PullRecord, at: one.at }).min();
        image.evidence.extend(found);
        image.evidence.sort_unstable();
    }
}

/// CRI's runtimes answer a pull with the image's id, or with a name and a digest of its manifest.
fn means(pulled: &Pulled, image: &Image) -> bool {
    match pulled.image.split_once('@') {
        Some((_, digest)) => image.digests.iter().any(|known| known == digest),
        None => pulled.image.strip_prefix("sha256:").unwrap_or(&pulled.image) == image.id.as_str(),
    }
}
