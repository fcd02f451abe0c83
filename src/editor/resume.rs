//! Finishes the deletions that a killed run of layersweep began.
//!
//! A run can be killed between any two steps of a deletion. The store is usable after each of them, but the rest of the
//! object still takes space, and on a full disk an image may have lost its layers before its record was removed
//! ([`super::full_disk`]). Such a deletion leaves one of three traces:
//!
//! * the journal of the killed run, which lists the image and its layers ([`BegunDeletion`]);
//! * a quarantined directory, whose name identifies a layer;
//! * a half-written record file, or a temporary directory with a number that only layersweep assigns.
//!
//! For example, a run was killed after it removed image X from `images.json`. The journal lists X with the layers B and
//! A. The next run proves again that no image, container or layer uses B, deletes it, and does the same with A. If an
//! image pulled meanwhile uses A, then A is kept.
//!
//! All is proven again because hours may have passed. A layer with another creation time was pulled again: it is kept,
//! with those below it. The rules of the policy, however, are not asked again for a lost image: it is unusable, and its
//! deletion was decided and proven before the kill. It is kept only if it was pinned since ([`IsKept`]), if it is not
//! proven to be the image that the killed run began to delete, or if something uses it; then it is reported as
//! [`Refusal::Lost`].

use std::collections::{BTreeSet, HashSet};

use super::deleted::Deleted;
use super::directory::{self, Directory};
use super::error::{Error, Refusal};
use super::graphroot_editor::Editor;
use super::image::PlannedImage;
use super::mounted::Read;
use super::outside::prove_layers_outside;
use super::session::Session;
use super::store_directory::StoreDirectory;
use super::to_delete::{self, Parents, chain};
use super::trash::{self, Trash};
use crate::model::deletion::plan::LayerIdentity;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::quarantine_name::lost_layer;
use crate::stores::containers_storage::records::ImageRecord;

/// Returns true if an image with this id, these names and these digests must be kept even if its deletion was begun: it
/// was pinned since, for example.
pub type IsKept<'a> = &'a dyn Fn(&str, &[String], &[String]) -> bool;

/// The deletion of an image that a killed run began, as recorded in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunDeletion {
    pub image: String,
    /// Its layers, each before its parent.
    pub layers: Vec<LayerIdentity>,
}

impl Editor {
    /// Returns true if a killed run left a quarantined layer or a temporary directory in the store. Takes no lock, and
    /// changes nothing.
    pub fn is_unfinished(&self) -> bool {
        self.quarantined().is_ok_and(|all| !all.is_empty()) || self.has_own_trash().unwrap_or(false)
    }

