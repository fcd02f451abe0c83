//! The open directories of a store: the graphroot, its imagestores, its runroots.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::directory::Directory;
use super::error::{Error, Fault, Refusal};
use super::locks::Lock;
use super::trash::{TEMPDIRS, TEMPDIRS_OF_RECORDS};
use crate::stores::containers_storage::places::{RecordKind, StorePlaces};
use crate::sys::root::Root;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Graphroot,
    Imagestore,
    /// Volatile records only, with `transient_store`.
    Runroot,
}

/// One of a store's directories, with the directories below it that are edited.
#[derive(Debug)]
pub(super) struct StoreDirectory {
    pub(super) path: PathBuf,
    pub(super) role: Role,
    /// The directory `<driver>`, for example `overlay`.
    pub(super) driver: Option<Directory>,
    /// Parent of the layers' directories: `<driver>`, or `<driver>/dir` for vfs.
    pub(super) layers: Option<Directory>,
    /// `<driver>-layers`, `-images`, `-containers`.
    records: [Option<Directory>; 3],
}

impl StoreDirectory {
    /// Opens all directories of a store, the graphroot first.
    pub(super) fn open_all(places: &StorePlaces) -> Result<Vec<Self>, Fault> {
        let imagestores = places.imagestores.iter().map(|root| (root, Role::Imagestore));
        let runroots = places.runroots.iter().map(|root| (root, Role::Runroot));
        std::iter::once((&places.graphroot, Role::Graphroot))
            .chain(imagestores)
            .chain(runroots)
            .map(|(root, role)| Self::open(root, role, &places.driver))
            .collect()
    }

    fn open(root: &Root, role: Role, driver: &str) -> Result<Self, Fault> {
        let top = Directory::top(root)?;
        let [layers, images, containers] =
            RecordKind::ALL.map(|kind| top.below(format!("{driver}-{}", kind.as_str())));
        let records = [layers?, images?, containers?];
        let (driver_directory, layers) = match role {
            Role::Runroot => (None, None),
            _ if driver == "vfs" => (top.below(driver)?, top.below(Path::new(driver).join("dir"))?),
            _ => (top.below(driver)?, top.below(driver)?),
        };
        Ok(Self { path: root.to_path_buf(), role, driver: driver_directory, layers, records })
    }

    pub(super) fn records(&self, kind: RecordKind) -> Option<&Directory> {
        self.records[kind as usize].as_ref()
    }

    /// Parents of the temporary directories: one for layers' directories, one for entries beside records; each with the
    /// name of the directory in it that contains them.
    pub(super) fn trash_parents(&self) -> impl Iterator<Item = (&Directory, &'static str)> {
        let of_driver = self.driver.as_ref().map(|driver| (driver, TEMPDIRS));
        let of_records = self.records(RecordKind::Layers).map(|records| (records, TEMPDIRS_OF_RECORDS));
        of_driver.into_iter().chain(of_records)
    }

    /// The parent of `tempdirs`, if it is one of them.
    pub(super) fn trash_parent(&self, tempdirs: &Path) -> Option<(&Directory, &'static str)> {
        self.trash_parents().find(|(parent, name)| parent.path().join(name) == tempdirs)
    }

    pub(super) fn objects(&self, kind: RecordKind) -> Option<&Directory> {
        match (kind, self.role) {
            (_, Role::Runroot) => None,
            (RecordKind::Layers, _) => self.layers.as_ref(),
            _ => self.records(kind),
        }
    }

    /// Opens the lock file of a kind; `None` if it does not exist.
    fn lock(&self, kind: RecordKind) -> Result<Option<Lock>, Fault> {
        let Some(directory) = self.records(kind) else { return Ok(None) };
        let name = kind.lock_file();
        let file = directory.open(&name, OFlags::RDWR)?;
        Ok(file.map(|file| Lock::new(Some(kind), directory.path().join(&name), file)))
    }
}

/// The lock files of all directories, in the library's order: by kind, then by directory.
pub(super) fn locks(directories: &[StoreDirectory]) -> Result<Vec<Lock>, Error> {
    let mut locks = Vec::new();
    for kind in RecordKind::ALL {
        let before = locks.len();
        for directory in directories {
            let lock = directory.lock(kind)?;
            let records = directory.records(kind);
            // With `transient_store` the containers' lock is in the runroot alone.
            let must = match directory.role {
                Role::Graphroot => kind != RecordKind::Containers,
                Role::Imagestore => records.is_some(),
                Role::Runroot => false,
            };
            if must && lock.is_none() {
                let name = kind.lock_file();
                let path = records.map_or_else(|| directory.path.join(&name), |d| d.path().join(&name));
                return Err(Refusal::NoLockFile(path).into());
            }
            locks.extend(lock);
        }
        if locks.len() == before {
            return Err(Refusal::NoLockFile(directories[0].path.join(kind.lock_file())).into());
        }
    }
    Ok(locks)
}

/// Refuses a store that belongs to another user, or that another user could replace: open descriptors keep the editor
/// in the store, but in another user's store that user controls every file.
pub(super) fn prove_ownership(places: &StorePlaces) -> Result<(), Refusal> {
    let us = rustix::process::geteuid();
    for root in places.areas().chain(&places.runroots) {
        if root.owner() != us.as_raw() {
            return Err(Refusal::OtherOwner { path: root.to_path_buf(), owner: root.owner() });
        }
        if !us.is_root() {
            return Err(Refusal::OutsideNamespace);
        }
        if !root.way().is_trusted() {
            return Err(Refusal::Exchangeable(root.to_path_buf()));
        }
    }
    Ok(())
}
