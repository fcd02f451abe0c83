//! Removal by ourselves, in the graphroot: for when no runtime can.
//!
//! The editor proves under the store's locks what a runtime would: that no container has the
//! image, that nothing that stays needs its layers, that nothing of it is mounted. Its listings
//! are the records themselves, so none can be partial or stale.

use super::hands::{Blind, Extra, Hands, Removed};
use super::owner::Owners;
use crate::gc::editors::Editors;
use crate::graphroot::edit::{Deleted, Error, PlannedImage};
use crate::inventory::{ImageIx, Inventory, Store, StoreKind};

/// Works on the disk.
#[derive(Debug)]
pub struct Direct<'a> {
    editors: &'a Editors,
    /// Asked before each removal; `None`: the owner may be at work, somebody has said so.
    owners: Option<&'a Owners>,
}

impl<'a> Direct<'a> {
    /// Hands over `editors`. While an owner of `owners` is at work they refuse everything.
    #[must_use]
    pub fn new(editors: &'a Editors, owners: Option<&'a Owners>) -> Self {
        Self { editors, owners }
    }

    fn out_of_reach(&self, store: &Store) -> Option<String> {
        if store.kind == StoreKind::Containerd {
            return Some("it is in a store of containerd, which is never edited".into());
        }
        self.editors.store(store).err().map(str::to_owned)
    }
}

impl Hands for Direct<'_> {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Extra>, Blind> {
        if let Some(owners) = self.owners {
            owners
                .absent(inventory)
                .map_err(|presence| Blind { what: presence.to_string(), stale: false })?;
        }
        let reach: Vec<_> = inventory.stores.iter().map(|store| self.out_of_reach(store)).collect();
        let extra = |store: usize| Extra { out_of_reach: reach[store].clone(), ..Extra::default() };
        Ok(inventory.images.iter().map(|image| extra(image.store.get())).collect())
    }

    fn remove(&mut self, inventory: &Inventory, image: ImageIx) -> Removed {
        let image = &inventory.images[image.get()];
        let editor = match self.editors.store(&inventory.stores[image.store.get()]) {
            Ok(editor) => editor,
            Err(why) => return Removed::Refused(why.to_owned()),
        };
        let planned = PlannedImage { id: image.id.clone(), names: Some(image.names.clone()) };
        match editor.delete_image(&planned) {
            Ok(deleted) => {
                tell(&image.id, &deleted);
                Removed::Answered
            }
            Err(Error::Stopped { done, cause }) => {
                tell(&image.id, &done);
                Removed::InDoubt(format!("stopped on the way: {cause}"))
            }
            Err(error @ Error::Failed(_)) => Removed::InDoubt(error.to_string()),
            Err(error) => Removed::Refused(error.to_string()),
        }
    }

    fn untag(&mut self, inventory: &Inventory, image: ImageIx, names: &[String]) -> Removed {
        let image = &inventory.images[image.get()];
        let editor = match self.editors.store(&inventory.stores[image.store.get()]) {
            Ok(editor) => editor,
            Err(why) => return Removed::Refused(why.to_owned()),
        };
        let planned = PlannedImage { id: image.id.clone(), names: Some(image.names.clone()) };
        match editor.remove_names(&planned, names) {
            Ok(_) => Removed::Answered,
            Err(error) => Removed::Refused(error.to_string()),
        }
    }

    fn own_bytes(&self, device: u64) -> u64 {
        self.editors.ballast_bytes(device)
    }
}

/// What would not go of an image whose record is gone is an orphan now, which `sweep` finds.
fn tell(id: &str, deleted: &Deleted) {
    for failure in &deleted.failures {
        tracing::warn!(image = id, "left behind: {failure}");
    }
    if deleted.more_failures > 0 {
        tracing::warn!(image = id, "{} more are left behind", deleted.more_failures);
    }
    tracing::debug!(
        image = id,
        layers = deleted.layers.len(),
        removed = deleted.removed,
        in_place = deleted.in_place,
        ballast = deleted.ballast_released,
        locked_for = ?deleted.locked_for,
        "deleted"
    );
}
