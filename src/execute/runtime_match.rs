//! Matches a runtime's listings with the disk. Pure.
//!
//! Neither listing says when it was made or whether it is whole. Held against each other
//! they do: an image that the runtime has and the scan has not seen came after the scan, and
//! a runtime that has none of the images in its own store has answered for another one.

use std::collections::{HashMap, HashSet};

use crate::cri::{RuntimeContainer, RuntimeImage, RuntimeSandbox, RuntimeStore};
use crate::model::reference::bare_id;
use crate::model::{ImageIx, Inventory, StoreIx, StoreKind};

/// The stores of the inventory that a runtime serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStores {
    /// The one that it writes to.
    pub own: StoreIx,
    /// Its artifacts, which CRI-O (1.32 on) lists among the images.
    pub artifacts: Option<StoreIx>,
    /// Read-only ones whose images it may list too.
    pub additional: Vec<StoreIx>,
}

impl RuntimeStores {
    /// Finds them; `None` where no store of the inventory is the runtime's. The roots are compared
    /// as they stand, so both have to be canonical.
    #[must_use]
    pub fn find(runtime: &RuntimeStore, inventory: &Inventory) -> Option<Self> {
        let kind = runtime.store_type;
        let stores = || {
            let all = inventory.stores.iter().enumerate().filter(|(_, store)| store.kind == kind);
            all.map(|(at, store)| (StoreIx::from(at), store))
        };
        // One graphroot can hold the stores of several drivers. All snapshotters of a containerd
        // are one store, whichever of them CRI uses.
        let same_driver = |driver: &str| match (&runtime.driver, kind) {
            (Some(wanted), StoreKind::ContainersStorage) => wanted == driver,
            _ => true,
        };
        let mut own = stores().filter(|(_, store)| {
            !store.is_of_artifacts()
                && !store.read_only
                && store.root == runtime.root
                && same_driver(&store.driver)
        });
        let own = own.next()?.0;
        let additional = stores().filter(|(_, store)| store.read_only).map(|(at, _)| at).collect();
        let artifacts = stores()
            .find(|(_, store)| store.is_of_artifacts() && !store.read_only && store.root == runtime.root);
        Some(Self { own, artifacts: artifacts.map(|(at, _)| at), additional })
    }

    fn contain(&self, store: StoreIx) -> bool {
        self.writes_to(store) || self.additional.contains(&store)
    }

    /// Whether the runtime removes from it.
    #[must_use]
    pub fn writes_to(&self, store: StoreIx) -> bool {
        self.own == store || self.artifacts == Some(store)
    }
}

/// Images of the runtime's stores against the runtime's listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageMatch {
    /// Images that both have, with their positions in the runtime's listing: one position for each
    /// runtime handler.
    pub known: Vec<(ImageIx, Vec<usize>)>,
    /// Images on the disk that the runtime does not list: it cannot read them (containerd
    /// drops an image whose manifest is gone), or they went since the scan. It cannot remove them.
    pub unknown: Vec<ImageIx>,
    /// Images of other namespaces of containerd, which its CRI neither lists nor removes.
    pub foreign: Vec<ImageIx>,
    /// Images that the runtime lists and the scan has not seen: the scan is stale.
    pub unseen: Vec<usize>,
    /// Artifacts on the disk that the runtime does not list: it is older than that, or they are off.
    pub unlisted_artifacts: Vec<ImageIx>,
}

impl ImageMatch {
    /// Holds the images of `stores` against the runtime's listing.
    #[must_use]
    pub fn new(inventory: &Inventory, stores: &RuntimeStores, listed: &[RuntimeImage]) -> Self {
        let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, image) in listed.iter().enumerate() {
            positions.entry(bare_id(&image.id)).or_default().push(at);
        }
        let mut found = Self::default();
        let mut seen = vec![false; listed.len()];
        for (at, image) in inventory.images.iter().enumerate() {
            if !stores.contain(image.store) {
                continue;
            }
            let ix = ImageIx::from(at);
            match positions.get(image.id.as_str()) {
                Some(at) => {
                    at.iter().for_each(|at| seen[*at] = true);
                    found.known.push((ix, at.clone()));
                }
                None if image.id.namespace().is_some() => found.foreign.push(ix),
                None if inventory.is_artifact(ix) => found.unlisted_artifacts.push(ix),
                None => found.unknown.push(ix),
            }
        }
        // An artifact may be newer than the scan, or in a store that it did not read.
        found.unseen = (0..listed.len()).filter(|at| !seen[*at] && !is_artifact(&listed[*at])).collect();
        found
    }

    /// Why nothing may be deleted by these two listings, if so.
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

/// Why nothing may be deleted by the runtime's listings of containers and sandboxes, if it lists one that
/// the scan has not seen.
#[must_use]
pub fn unseen_container(
    inventory: &Inventory,
    stores: &RuntimeStores,
    containers: &[RuntimeContainer],
    sandboxes: &[RuntimeSandbox],
) -> Option<String> {
    let on_disk = inventory.containers.iter().filter(|one| one.store == stores.own);
    let on_disk: HashSet<&str> = on_disk.map(|one| one.id.as_str()).collect();
    let containers = containers.iter().map(|one| ("container", &one.id));
    let sandboxes = sandboxes.iter().map(|one| ("sandbox", &one.id));
    let (what, id) = containers.chain(sandboxes).find(|(_, id)| !on_disk.contains(id.as_str()))?;
    Some(format!("the runtime has {what} {id}, which the scan has not seen: the scan is stale"))
}

/// An artifact's id is the digest of its manifest, which that of an image can never be: an
/// image's manifest names the image's id. (`CRIImage` in CRI-O's `internal/ociartifact`.)
fn is_artifact(image: &RuntimeImage) -> bool {
    image.digests.iter().any(|name| name.rsplit_once("@sha256:").is_some_and(|(_, hex)| hex == image.id))
}

#[cfg(test)]
mod tests;
