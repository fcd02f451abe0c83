//! The editors of a scan's stores, and the reserve files beside them.

use std::cell::LazyCell;
use std::path::Path;

use crate::editor::{
    BegunDeletion, Deleted, Editor, Error, IsKept, LookOutside, Options, Refusal, ReserveFile,
};
use crate::execute::gauges::Gauges;
use crate::history::runs::DeletionRow;
use crate::model::{FilesystemIx, Inventory, Store, StoreId, StoreIx};
use crate::policy::FullFilesystem;
use crate::stores::{self, Scan};

#[derive(Debug)]
pub struct Editors {
    /// By store id, which is the same in every scan; `Err`: the reason for which the store is not edited.
    stores: Vec<(StoreId, Result<Editor, Closed>)>,
    reserve_files: Vec<ReserveFile>,
}

#[derive(Debug)]
struct Closed {
    why: String,
    /// Its user can edit it, in podman's user namespace.
    by_its_user: bool,
    /// Only podman knows the layout of its driver.
    by_podman: bool,
}

impl From<&Refusal> for Closed {
    fn from(refusal: &Refusal) -> Self {
        let by_its_user = matches!(refusal, Refusal::OtherOwner { .. } | Refusal::OutsideNamespace);
        Self { why: refusal.to_string(), by_its_user, by_podman: matches!(refusal, Refusal::Driver(_)) }
    }
}

impl Editors {
    /// Creates the editors of the stores of `scan`. Opens and writes nothing yet. A reserve file that exists, in the
    /// store or in `state_dir`, is released if there is no room, and is created again. `trusts_namespace`: all
    /// processes that can use the stores are in this process's PID namespace, even if that is not the machine's first.
    #[must_use]
    pub fn of(scan: &Scan, state_dir: &Path, trusts_namespace: bool) -> Self {
        let mut all: Vec<ReserveFile> = Vec::new();
        let stores = scan
            .inventory
            .stores
            .iter()
            .zip(&scan.editable)
            .map(|(store, places)| {
                let key = StoreId::of(store);
                let Some(places) = places else {
                    let why = format!("only {} deletes there", store.kind.as_str());
                    return (key, Err(Closed { why, by_its_user: false, by_podman: false }));
                };
                if store.is_of_artifacts() {
                    let why = "artifacts are not deleted directly: podman artifact rm NAME".to_owned();
                    return (key, Err(Closed { why, by_its_user: false, by_podman: false }));
                }
                let reserve_files = ReserveFile::of_store(places, state_dir).unwrap_or_else(|error| {
                    tracing::warn!(%error, store = %store.root.display(), "no reserve file");
                    Vec::new()
                });
                for reserve_file in &reserve_files {
                    if all.iter().all(|known| known.path() != reserve_file.path()) {
                        all.push(reserve_file.clone());
                    }
                }
                let reserve_files = reserve_files.into_iter().filter(ReserveFile::exists).collect();
                let (request, store_places) = (scan.request.clone(), places.clone());
                let outside: LookOutside = Box::new(move || stores::outside(&request, &store_places));
                let (outside, present) = (Some(outside), Some(scan.present.clone()));
                let trust_pid_namespace = trusts_namespace;
                let options =
                    Options { reserve_files, outside, present, trust_pid_namespace, ..Options::default() };
                (key, Editor::new(places, options).map_err(|refusal| Closed::from(&refusal)))
            })
            .collect();
        Self { stores, reserve_files: all }
    }

    /// Returns the editor of a store.
    ///
    /// # Errors
    /// The reason for which it is not edited.
    pub fn store(&self, store: &Store) -> Result<&Editor, &str> {
        self.find(&StoreId::of(store))
    }

    pub(super) fn find(&self, id: &StoreId) -> Result<&Editor, &str> {
        match self.stores.iter().find(|(known, _)| known == id) {
            Some((_, Ok(editor))) => Ok(editor),
            Some((_, Err(closed))) => Err(&closed.why),
            None => Err("it did not exist when the run began"),
        }
    }

