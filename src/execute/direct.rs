//! Removes images directly in the graphroot, if no runtime can.
//!
//! The editor proves under the store's locks the same as a runtime would: no container uses the image, no other image
//! needs its layers, nothing of it is mounted. It reads the records themselves, which cannot be partial or stale as
//! the listings of a runtime can.

use std::collections::HashMap;
use std::time::Duration;

use crate::editor::{Editor, Error, PlannedImage, Refusal};
use crate::execute::editors::Editors;
use crate::execute::owner::Owners;
use crate::execute::remover::{PreconditionError, Remover};
use crate::model::deletion::plan::{Failure, Step};
use crate::model::refs::Root;
use crate::model::{
    Aftermath, Answer, Image, ImageIx, Inventory, LeakClass, NodeIx, RemovalResult, Store, StoreIx,
};
use crate::policy::{Facts, FullFilesystem};
use crate::stores::Scan;

#[derive(Debug)]
pub struct DirectRemover<'a> {
    editors: &'a Editors,
    /// The runtimes that may own the store. Each proof checks that none of them is running.
    owners: &'a Owners,
}

impl<'a> DirectRemover<'a> {
    /// Creates a remover that uses `editors`, and refuses all images while one of `owners` is running.
    #[must_use]
    pub fn new(editors: &'a Editors, owners: &'a Owners) -> Self {
        Self { editors, owners }
    }

    fn out_of_reach(&self, store: &Store) -> Option<String> {
        if !store.kind.facts().is_editable {
            return Some(format!("it is in a store of {}, which is never edited", store.kind.as_str()));
        }
        self.editors.store(store).err().map(str::to_owned)
    }

    /// Ids of a store's images and layers that cannot be deleted now, since they are recorded twice or mounted.
    fn refusals(&self, inventory: &Inventory, store_ix: StoreIx) -> HashMap<String, Facts> {
        let mut refusals: HashMap<String, Facts> = HashMap::new();
        let has_images = inventory.images.iter().any(|image| image.store == store_ix);
        let Some(editor) = self.editors.store(&inventory[store_ix]).ok().filter(|_| has_images) else {
            return refusals;
        };
        for (id, refusal) in editor.mounted_layers() {
            if let Refusal::Mounted { mount_point, pid, .. } = refusal {
                let user = format!("the mount at {} of process {pid}", mount_point.display());
                refusals.entry(id).or_default().used_by.push(user);
            }
        }
        for leak in &inventory.leaks {
            if leak.store == store_ix && leak.class == LeakClass::DupRecord {
                refusals.entry(leak.id.clone()).or_default().out_of_reach = Some(leak.evidence.clone());
            }
        }
        refusals
    }
}

impl Remover for DirectRemover<'_> {
    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Facts>, PreconditionError> {
        self.owners.absent(inventory)?;
        let of_stores: Vec<_> = inventory
            .stores
            .iter()
            .map(|store| Facts { out_of_reach: self.out_of_reach(store), ..Facts::default() })
            .collect();
        Ok(inventory.images.iter().map(|image| of_stores[image.store.get()].clone()).collect())
    }

    fn foresee(&self, scan: &Scan) -> Vec<Facts> {
        let Scan { inventory, refs, .. } = scan;
        let refusals: Vec<_> =
            (0..inventory.stores.len()).map(|store_ix| self.refusals(inventory, store_ix.into())).collect();
        let images = inventory.images.iter().enumerate().map(|(position, image)| {
            let refusals = &refusals[image.store.get()];
            let mut facts = refusals.get(image.id.as_str()).cloned().unwrap_or_default();
            if !refusals.is_empty() {
                let layers = refs.reach(Root::Image(position.into())).iter().copied();
                let refused = layers
                    .filter_map(|node| Some((node, refusals.get(&inventory[node].id)?)))
                    .filter(|(node, _)| may_be_deleted(scan, image.store, *node));
                refused.for_each(|(_, refusal)| facts.add(refusal.clone()));
                // One overlay mount uses several layers.
                facts.used_by.dedup();
            }
            facts
        });
        images.collect()
    }

    fn full_filesystems(&self, inventory: &Inventory) -> Vec<FullFilesystem> {
        self.editors.full_filesystems(inventory, Editor::empties_layers_first)
    }

    fn remove(&mut self, step: &Step, inventory: &Inventory, image_ix: ImageIx) -> RemovalResult {
        let editor = match self.editors.store(&inventory[inventory[image_ix].store]) {
            Ok(editor) => editor,
            Err(why) => return Answer::failed(step, why, Aftermath::Untouched).into(),
        };
        match editor.delete_image(&planned_as(inventory, image_ix)) {
            Ok(deleted) => {
                deleted.log(&step.target.id);
                deleted.left_over().map_or(Answer::Removed.into(), |what| halfway(step, what.into()))
            }
            Err(Error::Refused(refusal @ Refusal::Unknown { .. })) => RemovalResult::Unconfirmed {
                within: Duration::ZERO,
                gone: Answer::AlreadyGone,
                otherwise: Answer::failed(step, refusal.to_string(), Aftermath::Untouched),
            },
            Err(ref error @ Error::Stopped { ref done, .. }) => {
                done.log(&step.target.id);
                halfway(step, Failure::from(error))
            }
            // The failure may have come after the deletion of the image.
            Err(error @ Error::Failed(_)) => RemovalResult::Unconfirmed {
                within: Duration::ZERO,
                gone: Answer::Removed,
                otherwise: Answer::failed(step, &error, Aftermath::StillThere),
            },
            Err(error) => error.answer(step).into(),
        }
    }

    fn own_bytes(&self, device: u64) -> u64 {
        self.editors.reserve_file_bytes(device)
    }
}

/// Result of a removal that deleted a part of the image. The store's records decide whether the image is deleted.
fn halfway(step: &Step, failure: Failure) -> RemovalResult {
    RemovalResult::Unconfirmed {
        within: Duration::ZERO,
        gone: Answer::RemovedInPart(failure.clone()),
        otherwise: Answer::failed(step, failure, Aftermath::Begun),
    }
}

/// Returns true if the deletion of images of `store` can delete the layer `node`.
fn may_be_deleted(scan: &Scan, store: StoreIx, node: NodeIx) -> bool {
    let Scan { inventory, refs, .. } = scan;
    inventory[node].layer.is_some()
        && inventory[node].store == store
        && refs.use_of(inventory, node).is_none()
        && !refs.reached_by(node).any(|root| matches!(root, Root::Container(_)))
}

fn planned_as(inventory: &Inventory, image_ix: ImageIx) -> PlannedImage {
    fn without_lists(image: &Image) -> PlannedImage {
        PlannedImage { id: image.id.to_string(), names: Some(image.names.clone()), lists: Vec::new() }
    }
    let lists = inventory.lists_of(image_ix).map(|list| without_lists(&inventory[list]));
    PlannedImage { lists: lists.collect(), ..without_lists(&inventory[image_ix]) }
}
