//! Finishes the deletions of a killed run of ours.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use rustix::fs::StatxFlags;

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
use crate::model::plan::LayerIdentity;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::quarantine_name::lost_layer;
use crate::stores::containers_storage::records::{ImageRecord, LayerRecord};
use crate::sys::beneath::AS_IT_IS;
use crate::sys::quiet;

/// Whether an image with this id, these names and these digests is to stay, whatever was begun: pinned since,
/// for example.
pub type IsKept<'a> = &'a dyn Fn(&str, &[String], &[String]) -> bool;

/// The deletion of an image that a killed run had begun, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BegunDeletion {
    /// The id of the image.
    pub image: String,
    /// Its layers, each before its parent.
    pub layers: Vec<LayerIdentity>,
}

impl Editor {
    /// Returns true if a killed run left traces in the store: a quarantined layer or a temporary directory. Takes no lock,
    /// and changes nothing.
    pub fn is_unfinished(&self) -> bool {
        self.quarantined().is_ok_and(|all| !all.is_empty()) || self.has_own_trash().unwrap_or(false)
    }

    /// Finishes the deletions of a killed run of ours in this store: images whose layers it emptied for
    /// want of room, layers of `begun` that are still unused, directories of images without a record,
    /// temporary files and directories. Call it before a run; where nothing was begun it does nothing, and takes no lock.
    ///
    /// # Errors
    /// When the locks cannot be obtained, the records cannot be read, or a deletion fails; also where an image that has
    /// lost its layers cannot go, since a container has come to it.
    pub fn resume(&self, begun: &[BegunDeletion], is_kept: IsKept<'_>) -> Result<Deleted, Error> {
        if begun.is_empty() && !self.is_unfinished() {
            return Ok(Deleted::default());
        }
        let quarantined = self.quarantined()?;
        let mut done = Session::open(self, Read::Mounts)?.run(Session::sweep_temporary)?;
        // One that cannot be finished does not stop the others.
        let mut failed = Ok(());
        let quarantined = quarantined.iter().map(|(at, name)| Unfinished::Quarantined(*at, name));
        for unfinished in quarantined.chain(begun.iter().map(Unfinished::Begun)) {
            // Each with the records as they are on the disk, whatever became of the one before.
            let result = Session::open(self, Read::Mounts).and_then(|session| {
                session.run(|session| match unfinished {
                    Unfinished::Quarantined(at, name) => session.finish_quarantined(at, name, is_kept),
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

    /// Returns true if layersweep left a temporary directory.
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

/// Numbers of layersweep's temporary directories in a place.
fn own_trashes(parent: &Directory, holder: &str) -> Result<BTreeSet<String>, Error> {
    let Some(tempdirs) = parent.below(holder)? else { return Ok(BTreeSet::new()) };
    let names = tempdirs.names()?;
    let numbers = names.iter().filter_map(|name| trash::number_of(name.to_str()?));
    Ok(numbers.filter(|number| trash::is_own_number(number)).map(str::to_owned).collect())
}

/// What a killed run of ours left to finish.
#[derive(Clone, Copy)]
enum Unfinished<'a> {
    /// A directory of a layer: its place and name.
    Quarantined(usize, &'a str),
    Begun(&'a BegunDeletion),
}

impl Session<'_> {
    /// Half-written record files, which are dead since the store's locks are ours; whether there were any.
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

    /// The same, and our own temporary directories.
    fn sweep_temporary(&mut self) -> Result<(), Error> {
        self.remove_dead_temporary_records()?;
        let mut found = Vec::new();
        for (at, directory) in self.directories.iter().enumerate() {
            for (parent, holder) in directory.trash_parents() {
                for number in own_trashes(parent, holder)? {
                    let directory = parent.path().join(holder).join(trash::directory_name(&number));
                    if let Some(trash) = Trash::adopt(parent, holder, &number)? {
                        found.push((at, directory, trash));
                    }
                }
                // An empty one is left over as well.
                parent.remove_empty(holder);
            }
        }
        for (dir_index, path, trash) in found {
            match self.evidence.prove_unmounted(&path, &[]) {
                Ok(()) => {
                    // Each was taken out of the store by the killed run.
                    self.done.orphans.extend(trash.entries()?.into_iter().map(|name| path.join(name)));
                    self.adopt(dir_index, trash);
                }
                Err(refusal) => tracing::info!(%refusal, "cannot remove a temporary directory"),
            }
        }
        Ok(())
    }

    /// Deletes the rest of an image whose record is gone.
    ///
    /// # Errors
    /// Also where a process or a mount is in the way for now.
    fn finish_begun(&mut self, begun: &BegunDeletion) -> Result<(), Error> {
        // It was killed before the first change, or the image has been pulled again.
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
            // Equal, not earlier: clocks are set back.
            let is_same = |record: &LayerRecord| record.created.is_some() && record.created == *created;
            if self.records.layer(id).is_some_and(|record| !is_same(record)) {
                tracing::info!(layer = id, "a layer of a killed deletion was recreated; keeping it");
                break;
            }
            match self.finish_layer(id) {
                // An image or a layer that is there is on it, and on those below.
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
        // Its record went first (no flags): an orphan directory by now, or nothing.
        for dir_index in 0..self.directories.len() {
            let layers = self.directories[dir_index].layers.as_ref();
            let there = layers.map_or(Ok(false), |layers| layers.has(id))?;
            if there && directory::id_of(id.as_ref()).is_some() {
                self.reclaim_layer_directory(dir_index, id)?;
            }
        }
        if directory::id_of(id.as_ref()).is_some() {
            self.prove_layer_unnamed(id)?;
            self.remove_layer_data(id)?;
        }
        Ok(())
    }

    /// Finishes what a killed run began: the images on the layer that this was are lost, and their deletion was
    /// decided and proven then. What is left of the layer goes in any case; the records of the images if nothing
    /// uses them, and nobody keeps them since.
    fn finish_quarantined(&mut self, dir_index: usize, name: &str, is_kept: IsKept<'_>) -> Result<(), Error> {
        if self.records.layer(name).is_some() {
            return Ok(());
        }
        let Some(lost) = self.lost_layer(name)?.map(str::to_owned) else {
            return self.reclaim_layer_directory(dir_index, name);
        };
        self.prove_directory_unmounted(dir_index, name, &Default::default())?;
        let killed_at = self.changed_at(dir_index, name);
        self.empty(dir_index, name)?;
        self.room.quarantined.push((dir_index, name.to_owned()));
        let images = self.images_on(&lost);
        if images.is_empty() {
            self.delete_lost_layers(&lost)?;
            self.remove_quarantined();
            return Ok(());
        }
        let mut stays = Ok(());
        for image in images {
            let why = match is_kept(&image.id, &image.names, &image.digests) {
                true => Some("it was pinned since".to_owned()),
                // Another one that was pulled onto the layer.
                false if self.came_after(&image, killed_at) => Some("it came later".to_owned()),
                false => {
                    let planned = PlannedImage { id: image.id.clone(), ..PlannedImage::default() };
                    match self.delete_image(&planned) {
                        Err(Error::Refused(refusal)) if !refusal.is_of_store() => Some(refusal.to_string()),
                        other => other.map(|()| None)?,
                    }
                }
            };
            // One that stays holds up no other.
            if let Some(why) = why {
                stays = Err(Refusal::Lost { id: image.id, why }.into());
            }
        }
        self.remove_quarantined();
        stays
    }

    /// When the directory of a layer was changed last.
    fn changed_at(&self, dir_index: usize, name: &str) -> Option<Timestamp> {
        let layers = self.directories[dir_index].layers.as_ref()?;
        let stat = rustix::fs::statx(layers.fd(), name, AS_IT_IS, StatxFlags::CTIME).ok()?;
        quiet::time(stat.stx_ctime)
    }

    /// Returns true if the directory of the image was made later than that.
    fn came_after(&self, image: &ImageRecord, killed_at: Option<Timestamp>) -> bool {
        let directories =
            self.directories.iter().filter_map(|directory| directory.records(RecordKind::Images));
        let mut born = directories.filter_map(|images| {
            let stat = rustix::fs::statx(images.fd(), image.id.as_str(), AS_IT_IS, StatxFlags::BTIME).ok()?;
            quiet::born(&stat)
        });
        killed_at.is_some_and(|killed_at| born.any(|born| born > killed_at))
    }

    /// The layer that a directory of this name was of, if its directory is missing; `None` where it was removed or pulled
    /// again meanwhile, maybe into an imagestore.
    pub(super) fn lost_layer(&self, name: &str) -> Result<Option<&str>, Error> {
        let layers = &self.records.layers;
        let has_directory = |at: usize| self.has_directory(&layers[at].id);
        lost_layer(name, layers.iter().map(|layer| layer.id.as_str()), has_directory)
    }

    /// Whether a layer has its directory in the place of its record.
    fn has_directory(&self, id: &str) -> Result<bool, Error> {
        let dir_index = self.directory_of_layers(self.records.file_of(RecordKind::Layers, id)?);
        Ok(self.directories[dir_index].layers.as_ref().map_or(Ok(false), |layers| layers.has(id))?)
    }

    /// It is no sign of a deletion that has to be finished.
    pub(super) fn prove_finished(&self, name: &str) -> Result<(), Error> {
        match self.lost_layer(name)? {
            Some(id) => Err(Refusal::Recorded { id: id.to_owned() }.into()),
            None => Ok(()),
        }
    }

    /// The images that have this layer, under their own or a mapped top layer.
    fn images_on(&self, lost: &str) -> Vec<ImageRecord> {
        let parents = self.parents();
        let is_on_it = |image: &&ImageRecord| {
            let mut tops = image.tops();
            tops.any(|top| chain(&parents, Some(top)).any(|id| id == lost))
        };
        self.records.images.iter().filter(is_on_it).cloned().collect()
    }

    fn parents(&self) -> Parents<'_> {
        let layers = self.records.layers.iter();
        layers.map(|layer| (layer.id.as_str(), layer.parent.as_deref())).collect()
    }

    /// The record of the image is gone already: the layer goes with those that are on it.
    fn delete_lost_layers(&mut self, lost: &str) -> Result<(), Error> {
        let parents = self.parents();
        let has_child: HashSet<&str> = parents.values().flatten().copied().collect();
        let layers = self.records.layers.iter().map(|layer| &layer.id);
        let tops = layers.filter(|top| !has_child.contains(top.as_str()));
        let tops = tops.filter(|top| chain(&parents, Some(top)).any(|id| id == lost));
        // As if an image were on each.
        let on = |top: &String| ImageRecord { layer: Some(top.clone()), ..ImageRecord::default() };
        let images: Vec<_> = tops.map(on).collect();
        let records = &self.records;
        let layers = to_delete::layers_of(&images, &records.layers, &records.images, &records.containers);
        prove_layers_outside(&self.outside, &layers)?;
        let to_delete = self.prove_layers(&layers)?;
        self.offer(&to_delete);
        self.delete_proven(&to_delete)
    }
}
