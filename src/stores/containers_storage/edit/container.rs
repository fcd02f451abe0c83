//! Deletes the storage of a dead container.

use super::deleted::Deleted;
use super::editor::Editor;
use super::error::{Error, Refusal};
use super::mounted::Read;
use super::session::Session;
use crate::stores::containers_storage::places::RecordKind;

impl Editor {
    /// Deletes a container's storage: its layer first, so that a crash never loses the only
    /// pointer to it, then its directories, then its record. Podman's own database keeps its
    /// row; `podman rm` removes that afterwards.
    ///
    /// The caller has proven that the owner is not running and does not list the container as
    /// alive. Proven here: no process belongs to it, nothing of it is mounted in any namespace.
    ///
    /// # Errors
    /// [`Error::Refused`] otherwise; then nothing was changed. Other errors as documented.
    pub fn delete_dead_container(&self, id: &str) -> Result<Deleted, Error> {
        Session::open(self, Read::Processes)?.run(|session| session.delete_container(id))
    }
}

impl Session<'_> {
    fn delete_container(&mut self, id: &str) -> Result<(), Error> {
        self.evidence.prove_no_process(id)?;
        let container = self.records.container(id).cloned();
        let container = container.ok_or_else(|| Refusal::Unknown { kind: "container", id: id.to_owned() })?;
        let layer = container.layer.filter(|layer| self.records.layer(layer).is_some());
        let layers: Vec<String> = layer.into_iter().collect();
        for layer in &layers {
            self.prove_unreferenced(layer, Some(id))?;
        }
        let to_delete = self.prove_layers(&layers)?;
        self.prove_directories_of(id)?;
        self.record_intent(Vec::new(), Some(id.to_owned()), &layers);

        self.delete_proven(&to_delete)?;
        self.forget_container(id)
    }

    /// Finishes what a killed run began: of a container whose layer has gone, the directories and
    /// the record go as well. As long as the layer exists nothing is lost, and the deletion is
    /// decided again.
    pub(super) fn finish_container(&mut self, id: &str) -> Result<(), Error> {
        let Some(container) = self.records.container(id) else { return Ok(()) };
        match &container.layer {
            Some(layer) if self.records.layer(layer).is_none() => {}
            _ => return Ok(()),
        }
        self.evidence.prove_no_process(id)?;
        self.prove_directories_of(id)?;
        self.forget_container(id)
    }

    /// Its directories, then its record.
    fn forget_container(&mut self, id: &str) -> Result<(), Error> {
        let file = self.records.file_of(RecordKind::Containers, id)?;
        for dir_index in 0..self.directories.len() {
            self.discard_object(dir_index, RecordKind::Containers, id)?;
        }
        self.step("container directory removed");
        self.records.remove(file, id)?;
        self.save(file)?;
        self.done.containers.push(id.to_owned());
        Ok(())
    }

    /// Its `userdata` has mounts of its own (`shm`).
    fn prove_directories_of(&self, id: &str) -> Result<(), Refusal> {
        let mut directories =
            self.directories.iter().filter_map(|directory| directory.records(RecordKind::Containers));
        directories
            .try_for_each(|containers| self.evidence.prove_unmounted(&containers.path().join(id), &[id]))
    }
}
