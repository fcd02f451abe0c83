//! The filesystems of an inventory, open for measuring.

use std::path::Path;

use crate::execute::measure::{Gauge, Room};
use crate::model::space::{InvalidStats, Measured};
use crate::model::{FilesystemIx, Inventory};

/// A gauge for each filesystem of an inventory, or the error of opening it.
#[derive(Debug)]
pub struct Gauges {
    filesystems: Vec<Result<Gauge, String>>,
    /// Gauge of the filesystem with the pods' logs.
    logs: Option<Gauge>,
}

impl Gauges {
    #[must_use]
    pub fn open(inventory: &Inventory, logs: Option<&Path>) -> Self {
        let filesystems =
            (0..inventory.filesystems.len()).map(|filesystem| open(inventory, filesystem.into()));
        Self { filesystems: filesystems.collect(), logs: logs.and_then(|path| Gauge::open(path).ok()) }
    }

    /// The gauge of a filesystem; `None` means that of the pods' logs.
    pub(super) fn of(&self, filesystem: Option<FilesystemIx>) -> Option<&Gauge> {
        match filesystem {
            Some(filesystem) => self.filesystems.get(filesystem.get())?.as_ref().ok(),
            None => self.logs.as_ref(),
        }
    }

    pub(super) fn room(&self, filesystem: Option<FilesystemIx>) -> Option<Room> {
        self.of(filesystem)?.room().ok()
    }

    pub(super) fn device(&self, filesystem: Option<FilesystemIx>) -> Option<u64> {
        self.of(filesystem)?.device()
    }

    #[must_use]
    pub fn measure(&self) -> Vec<Measured> {
        let measured = self.filesystems.iter().map(|gauge| match gauge {
            Ok(gauge) => match gauge.room() {
                Ok(room) => room.space(),
                Err(error) => Err(InvalidStats::Failed(error.to_string())),
            },
            Err(error) => Err(InvalidStats::Failed(error.clone())),
        });
        measured.collect()
    }
}

/// Opens a directory of a store, and not the mount point, over which another filesystem may be mounted. For a path in
/// no store (`/var/tmp`, a split imagestore) opens its parent directory: the path itself may be a mount by now, of a
/// filesystem that never answers.
fn open(inventory: &Inventory, filesystem: FilesystemIx) -> Result<Gauge, String> {
    let store = inventory.stores.iter().find(|store| store.filesystem == filesystem);
    let path = store
        .map(|store| store.root.as_path())
        .or_else(|| inventory.nodes.iter().find(|node| node.filesystem == filesystem)?.path.parent())
        .unwrap_or(&inventory[filesystem].mount);
    Gauge::open(path).map_err(|error| format!("{}: {error}", path.display()))
}
