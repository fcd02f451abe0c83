//! The first room on a disk without a free byte or inode: what the layers of the image hold that is
//! to be deleted anyway.
//!
//! Deleting an image begins with a new version of its record file, for which there is no room. But a
//! directory can be renamed and files can be unlinked without any. So the image's own top layer is renamed
//! as a whole, by which the image is lost and fails wherever it is run, and only then emptied; after it, as
//! far as that was too little, the own layers below it.
//!
//! What starts it is [`Session::save`], where there is no room. The layers that it may take are *offered*; a directory
//! with its new name is *quarantined*, and the layer and all images on it are *lost*. The name tells the layer
//! (`quarantine_name`). As long as the layer has a record, the directory stays, however empty: it is the sign
//! by which [`Editor::resume`] finishes, and no leak.
//!
//! | killed after | what is found | what is done |
//! |---|---|---|
//! | the proof | all as it was | nothing |
//! | the rename | a quarantined directory; the image is lost, and every tool can remove it | the image is deleted |
//! | the image's record is written | the same, and no image on the layer | it, and those below that nothing else needs are deleted |
//! | the layers' records are written | a quarantined directory of no layer | it is removed |
//!
//! A lost image is unusable. It is deleted without asking the rules again, unless the keep-list has it by now, something
//! uses it, or it was pulled onto the layer after the kill. Each run reports one that stays, as [`Refusal::Lost`].

use super::directory::{Directory, device};
use super::error::{Error, Fault, Refusal};
use super::graphroot_editor::Editor;
use super::room::{FREED_WITHIN, NamesSeen, await_bytes, free_bytes, holds};
use super::session::Session;
use super::to_delete::LayerToDelete;
use crate::stores::containers_storage::quarantine_name::{layer_of, names_of};
use crate::sys::stop;

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
            let ours = names.iter().filter_map(|name| name.to_str()).filter(|name| layer_of(name).is_some());
            // Whatever else has such a name is not ours.
            let ours = ours.filter(|name| matches!(layers.below(name), Ok(Some(_))));
            found.extend(ours.map(|name| (at, name.to_owned())));
        }
        Ok(found)
    }
}

/// Renames the directory of a layer; returns its new name.
fn quarantine(layers: &Directory, layer: &str) -> Result<String, Fault> {
    let mut last = None;
    for name in names_of(layer) {
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

impl Session<'_> {
    /// Permits to empty these layers of an image that was proven, should there be no room for its record; what was
    /// offered before is not any more.
    pub(super) fn offer(&mut self, layers: &[LayerToDelete]) {
        self.room.next = 0;
        let is_named = |layer: &&LayerToDelete| names_of(&layer.id).next().is_some();
        self.room.offered =
            self.editor.empties_layers_first().then(|| layers.iter().filter(is_named).cloned().collect());
    }

    /// Whether layers were emptied for want of room.
    pub(super) fn has_quarantined(&self) -> bool {
        !self.room.quarantined.is_empty()
    }

    /// Makes room on `filesystem` (`st_dev`), where a record file or its token found none (`fault`) and no reserve
    /// file is left: removes what dead processes have left of record files, and then, with each call, empties the next of
    /// the layers that were offered and are there.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where there is nothing (more) to be done; [`Refusal::MakesNoRoom`] where nothing was changed
    /// yet, since the layers hold too little.
    pub(super) fn make_room(&mut self, fault: Fault, filesystem: Option<u64>) -> Result<(), Error> {
        if !std::mem::replace(&mut self.room.is_swept, true) && self.remove_dead_temporary_records()? {
            return Ok(());
        }
        let Some(layer) = self.room.offered.as_ref().and_then(|offered| offered.get(self.room.next)) else {
            return Err(fault.into());
        };
        let (layer, layers) = (layer.clone(), &self.directories[layer.dir_index].layers);
        // Bytes freed on another filesystem make no room here.
        let layers = layers.as_ref().filter(|layers| device(layers.fd()) == filesystem);
        let Some(layers) = layers.map(Directory::again).transpose()? else { return Err(fault.into()) };
        if stop::is_asked() {
            return Err(Error::Interrupted);
        }
        if !self.has_quarantined() {
            let to_free = self.editor.to_free_after_fault(&layers);
            if !self.hold_enough(&layers, to_free.bytes) {
                return Err(if self.done.has_changed {
                    fault.into()
                } else {
                    Refusal::MakesNoRoom { to_free }.into()
                });
            }
        }
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

    /// Renames the directory of a layer; the bytes that it holds, counted until they are enough, 0 where there is none.
    fn quarantine_layer(&mut self, layers: &Directory, layer: &LayerToDelete) -> Result<u64, Error> {
        if !layers.has(&layer.id)? {
            return Ok(0);
        }
        let needed = self.editor.needed_bytes(layers);
        let holds_bytes = holds(&layers.path().join(&layer.id), needed, &mut NamesSeen::new());
        match quarantine(layers, &layer.id) {
            Ok(name) => {
                self.room.quarantined.push((layer.dir_index, name));
                // The image is not whole any more, even where nothing is removed yet.
                self.done.has_changed = true;
            }
            // btrfs reserves more metadata for a rename than there may be, and on ext4 a block of the directory may be full.
            Err(fault) if fault.is_no_space() && !self.done.has_changed => {
                return Err(Refusal::CannotBegin(fault).into());
            }
            Err(fault) => return Err(fault.into()),
        }
        self.step("layer quarantined");
        Ok(holds_bytes)
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