    /// Finishes the deletions that a killed run began in this store: lost images, the layers of `begun` that are still
    /// unused, directories of images without a record, temporary files and directories. To be called before a run. If
    /// nothing was begun, it does nothing and takes no lock.
    ///
    /// # Errors
    /// When the locks cannot be obtained, the records cannot be read, or a deletion fails; also if a lost image must be
    /// kept, since a container uses it by now.
    pub fn resume(&self, begun: &[BegunDeletion], is_kept: IsKept<'_>) -> Result<Deleted, Error> {
        if begun.is_empty() && !self.is_unfinished() {
            return Ok(Deleted::default());
        }
        let quarantined = self.quarantined()?;
        let mut done = Session::open(self, Read::Mounts)?.run(Session::sweep_temporary)?;
        // A deletion that cannot be finished does not stop the others.
        let mut failed = Ok(());
        let quarantined = quarantined.iter().map(|(index, name)| Unfinished::Quarantined(*index, name));
        for unfinished in quarantined.chain(begun.iter().map(Unfinished::Begun)) {
            // Each has a session of its own: its records are read from disk, even if the previous deletion failed.
            let result = Session::open(self, Read::Processes).and_then(|session| {
                session.run(|session| match unfinished {
                    Unfinished::Quarantined(index, name) => session.finish_quarantined(index, name, is_kept),
                    Unfinished::Begun(begun) => session.finish_begun(begun),
                })
            });
            match result {
                Ok(more) => done.add(more),
                Err(error) if error.is_interrupted() => return done.ended(Err(error)),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        done.ended(failed)
    }

    fn has_own_trash(&self) -> Result<bool, Error> {
        for directory in StoreDirectory::open_all(&self.places)? {
            for (parent, holder) in directory.trash_parents() {
                if !own_trashes(parent, holder)?.is_empty() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Numbers of layersweep's temporary directories in `parent`/`holder`.
fn own_trashes(parent: &Directory, holder: &str) -> Result<BTreeSet<String>, Error> {
    let Some(tempdirs) = parent.below(holder)? else { return Ok(BTreeSet::new()) };
    let names = tempdirs.names()?;
    let numbers = names.iter().filter_map(|name| trash::number_of(name.to_str()?));
    Ok(numbers.filter(|number| trash::is_own_number(number)).map(str::to_owned).collect())
}

#[derive(Clone, Copy)]
enum Unfinished<'a> {
    /// A quarantined directory: the index of the directory of the store that contains it, and its name.
    Quarantined(usize, &'a str),
    Begun(&'a BegunDeletion),
}

impl Session<'_> {
    /// Removes half-written record files. No process writes them any more, since this session holds the store's locks.
    /// Returns true if there were any.
    pub(super) fn remove_dead_temporary_records(&mut self) -> Result<bool, Error> {
        let before = self.done.removed;
        for directory in &self.directories {
            for kind in RecordKind::ALL {
                let Some(records) = directory.records(kind) else { continue };
                for name in records.names()? {
                    if name.as_encoded_bytes().starts_with(b".tmp-") {
                        self.done.removed += u64::from(records.unlink(&name)?);
                    }
                }
            }
        }
        Ok(self.done.removed > before)
    }

    /// The same, and layersweep's temporary directories.
    fn sweep_temporary(&mut self) -> Result<(), Error> {
        self.remove_dead_temporary_records()?;
        let mut found = Vec::new();
        for (dir_index, directory) in self.directories.iter().enumerate() {
            for (parent, holder) in directory.trash_parents() {
                for number in own_trashes(parent, holder)? {
                    let directory = parent.path().join(holder).join(trash::directory_name(&number));
                    if let Some(trash) = Trash::adopt(parent, holder, &number)? {
                        found.push((dir_index, directory, trash));
                    }
                }
                // An empty `tempdirs` is a leftover as well.
                parent.remove_empty(holder);
            }
        }
        for (dir_index, path, trash) in found {
            match self.evidence.prove_unmounted(&path, &[]) {
                Ok(()) => {
                    // The killed run moved each entry out of the store.
                    self.done.orphans.extend(trash.entries()?.into_iter().map(|name| path.join(name)));
                    self.adopt(dir_index, trash);
                }
                Err(refusal) => tracing::info!(%refusal, "cannot remove a temporary directory"),
            }
        }
        Ok(())
    }

    /// Deletes the rest of an image whose record was removed.
    ///
    /// # Errors
    /// Also if a process or a mount uses a layer for now.
    fn finish_begun(&mut self, begun: &BegunDeletion) -> Result<(), Error> {
        // The run was killed before the first change, or the image was pulled again.
        if self.records.image(&begun.image).is_some() {
            return Ok(());
        }
        if directory::id_of(begun.image.as_ref()).is_some() {
            for dir_index in 0..self.directories.len() {
                self.discard_object(dir_index, RecordKind::Images, &begun.image)?;
            }
        }
        for LayerIdentity { id, created } in &begun.layers {
            let id = id.as_str();
            // Creation times must be equal: "not later" would be wrong after a clock was set back.
            let record = self.records.layer(id);
            if record.is_some_and(|record| record.created.is_none() || record.created != *created) {
                tracing::info!(layer = id, "a layer of a killed deletion was recreated; keeping it");
                break;
            }
            match self.finish_layer(id) {
                // An existing image or layer uses it, and so all layers below it.
                Err(Error::Refused(refusal)) if !refusal.passes() => {
                    tracing::info!(%refusal, layer = id, "not deleted with the image of a killed deletion");
                    break;
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn finish_layer(&mut self, id: &str) -> Result<(), Error> {
        if self.records.layer(id).is_some() {
            self.prove_unreferenced(id)?;
            prove_layers_outside(&self.outside, &[id.to_owned()])?;
            let to_delete = self.prove_layers(&[id.to_owned()])?;
            return self.delete_proven(&to_delete);
        }
        // Without flags the record is removed first: now there is an orphan directory, or nothing.
        for dir_index in 0..self.directories.len() {
            let layers = self.directories[dir_index].layers.as_ref();
            let exists = layers.map_or(Ok(false), |layers| layers.has(id))?;
            if exists && directory::id_of(id.as_ref()).is_some() {
                self.reclaim_layer_directory(dir_index, id)?;
            }
        }
        if directory::id_of(id.as_ref()).is_some() {
            self.prove_layer_unnamed(id)?;
            self.remove_layer_data(id)?;
        }
        Ok(())
    }

    /// Empties a quarantined directory, and deletes the lost images on its layer, except those that something uses, that
    /// were pinned, or that may have been pulled since.
    fn finish_quarantined(&mut self, dir_index: usize, name: &str, is_kept: IsKept<'_>) -> Result<(), Error> {
        if self.records.layer(name).is_some() {
            return Ok(());
        }
        let Some(lost) = self.lost_layer(name)?.map(str::to_owned) else {
            return self.reclaim_layer_directory(dir_index, name);
        };
        self.prove_directory_unmounted(dir_index, name, &Default::default())?;
        self.empty(dir_index, name)?;
        self.room.quarantined.push((dir_index, name.to_owned()));
        let images = self.images_on(&lost);
        if images.is_empty() {
            self.delete_lost_layers(&lost)?;
            self.remove_quarantined();
            return Ok(());
        }
        let (mut kept, mut reasons) = (Vec::new(), BTreeSet::new());
        for image in images {
            let why = if is_kept(&image.id, &image.names, &image.digests) {
                Some("it was pinned since".to_owned())
            } else if !self.is_marked(&image) {
                Some("it may have been pulled since".to_owned())
            } else {
                let planned = PlannedImage { id: image.id.clone(), ..PlannedImage::default() };
                match self.delete_image(&planned) {
                    Err(Error::Refused(refusal)) if !refusal.is_of_store() => Some(refusal.to_string()),
                    other => other.map(|()| None)?,
                }
            };
            // An image that is kept does not stop the others.
            if let Some(why) = why {
                kept.push(image.id);
                reasons.insert(why);
            }
        }
        self.remove_quarantined();
        if kept.is_empty() {
            return Ok(());
        }
        let why = Vec::from_iter(reasons).join("; ");
        Err(Refusal::Lost { id: kept.join(", "), why }.into())
    }

    /// The lost layer whose directory was renamed to `name`. `None` if the layer was removed meanwhile, or pulled
    /// again, maybe into an imagestore.
    pub(super) fn lost_layer(&self, name: &str) -> Result<Option<&str>, Error> {
        let layers = &self.records.layers;
        let ids = layers.iter().map(|layer| layer.id.as_str());
        lost_layer(name, ids, |layer_ix| self.has_directory(&layers[layer_ix].id))
    }

    /// Returns true if a layer has its directory in the same area as its record.
    fn has_directory(&self, id: &str) -> Result<bool, Error> {
        let dir_index = self.directory_of_layers(self.records.file_of(RecordKind::Layers, id)?);
        Ok(self.directories[dir_index].layers.as_ref().map_or(Ok(false), |layers| layers.has(id))?)
    }

    /// Refuses a quarantined directory of a lost layer: it is the evidence of an unfinished deletion.
    pub(super) fn prove_finished(&self, name: &str) -> Result<(), Error> {
        match self.lost_layer(name)? {
            Some(id) => Err(Refusal::Recorded { id: id.to_owned() }.into()),
            None => Ok(()),
        }
    }

    /// Images that have this layer below their own or a mapped top layer.
    fn images_on(&self, lost: &str) -> Vec<ImageRecord> {
        let parents = self.parents();
        let images = self.records.images.iter().filter(|image| {
            let mut tops = image.tops();
            tops.any(|top| chain(&parents, Some(top)).any(|id| id == lost))
        });
        images.cloned().collect()
    }

    fn parents(&self) -> Parents<'_> {
        let layers = self.records.layers.iter();
        layers.map(|layer| (layer.id.as_str(), layer.parent.as_deref())).collect()
    }

    /// Deletes a lost layer that no image is on any more, with the layers above it and those below that nothing needs.
    fn delete_lost_layers(&mut self, lost: &str) -> Result<(), Error> {
        let parents = self.parents();
        let has_child: HashSet<&str> = parents.values().flatten().copied().collect();
        let layers = self.records.layers.iter().map(|layer| &layer.id);
        let tops = layers
            .filter(|top| !has_child.contains(top.as_str()))
            .filter(|top| chain(&parents, Some(top)).any(|id| id == lost));
        // `layers_of` expects images: it gets one for each top layer.
        let images: Vec<_> =
            tops.map(|top| ImageRecord { layer: Some(top.clone()), ..ImageRecord::default() }).collect();
        let records = &self.records;
        let layers = to_delete::layers_of(&images, &records.layers, &records.images, &records.containers);
        prove_layers_outside(&self.outside, &layers)?;
        let to_delete = self.prove_layers(&layers)?;
        self.offer(None, &to_delete);
        self.delete_proven(&to_delete)
    }
}
