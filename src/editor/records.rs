//! The records of a store for editing: read completely under the locks, or not at all.

use std::collections::HashSet;
use std::path::PathBuf;

use super::error::{Error, Refusal};
use super::store_directory::StoreDirectory;
use super::table::{self, RecordTable};
use crate::stores::containers_storage::places::{MOST_RECORD_BYTES, RecordKind};
use crate::stores::containers_storage::records::{self, ContainerRecord, ImageRecord, LayerRecord};
use crate::sys::allowance::Allowance;

#[derive(Debug)]
pub(super) struct RecordFile {
    pub(super) kind: RecordKind,
    /// Index of its directory among the directories of the store.
    pub(super) dir_index: usize,
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The library does not sync the file.
    pub(super) volatile: bool,
    pub(super) table: RecordTable,
}

impl RecordFile {
    /// Changes the table in memory; [`super::session::Session::save`] writes it.
    pub(super) fn change(
        &mut self,
        change: impl FnOnce(&mut RecordTable) -> Result<(), table::TableFault>,
    ) -> Result<(), Refusal> {
        change(&mut self.table)
            .map_err(|error| Refusal::Damaged { path: self.path.clone(), message: error.to_string() })
    }
}

#[derive(Debug, Default)]
pub(super) struct LockedRecords {
    pub(super) files: Vec<RecordFile>,
    pub(super) layers: Vec<LayerRecord>,
    pub(super) images: Vec<ImageRecord>,
    pub(super) containers: Vec<ContainerRecord>,
}

impl LockedRecords {
    pub(super) fn load(directories: &[StoreDirectory]) -> Result<Self, Error> {
        let mut records = Self::default();
        let mut blanks = Vec::new();
        for (dir_index, directory) in directories.iter().enumerate() {
            for kind in RecordKind::ALL {
                let mut blank = true;
                for (name, volatile) in kind.files() {
                    let Some(directory) = directory.records(kind) else { continue };
                    let Some(content) = directory.read(&name, MOST_RECORD_BYTES)? else { continue };
                    blank &= content.is_empty();
                    records.add(kind, dir_index, directory.path().join(&name), name, volatile, &content)?;
                }
                if blank {
                    blanks.push((directory, kind));
                }
            }
        }
        // Only now all records are known: those of a transient store are in the runroot, which is last.
        for (directory, kind) in blanks {
            records.prove_blank(directory, kind)?;
        }
        Ok(records)
    }

    fn add(
        &mut self,
        kind: RecordKind,
        dir_index: usize,
        path: PathBuf,
        name: String,
        volatile: bool,
        content: &[u8],
    ) -> Result<(), Error> {
        let table = match RecordTable::parse(content) {
            Ok(table) => table,
            Err(error) => return Err(Refusal::Damaged { path, message: error.to_string() }.into()),
        };
        let allowance = Allowance::default();
        let problem = match kind {
            RecordKind::Layers => append(records::layers(content, volatile, &allowance), &mut self.layers),
            RecordKind::Images => append(records::images(content, &allowance), &mut self.images),
            RecordKind::Containers => {
                append(records::containers(content, volatile, &allowance), &mut self.containers)
            }
        };
        if let Some(message) = problem {
            return Err(Refusal::Damaged { path, message }.into());
        }
        self.files.push(RecordFile { kind, dir_index, name, path, volatile, table });
        Ok(())
    }

    /// Refuses empty or missing record files if there are objects that they should list. A crash or a full disk leaves
    /// such files; if they were believed, all objects would look like leaks.
    fn prove_blank(&self, directory: &StoreDirectory, kind: RecordKind) -> Result<(), Error> {
        let Some(objects) = directory.objects(kind) else { return Ok(()) };
        let known: HashSet<&str> = match kind {
            RecordKind::Layers => self.layers.iter().map(|layer| layer.id.as_str()).collect(),
            RecordKind::Images => self.images.iter().map(|image| image.id.as_str()).collect(),
            RecordKind::Containers => self.containers.iter().map(|container| container.id.as_str()).collect(),
        };
        let names = objects.names()?;
        let unknown = names
            .iter()
            .filter_map(|name| super::directory::id_of(name))
            .filter(|id| !known.contains(id))
            .count();
        if unknown == 0 {
            return Ok(());
        }
        let path =
            directory.records(kind).map_or_else(|| objects.path().to_path_buf(), |d| d.path().to_path_buf());
        let [(file, _), _] = kind.files();
        let message = format!("has no records, though {} has {unknown} objects", objects.path().display());
        Err(Refusal::Damaged { path: path.join(file), message }.into())
    }

    pub(super) fn layer(&self, id: &str) -> Option<&LayerRecord> {
        self.layers.iter().find(|layer| layer.id == id)
    }

    pub(super) fn image(&self, id: &str) -> Option<&ImageRecord> {
        self.images.iter().find(|image| image.id == id)
    }

    pub(super) fn container(&self, id: &str) -> Option<&ContainerRecord> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// The one file that has this record.
    pub(super) fn file_of(&self, kind: RecordKind, id: &str) -> Result<usize, Refusal> {
        let files = self.files.iter().enumerate();
        let mut matching = files.filter(|(_, file)| file.kind == kind && file.table.has(id));
        let kind = kind.singular();
        let (first, _) = matching.next().ok_or_else(|| Refusal::Unknown { kind, id: id.to_owned() })?;
        match matching.next() {
            None => Ok(first),
            // Library versions differ in which of the records they use.
            Some((_, second)) => Err(Refusal::Damaged {
                path: second.path.clone(),
                message: format!("has {kind} {id}, and so has {}", self.files[first].path.display()),
            }),
        }
    }

    /// Removes a record in memory; [`super::session::Session::save`] writes its file.
    pub(super) fn remove(&mut self, file: usize, id: &str) -> Result<(), Refusal> {
        let file = &mut self.files[file];
        file.change(|table| table.remove(id))?;
        match file.kind {
            RecordKind::Layers => self.layers.retain(|layer| layer.id != id),
            RecordKind::Images => self.images.retain(|image| image.id != id),
            RecordKind::Containers => self.containers.retain(|container| container.id != id),
        }
        Ok(())
    }
}

/// Appends the parsed records to `into`. Returns the first problem, if there is one.
fn append<T>(parsed: records::Parsed<T>, into: &mut Vec<T>) -> Option<String> {
    into.extend(parsed.records);
    let problem = parsed.problems.into_iter().next();
    problem.or_else(|| parsed.damaged.then(|| "is damaged".into()))
}
