//! Deletes layers that have a record but no user: flagged incomplete, or unreferenced
//! for long.

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

/// Why a layer with a record may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// It is flagged incomplete: its making or its deletion was interrupted, and every library
    /// deletes it when it next opens the store. Whoever is still making it holds the lock that we hold then.
    Incomplete,
    /// No image and no container reaches it, and its record is at least this old: younger ones
    /// may be those of a pull or a build.
    Unreferenced(SignedDuration),
}

impl Unused {
    /// A layer that nothing reaches and that is `min_age` old, and never younger than 24 hours: so long
    /// may a pull take.
    #[must_use]
    pub fn unreferenced(min_age: SignedDuration) -> Self {
        Self::Unreferenced(min_age.max(leaks::GRACE))
    }
}

impl Editor {
    /// Deletes one layer for which the records know no use. Of a chain of such layers the top
    /// one goes first.
    ///
    /// # Errors
    /// [`Error::Refused`] where the reason does not hold (any more), where another layer is built
    /// on it, or where it is mounted. Other errors as documented.
    pub fn delete_unused_layer(&self, id: &str, why: Unused) -> Result<Deleted, Error> {
        Session::open(self, Read::Mounts)?.run(|session| {
            session.prove_unused(id, why)?;
            prove_layers_outside(&session.outside, &[id.to_owned()])?;
            let to_delete = session.prove_layers(&[id.to_owned()])?;
            session.delete_proven(&to_delete)
        })
    }
}

impl Session<'_> {
    fn prove_unused(&self, id: &str, why: Unused) -> Result<(), Error> {
        let unknown = || Refusal::Unknown { kind: "layer", id: id.to_owned() };
        let layer = self.records.layer(id).ok_or_else(unknown)?;
        match why {
            Unused::Incomplete if !layer.incomplete => {
                let what = "it is complete now".to_owned();
                return Err(Refusal::Changed { id: id.to_owned(), what }.into());
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

    /// Nothing that has a record needs the layer: none is built on it, and no image and no container has it as its own.
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
        match records.containers.iter().find(|other| other.layer.as_deref() == Some(id)) {
            Some(other) => Err(self.used_by(other)),
            None => Ok(()),
        }
    }

    /// No record of any kind names the layer, not even as something that is missing: a layer
    /// whose record was lost may still be put right by hand.
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
                // The flag is there; the record goes when nothing else is left.
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
    fn however_short_the_age_that_is_asked_for_a_pull_has_its_day() {
        for (asked, hours) in [(0, 24), (24, 24), (48, 48)] {
            let expected = Unused::Unreferenced(SignedDuration::from_hours(hours));
            assert_eq!(Unused::unreferenced(SignedDuration::from_hours(asked)), expected);
        }
    }
}
