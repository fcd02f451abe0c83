//! Deletes layers that have a record but no user: layers flagged incomplete, and layers unreferenced for long.

use std::path::PathBuf;

use jiff::SignedDuration;

use super::deleted::Deleted;
use super::error::{Error, Refusal};
use super::graphroot_editor::Editor;
use super::mounted::Read;
use super::outside::prove_layers_outside;
use super::session::Session;
use super::to_delete::LayerToDelete;
use crate::stores::leaks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// It is flagged incomplete: its creation or its deletion was interrupted, and every library deletes it when it
    /// next opens the store. No process is still creating it, since that process would hold the lock that the editor
    /// holds.
    Incomplete,
    /// No image and no container uses it, and its record is at least this old: a younger one may belong to a pull or a
    /// build.
    Unreferenced(SignedDuration),
}

impl Unused {
    /// An unreferenced layer that is at least `min_age` old, and never younger than 24 hours, the maximum time of a
    /// pull.
    #[must_use]
    pub fn unreferenced(min_age: SignedDuration) -> Self {
        Self::Unreferenced(min_age.max(leaks::GRACE))
    }
}

impl Editor {
    /// Deletes one layer that no record uses. In a chain of such layers, the top one has to be deleted first.
    ///
    /// # Errors
    /// [`Error::Refused`] if `why` is not true (any more), if another layer is built on it, or if it is mounted. Other
    /// errors as documented.
    pub fn delete_unused_layer(&self, id: &str, why: Unused) -> Result<Deleted, Error> {
        Session::open(self, Read::Processes)?.run(|session| {
            session.prove_unused(id, why)?;
            prove_layers_outside(&session.outside, &[id.to_owned()])?;
            let to_delete = session.prove_layers(&[id.to_owned()])?;
            for layer in &to_delete {
                session.prove_directory_not_held(layer.dir_index, &layer.id)?;
            }
            session.delete_proven(&to_delete)
        })
    }
}

impl Session<'_> {
    fn prove_unused(&self, id: &str, why: Unused) -> Result<(), Error> {
        let Some(layer) = self.records.layer(id) else {
            return Err(Refusal::Unknown { kind: "layer", id: id.to_owned() }.into());
        };
        match why {
            Unused::Incomplete if !layer.incomplete => {
                let change = "it is complete now".to_owned();
                return Err(Refusal::Changed { id: id.to_owned(), change }.into());
            }
            Unused::Unreferenced(wanted) => {
                let age = leaks::age(layer.created, &self.editor.present());
                if age.is_none_or(|age| age < wanted) {
                    return Err(Refusal::Young { path: PathBuf::from(id), age, wanted }.into());
                }
            }
            Unused::Incomplete => {}
        }
        Ok(self.prove_unreferenced(id)?)
    }

    /// Proves that no layer is built on this one, and that it is the top layer of no image and no container.
    pub(super) fn prove_unreferenced(&self, id: &str) -> Result<(), Refusal> {
        let records = &self.records;
        if let Some(child) = records.layers.iter().find(|layer| layer.parent.as_deref() == Some(id)) {
            return Err(Refusal::HasChild { layer: id.to_owned(), child: child.id.clone() });
        }
        let image = records.images.iter().find(|image| {
            image.layer.as_deref() == Some(id) || image.mapped_layers.iter().any(|mapped| mapped == id)
        });
        if let Some(image) = image {
            return Err(Refusal::UsedByImage { layer: id.to_owned(), image: image.id.clone() });
        }
        match records.containers.iter().find(|container| container.layer.as_deref() == Some(id)) {
            Some(container) => Err(self.used_by(container)),
            None => Ok(()),
        }
    }

    /// Proves that no record of any kind names the layer. If another record names it, its own record was lost, and an
    /// administrator may still repair that by hand.
    pub(super) fn prove_layer_unnamed(&self, id: &str) -> Result<(), Refusal> {
        if self.records.layer(id).is_some() {
            return Err(Refusal::Recorded { id: id.to_owned() });
        }
        self.prove_unreferenced(id)
    }

    /// Deletes layers that were proven to be unused, flagged ones included.
    pub(super) fn delete_proven(&mut self, to_delete: &[LayerToDelete]) -> Result<(), Error> {
        for layer in to_delete {
            let flagged = self.records.layer(&layer.id).is_some_and(|record| record.incomplete);
            if flagged {
                // The flag is set; the record is removed last.
                self.take_apart(layer)?;
                self.records.remove(layer.file, &layer.id)?;
                self.save(layer.file)?;
                self.done.layers.push(layer.id.clone());
            } else {
                self.delete_layers(std::slice::from_ref(layer))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreferenced_layer_is_kept_for_a_day() {
        for (min_age, hours) in [(0, 24), (24, 24), (48, 48)] {
            let expected = Unused::Unreferenced(SignedDuration::from_hours(hours));
            assert_eq!(Unused::unreferenced(SignedDuration::from_hours(min_age)), expected);
        }
    }
}
