//! Records and files outside the stores that show the origin of images: the kubelet's pull records, and archives that a
//! Kubernetes distribution imports.

use std::path::Path;

use super::Scan;
use crate::model::text::reference::bare_id;
use crate::model::{Evidence, EvidenceKind, Image, Origin, OriginKind, StoreKind};
use crate::node::pulls::{self, Pulled};
use crate::sys::root::Root;
use crate::sys::sysroot::Sysroot;

/// Directories of archives that are imported at each start (k3s `pkg/agent/containerd`, k0s `pkg/component/worker`).
const ARCHIVES: [&str; 3] =
    ["/var/lib/rancher/k3s/agent/images", "/var/lib/rancher/rke2/agent/images", "/var/lib/k0s/images"];

/// Adds to each image the evidence outside its store. `kubelet` is the kubelet's directory, if it is configured.
pub fn note_pulls(scan: &mut Scan, kubelet: Option<&Path>) {
    note_archives(scan);
    let pulled = pulls::pulled(&scan.sysroot, kubelet);
    if pulled.is_empty() {
        return;
    }
    // The kubelet uses only stores of root.
    let stores = scan.inventory.stores.iter();
    let of_root: Vec<bool> =
        stores.map(|store| Root::open(&store.root).is_ok_and(|root| root.owner() == 0)).collect();
    for image in scan.inventory.images.iter_mut().filter(|image| of_root[image.store.get()]) {
        let Some(record) =
            pulled.iter().filter(|record| names_image(record, image)).min_by_key(|record| record.updated)
        else {
            continue;
        };
        image.evidence.push(Evidence { kind: EvidenceKind::PullRecord, at: record.updated });
        image.evidence.sort_unstable();
        let (kind, evidence) = if record.is_preloaded {
            (OriginKind::Preloaded, "the kubelet recorded that it was there before")
        } else {
            (OriginKind::Pulled, "the kubelet recorded that it pulled it")
        };
        if image.origin.kind != OriginKind::Pulled {
            image.origin = Origin { time: Some(record.updated), ..Origin::new(kind, evidence) };
        }
    }
}

/// Calls images that CRI can use and that were imported preloaded if there are archives to import.
fn note_archives(scan: &mut Scan) {
    let Some(directory) = ARCHIVES.into_iter().find(|directory| has_archive(&scan.sysroot, directory)) else {
        return;
    };
    let stores = &scan.inventory.stores;
    for image in &mut scan.inventory.images {
        let is_cri =
            stores[image.store.get()].kind == StoreKind::Containerd && !image.id.as_str().contains('/');
        if is_cri && image.origin.kind == OriginKind::Loaded {
            let evidence =
                format!("{}; archives in {directory} are imported at each start", image.origin.evidence);
            image.origin = Origin::new(OriginKind::Preloaded, evidence);
        }
    }
}

fn has_archive(sysroot: &Sysroot, directory: &str) -> bool {
    let entries = sysroot.list(Path::new(directory)).unwrap_or_default();
    entries.iter().any(|entry| entry.name.to_string_lossy().contains(".tar"))
}

/// Returns true if a pull record names `image`. CRI runtimes answer a pull with the image's id, or with a name and
/// the digest of a manifest.
fn names_image(pulled: &Pulled, image: &Image) -> bool {
    match pulled.image.split_once('@') {
        Some((_, digest)) => image.digests.iter().any(|known| known == digest),
        None => bare_id(&pulled.image) == image.id.as_str(),
    }
}
