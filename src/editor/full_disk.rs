//! Makes the first room on a full disk, from the layers of the image that is being deleted.
//!
//! The deletion of an image begins with a new version of its record file, for which a full disk has no room. But a
//! directory can be renamed, and files can be unlinked, without any. So the order is turned round: first the files of
//! the image's own layers are deleted, then its record. "Own" layers are those that the deletion would delete anyway.
//!
//! For example, `images.json` cannot be written while an image with the layers C (top), B and A is deleted. Only this
//! image uses C and B. [`Session::save`] calls [`Session::make_room`], which proves that C and B contain enough bytes,
//! renames the directory of C to a quarantine name, and empties it. `save` tries again; if there is still no room,
//! B is next.
//!
//! The directory is renamed as a whole before any file in it is deleted, so that no container runs on half a layer:
//! from the rename on, the image fails wherever it is run. The terms of this module: a layer that may be emptied is
//! *offered*, the renamed directory is *quarantined*, and the layer and all images on it are *lost*.
//!
//! The new name is derived from the layer's id (`quarantine_name`), and the directory is kept, even if empty, as long
//! as the layer has a record. By it [`Editor::resume`] finishes the deletion after a kill; it is not a leak.
//!
//! | killed after | state on disk | next run |
//! |---|---|---|
//! | the proof | unchanged | does nothing |
//! | the rename | a quarantined directory; the image is lost, and every tool can remove it | deletes the image |
//! | the image's record is written | the same, and no image on the layer | deletes the layer, and unused ones below it |
//! | the layers' records are written | a quarantined directory whose layer has no record | deletes the directory |
//!
//! A lost image is unusable, so the next run deletes it without asking the rules again. It keeps the image if the
//! keep-list contains it by now, if something uses it, or if it may have been pulled onto the layer after the kill; each
//! run then reports it as [`Refusal::Lost`].
//!
//! The image to delete is recognised by a mark, which is made before the rename: the modification time of its own
//! directory beside `images.json` ([`MARK`]). Setting it needs no room, and no records of layersweep. Times of the
//! quarantined directory would not do, since emptying it changes them. An image that was pulled later, or pulled again,
//! has another time there, because the library writes into the directory; without the mark it is kept.

use rustix::fs::Timespec;

use super::commit::FREED_WITHIN;
use super::directory::{Directory, device};
use super::error::{Error, Fault, Refusal};
use super::graphroot_editor::Editor;
use super::room::{NamesSeen, await_bytes, free_bytes, holds};
use super::session::Session;
use super::to_delete::LayerToDelete;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::quarantine_name::{layer_of, names_of};
use crate::stores::containers_storage::records::ImageRecord;
use crate::sys::stop;

/// Modification time of the directory of an image whose layers are emptied. No tool sets it: 7 hours into 1970.
const MARK: Timespec = Timespec { tv_sec: 0x6c61, tv_nsec: 0 };

impl Editor {
    /// Quarantined directories that a killed run left: indices and names. [`Session::directories`] begins with the
    /// areas of the store, so that an index is valid there, too.
    pub(super) fn quarantined(&self) -> Result<Vec<(usize, String)>, Fault> {
        let mut found = Vec::new();
        if !self.empties_layers_first() {
            return Ok(found);
        }
        for (dir_index, root) in self.places.areas().enumerate() {
            let Some(layers) = Directory::top(root)?.below(&self.places.driver)? else { continue };
            let names = layers.names()?;
            let names = names.iter().filter_map(|name| name.to_str()).filter(|name| layer_of(name).is_some());
            // A file or a symlink with such a name was not created by layersweep.
            let names = names.filter(|name| matches!(layers.below(name), Ok(Some(_))));
            found.extend(names.map(|name| (dir_index, name.to_owned())));
        }
        Ok(found)
    }
}

