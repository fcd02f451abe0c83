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

/// One editor a store, where it can be edited.
#[derive(Debug)]
pub struct Editors {
    /// By store id, which is the same in every scan; `Err`: why it is not edited.
    stores: Vec<(StoreId, Result<Editor, Closed>)>,
    reserve_files: Vec<ReserveFile>,
}

/// Why a store is not edited.
#[derive(Debug)]
struct Closed {
    why: String,
    /// Its user can, in the user namespace of podman.
    by_its_user: bool,
}

impl From<&Refusal> for Closed {
    fn from(refusal: &Refusal) -> Self {
        let by_its_user = matches!(refusal, Refusal::OtherOwner { .. } | Refusal::OutsideNamespace);
        Self { why: refusal.to_string(), by_its_user }
    }
}

impl Editors {
    /// For every store of `scan`. `state_dir` may have a reserve file; nothing is
    /// opened or written yet. A reserve file that exists is used where there is no room, and made again. `trusts_namespace`: all processes that can use the stores are in our PID
    /// namespace, whichever that is.
    #[must_use]
    pub fn of(scan: &Scan, state_dir: &Path, trusts_namespace: bool) -> Self {
        let mut all = Vec::new();
        let stores = scan.inventory.stores.iter().zip(&scan.places).map(|(store, places)| {
            let key = StoreId::of(store);
            let Some(places) = places else {
                let why = format!("only {} deletes there", store.kind.as_str());
                return (key, Err(Closed { why, by_its_user: false }));
            };
            if store.is_of_artifacts() {
                let why = "artifacts are not deleted directly: podman artifact rm NAME".to_owned();
                return (key, Err(Closed { why, by_its_user: false }));
            }
            let reserve_files = ReserveFile::of_store(places, state_dir).unwrap_or_else(|error| {
                tracing::warn!(%error, store = %store.root.display(), "no reserve file");
                Vec::new()
            });
            for one in &reserve_files {
                if all.iter().all(|known: &ReserveFile| known.path() != one.path()) {
                    all.push(one.clone());
                }
            }
            let reserve_files = reserve_files.into_iter().filter(ReserveFile::exists).collect();
            let (request, asked) = (scan.request.clone(), places.clone());
            let outside: LookOutside = Box::new(move || stores::outside(&request, &asked));
            let (outside, present) = (Some(outside), Some(scan.present.clone()));
            let trust_pid_namespace = trusts_namespace;
            let options =
                Options { reserve_files, outside, present, trust_pid_namespace, ..Options::default() };
            (key, Editor::new(places, options).map_err(|refusal| Closed::from(&refusal)))
        });
        let stores = stores.collect();
        Self { stores, reserve_files: all }
    }

    /// The editor of a store.
    ///
    /// # Errors
    /// Why it is not edited.
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

    /// Why a store can be edited by its user alone, if so.
    #[must_use]
    pub fn needs_its_user(&self, store: &Store) -> Option<String> {
        let id = StoreId::of(store);
        let editor = self.stores.iter().find(|(known, _)| *known == id).map(|(_, editor)| editor)?;
        editor.as_ref().err().filter(|closed| closed.by_its_user).map(|closed| closed.why.clone())
    }

    /// Some store can be edited by its user alone.
    #[must_use]
    pub fn need_their_user(&self) -> bool {
        self.stores.iter().any(|(_, editor)| editor.as_ref().is_err_and(|closed| closed.by_its_user))
    }

    /// No store can be edited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stores.iter().all(|(_, editor)| editor.is_err())
    }

    /// Returns true if killed runs left deletions to finish; `begun`: those in the journal.
    #[must_use]
    pub fn are_unfinished(&self, begun: &[DeletionRow]) -> bool {
        let mut editors = self.editors();
        editors.any(|(key, editor)| !begun_in(key, begun).is_empty() || editor.is_unfinished())
    }

    /// Finishes what killed runs of ours began; one entry a store that has an editor.
    #[must_use]
    pub fn resume(
        &self,
        begun: &[DeletionRow],
        is_kept: IsKept<'_>,
    ) -> Vec<(StoreId, Result<Deleted, Error>)> {
        let resume =
            |(key, editor): (&StoreId, &Editor)| (key.clone(), editor.resume(&begun_in(key, begun), is_kept));
        self.editors().map(resume).collect()
    }

    fn editors(&self) -> impl Iterator<Item = (&StoreId, &Editor)> {
        self.stores.iter().filter_map(|(key, editor)| Some((key, editor.as_ref().ok()?)))
    }

    /// Makes the reserve files where there is room, for the next run: a plan does not count what they take.
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

    /// Bytes that the reserve file takes on the filesystem `device` (`st_dev`) now.
    #[must_use]
    pub fn reserve_file_bytes(&self, device: u64) -> u64 {
        self.reserve_files.iter().filter(|one| one.device() == device).map(ReserveFile::taken_bytes).sum()
    }

    /// Filesystems on which no deletion can begin, for each editable store whose editor satisfies `of`.
    #[must_use]
    pub fn full_filesystems(
        &self,
        inventory: &Inventory,
        of: impl Fn(&Editor) -> bool,
    ) -> Vec<FullFilesystem> {
        let stores = inventory.stores.iter().enumerate();
        let editors = stores.filter_map(|(at, store)| Some((StoreIx::from(at), self.store(store).ok()?)));
        let editors = editors.filter(|(_, editor)| of(editor));
        let full = editors.flat_map(|(store, editor)| {
            editor.full_filesystems().into_iter().map(move |(device, to_free)| (store, device, to_free))
        });
        let gauges = LazyCell::new(|| Gauges::open(inventory, None));
        let with_place = |(store, device, to_free)| {
            let mut all = (0..inventory.filesystems.len()).map(FilesystemIx::from);
            let filesystem = all.find(|at| gauges.device(Some(*at)) == Some(device))?;
            Some(FullFilesystem { store, filesystem, to_free })
        };
        full.filter_map(with_place).collect()
    }
}

/// The deletions of images that were begun in a store.
fn begun_in(store: &StoreId, begun: &[DeletionRow]) -> Vec<BegunDeletion> {
    let of_store = begun.iter().filter(|row| row.store.as_ref() == Some(store));
    let deletion = |row: &DeletionRow| BegunDeletion { image: row.id.clone(), layers: row.layers.clone() };
    of_store.map(deletion).collect()
}
