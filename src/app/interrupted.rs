//! Settling the deletions that interrupted runs had begun.

use jiff::Timestamp;

use super::database::Database;
use crate::history::RunLock;
use crate::history::runs::{self, Confirmation, DeletionRow, TargetKind};
use crate::model::{Consistency, Image, Inventory, LeakClass, StoreIx};

/// A scan, for what it shows of deletions that were begun.
pub(super) struct Interrupted<'a> {
    pub inventory: &'a Inventory,
    pub complete: bool,
}

impl Interrupted<'_> {
    /// Records the outcomes. That it cannot is only logged.
    pub fn settle(&self, database: &mut Database, scanned: Timestamp) {
        let dir = &database.directory.dir;
        let (idle, fate) = (|| RunLock::is_free(dir), |begun: &_| self.fate(begun));
        match database.records.write(|tx| runs::confirm(tx, scanned, idle, fate)) {
            Ok(0) => {}
            Ok(some) => tracing::info!("determined the outcome of {some} deletions of interrupted runs"),
            Err(error) => tracing::warn!("the outcome of earlier deletions was not recorded: {error}"),
        }
    }

    /// Outcome of a deletion that was begun; `None`: the scan does not show it.
    fn fate(&self, begun: &DeletionRow) -> Option<Confirmation> {
        let Self { inventory, complete } = *self;
        // One root can hold the stores of several drivers, with images of the same id.
        let own = begun.store.as_ref().and_then(|key| inventory.find_store(key));
        let in_store = |store: StoreIx| own == Some(store);
        let there = match begun.kind {
            TargetKind::Log => match std::fs::symlink_metadata(&begun.id) {
                Ok(_) => true,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Some(Confirmation::Gone);
                }
                Err(_) => return None,
            },
            TargetKind::Image | TargetKind::Artifact => {
                let found = inventory.images.iter().find(|one| one.id == begun.id && in_store(one.store));
                // Emptied for the first room on a full disk, it waits for the next run, which finishes it.
                if found.is_some_and(|image| lacks_a_layer(inventory, image)) {
                    return None;
                }
                found.is_some()
            }
            TargetKind::Container | TargetKind::Sandbox => {
                inventory.containers.iter().any(|one| one.id == begun.id && in_store(one.store))
            }
            TargetKind::Leak => inventory.leaks.iter().any(|one| one.id == begun.id && in_store(one.store)),
        };
        // An object that is missing from a store that was not read may still exist.
        let read = own.is_some_and(|own| inventory[own].consistency == Consistency::Consistent);
        match there {
            true => Some(Confirmation::There),
            false if read && own.is_some_and(|own| has_layers_left(inventory, own, begun)) => {
                Some(Confirmation::GoneInPart)
            }
            false if read && (complete || begun.kind != TargetKind::Leak) => Some(Confirmation::Gone),
            false => None,
        }
    }
}

/// Returns true if the directory of one of the image's layers is missing.
fn lacks_a_layer(inventory: &Inventory, image: &Image) -> bool {
    let leaks = inventory.leaks.iter().filter(|leak| leak.store == image.store);
    let mut missing = leaks.filter(|leak| leak.class == LeakClass::LayerNoDir);
    missing.any(|leak| image.layers.iter().any(|layer| layer.as_str() == leak.id))
}

/// Returns true if layers of a deleted image still exist as leaks.
fn has_layers_left(inventory: &Inventory, store: StoreIx, begun: &DeletionRow) -> bool {
    let mut leaks = inventory.leaks.iter().filter(|leak| leak.store == store);
    leaks.any(|leak| begun.layers.iter().any(|layer| layer.id.as_str() == leak.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::runs::{Certainty, Reason};
    use crate::model::{Leak, StoreId, Verdict};
    use crate::policy::scenario::Scenario;

    /// One root can hold the stores of two drivers, with images of the same id: the one that is left says
    /// nothing of the deletion of the other.
    #[test]
    fn fate_of_an_image_is_that_of_its_own_store() {
        let mut inventory = Scenario::article().inventory();
        inventory.images.truncate(1);
        inventory.images[0].layers = vec!["top".into()];
        let overlay = StoreId::of(&inventory.stores[0]);
        let vfs = StoreId::new(overlay.kind(), overlay.root().into(), "vfs".into());
        let mut second = inventory.stores[0].clone();
        second.driver = "vfs".into();
        inventory.stores.push(second);
        let begun = |store: Option<StoreId>| DeletionRow {
            at: Timestamp::UNIX_EPOCH,
            kind: TargetKind::Image,
            store,
            id: inventory.images[0].id.to_string(),
            names: vec![],
            layers: Vec::new(),
            reason: Reason::Space,
            predicted_bytes: 0,
            measured_bytes: None,
            byproduct_bytes: 0,
            usage_after_percent: None,
            error: None,
            certainty: Certainty::Unknown,
        };
        let fate = |store| Interrupted { inventory: &inventory, complete: true }.fate(&begun(store));
        assert_eq!(fate(Some(overlay.clone())), Some(Confirmation::There));
        assert_eq!(fate(Some(vfs)), Some(Confirmation::Gone));
        let other = StoreId::new(overlay.kind(), "/other".into(), "overlay".into());
        assert_eq!((fate(Some(other)), fate(None)), (None, None), "a store that was not read");
        let lost = |class| Leak {
            class,
            store: StoreIx::from(0),
            path: "/store/overlay/layer".into(),
            id: "top".into(),
            since: None,
            verdict: Verdict::Report,
            evidence: String::new(),
            holds: vec![],
        };
        for (class, expected) in
            [(LeakClass::LayerNoDir, None), (LeakClass::MissingLink, Some(Confirmation::There))]
        {
            let inventory = Inventory { leaks: vec![lost(class)], ..inventory.clone() };
            let fate =
                Interrupted { inventory: &inventory, complete: true }.fate(&begun(Some(overlay.clone())));
            assert_eq!(fate, expected, "{class}");
        }
    }
}
