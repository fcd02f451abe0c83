//! Removes images directly in the graphroot, for when no runtime can.
//!
//! The editor proves under the store's locks what a runtime would: that no container has the
//! image, that nothing that stays needs its layers, that nothing of it is mounted. Its listings
//! are the records themselves, so none can be partial or stale.

use std::collections::HashMap;
use std::time::Duration;

use crate::editor::{Editor, Error, PlannedImage, Refusal};
use crate::execute::editors::Editors;
use crate::execute::owner::Owners;
use crate::execute::remover::{PreconditionError, Remover};
use crate::model::plan::{Failure, Step};
use crate::model::refs::Root;
use crate::model::{
    Aftermath, Answer, Image, ImageIx, Inventory, LeakClass, NodeIx, RemovalResult, Store, StoreIx, StoreKind,
};
use crate::policy::{Facts, FullFilesystem};
use crate::stores::Scan;

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
        let of_store = |store: &Store| Facts { out_of_reach: self.out_of_reach(store), ..Facts::default() };
        let of_stores: Vec<_> = inventory.stores.iter().map(of_store).collect();
        Ok(inventory.images.iter().map(|image| of_stores[image.store.get()].clone()).collect())
    }

    fn foresee(&self, scan: &Scan) -> Vec<Facts> {
        let Scan { inventory, refs, .. } = scan;
        let refusals: Vec<_> =
            (0..inventory.stores.len()).map(|store_ix| self.refusals(inventory, store_ix.into())).collect();
        let of_image = |image_ix: ImageIx| {
            let image = &inventory[image_ix];
            let refusals = &refusals[image.store.get()];
            let mut facts = refusals.get(image.id.as_str()).cloned().unwrap_or_default();
            if !refusals.is_empty() {
                let layers = refs.reach(Root::Image(image_ix)).iter().copied();
                let refused = layers.filter_map(|node| Some((node, refusals.get(&inventory[node].id)?)));
                let refused = refused.filter(|(node, _)| may_be_deleted(scan, image.store, *node));
                refused.for_each(|(_, refusal)| facts.add(refusal.clone()));
                // One overlay has several of them.
                facts.used_by.dedup();
            }
            facts
        };
        (0..inventory.images.len()).map(|image_ix| of_image(image_ix.into())).collect()
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
            // The image may be deleted all the same.
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

/// Some of the image was deleted, and something was not: its store tells whether the image is gone.
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

fn planned_as(inventory: &Inventory, at: ImageIx) -> PlannedImage {
    let as_it_is = |image: &Image| PlannedImage {
        id: image.id.to_string(),
        names: Some(image.names.clone()),
        lists: Vec::new(),
    };
    let lists = inventory.lists_of(at).map(|list| as_it_is(&inventory[list]));
    PlannedImage { lists: lists.collect(), ..as_it_is(&inventory[at]) }
}
