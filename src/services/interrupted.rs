//! Outcomes of the deletions that interrupted runs had begun.
//!
//! A run records a deletion before it begins. If the run is killed, the next scan decides: an object that still
//! exists was not deleted, and an object that is missing from a store that was read was deleted. A scan that did
//! not read the store decides nothing.

use jiff::Timestamp;

use crate::history::RunLock;
use crate::history::runs::{self, Confirmation, DeletionRow, TargetKind};
use crate::model::{Consistency, Image, Inventory, LeakClass, StoreIx};
use crate::services::database::Database;

/// A scan that shows the outcomes.
pub(crate) struct Interrupted<'a> {
    pub inventory: &'a Inventory,
    pub complete: bool,
}

impl Interrupted<'_> {
    /// Records the outcomes. A failure is only logged.
    pub fn settle(&self, database: &mut Database, scanned: Timestamp) {
        let dir = &database.directory.dir;
        let confirmed = database
            .records
            .write(|tx| runs::confirm(tx, scanned, || RunLock::is_free(dir), |begun| self.outcome(begun)));
        match confirmed {
            Ok(0) => {}
            Ok(count) => tracing::info!("determined the outcome of {count} deletions of interrupted runs"),
            Err(error) => tracing::warn!("the outcome of earlier deletions was not recorded: {error}"),
        }
    }

    /// Returns the outcome of a deletion that was begun, or `None` if the scan does not show it.
    fn outcome(&self, begun: &DeletionRow) -> Option<Confirmation> {
        let Self { inventory, complete } = *self;
        // One root can contain the stores of several drivers, with images of the same id.
        let store_ix = begun.store.as_ref().and_then(|key| inventory.find_store(key));
        let exists = match begun.kind {
            TargetKind::Log => match std::fs::symlink_metadata(&begun.id) {
                Ok(_) => true,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Some(Confirmation::Gone);
                }
                Err(_) => return None,
            },
            TargetKind::Image | TargetKind::Artifact => {
                let found = inventory
                    .images
                    .iter()
                    .find(|image| image.id == begun.id && store_ix == Some(image.store));
                // The image was emptied to get the first room on a full disk: the next run finishes its deletion.
                if found.is_some_and(|image| lacks_a_layer(inventory, image)) {
                    return None;
                }
                found.is_some()
            }
            TargetKind::Container | TargetKind::Sandbox => inventory
                .containers
                .iter()
                .any(|container| container.id == begun.id && store_ix == Some(container.store)),
            // A layer's directory and its data may both be leaks, with the same id.
            TargetKind::Leak => inventory.leaks.iter().any(|leak| {
                leak.id == begun.id && store_ix == Some(leak.store) && begun.names == [leak.title()]
            }),
        };
        if exists {
            return Some(Confirmation::There);
        }
        // An object that is missing from a store that was not read may still exist.
        let store_ix = store_ix.filter(|ix| inventory[*ix].consistency == Consistency::Consistent)?;
        if has_layers_left(inventory, store_ix, begun) {
            return Some(Confirmation::GoneInPart);
        }
        (complete || begun.kind != TargetKind::Leak).then_some(Confirmation::Gone)
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
    use crate::model::{Leak, StoreId, Verdict, samples};
    use crate::policy::scenario::Scenario;

    fn outcome(inventory: &Inventory, begun: &DeletionRow) -> Option<Confirmation> {
        Interrupted { inventory, complete: true }.outcome(begun)
    }

    /// One root can contain the stores of two drivers, with images of the same id. An image in one store does not
    /// show the outcome of a deletion in the other.
    #[test]
    fn outcome_is_taken_from_the_store_of_the_image() {
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
            others_wrote: false,
            usage_after_percent: None,
            error: None,
            certainty: Certainty::Unknown,
        };
        assert_eq!(outcome(&inventory, &begun(Some(overlay.clone()))), Some(Confirmation::There));
        assert_eq!(outcome(&inventory, &begun(Some(vfs))), Some(Confirmation::Gone));
        let other = StoreId::new(overlay.kind(), "/other".into(), "overlay".into());
        for store in [Some(other), None] {
            assert_eq!(outcome(&inventory, &begun(store)), None, "a store that was not read");
        }
        // The directory of a layer was deleted, and its data was not.
        let data = Leak {
            path: "/store/overlay-layers/top".into(),
            id: "top".into(),
            ..samples::leak(LeakClass::LayerDataOrphan, Verdict::Reclaim, &[])
        };
        let names = |leak: &Leak| vec![leak.title()];
        let leak = |names| DeletionRow {
            kind: TargetKind::Leak,
            id: "top".into(),
            names,
            ..begun(Some(overlay.clone()))
        };
        let directory = Leak { class: LeakClass::OrphanDir, ..data.clone() };
        let with_data = Inventory { leaks: vec![data.clone()], ..inventory.clone() };
        assert_eq!(outcome(&with_data, &leak(names(&directory))), Some(Confirmation::Gone));
        assert_eq!(outcome(&with_data, &leak(names(&data))), Some(Confirmation::There));
        for (class, expected) in
            [(LeakClass::LayerNoDir, None), (LeakClass::MissingLink, Some(Confirmation::There))]
        {
            let leak =
                Leak { class, path: "/store/overlay/layer".into(), verdict: Verdict::Report, ..data.clone() };
            let inventory = Inventory { leaks: vec![leak], ..inventory.clone() };
            assert_eq!(outcome(&inventory, &begun(Some(overlay.clone()))), expected, "{class}");
        }
    }
}
