//! Removes images directly in the graphroot, if no runtime can.
//!
//! The editor proves under the store's locks the same as a runtime would: no container uses the image, no other image
//! needs its layers, nothing of it is mounted. It reads the records themselves, which cannot be partial or stale as
//! the listings of a runtime can.

use std::collections::HashMap;
use std::time::Duration;

use crate::cri::RuntimeStore;
use crate::editor::{Error, PlannedImage, Refusal};
use crate::execute::editors::Editors;
use crate::execute::owner::Owners;
use crate::execute::remover::{PreconditionError, Remover};
use crate::execute::runtime_match::RuntimeStores;
use crate::execute::way::Way;
use crate::model::deletion::plan::{Failure, Step};
use crate::model::refs::Root;
use crate::model::{
    Aftermath, Answer, Image, ImageIx, Inventory, LeakClass, NodeIx, RemovalResult, StoreIx, in_namespace,
};
use crate::policy::{Facts, FullFilesystem};
use crate::stores::Scan;

/// The remover that edits the stores which no runtime owns.
#[derive(Debug)]
pub struct DirectRemover<'a> {
    editors: &'a Editors,
    /// The runtimes that may own the stores. Each proof checks that none of them is running.
    owners: &'a Owners,
    /// The store of the runtime that deletes in the same run. The other stores are edited, and an obstacle to that is
    /// not one for the runtime.
    beside: Option<RuntimeStore>,
    /// Reason for which no store can be edited now.
    obstacle: Option<String>,
}

impl<'a> DirectRemover<'a> {
    /// Creates a remover that uses `editors`, and refuses all images while one of `owners` is running.
    #[must_use]
    pub fn new(editors: &'a Editors, owners: &'a Owners) -> Self {
        Self { editors, owners, beside: None, obstacle: None }
    }

    /// Leaves the store of a runtime to that. `obstacle`: the reason for which no store can be edited now.
    #[must_use]
    pub fn beside(self, runtime_store: RuntimeStore, obstacle: Option<String>) -> Self {
        Self { beside: Some(runtime_store), obstacle, ..self }
    }

    /// Returns true if images of the store are deleted here, or would be if nothing kept them.
    pub(super) fn is_responsible(&self, inventory: &Inventory, store_ix: StoreIx) -> bool {
        let Some(runtime_store) = &self.beside else { return true };
        let served = RuntimeStores::find(runtime_store, inventory);
        inventory[store_ix].kind.facts().is_editable
            && !served.is_some_and(|stores| stores.writes_to(store_ix))
    }

    /// Returns true if images of the store can be deleted here.
    pub(super) fn edits(&self, inventory: &Inventory, store_ix: StoreIx) -> bool {
        self.is_responsible(inventory, store_ix) && self.way(inventory, store_ix) == Way::Direct
    }

    /// Returns how images of a store are deleted here, or why they are not.
    pub(super) fn way(&self, inventory: &Inventory, store_ix: StoreIx) -> Way {
        let store = &inventory[store_ix];
        if let Some(why) = self.owners.spares(inventory, store_ix) {
            return Way::Silent(why);
        }
        let closed = if store.kind.facts().is_editable {
            self.editors.store(store).err().map(str::to_owned).or_else(|| self.obstacle.clone())
        } else {
            let kind = store.kind;
            let of_tool = inventory.obstacle_of_store(store_ix);
            of_tool.or_else(|| Some(format!("it is in a store of {}, which is never edited", kind.as_str())))
        };
        closed.map_or(Way::Direct, Way::Closed)
    }

    /// Ids of a store's images and layers that cannot be deleted now, since they are recorded twice or mounted.
    fn refusals(&self, inventory: &Inventory, store_ix: StoreIx) -> HashMap<String, Facts> {
        let mut refusals: HashMap<String, Facts> = HashMap::new();
        let has_images = inventory.images.iter().any(|image| image.store == store_ix);
        let is_responsible = self.is_responsible(inventory, store_ix);
        let Some(editor) =
            self.editors.store(&inventory[store_ix]).ok().filter(|_| has_images && is_responsible)
        else {
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
        let stores = (0..inventory.stores.len()).map(StoreIx::from);
        let edited: Vec<_> = stores.map(|store_ix| self.edits(inventory, store_ix)).collect();
        if edited.contains(&true) {
            match self.owners.absent(inventory, &|store_ix| edited[store_ix.get()]) {
                Err(presence) if self.beside.is_some() => self.obstacle = Some(presence.to_string()),
                absent => absent?,
            }
        }
        let ways: Vec<_> =
            (0..inventory.stores.len()).map(|position| self.way(inventory, position.into())).collect();
        let images = inventory.images.iter().map(|image| {
            let of_namespace = image.id.namespace().map(in_namespace);
            let of_store = ways[image.store.get()].reason_against();
            Facts { out_of_reach: of_namespace.or_else(|| of_store.map(str::to_owned)), ..Facts::default() }
        });
        Ok(images.collect())
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
        self.editors.full_filesystems(inventory, |store_ix, editor| {
            editor.empties_layers_first() && self.is_responsible(inventory, store_ix)
        })
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
