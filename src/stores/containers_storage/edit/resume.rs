//! Finishes the deletions of a killed run of ours.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use super::deleted::Deleted;
use super::directory::{self, Directory};
use super::editor::Editor;
use super::error::{Error, Meaning, Refusal};
use super::full_disk::is_whole;
use super::image::PlannedImage;
use super::intent::Intent;
use super::mounted::Read;
use super::session::Session;
use super::to_delete::{self, Parents, chain};
use super::trash::{self, Trash};
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::quarantine_name::{ids_of, is_in_group, lost_layer};
use crate::stores::containers_storage::records::ImageRecord;

/// Whether an image with this id, these names and these digests is to stay, whatever was begun: pinned since,
/// for example.
pub type IsKept<'a> = &'a dyn Fn(&str, &[String], &[String]) -> bool;

impl Editor {
    /// Whether a killed run of ours left something to finish. Takes no lock, and changes nothing.
    pub fn is_unfinished(&self) -> bool {
        self.intents().iter().any(|(_, intent)| intent.is_ok())
            || self.quarantined().is_ok_and(|all| !all.is_empty())
    }

    /// Finishes the deletions of a killed run of ours in this store: images whose layers it emptied for
    /// want of room, layers that are still unused, directories of images without a record, temporary
    /// files and directories of dead processes. Call it before a run; without
    /// intents and quarantined layers it does nothing, and takes no lock.
    ///
    /// # Errors
    /// When the locks cannot be obtained, the records cannot be read, or a deletion fails; also where an image that has
    /// lost its layers cannot go, since a container has come to it. One that is whole and in use now is kept, without
    /// an error.
    pub fn resume(&self, is_kept: IsKept<'_>) -> Result<Deleted, Error> {
        let mut intents = Vec::new();
        for (path, intent) in self.intents() {
            match intent {
                Ok(intent) => intents.push((path, intent)),
                Err(why) => {
                    tracing::info!(path = %path.display(), "discarding the intent of a killed deletion: {why}");
                    let _ = std::fs::remove_file(path);
                }
            }
        }
        let quarantined = self.quarantined()?;
        if intents.is_empty() && quarantined.is_empty() {
            return Ok(Deleted::default());
        }
        let mut done = Session::open(self, Read::Mounts)?.run(|session| {
            let numbers: Vec<_> = intents.iter().map(|(_, intent)| intent.temporary.as_str()).collect();
            session.sweep_temporary(&numbers)
        })?;
        let quarantined = quarantined.iter().map(|(at, name)| Unfinished::Quarantined(*at, name));
        // One that cannot be finished does not stop the others.
        let mut failed = Ok(());
        for unfinished in quarantined.chain(intents.iter().map(Unfinished::Intended)) {
            // Each with the records as they are on the disk, whatever became of the one before.
            let mut session = match Session::open(self, Read::Mounts) {
                Ok(session) => session,
                Err(error) => return done.ended(Err(error)),
            };
            session.has_older_intents = !intents.is_empty();
            let result = session.run(|session| match unfinished {
                Unfinished::Quarantined(at, name) => session.finish_quarantined(at, name, is_kept),
                Unfinished::Intended((_, intent)) => {
                    session.number.clone_from(&intent.temporary);
                    session.finish_intent(intent, is_kept)
                }
            });
            match (result, unfinished) {
                (Ok(one), Unfinished::Intended((path, intent))) => {
                    done.add(one);
                    // Should somebody remove the quarantined directory, the intent alone tells what is lost.
                    if !self.has_quarantined_layer(intent) {
                        let _ = std::fs::remove_file(path);
                    }
                }
                (Ok(one), Unfinished::Quarantined(..)) => done.add(one),
                (Err(error), _) if error.is_interrupted() => return done.ended(Err(error)),
                (Err(error), _) => failed = failed.and(Err(error)),
            }
        }
        done.ended(failed)
    }

    /// Whether a layer of a killed deletion still has its directory under another name.
    fn has_quarantined_layer(&self, intent: &Intent) -> bool {
        let is_of = |begins: &str| intent.layers.iter().any(|(id, _)| id.starts_with(begins));
        let is_sign = |(_, name): &(usize, String)| ids_of(name).is_some_and(|(begins, _)| is_of(begins));
        self.quarantined().map_or(true, |all| all.iter().any(is_sign))
    }
}

