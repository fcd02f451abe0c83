//! Deletes an image as `podman rmi` does.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use super::deleted::Deleted;
use super::error::{Error, Fault, Refusal};
use super::graphroot_editor::Editor;
use super::mounted::Read;
use super::outside::{prove_image_outside, prove_layers_outside};
use super::session::Session;
use super::to_delete;
use crate::model::Owner;
use crate::model::text::reference::may_be;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::records::{ContainerRecord, ImageRecord};
use crate::stores::containers_storage::{cri_o, lists, owner};

/// An image as it was when its deletion was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedImage {
    pub id: String,
    /// Its names then. If they differ now, it was tagged or untagged since, and may be needed. `None` if the names do
    /// not matter.
    pub names: Option<Vec<String>>,
    /// The manifest lists that it was a member of then. They do not matter if the names do not.
    pub lists: Vec<Self>,
}

impl PlannedImage {
    /// Proves that it has the planned names, in any order.
    pub(super) fn prove_names(&self, now: &[String]) -> Result<(), Refusal> {
        fn set(names: &[String]) -> BTreeSet<&String> {
            names.iter().collect()
        }
        if self.names.as_ref().is_some_and(|planned| set(planned) != set(now)) {
            return Err(self.changed(format!("its names are [{}] now", now.join(", "))));
        }
        Ok(())
    }

    /// Proves that a manifest list that it is a member of was planned with it, and has the same names.
    fn prove_list(&self, list: &ImageRecord) -> Result<(), Refusal> {
        match self.lists.iter().find(|planned| planned.id == list.id) {
            Some(planned) => planned.prove_names(&list.names),
            None if self.names.is_none() => Ok(()),
            None => {
                let title = list.names.first().unwrap_or(&list.id);
                Err(self.changed(format!("it is a member of the manifest list {title} now")))
            }
        }
    }

    fn changed(&self, change: String) -> Refusal {
        Refusal::Changed { id: self.id.clone(), change }
    }
}

impl Editor {
    /// Deletes an image and the layers that only it needs.
    ///
    /// # Errors
    /// [`Error::Refused`] if a container (of any owner) uses it, if it changed after it was planned, or if a layer to
    /// delete is mounted or needed; then nothing was changed. Other errors as documented.
    pub fn delete_image(&self, planned: &PlannedImage) -> Result<Deleted, Error> {
        Session::open(self, Read::Mounts)?.run(|session| session.delete_image(planned))
    }
}

impl Session<'_> {
    pub(super) fn delete_image(&mut self, planned: &PlannedImage) -> Result<(), Error> {
        let image = self.prove_image(planned)?;
        let records = &self.records;
        let gone = std::slice::from_ref(&image);
        let layers = to_delete::layers_of(gone, &records.layers, &records.images, &records.containers);
        prove_layers_outside(&self.outside, &layers)?;
        let to_delete = self.prove_layers(&layers)?;
        let file = self.records.file_of(RecordKind::Images, &image.id)?;
        let dir_index = self.records.files[file].dir_index;
        self.step("proven");
        self.offer(Some(&image), &to_delete);
        self.records.remove(file, &image.id)?;
        self.save(file)?;
        self.done.images.push(image.id.clone());
        // A directory that cannot be deleted is an orphan now, which every library's garbage collection deletes.
        self.discard_object(dir_index, RecordKind::Images, &image.id)?;
        self.step("image directory removed");
        self.delete_layers(&to_delete)?;
        self.remove_quarantined();
        Ok(())
    }

    fn prove_image(&self, planned: &PlannedImage) -> Result<ImageRecord, Error> {
        self.prove_no_container(&planned.id)?;
        let image = self.prove_names(planned)?;
        self.prove_no_volume(&image)?;
        self.prove_image_unmounted(&image)?;
        // A lost image (planned without names) is useless to its lists, so they are not checked.
        let lists =
            self.records.images.iter().filter(|record| planned.names.is_some() && lists::is_list(record));
        for list in lists {
            let places = &self.editor.places;
            let digests = lists::digests(places, list)
                .map_err(|error| cannot_read(lists::manifest(places, list), &error))?;
            if lists::is_member(&digests, &image) {
                self.prove_no_container(&list.id)?;
                self.prove_no_volume(list)?;
                planned.prove_list(list)?;
            }
        }
        Ok(image)
    }

    /// Proves that no image with the same top layer is mounted: the mount of `podman image mount` does not show which
    /// of them it is. An overlay that only has the layer among its lower directories belongs to a container, and is
    /// found by the records.
    fn prove_image_unmounted(&self, image: &ImageRecord) -> Result<(), Refusal> {
        let places = &self.editor.places;
        // The library mounts layers of an imagestore below the runroot.
        let directories: Vec<_> =
            places.areas().chain(&places.runroots).map(|root| places.layer_directories(root)).collect();
        let mut points = image.tops().flat_map(|top| directories.iter().map(move |all| all.join(top)));
        points.try_for_each(|point| self.evidence.prove_unmounted(&point, &[]))
    }

    fn prove_no_container(&self, id: &String) -> Result<(), Refusal> {
        match self.records.containers.iter().find(|container| container.image.as_ref() == Some(id)) {
            Some(container) => Err(self.used_by(container)),
            None => Ok(()),
        }
    }

    /// Proves that no container has the image mounted as a volume, and that nothing outside the store needs it.
    fn prove_no_volume(&self, image: &ImageRecord) -> Result<(), Error> {
        for container in &self.records.containers {
            if self.has_volume(container, image)? {
                return Err(self.used_by(container).into());
            }
        }
        Ok(prove_image_outside(&self.outside, image)?)
    }

    fn prove_names(&self, planned: &PlannedImage) -> Result<ImageRecord, Refusal> {
        let image = self
            .records
            .image(&planned.id)
            .cloned()
            .ok_or_else(|| Refusal::Unknown { kind: "image", id: planned.id.clone() })?;
        planned.prove_names(&image.names)?;
        Ok(image)
    }

    /// The refusal that names a container and its owner.
    pub(super) fn used_by(&self, container: &ContainerRecord) -> Refusal {
        let origin = owner::origin(&self.editor.places.within(), container, &self.directory_of(container));
        Refusal::UsedByContainer { id: container.id.clone(), name: origin.name, owner: origin.owner }
    }

    fn directory_of(&self, container: &ContainerRecord) -> PathBuf {
        let directory = self.directories[0].records(RecordKind::Containers);
        directory.map_or_else(|| self.directories[0].path.clone(), |d| d.path().join(&container.id))
    }

    /// Returns true if a container of CRI-O has, or may have, the image mounted as a volume.
    fn has_volume(&self, container: &ContainerRecord, image: &ImageRecord) -> Result<bool, Error> {
        let directory = self.directory_of(container);
        let within = self.editor.places.within();
        if owner::origin(&within, container, &directory).owner != Owner::CriO {
            return Ok(false);
        }
        let volumes = cri_o::image_volumes(&within, &directory)
            .map_err(|error| cannot_read(directory.join("userdata/config.json"), &error))?;
        Ok(volumes.ids.iter().any(|volume| may_be(volume, &image.id, &image.names, &image.digests)))
    }
}

/// A fault for an unreadable file. An error without an errno means that the content could not be parsed.
fn cannot_read(path: PathBuf, error: &io::Error) -> Fault {
    Fault::new("reading", path, Errno::from_io_error(error).unwrap_or(Errno::BADMSG))
}
