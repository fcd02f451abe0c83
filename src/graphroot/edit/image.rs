//! Deleting an image, as `podman rmi` does it.

use super::error::{Error, Refusal};
use super::intent::Intent;
use super::locks::Guards;
use super::session::Session;
use super::{Deleted, Editor, doomed};
use crate::graphroot::owner;
use crate::graphroot::records::{ContainerRecord, ImageRecord};

/// An image as it was when its deletion was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedImage {
    /// Its id.
    pub id: String,
    /// Its names then: if they differ now, somebody has tagged or untagged it and may want it.
    /// `None` where the names do not matter.
    pub names: Option<Vec<String>>,
}

impl Editor {
    /// Deletes an image and the layers that only it needs.
    ///
    /// # Errors
    /// [`Error::Refused`] where a container (of any owner) uses it, where it is not as it was
    /// planned, or where a layer that would go is mounted or needed by anything; then nothing
    /// was changed. Others as they say.
    pub fn delete_image(&self, planned: &PlannedImage) -> Result<Deleted, Error> {
        if self.is_of_artifacts() {
            return self.delete_artifact(planned);
        }
        Session::open(self)?.run(|session| session.delete_image(planned))
    }
}

impl Session<'_> {
    fn delete_image(&mut self, planned: &PlannedImage) -> Result<(), Error> {
        let image = self.prove_image(planned)?;
        let records = &self.records;
        let layers = doomed::layers_of(&image, &records.layers, &records.images, &records.containers);
        self.outside.prove_layers(&layers)?;
        let doomed = self.prove_layers(&layers)?;
        let file = self.records.file_of(Guards::Images, &image.id)?;
        self.intend(Intent::new(Some(&image.id), layers, self));

        self.records.remove(file, &image.id)?;
        self.save(file)?;
        self.done.images.push(image.id.clone());
        self.remove_image_directory(self.records.files[file].place, &image.id);
        self.step("image directory removed");
        self.delete_layers(&doomed)
    }

    fn prove_image(&self, planned: &PlannedImage) -> Result<ImageRecord, Error> {
        let PlannedImage { id, names } = planned;
        let image = self.records.image(id).cloned();
        let image = image.ok_or_else(|| Refusal::Unknown { kind: "image", id: id.clone() })?;
        if let Some(container) = self.records.containers.iter().find(|c| c.image.as_ref() == Some(id)) {
            return Err(self.used_by(container).into());
        }
        self.outside.prove_image(&image)?;
        if let Some(planned) = names
            && !same_names(planned, &image.names)
        {
            let what = format!("its names are [{}] now", image.names.join(", "));
            return Err(Refusal::Changed { id: id.clone(), what }.into());
        }
        Ok(image)
    }

    /// The refusal that names a container and who made it.
    pub(super) fn used_by(&self, container: &ContainerRecord) -> Refusal {
        let directory = self.places[0].records(Guards::Containers);
        let path = directory.map_or_else(|| self.places[0].path.clone(), |d| d.path().join(&container.id));
        let origin = owner::origin(container, &path);
        Refusal::UsedByContainer { id: container.id.clone(), name: origin.name, owner: origin.owner }
    }

    /// What would not go is an orphan now, of a class that every library's collection removes.
    pub(super) fn remove_image_directory(&mut self, place: usize, id: &str) {
        let removal = self.places[place].records(Guards::Images).map(|images| images.remove_tree(id));
        removal.into_iter().for_each(|removal| self.done.note(removal));
    }
}

/// The order of names means nothing.
fn same_names(planned: &[String], now: &[String]) -> bool {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names.dedup();
        names
    };
    sorted(planned) == sorted(now)
}