/// What a killed run of ours left to finish.
#[derive(Clone, Copy)]
enum Unfinished<'a> {
    /// A directory of a layer: its place and name.
    Quarantined(usize, &'a str),
    /// The intent of a killed run, and its path.
    Intended(&'a (PathBuf, Intent)),
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
    fn sweep_temporary(&mut self, ours: &[&str]) -> Result<(), Error> {
        self.remove_dead_temporary_records()?;
        let mut found = Vec::new();
        for (at, directory) in self.directories.iter().enumerate() {
            for (parent, holder) in directory.trash_parents() {
                let Some(tempdirs) = parent.below(holder)? else { continue };
                let names = tempdirs.names()?;
                let numbers: BTreeSet<_> =
                    names.iter().filter_map(|name| trash::number_of(name.to_str()?)).collect();
                for number in numbers.into_iter().filter(|number| ours.contains(number)) {
                    let directory = tempdirs.path().join(trash::directory_name(number));
                    if let Some(trash) = Trash::adopt(parent, holder, number)? {
                        found.push((at, directory, trash));
                    }
                }
                if names.is_empty() {
                    parent.remove_empty(holder);
                }
            }
        }
        for (dir_index, path, trash) in found {
            match self.evidence.prove_unmounted(&path, &[]) {
                Ok(()) => self.adopt(dir_index, trash),
                Err(refusal) => tracing::info!(%refusal, "cannot remove a temporary directory"),
            }
        }
        Ok(())
    }

    fn finish_intent(&mut self, intent: &Intent, is_kept: IsKept<'_>) -> Result<(), Error> {
        let (there, gone): (Vec<_>, Vec<_>) =
            intent.images.iter().partition(|image| self.records.image(image).is_some());
        // Lost, where a library's garbage collection has removed the quarantined directory since.
        let lost = self.lost_layers(intent)?;
        let mut on_lost = self.images_on(&lost);
        on_lost.retain(|image| there.contains(&&image.id));
        let stays = self.delete_lost_images(&on_lost, is_kept)?;
        self.finish_unrecorded(intent, &there, &gone)?;
        stays.map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// What an intent says of images whose records are gone.
    ///
    /// # Errors
    /// Also where a process or a mount is in the way for now.
    fn finish_unrecorded(
        &mut self,
        intent: &Intent,
        there: &[&String],
        gone: &[&String],
    ) -> Result<(), Error> {
        // It was killed before the first change, or the images have been pulled again.
        if gone.is_empty() && !there.is_empty() {
            return Ok(());
        }
        for image in gone {
            if directory::id_of(image.as_ref()).is_some() {
                for dir_index in 0..self.directories.len() {
                    self.discard_object(dir_index, RecordKind::Images, image)?;
                }
            }
        }
        let mut passing = Ok(());
        for (id, then) in &intent.layers {
            if !then.is_still(&self.identity_of(id)) {
                tracing::info!(layer = id, "a layer of a killed deletion was recreated; keeping it");
                break;
            }
            match self.finish_layer(id) {
                Err(Error::Refused(refusal)) if refusal.passes() => passing = Err(refusal.into()),
                // An image that is there has it; others may have been of those that are gone.
                Err(Error::Refused(refusal)) => {
                    tracing::info!(%refusal, layer = id, "cannot finish the killed deletion of a layer");
                }
                other => other?,
            }
        }
        passing
    }

    fn finish_layer(&mut self, id: &str) -> Result<(), Error> {
        if self.records.layer(id).is_some() {
            self.prove_unreferenced(id)?;
            self.outside.prove_layers(&[id.to_owned()])?;
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
    pub(super) fn finish_quarantined(
        &mut self,
        dir_index: usize,
        name: &str,
        is_kept: IsKept<'_>,
    ) -> Result<(), Error> {
        let layers = self.directories[dir_index].layers.as_ref().map(Directory::again).transpose()?;
        let (Some(layers), Some((_, group))) = (layers, ids_of(name)) else { return Ok(()) };
        if self.records.layer(name).is_some() {
            return Ok(());
        }
        let Some(lost) = self.lost_layer(name)?.map(str::to_owned) else {
            return self.reclaim_layer_directory(dir_index, name);
        };
        self.prove_directory_unmounted(dir_index, name, &Default::default())?;
        if is_whole(&layers, name)? {
            layers.rename(name, &layers, &lost)?;
            self.done.has_changed = true;
            return Ok(());
        }
        self.empty(dir_index, name)?;
        self.room.quarantined.push((dir_index, name.to_owned()));
        let images = self.images_on(std::slice::from_ref(&lost));
        if images.is_empty() {
            self.delete_lost_layers(&lost, group)?;
            self.remove_quarantined();
            return Ok(());
        }
        // Others may have come to the layer.
        let is_kept = |id: &str, names: &[String], digests: &[String]| {
            !is_in_group(group, id) || is_kept(id, names, digests)
        };
        let stays = self.delete_lost_images(&images, &is_kept)?;
        self.remove_quarantined();
        stays.map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// The layers of a killed deletion that have their records, and no longer the directories that they had; without
    /// those that only have to get their names back.
    fn lost_layers(&self, intent: &Intent) -> Result<Vec<String>, Error> {
        let quarantined = self.editor.quarantined()?;
        let is_renamed = |id: &str| {
            quarantined.iter().any(|(dir_index, name)| {
                let layers = self.directories[*dir_index].layers.as_ref();
                ids_of(name).is_some_and(|(begins, _)| id.starts_with(begins))
                    && layers.is_some_and(|layers| is_whole(layers, name).unwrap_or(true))
            })
        };
        let mut lost = Vec::new();
        for (id, then) in &intent.layers {
            let had_one = then.directory.is_some() && self.records.layer(id).is_some();
            if had_one && !self.has_directory(id)? && !is_renamed(id) {
                lost.push(id.clone());
            }
        }
        Ok(lost)
    }

    /// Deletes those images that may go of some that have lost a layer; tells those that stay, which no tool can use.
    ///
    /// # Errors
    /// Those of [`Self::delete_images`].
    fn delete_lost_images(
        &mut self,
        images: &[ImageRecord],
        is_kept: IsKept<'_>,
    ) -> Result<Option<Refusal>, Error> {
        let (kept, to_delete): (Vec<_>, Vec<_>) =
            images.iter().partition(|image| is_kept(&image.id, &image.names, &image.digests));
        let mut why = "it was pinned or pulled since".to_owned();
        let mut stay: Vec<_> = kept.into_iter().map(|image| image.id.clone()).collect();
        let planned = |image: &&ImageRecord| PlannedImage { id: image.id.clone(), ..PlannedImage::default() };
        let planned: Vec<_> = to_delete.iter().map(planned).collect();
        // One that is in use holds up no other.
        if !planned.is_empty() && self.refuses_lost(&planned)?.is_some() {
            for one in planned {
                if let Some(refusal) = self.refuses_lost(std::slice::from_ref(&one))? {
                    why = refusal.to_string();
                    stay.push(one.id);
                }
            }
        }
        Ok((!stay.is_empty()).then(|| Refusal::Lost { id: stay.join(", "), why }))
    }

    /// Deletes them, unless that is refused: then nothing was changed.
    fn refuses_lost(&mut self, planned: &[PlannedImage]) -> Result<Option<Refusal>, Error> {
        match self.delete_images(planned) {
            Err(Error::Refused(refusal))
                if !matches!(refusal.means(), Meaning::NoRoom { .. } | Meaning::Store) =>
            {
                Ok(Some(refusal))
            }
            other => other.map(|()| None),
        }
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

    /// The images that have one of these layers, under their own or a mapped top layer.
    fn images_on(&self, layers: &[String]) -> Vec<ImageRecord> {
        let parents = self.parents();
        let is_on_it = |image: &&ImageRecord| {
            let mut tops = image.tops();
            tops.any(|top| chain(&parents, Some(top)).any(|id| layers.iter().any(|layer| layer == id)))
        };
        self.records.images.iter().filter(is_on_it).cloned().collect()
    }

    fn parents(&self) -> Parents<'_> {
        let layers = self.records.layers.iter();
        layers.map(|layer| (layer.id.as_str(), layer.parent.as_deref())).collect()
    }

    /// The records of the images are gone already: the layer goes with those that are on it.
    fn delete_lost_layers(&mut self, lost: &str, group: &str) -> Result<(), Error> {
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
        self.outside.prove_layers(&layers)?;
        let to_delete = self.prove_layers(&layers)?;
        let tops: Vec<_> = images.iter().map(|image| image.layer.as_deref()).collect();
        self.offer(&tops, group.to_owned(), &to_delete);
        self.delete_proven(&to_delete)
    }
}
