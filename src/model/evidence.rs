//! Since when an image can be here, as the disk says. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Inventory, NodeKind, StoreKind};

/// Something on the disk that bears on when an image came here. Each tells of one part: the
/// image as it is now is no older than the latest of those that tell of its making.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Evidence {
    /// What says so.
    pub what: EvidenceKind,
    /// The time it gives, by the clock of the node at that time.
    pub at: Timestamp,
}

/// What can tell when an image came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceKind {
    /// The store's own record of the image, where it has the time of the record's making.
    ImageRecord,
    /// The record of its top layer or snapshot.
    TopLayer,
    /// The birth of the directory that holds its manifest and configuration.
    MetadataDirectory,
    /// The record of a container made from it: it was here by then, maybe long before.
    Container,
    /// The kubelet's record of a pull of it: the same, since that is written anew for other credentials.
    PullRecord,
}

impl EvidenceKind {
    /// It tells when something of the image was made, not only that it was there.
    #[must_use]
    pub fn is_making(self) -> bool {
        !matches!(self, Self::Container | Self::PullRecord)
    }
}

/// Adds to every image what the records of the inventory say of its coming.
pub fn gather(inventory: &mut Inventory) {
    let mut containers: Vec<Option<Timestamp>> = vec![None; inventory.images.len()];
    for container in &inventory.containers {
        // A volume may be mounted long after the container, or the pod, was made.
        let (Some(image), Some(created)) = (container.image, container.created) else { continue };
        let first = &mut containers[image.get()];
        *first = Some(first.map_or(created, |known| known.min(created)));
    }
    for (image, container) in inventory.images.iter_mut().zip(containers) {
        let nodes = image.holds.iter().map(|node| &inventory.nodes[node.get()]);
        let mut layers = nodes.filter(|node| matches!(node.kind, NodeKind::Layer | NodeKind::Snapshot));
        let top = layers.next().and_then(|node| node.layer.as_ref()?.created);
        let here = inventory.stores[image.store.get()].kind == StoreKind::Containerd;
        let record = image.created.filter(|_| here);
        let found = [
            (EvidenceKind::ImageRecord, record),
            (EvidenceKind::TopLayer, top),
            (EvidenceKind::Container, container),
        ];
        image.evidence.extend(found.into_iter().filter_map(|(what, at)| Some(Evidence { what, at: at? })));
        image.evidence.sort_unstable();
    }
}
