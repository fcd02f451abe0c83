//! The first room on a disk without a free byte or inode: what the layers of the image hold that is
//! to be deleted anyway.
//!
//! Deleting an image begins with a new version of its record file, for which there is no room. But a
//! directory can be renamed and files can be unlinked without any. So the image's own top layer is renamed
//! as a whole, by which the image is lost and fails wherever it is run, and only then emptied; after it, as
//! far as that was too little, the layers below it. Of several images that go together it is the topmost layer
//! that all of them have: all are lost by one rename. podman looks for a layer in the middle by its `link` file,
//! so that goes first of what is in the directory.
//!
//! What starts it is [`Session::save`], where there is no room. The layers that it may take are *offered*; a directory
//! with its new name is *quarantined*, and the layer and all images on it are *lost*. The name tells the layer and the
//! images (`quarantine_name`). As long as the layer has a record, the directory stays, however empty: it is the sign
//! by which [`Editor::resume`] finishes, and no leak.
//!
//! | killed after | what is found | what is done |
//! |---|---|---|
//! | the intent | all as it was | nothing |
//! | the rename | a quarantined directory with its `link` | it gets its name back |
//! | `link` is unlinked | one without; the images are lost, and every tool can remove them | they are deleted |
//! | the images' records are written | the same, and no image on the layer | it, the layers on it, and those below that nothing else needs are deleted |
//! | the layers' records are written | a quarantined directory of no layer | it is removed |
//!
//! An image that is lost is deleted unless the keep-list has it by now or something uses it (`resume::IsKept`), and no
//! other rule is asked again: nobody can use it as it is. One that stays, or has come to the layer since, is told by each
//! run, as [`Refusal::Lost`].

use std::collections::HashMap;

use super::directory::{Directory, device};
use super::editor::Editor;
use super::error::{Error, Fault, Refusal};
use super::room::{FREED_WITHIN, NamesSeen, RoomFromLayers, await_bytes, free_bytes, holds};
use super::session::Session;
use super::to_delete::{LayerToDelete, chain};
use crate::model::space::BytesAndInodes;
use crate::stores::containers_storage::quarantine_name::{ids_of, names_of};
use crate::sys::stop;

/// By this file of a layer podman finds its directory again.
const LINK: &str = "link";

impl Editor {
    /// Indices and names of directories that a killed run of ours was emptying. An index is that of one of the areas
    /// of the store, with which [`Session::directories`] begins.
    pub(super) fn quarantined(&self) -> Result<Vec<(usize, String)>, Fault> {
        let mut found = Vec::new();
        if !self.empties_layers_first() {
            return Ok(found);
        }
        for (at, root) in self.places.areas().enumerate() {
            let Some(layers) = Directory::top(root)?.below(&self.places.driver)? else { continue };
            let names = layers.names()?;
            let ours = names.iter().filter_map(|name| name.to_str()).filter(|name| ids_of(name).is_some());
            // Whatever else has such a name is not ours.
            let ours = ours.filter(|name| matches!(layers.below(name), Ok(Some(_))));
            found.extend(ours.map(|name| (at, name.to_owned())));
        }
        Ok(found)
    }
}

/// Renames the directory of a layer; returns its new name.
fn quarantine(layers: &Directory, layer: &str, group: &str) -> Result<String, Fault> {
    let mut last = None;
    for name in names_of(layer, group) {
        // One that is there is of an earlier run, since when the layer was pulled again.
        if layers.has(&name)? {
            continue;
        }
        match layers.rename(layer, layers, &name) {
            Ok(()) => return Ok(name),
            Err(fault) if fault.is_no_space() => last = Some(fault),
            Err(fault) => return Err(fault),
        }
    }
    Err(last.unwrap_or_else(|| Fault::new("renaming", layers.path().join(layer), rustix::io::Errno::EXIST)))
}

fn unlink_link(layers: &Directory, name: &str) -> Result<(), Fault> {
    layers.below(name)?.map_or(Ok(false), |renamed| renamed.unlink(LINK)).map(drop)
}

/// Whether nothing was removed yet from a renamed directory. podman may have found it under its new name.
pub(super) fn is_whole(layers: &Directory, name: &str) -> Result<bool, Fault> {
    layers.below(name)?.map_or(Ok(false), |renamed| renamed.has(LINK))
}

