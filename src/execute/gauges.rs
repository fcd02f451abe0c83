//! The filesystems of an inventory, open for measuring.

use std::path::Path;

use crate::execute::measure::{Gauge, Room};
use crate::model::space::{InvalidStats, Measured};
use crate::model::{FilesystemIx, Inventory};

/// A gauge for each filesystem of an inventory; none where it cannot be opened.
#[derive(Debug)]
pub struct Gauges {
    filesystems: Vec<Result<Gauge, String>>,
    /// Where logs of pods lie.
    logs: Option<Gauge>,
}

impl Gauges {
    /// For `inventory`, and for the logs below `logs`.
    #[must_use]
    pub fn open(inventory: &Inventory, logs: Option<&Path>) -> Self {
        let filesystems = (0..inventory.filesystems.len()).map(|at| open(inventory, at.into()));
        Self { filesystems: filesystems.collect(), logs: logs.and_then(|path| Gauge::open(path).ok()) }
    }

    /// `None` means the logs of pods.
    pub(super) fn of(&self, at: Option<FilesystemIx>) -> Option<&Gauge> {
        match at {
            Some(at) => self.filesystems.get(at.get())?.as_ref().ok(),
            None => self.logs.as_ref(),
        }
    }

    pub(super) fn room(&self, at: Option<FilesystemIx>) -> Option<Room> {
        self.of(at)?.room().ok()
    }

    pub(super) fn device(&self, at: Option<FilesystemIx>) -> Option<u64> {
        self.of(at)?.device()
    }

    /// What each filesystem says now.
    #[must_use]
    pub fn measure(&self) -> Vec<Measured> {
        let measure = |gauge: &Result<Gauge, String>| match gauge {
            Ok(gauge) => match gauge.room() {
                Ok(room) => room.space(),
                Err(error) => Err(InvalidStats::Failed(error.to_string())),
            },
            Err(error) => Err(InvalidStats::Failed(error.clone())),
        };
        self.filesystems.iter().map(measure).collect()
    }
}

/// Opens a directory of a store, and not the mount point, which something else may be mounted over. Of what
/// lies in no store (`/var/tmp`, a split imagestore) the directory around it: what is there by now may be a
/// mount that never answers.
fn open(inventory: &Inventory, at: FilesystemIx) -> Result<Gauge, String> {
    let store = inventory.stores.iter().find(|store| store.filesystem == at);
    let node = || inventory.nodes.iter().find(|node| node.filesystem == at)?.path.parent();
    let path = store.map(|store| store.root.as_path()).or_else(node);
    let path = path.unwrap_or(&inventory[at].mount);
    Gauge::open(path).map_err(|error| format!("{}: {error}", path.display()))
}
