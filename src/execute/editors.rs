//! The editors of a survey's stores, and the ballast beside them.

use std::path::Path;

use crate::model::{Store, StoreId};
use crate::stores::containers_storage::edit::{Ballast, Deleted, Editor, Error, Look, Options, Refusal};
use crate::stores::{self, Survey};

/// One editor a store, where it can be edited.
#[derive(Debug)]
pub struct Editors {
    /// By what names a store in any survey; else why it is not edited.
    stores: Vec<(StoreId, Result<Editor, Closed>)>,
    ballast: Vec<Ballast>,
}

/// Why a store is not edited.
#[derive(Debug)]
struct Closed {
    why: String,
    /// Its user can, in the user namespace of podman.
    by_its_user: bool,
}

/// What becomes of the ballast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It is made where there is room, used where there is none, and made again.
    Make,
    /// It is used if it is there, and made again if it was.
    Use,
}

impl From<&Refusal> for Closed {
    fn from(refusal: &Refusal) -> Self {
        let by_its_user = matches!(refusal, Refusal::OtherOwner { .. } | Refusal::OutsideNamespace);
        Self { why: refusal.to_string(), by_its_user }
    }
}

impl Editors {
    /// For every store of `survey`. `state_dir` takes the notes of deletions under way; nothing is
    /// opened or written yet. `trusts_namespace`: all processes that can use the stores are in our PID
    /// namespace, whichever that is.
    #[must_use]
    pub fn of(survey: &Survey, state_dir: &Path, keep: Keep, trusts_namespace: bool) -> Self {
        let mut all = Vec::new();
        let stores = survey.inventory.stores.iter().zip(&survey.places).map(|(store, places)| {
            let key = StoreId::of(store);
            let Some(places) = places else {
                let why = format!("only {} removes anything there", store.kind.word());
                return (key, Err(Closed { why, by_its_user: false }));
            };
            let ballast = Ballast::of_store(places, state_dir).unwrap_or_else(|error| {
                tracing::warn!(%error, store = %store.root.display(), "no ballast");
                Vec::new()
            });
            let ballast: Vec<_> =
                ballast.into_iter().filter(|one| keep == Keep::Make || one.exists()).collect();
            for one in &ballast {
                if all.iter().all(|known: &Ballast| known.path() != one.path()) {
                    all.push(one.clone());
                }
            }
            let (request, asked) = (survey.request.clone(), places.clone());
            let outside: Look = Box::new(move || stores::outside(&request, &asked));
            let intents = Some(state_dir.to_path_buf());
            let (outside, present) = (Some(outside), Some(survey.present.clone()));
            let trust_pid_namespace = trusts_namespace;
            let options =
                Options { intents, ballast, outside, present, trust_pid_namespace, ..Options::default() };
            (key, Editor::new(places, options).map_err(|refusal| Closed::from(&refusal)))
        });
        let stores = stores.collect();
        Self { stores, ballast: all }
    }

    /// The editor of a store.
    ///
    /// # Errors
    /// Why it is not edited.
    pub fn store(&self, store: &Store) -> Result<&Editor, &str> {
        let key = StoreId::of(store);
        match self.stores.iter().find(|(known, _)| *known == key) {
            Some((_, Ok(editor))) => Ok(editor),
            Some((_, Err(closed))) => Err(&closed.why),
            None => Err("it was not there when the run began"),
        }
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

    /// Finishes what killed runs of ours began; one entry a store that has an editor.
    #[must_use]
    pub fn resume(&self) -> Vec<(StoreId, Result<Deleted, Error>)> {
        let editors = self.stores.iter().filter_map(|(key, editor)| Some((key, editor.as_ref().ok()?)));
        editors.map(|(key, editor)| (key.clone(), editor.resume())).collect()
    }

    /// Makes the ballast where there is room, so that later deletions find it. What it takes is
    /// then no part of what any of them gives back.
    pub fn prepare(&self) {
        for ballast in &self.ballast {
            match ballast.prepare() {
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, path = %ballast.path().display(), "no ballast"),
            }
        }
    }

    /// Bytes that the ballast takes on the filesystem `device` (`st_dev`) now.
    #[must_use]
    pub fn ballast_bytes(&self, device: u64) -> u64 {
        self.ballast.iter().filter(|one| one.device() == device).map(Ballast::taken_bytes).sum()
    }

    /// A record file can be written anew on the filesystems of all editable stores, as far as
    /// their numbers tell: there is as much room as the ballast would take, and an inode.
    #[must_use]
    pub fn room_to_begin(&self) -> bool {
        self.ballast.iter().all(Ballast::has_room_beside)
    }
}
