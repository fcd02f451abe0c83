//! Matches a runtime's listings with the disk. Pure.
//!
//! Neither the scan nor the runtime's listing shows at what moment it was made, or whether it is complete. Compared
//! with each other they do: if the runtime lists an image that the scan has not found, the image was pulled after the
//! scan; if the runtime lists none of the images in its store, its listing is partial, or belongs to another store.

use std::collections::{HashMap, HashSet};

use crate::cri::{RuntimeContainer, RuntimeImage, RuntimeSandbox, RuntimeStore};
use crate::model::text::reference::bare_id;
use crate::model::{ImageIx, Inventory, StoreIx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStores {
    pub main: StoreIx,
    /// The store of its artifacts, which CRI-O since 1.32 lists among the images.
    pub artifacts: Option<StoreIx>,
    /// Read-only stores, whose images it may also list.
    pub additional: Vec<StoreIx>,
}

impl RuntimeStores {
    /// Finds the stores of a runtime; `None` if its main store is not in the inventory. The roots are compared as text,
    /// so both have to be canonical.
    #[must_use]
    pub fn find(runtime: &RuntimeStore, inventory: &Inventory) -> Option<Self> {
        let kind = runtime.kind;
        let driver = runtime.driver.as_ref().filter(|_| kind.facts().is_per_driver);
        let (mut main, mut artifacts, mut additional) = (None, None, Vec::new());
        for (position, store) in inventory.stores.iter().enumerate() {
            let store_ix = StoreIx::from(position);
            if store.kind != kind {
                continue;
            }
            if store.read_only {
                additional.push(store_ix);
            } else if store.root == runtime.root && store.is_of_artifacts() {
                artifacts = artifacts.or(Some(store_ix));
            } else if store.root == runtime.root && driver.is_none_or(|driver| *driver == store.driver) {
                main = main.or(Some(store_ix));
            }
        }
        Some(Self { main: main?, artifacts, additional })
    }

    fn contain(&self, store: StoreIx) -> bool {
        self.writes_to(store) || self.additional.contains(&store)
    }

    #[must_use]
    pub fn writes_to(&self, store: StoreIx) -> bool {
        self.main == store || self.artifacts == Some(store)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageMatch {
    /// Images on the disk that the runtime lists, with their positions in the listing: one position for each runtime
    /// handler.
    pub known: Vec<(ImageIx, Vec<usize>)>,
    /// Images on the disk that the runtime does not list, and so cannot remove: it cannot read them (containerd drops
    /// an image whose manifest is missing), or they were deleted since the scan.
    pub unknown: Vec<ImageIx>,
    /// Images in other namespaces of containerd, which its CRI neither lists nor removes.
    pub foreign: Vec<ImageIx>,
    /// Positions of listed images that the scan has not found: the scan is stale.
    pub unseen: Vec<usize>,
    /// Artifacts on the disk that the runtime does not list: its version has no artifacts, or they are disabled.
    pub unlisted_artifacts: Vec<ImageIx>,
}

impl ImageMatch {
    #[must_use]
    pub fn new(inventory: &Inventory, stores: &RuntimeStores, listed: &[RuntimeImage]) -> Self {
        let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
        for (position, image) in listed.iter().enumerate() {
            positions.entry(bare_id(&image.id)).or_default().push(position);
        }
        let mut found = Self::default();
        let mut seen = vec![false; listed.len()];
        for (image_number, image) in inventory.images.iter().enumerate() {
            if !stores.contain(image.store) {
                continue;
            }
            let image_ix = ImageIx::from(image_number);
            match positions.get(image.id.as_str()) {
                Some(positions) => {
                    positions.iter().for_each(|position| seen[*position] = true);
                    found.known.push((image_ix, positions.clone()));
                }
                None if image.id.namespace().is_some() => found.foreign.push(image_ix),
                None if inventory.is_artifact(image_ix) => found.unlisted_artifacts.push(image_ix),
                None => found.unknown.push(image_ix),
            }
        }
        // An artifact may be newer than the scan, or in a store that the scan did not read.
        let positions = 0..listed.len();
        found.unseen =
            positions.filter(|position| !seen[*position] && !is_artifact(&listed[*position])).collect();
        found
    }

    /// Reason for which nothing may be deleted by these two listings; `None` if they agree.
    #[must_use]
    pub fn objection(&self, listed: &[RuntimeImage]) -> Option<String> {
        if let Some(first) = self.unseen.first() {
            let id = &listed[*first].id;
            let count = self.unseen.len();
            return Some(format!(
                "the runtime lists {count} images that the scan has not seen (the first is {id}): the scan is stale"
            ));
        }
        if self.known.is_empty() && !self.unknown.is_empty() {
            let count = self.unknown.len();
            return Some(format!(
                "the runtime lists none of the {count} images on the disk: its listing is partial, or of another store"
            ));
        }
        None
    }
}

/// Reason for which nothing may be deleted: the runtime lists a container or a sandbox that the scan has not found.
#[must_use]
pub fn unseen_container(
    inventory: &Inventory,
    stores: &RuntimeStores,
    containers: &[RuntimeContainer],
    sandboxes: &[RuntimeSandbox],
) -> Option<String> {
    let on_disk: HashSet<&str> = inventory
        .containers
        .iter()
        .filter(|container| container.store == stores.main)
        .map(|container| container.id.as_str())
        .collect();
    let containers = containers.iter().map(|container| ("container", &container.id));
    let sandboxes = sandboxes.iter().map(|sandbox| ("sandbox", &sandbox.id));
    let (kind, id) = containers.chain(sandboxes).find(|(_, id)| !on_disk.contains(id.as_str()))?;
    Some(format!("the runtime has {kind} {id}, which the scan has not seen: the scan is stale"))
}

/// Returns true for an artifact: its id is the digest of its manifest. The id of an image cannot be, since the image's
/// manifest contains it. (`CRIImage` in CRI-O's `internal/ociartifact`.)
fn is_artifact(image: &RuntimeImage) -> bool {
    image.digests.iter().any(|name| name.rsplit_once("@sha256:").is_some_and(|(_, hex)| hex == image.id))
}

#[cfg(test)]
mod tests;
