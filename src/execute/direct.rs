//! Removes images directly in the graphroot, for when no runtime can.
//!
//! The editor proves under the store's locks what a runtime would: that no container has the
//! image, that nothing that stays needs its layers, that nothing of it is mounted. Its listings
//! are the records themselves, so none can be partial or stale.

use crate::execute::editors::Editors;
use crate::execute::owner::Owners;
use crate::execute::remover::{self, PreconditionError, RemovalAnswer, Remover};
use crate::model::plan::TargetKind;
use crate::model::{Image, ImageIx, Inventory, Store, StoreKind};
use crate::policy::{ExternalFacts, FullFilesystem};
use crate::stores::containers_storage::edit::{Editor, PlannedImage};

/// The remover that edits the store.
#[derive(Debug)]
pub struct DirectRemover<'a> {
    editors: &'a Editors,
    /// Asked with each proof.
    owners: &'a Owners,
}

impl<'a> DirectRemover<'a> {
    /// Uses `editors`. While an owner of `owners` is running, everything is refused.
    #[must_use]
    pub fn new(editors: &'a Editors, owners: &'a Owners) -> Self {
        Self { editors, owners }
    }

    fn out_of_reach(&self, store: &Store) -> Option<String> {
        if store.kind == StoreKind::Containerd {
            return Some("it is in a store of containerd, which is never edited".into());
        }
        self.editors.store(store).err().map(str::to_owned)
    }
}

impl Remover for DirectRemover<'_> {
    fn name(&self) -> &'static str {
        "the editor of the store"
    }

    fn look(&mut self, inventory: &Inventory) -> Result<Vec<ExternalFacts>, PreconditionError> {
        self.owners.absent(inventory)?;
        let of_store = |store: &Store| ExternalFacts {
            out_of_reach: self.out_of_reach(store),
            ..ExternalFacts::default()
        };
        let of_stores: Vec<_> = inventory.stores.iter().map(of_store).collect();
        Ok(inventory.images.iter().map(|image| of_stores[image.store.get()].clone()).collect())
    }

    fn full_filesystems(&self, inventory: &Inventory) -> Vec<FullFilesystem> {
        self.editors.full_filesystems(inventory, Editor::empties_layers_first)
    }

    fn remove(&mut self, inventory: &Inventory, at: ImageIx, along: &[ImageIx]) -> RemovalAnswer {
        let image = &inventory[at];
        let editor = match self.editors.store(&inventory[image.store]) {
            Ok(editor) => editor,
            Err(why) => return RemovalAnswer::Declined(why.into()),
        };
        let planned = [&[at], along].concat();
        let planned: Vec<_> = planned.iter().map(|at| planned_as(inventory, *at)).collect();
        match editor.delete_images(&planned) {
            Ok(deleted) => {
                remover::log(&image.id, &deleted);
                deleted.left_over().map_or(RemovalAnswer::Proven, |what| RemovalAnswer::InPart(what.into()))
            }
            Err(error) => remover::failed_edit(TargetKind::Image, &image.id, error),
        }
    }

    fn untag(&mut self, inventory: &Inventory, at: ImageIx, names: &[String]) -> RemovalAnswer {
        let image = &inventory[at];
        let editor = match self.editors.store(&inventory[image.store]) {
            Ok(editor) => editor,
            Err(why) => return RemovalAnswer::Declined(why.into()),
        };
        match editor.remove_names(&planned_as(inventory, at), names) {
            Ok(_) => RemovalAnswer::Proven,
            Err(error) => remover::failed_edit(TargetKind::Image, &image.id, error),
        }
    }

    fn own_bytes(&self, device: u64) -> u64 {
        self.editors.reserve_file_bytes(device)
    }
}

fn planned_as(inventory: &Inventory, at: ImageIx) -> PlannedImage {
    let as_it_is = |image: &Image| PlannedImage {
        id: image.id.to_string(),
        names: Some(image.names.clone()),
        lists: Vec::new(),
    };
    let lists = inventory.lists_of(at).map(|list| as_it_is(&inventory[list]));
    PlannedImage { lists: lists.collect(), ..as_it_is(&inventory[at]) }
}
