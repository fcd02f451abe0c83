//! Deletes layers that have a record.

use std::collections::BTreeSet;

use rustix::fs::{StatxAttributes, StatxFlags};

use super::error::{Error, Fault, Refusal};
use super::links;
use super::session::Session;
use super::store_directory::Role;
use super::to_delete::LayerToDelete;
use crate::stores::containers_storage::places::RecordKind;
use crate::sys::beneath::AS_IT_IS;
use crate::sys::stop;

impl Session<'_> {
    /// Proves, beyond the records, that only these layers need each other: nothing is mounted there, no other
    /// directory's `lower` names them, and none is immutable.
    pub(super) fn prove_layers(&mut self, ids: &[String]) -> Result<Vec<LayerToDelete>, Error> {
        let mut to_delete = Vec::new();
        for id in ids {
            let file = self.records.file_of(RecordKind::Layers, id)?;
            let dir_index = self.directory_of_layers(file);
            let links = self.links_of(dir_index, id)?;
            to_delete.push(LayerToDelete { id: id.clone(), file, dir_index, links });
        }
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        for layer in &to_delete {
            self.prove_no_lower(&layer.id, &layer.links, &ids)?;
            self.prove_mutable(layer.dir_index, &layer.id)?;
        }
        for layer in &to_delete {
            self.prove_directory_unmounted(layer.dir_index, &layer.id, &layer.links)?;
        }
        Ok(to_delete)
    }

    /// Index of the directory that contains the layers of a record file. Volatile records in a runroot describe layers
    /// in the graphroot.
    pub(super) fn directory_of_layers(&self, file: usize) -> usize {
        let recorded = self.records.files[file].dir_index;
        if self.directories[recorded].role == Role::Runroot { 0 } else { recorded }
    }

    pub(super) fn links_of(&self, dir_index: usize, id: &str) -> Result<BTreeSet<String>, Fault> {
        let Some(layers) = &self.directories[dir_index].layers else { return Ok(BTreeSet::new()) };
        self.editor.with_links(dir_index, |links| links.of(id, layers)).unwrap_or_else(|| Ok(BTreeSet::new()))
    }

    /// Proves that no layer with a record, except those in `except`, has any of `names` in its `lower` or `id` in its
    /// `lower-layers`. The records should say the same. A directory without a record does not count, since it cannot be
    /// mounted.
    pub(super) fn prove_no_lower(
        &self,
        id: &str,
        names: &BTreeSet<String>,
        except: &[&str],
    ) -> Result<(), Refusal> {
        let mut names = names.clone();
        names.insert(id.to_owned());
        // In a split store a container's layer in the graphroot is above layers in the imagestore.
        for dir_index in 0..self.directories.len() {
            let child = self.editor.with_links(dir_index, |links| {
                links.user(&names, |user| !except.contains(&user) && self.records.layer(user).is_some())
            });
            if let Some(Some(child)) = child {
                return Err(Refusal::HasChild { layer: id.to_owned(), child });
            }
        }
        Ok(())
    }

    pub(super) fn prove_directory_unmounted(
        &self,
        dir_index: usize,
        id: &str,
        links: &BTreeSet<String>,
    ) -> Result<(), Refusal> {
        let layers = self.directories[dir_index].layers.as_ref();
        layers.map_or(Ok(()), |layers| self.evidence.prove_layer_unmounted(layers, id, links))
    }

    /// Refuses a directory that a process or the kernel uses. The session must have read the processes.
    pub(super) fn prove_directory_not_held(&self, dir_index: usize, id: &str) -> Result<(), Refusal> {
        let layers = self.directories[dir_index].layers.as_ref();
        layers.map_or(Ok(()), |layers| self.evidence.prove_not_held(&layers.path().join(id)))
    }

    /// Refuses an immutable directory, which cannot be moved: a layer that is flagged but not deleted would make every
    /// command of the runtime fail.
    pub(super) fn prove_mutable(&self, dir_index: usize, id: &str) -> Result<(), Error> {
        let Some(layers) = &self.directories[dir_index].layers else { return Ok(()) };
        for name in [".", id] {
            let stat = match rustix::fs::statx(layers.fd(), name, AS_IT_IS, StatxFlags::BASIC_STATS) {
                Ok(stat) => stat,
                // Without a directory there is nothing to delete; if statx fails otherwise, the rename decides.
                Err(_) => continue,
            };
            if stat.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
                return Err(Refusal::Immutable(layers.path().join(name)).into());
            }
        }
        Ok(())
    }

    /// Deletes proven layers in the given order: each before its parent.
    pub(super) fn delete_layers(&mut self, to_delete: &[LayerToDelete]) -> Result<(), Error> {
        if self.uses_flags() {
            return to_delete.iter().try_for_each(|layer| {
                if stop::is_requested() { Err(Error::Interrupted) } else { self.delete_flagged(layer) }
            });
        }
        // Without flags all records are removed first, and a crash leaves plain orphans.
        let files: BTreeSet<usize> = to_delete.iter().map(|layer| layer.file).collect();
        for layer in to_delete {
            self.records.remove(layer.file, &layer.id)?;
        }
        for file in files {
            self.save(file)?;
        }
        for layer in to_delete {
            self.take_apart(layer)?;
            self.done.layers.push(layer.id.clone());
        }
        Ok(())
    }

    /// Flags the layer, deletes its files, and removes its record. After a crash the next process finds the flag and
    /// continues.
    fn delete_flagged(&mut self, layer: &LayerToDelete) -> Result<(), Error> {
        let before = (self.records.files[layer.file].table.clone(), self.done.has_changed);
        self.records.files[layer.file].change(|table| table.flag_incomplete(&layer.id))?;
        self.save(layer.file)?;
        if let Err(error) = self.take_apart(layer) {
            // Some of its files may be deleted: keep the flag, by which the next process finishes.
            let layers = self.directories[layer.dir_index].layers.as_ref();
            let is_there = layers.is_some_and(|layers| layers.has(&layer.id).unwrap_or(false));
            if error.is_interrupted() || !is_there {
                return Err(error);
            }
            // Only its links are deleted.
            tracing::warn!(%error, layer = layer.id, "clearing the flag");
            let (table, had_changed) = before;
            self.records.files[layer.file].table = table;
            self.restore_links(layer);
            self.save(layer.file)?;
            self.done.has_changed = had_changed || self.has_quarantined();
            return Err(error);
        }
        self.records.remove(layer.file, &layer.id)?;
        self.save(layer.file)?;
        self.done.layers.push(layer.id.clone());
        Ok(())
    }

    fn restore_links(&self, layer: &LayerToDelete) {
        let directory = &self.directories[layer.dir_index];
        let links =
            directory.layers.as_ref().and_then(|layers| layers.below(links::DIRECTORY).ok().flatten());
        let Some(links) = links else { return };
        let target = std::path::Path::new("..").join(&layer.id).join("diff");
        for name in &layer.links {
            if let Err(fault) = links.make_symlink(&target, name) {
                tracing::warn!(%fault, layer = layer.id, "`sweep --repair missing-link` recreates the name");
            }
        }
    }

    /// Deletes a layer except for its record.
    pub(super) fn take_apart(&mut self, layer: &LayerToDelete) -> Result<(), Error> {
        self.remove_links(layer.dir_index, &layer.links)?;
        self.discard(layer.dir_index, &layer.id)?;
        self.remove_layer_data(&layer.id)
    }

    pub(super) fn remove_links(&mut self, dir_index: usize, names: &BTreeSet<String>) -> Result<(), Error> {
        let Some(layers) = self.directories[dir_index].layers.as_ref().filter(|_| !names.is_empty()) else {
            return Ok(());
        };
        if let Some(links) = layers.below(links::DIRECTORY)? {
            for name in names {
                self.done.has_changed |= links.unlink(name)?;
                self.step("link removed");
            }
        }
        Ok(())
    }

    /// Deletes a layer's tar-split and big data. In a split store they are in the graphroot even if the layer's
    /// directory is in the imagestore.
    pub(super) fn remove_layer_data(&mut self, id: &str) -> Result<(), Error> {
        for dir_index in 0..self.directories.len() {
            for name in [format!("{id}.tar-split.gz"), id.to_owned()] {
                if self.discard_object(dir_index, RecordKind::Layers, &name)? {
                    self.step("layer data removed");
                }
            }
        }
        Ok(())
    }
}
