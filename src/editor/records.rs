//! All records of a store for editing: read completely under the locks, or not at all.

use std::collections::HashSet;
use std::path::PathBuf;

use super::error::{Error, Refusal};
use super::store_directory::StoreDirectory;
use super::table::{self, Table};
use crate::stores::containers_storage::places::{MOST_RECORD_BYTES, RecordKind};
use crate::stores::containers_storage::records::{self, ContainerRecord, ImageRecord, LayerRecord};
use crate::sys::allowance::Allowance;

/// One record file.
#[derive(Debug)]
pub(super) struct RecordFile {
    pub(super) kind: RecordKind,
    /// Index of its directory.
    pub(super) dir_index: usize,
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The library does not wait for these to reach the disk.
    pub(super) volatile: bool,
    pub(super) table: Table,
}

impl RecordFile {
    /// Changes what it says; it is still to be saved.
    pub(super) fn change(
        &mut self,
        change: impl FnOnce(&mut Table) -> Result<(), table::Error>,
    ) -> Result<(), Refusal> {
        let damaged =
            |error: table::Error| Refusal::Damaged { path: self.path.clone(), message: error.to_string() };
        change(&mut self.table).map_err(damaged)
    }
}

/// The records of all files.
#[derive(Debug, Default)]
pub(super) struct LockedRecords {
    pub(super) files: Vec<RecordFile>,
    pub(super) layers: Vec<LayerRecord>,
    pub(super) images: Vec<ImageRecord>,
    pub(super) containers: Vec<ContainerRecord>,
}

impl LockedRecords {
    /// Reads every record file of every directory.
    pub(super) fn load(directories: &[StoreDirectory]) -> Result<Self, Error> {
        let mut records = Self::default();
        let mut blanks = Vec::new();
        for (at, directory) in directories.iter().enumerate() {
            for kind in RecordKind::ALL {
                let mut blank = true;
                for (name, volatile) in kind.files() {
                    let Some(directory) = directory.records(kind) else { continue };
                    let Some(content) = directory.read(&name, MOST_RECORD_BYTES)? else { continue };
                    blank &= content.is_empty();
                    records.add(kind, at, directory.path().join(&name), name, volatile, &content)?;
                }
                if blank {
                    blanks.push((directory, kind));
                }
            }
        }
        // A transient store's records are in the runroot, which comes last.
        for (directory, kind) in blanks {
            records.doubt(directory, kind)?;
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
        let damaged = |message: String| Refusal::Damaged { path: path.clone(), message };
        let free = Allowance::default();
        let table = Table::parse(content).map_err(|error| damaged(error.to_string()))?;
        let problems = match kind {
            RecordKind::Layers => take(records::layers(content, volatile, &free), &mut self.layers),
            RecordKind::Images => take(records::images(content, &free), &mut self.images),
            RecordKind::Containers => {
                take(records::containers(content, volatile, &free), &mut self.containers)
            }
        };
        if let Some(problem) = problems {
            return Err(damaged(problem).into());
        }
        self.files.push(RecordFile { kind, dir_index, name, path, volatile, table });
        Ok(())
    }

    /// Empty or missing files beside objects: what a crash or a full disk leaves. Taken at
    /// their word, everything would look like a leak.
    fn doubt(&self, directory: &StoreDirectory, kind: RecordKind) -> Result<(), Error> {
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
        let mut of =
            (0..self.files.len()).filter(|&at| self.files[at].kind == kind && self.files[at].table.has(id));
        let kind = kind.singular();
        let first = of.next().ok_or_else(|| Refusal::Unknown { kind, id: id.to_owned() })?;
        match of.next() {
            None => Ok(first),
            // Which of them counts depends on the library's version.
            Some(second) => Err(Refusal::Damaged {
                path: self.files[second].path.clone(),
                message: format!("has {kind} {id}, and so has {}", self.files[first].path.display()),
            }),
        }
    }

    /// Takes a record out of its file; the file is still to be saved.
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

/// The first problem, if there is one.
fn take<T>(parsed: records::Parsed<T>, into: &mut Vec<T>) -> Option<String> {
    into.extend(parsed.records);
    let problem = parsed.problems.into_iter().next();
    problem.or_else(|| parsed.damaged.then(|| "is damaged".into()))
}