/// Renames the directory of a layer; returns its new name.
fn quarantine(layers: &Directory, layer: &str) -> Result<String, Fault> {
    let mut last = None;
    for name in names_of(layer) {
        // The name exists from an earlier run, and the layer was pulled again since.
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
    /// Permits to empty these layers, which were proven with their image, if there is no room for the image's record.
    /// Replaces the layers that were offered before. `image`: `None` if only layers are deleted.
    pub(super) fn offer(&mut self, image: Option<&ImageRecord>, layers: &[LayerToDelete]) {
        self.room.image = image.map(|image| image.id.clone());
        self.room.next = 0;
        self.room.offered = self
            .editor
            .empties_layers_first()
            .then(|| layers.iter().filter(|layer| names_of(&layer.id).next().is_some()).cloned().collect());
    }

    /// Returns true if layers were renamed for want of room.
    pub(super) fn has_quarantined(&self) -> bool {
        !self.room.quarantined.is_empty()
    }

    /// Makes room on `filesystem` (`st_dev`), after writing a record file or its token failed with `fault` and no
    /// reserve file is left. The first call removes the half-written record files of dead processes; if no such file
    /// exists, and in each later call, the next of the offered layers is emptied.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no offered layer is left; [`Refusal::MakesNoRoom`] if the layers contain too little, and
    /// nothing was changed yet.
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
        if stop::is_requested() {
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

    /// Renames the directory of a layer. Returns the bytes in it, counted up to the needed number; 0 if there is no
    /// directory.
    fn quarantine_layer(&mut self, layers: &Directory, layer: &LayerToDelete) -> Result<u64, Error> {
        if !layers.has(&layer.id)? {
            return Ok(0);
        }
        let needed = self.editor.needed_bytes(layers);
        let holds_bytes = holds(&layers.path().join(&layer.id), needed, &mut NamesSeen::new());
        if !self.has_quarantined() {
            self.mark_image();
        }
        match quarantine(layers, &layer.id) {
            Ok(name) => {
                self.room.quarantined.push((layer.dir_index, name));
                // The image is incomplete from here on, even if no file of it is deleted yet.
                self.done.has_changed = true;
            }
            // A rename can need room as well: btrfs reserves metadata for it, and on ext4 the directory's block may be
            // full.
            Err(fault) if fault.is_no_space() && !self.done.has_changed => {
                return Err(Refusal::CannotBegin(fault).into());
            }
            Err(fault) => return Err(fault.into()),
        }
        self.step("layer quarantined");
        Ok(holds_bytes)
    }

    /// Marks the image whose layers are emptied. Without the mark a killed deletion is not finished, only reported.
    fn mark_image(&self) {
        let Some(id) = &self.room.image else { return };
        for images in self.directories.iter().filter_map(|directory| directory.records(RecordKind::Images)) {
            if let Err(fault) = images.set_modified(id, MARK) {
                tracing::debug!(%fault, "the image is not marked");
            }
        }
        self.step("image marked");
    }

    /// Returns true if a killed run began to empty layers for the deletion of this image.
    pub(super) fn is_marked(&self, image: &ImageRecord) -> bool {
        let mut all = self.directories.iter().filter_map(|directory| directory.records(RecordKind::Images));
        all.any(|images| {
            matches!(images.stat(&image.id), Ok(Some(stat)) if i128::from(stat.st_mtime) == i128::from(MARK.tv_sec))
        })
    }

    /// Returns true if the offered layers contain `enough` bytes on the filesystem of `layers`. Inodes are not counted:
    /// emptying a layer frees at least those of `diff`, `work`, `merged`, `link` and its name in `l`, more than are
    /// needed.
    fn hold_enough(&self, layers: &Directory, enough: u64) -> bool {
        let (mut sum, mut seen) = (0_u64, NamesSeen::new());
        self.room.offered.iter().flatten().any(|layer| {
            let parent = self.directories[layer.dir_index]
                .layers
                .as_ref()
                .filter(|parent| device(parent.fd()) == device(layers.fd()));
            let path = parent.map(|parent| parent.path().join(&layer.id));
            sum = sum.saturating_add(path.map_or(0, |path| holds(&path, enough, &mut seen)));
            sum >= enough
        })
    }

    /// Deletes all entries of a quarantined directory. The directory itself is kept until the deletion of the image is
    /// finished: it is the evidence of that deletion.
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

    /// Removes the empty quarantined directories of layers that have no record any more. Keeps those of lost layers.
    pub(super) fn remove_quarantined(&mut self) {
        let quarantined = self.room.quarantined.iter().cloned();
        let (lost, done): (Vec<_>, Vec<_>) =
            quarantined.partition(|(_, name)| !matches!(self.lost_layer(name), Ok(None)));
        for (dir_index, name) in done {
            if let Some(layers) = &self.directories[dir_index].layers {
                layers.remove_empty(&name);
            }
        }
        self.room.quarantined = lost;
        self.room.offered = None;
    }
}