    /// Returns the reason for which only its user, or only podman, can edit a store; `None` for other stores.
    #[must_use]
    pub fn stays_closed(&self, store: &Store) -> Option<String> {
        let id = StoreId::of(store);
        let editor = self.stores.iter().find(|(known, _)| *known == id).map(|(_, editor)| editor)?;
        let closed = editor.as_ref().err()?;
        (closed.by_its_user || closed.by_podman).then(|| closed.why.clone())
    }

    /// Returns true if a store can be edited by its user alone.
    #[must_use]
    pub fn need_their_user(&self) -> bool {
        self.stores.iter().any(|(_, editor)| editor.as_ref().is_err_and(|closed| closed.by_its_user))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stores.iter().all(|(_, editor)| editor.is_err())
    }

    /// Returns true if killed runs left deletions to finish. `begun`: the deletions in the journal.
    #[must_use]
    pub fn are_unfinished(&self, begun: &[DeletionRow]) -> bool {
        let mut editors = self.editors();
        editors.any(|(key, editor)| !begun_in(key, begun).is_empty() || editor.is_unfinished())
    }

    /// Finishes the deletions that killed runs began. Returns one entry for each store that has an editor.
    #[must_use]
    pub fn resume(
        &self,
        begun: &[DeletionRow],
        is_kept: IsKept<'_>,
    ) -> Vec<(StoreId, Result<Deleted, Error>)> {
        let editors = self.editors();
        editors.map(|(key, editor)| (key.clone(), editor.resume(&begun_in(key, begun), is_kept))).collect()
    }

    fn editors(&self) -> impl Iterator<Item = (&StoreId, &Editor)> {
        self.stores.iter().filter_map(|(key, editor)| Some((key, editor.as_ref().ok()?)))
    }

    /// Creates the reserve files for the next run, if there is room: a plan does not count their bytes.
    pub fn make_reserve_files(&self) {
        for reserve_file in &self.reserve_files {
            match reserve_file.prepare() {
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, path = %reserve_file.path().display(), "no reserve file")
                }
            }
        }
    }

    /// Bytes allocated to the reserve files on the filesystem `device` (`st_dev`) now.
    #[must_use]
    pub fn reserve_file_bytes(&self, device: u64) -> u64 {
        let here = self.reserve_files.iter().filter(|reserve_file| reserve_file.device() == device);
        here.map(ReserveFile::taken_bytes).sum()
    }

    /// Filesystems on which no deletion can begin, for each editable store for which `counts` returns true.
    #[must_use]
    pub fn full_filesystems(
        &self,
        inventory: &Inventory,
        counts: impl Fn(StoreIx, &Editor) -> bool,
    ) -> Vec<FullFilesystem> {
        let stores = inventory.stores.iter().enumerate();
        let editors =
            stores.filter_map(|(store_ix, store)| Some((StoreIx::from(store_ix), self.store(store).ok()?)));
        let editors = editors.filter(|(store, editor)| counts(*store, editor));
        let full = editors.flat_map(|(store, editor)| {
            editor.full_filesystems().into_iter().map(move |(device, to_free)| (store, device, to_free))
        });
        let gauges = LazyCell::new(|| Gauges::open(inventory, None));
        let full = full.filter_map(|(store, device, to_free)| {
            let mut all = (0..inventory.filesystems.len()).map(FilesystemIx::from);
            let filesystem = all.find(|filesystem_ix| gauges.device(Some(*filesystem_ix)) == Some(device))?;
            Some(FullFilesystem { store, filesystem, to_free })
        });
        full.collect()
    }
}

fn begun_in(store: &StoreId, begun: &[DeletionRow]) -> Vec<BegunDeletion> {
    let of_store = begun.iter().filter(|row| row.store.as_ref() == Some(store));
    of_store.map(|row| BegunDeletion { image: row.id.clone(), layers: row.layers.clone() }).collect()
}