impl Session<'_> {
    /// Permits to empty these layers of images that were proven, should there be no room for their records; what was
    /// offered before is not any more. `tops` has the top layer of each image, and `group` tells the images
    /// (`quarantine_name::group_of`).
    pub(super) fn offer(&mut self, tops: &[Option<&str>], group: String, layers: &[LayerToDelete]) {
        self.room.offered = None;
        self.room.next = 0;
        if !self.editor.empties_layers_first() {
            return;
        }
        // Whatever is on a layer that goes, goes as well.
        let parents = layers.iter().map(|layer| (layer.id.as_str(), layer.parent.as_deref())).collect();
        let mut images_on: HashMap<&str, usize> = HashMap::new();
        for top in tops {
            for layer in chain(&parents, *top) {
                *images_on.entry(layer).or_default() += 1;
            }
        }
        let is_of_all = |layer: &&LayerToDelete| images_on.get(layer.id.as_str()) == Some(&tops.len());
        let (first, mut rest): (Vec<_>, Vec<_>) = layers.iter().partition(is_of_all);
        // Without a layer of their own the images would not be lost as a whole.
        if first.is_empty() {
            rest.clear();
        }
        let is_named = |layer: &&LayerToDelete| names_of(&layer.id, &group).next().is_some();
        self.room.offered = Some(first.into_iter().chain(rest).filter(is_named).cloned().collect());
        self.room.group = group;
    }

    /// Whether layers were emptied for want of room.
    pub(super) fn has_quarantined(&self) -> bool {
        !self.room.quarantined.is_empty()
    }

    /// Makes room on `filesystem` (`st_dev`), where a record file or its token found none (`fault`) and no reserve
    /// file is left: removes what dead processes have left of record files, and then, with each call, empties the next of
    /// the layers that were offered and are there. `dir_index` is that of the record file.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where there is nothing (more) to be done. Where nothing was changed yet, what other images have
    /// may be enough ([`Refusal::MakesNoRoom`], [`Refusal::CannotBegin`]), or none may be lost
    /// ([`Refusal::AnotherUnfinished`]).
    pub(super) fn make_room(
        &mut self,
        fault: Fault,
        filesystem: Option<u64>,
        dir_index: usize,
    ) -> Result<(), Error> {
        if !std::mem::replace(&mut self.room.is_swept, true) && self.remove_dead_temporary_records()? {
            return Ok(());
        }
        // What is freed elsewhere is no room here.
        let is_here = |layers: &&Directory| device(layers.fd()) == filesystem;
        let here = |at: usize| self.directories[at].layers.as_ref().filter(is_here);
        let RoomFromLayers { offered: Some(offered), next, .. } = &self.room else {
            return Err(fault.into());
        };
        let Some(at) = (*next..offered.len()).find(|at| here(offered[*at].dir_index).is_some()) else {
            // Images that share all their layers may have room with those that they share them with.
            return Err(match here(dir_index).filter(|_| offered.is_empty()) {
                Some(layers) => self.makes_no_room(self.editor.to_free_after_fault(layers), fault),
                None => fault.into(),
            });
        };
        if stop::is_asked() {
            return Err(Error::Interrupted);
        }
        let layer = offered[at].clone();
        let Some(layers) = here(layer.dir_index).map(Directory::again).transpose()? else {
            return Err(fault.into());
        };
        if !self.has_quarantined() {
            self.prove_worth_losing(&layers, fault)?;
        }
        // Those of other filesystems keep their turn.
        self.room.offered.iter_mut().for_each(|all| all[self.room.next..=at].rotate_right(1));
        self.room.next += 1;
        let before = free_bytes(&layers);
        let holds_bytes = self.quarantine_layer(&layers, &layer)?;
        self.remove_links(layer.dir_index, &layer.links)?;
        for (dir_index, name) in self.room.quarantined.clone() {
            self.empty(dir_index, &name)?;
        }
        let patience = FREED_WITHIN.saturating_sub(self.room.waited);
        self.room.waited += await_bytes(&layers, before.saturating_add(holds_bytes), patience);
        Ok(())
    }

    /// Proves that the room is worth losing the images, before their first layer is emptied.
    fn prove_worth_losing(&self, layers: &Directory, fault: Fault) -> Result<(), Error> {
        let to_free = self.editor.to_free_after_fault(layers);
        if !self.hold_enough(layers, to_free.bytes) {
            return Err(self.makes_no_room(to_free, fault));
        }
        if self.is_another_unfinished() {
            return Err(Refusal::AnotherUnfinished { to_free }.into());
        }
        Ok(())
    }

    /// Once something is changed it is no longer for others to make the room.
    fn makes_no_room(&self, to_free: BytesAndInodes, fault: Fault) -> Error {
        if self.done.has_changed { fault.into() } else { Refusal::MakesNoRoom { to_free }.into() }
    }

    /// Renames the directory of a layer; the bytes that it holds, counted until they are enough, 0 where there is none.
    fn quarantine_layer(&mut self, layers: &Directory, layer: &LayerToDelete) -> Result<u64, Error> {
        if !layers.has(&layer.id)? {
            return Ok(0);
        }
        let needed = self.editor.needed_bytes(layers);
        let holds_bytes = holds(&layers.path().join(&layer.id), needed, &mut NamesSeen::new());
        let renamed = quarantine(layers, &layer.id, &self.room.group).and_then(|name| {
            self.step("layer renamed");
            let Err(fault) = unlink_link(layers, &name) else { return Ok(name) };
            // Nothing of it was removed; where it cannot be renamed back now, the next run does.
            self.done.has_changed |= layers.rename(&name, layers, &layer.id).is_err();
            Err(fault)
        });
        match renamed {
            Ok(name) => {
                self.room.quarantined.push((layer.dir_index, name));
                // The image is not whole any more, even where nothing is removed yet.
                self.done.has_changed = true;
            }
            // btrfs reserves more metadata for a rename than there may be, and on ext4 a block of the directory may be full.
            Err(fault) if fault.is_no_space() && !self.done.has_changed => {
                let to_free = self.editor.to_free_after_fault(layers);
                return Err(Refusal::CannotBegin { fault, to_free }.into());
            }
            Err(fault) => return Err(fault.into()),
        }
        self.step("layer quarantined");
        Ok(holds_bytes)
    }

    /// Whether another image was lost for room that did not come: not one more is.
    fn is_another_unfinished(&self) -> bool {
        let offered = self.room.offered.iter().flatten();
        let is_offered = |begins: &str| offered.clone().any(|layer| layer.id.starts_with(begins));
        let is_lost = |(dir_index, name): &(usize, String)| {
            let layers = self.directories[*dir_index].layers.as_ref();
            // What is left of a layer without a record is no image's.
            !matches!(self.lost_layer(name), Ok(None))
                && !layers.is_some_and(|layers| is_whole(layers, name).unwrap_or(false))
        };
        let is_another =
            |(_, name): &&(usize, String)| !ids_of(name).is_some_and(|(layer, _)| is_offered(layer));
        self.editor.quarantined().map_or(true, |all| all.iter().filter(is_another).any(is_lost))
    }

    /// Whether the layers that were offered hold `enough` bytes on this filesystem. Inodes are not counted: emptying
    /// a layer frees at least those of `diff`, `work`, `merged`, `link` and its name in `l`, more than are needed.
    fn hold_enough(&self, layers: &Directory, enough: u64) -> bool {
        let (mut sum, mut seen) = (0_u64, NamesSeen::new());
        let is_here = |other: &&Directory| device(other.fd()) == device(layers.fd());
        self.room.offered.iter().flatten().any(|layer| {
            let holder = self.directories[layer.dir_index].layers.as_ref().filter(is_here);
            let path = holder.map(|layers| layers.path().join(&layer.id));
            sum = sum.saturating_add(path.map_or(0, |path| holds(&path, enough, &mut seen)));
            sum >= enough
        })
    }

    /// Removes what is in a quarantined directory; the directory itself is the sign of what was
    /// begun, and stays until that is finished.
    pub(super) fn empty(&mut self, dir_index: usize, name: &str) -> Result<(), Error> {
        let layers = self.directories[dir_index].layers.as_ref();
        let Some(directory) = layers.map(|layers| layers.below(name)).transpose()?.flatten() else {
            return Ok(());
        };
        for entry in directory.names()? {
            let removal = directory.remove_tree(&entry);
            let interrupted = removal.interrupted;
            self.done.note(removal);
            if interrupted {
                return Err(Error::Interrupted);
            }
            self.step("entry of it removed");
        }
        self.done.in_place = true;
        self.step("layer emptied");
        Ok(())
    }

    /// Removes the empty directories of layers that have no record any more. Others stay: the sign of what is lost.
    pub(super) fn remove_quarantined(&mut self) {
        let is_lost = |(_, name): &(usize, String)| !matches!(self.lost_layer(name), Ok(None));
        let quarantined = self.room.quarantined.iter().cloned();
        let (lost, done): (Vec<_>, Vec<_>) = quarantined.partition(is_lost);
        for (dir_index, name) in done {
            if let Some(layers) = &self.directories[dir_index].layers {
                layers.remove_empty(&name);
            }
        }
        self.room.quarantined = lost;
        self.room.offered = None;
    }
}
