//! The filesystems of an inventory, open for measuring.

use std::path::Path;

use crate::execute::measure::{Gauge, Room};
use crate::model::{FilesystemIx, Inventory};
use crate::policy::space::{Doubt, Measured, Space};

/// A gauge for each filesystem of an inventory; none where it cannot be opened.
pub(super) struct Gauges(Vec<Result<Gauge, String>>);

impl Gauges {
    pub(super) fn open(inventory: &Inventory) -> Self {
        Self((0..inventory.filesystems.len()).map(|at| open(inventory, at.into())).collect())
    }

    pub(super) fn of(&self, at: FilesystemIx) -> Option<&Gauge> {
        self.0.get(at.get())?.as_ref().ok()
    }

    pub(super) fn room(&self, at: FilesystemIx) -> Option<Room> {
        self.of(at)?.room().ok()
    }

    pub(super) fn measure(&self) -> Vec<Measured> {
        let measure = |gauge: &Result<Gauge, String>| match gauge {
            Ok(gauge) => match gauge.room() {
                Ok(room) => Space::of_room(&room),
                Err(error) => Err(Doubt::Failed(error.to_string())),
            },
            Err(error) => Err(Doubt::Failed(error.clone())),
        };
        self.0.iter().map(measure).collect()
    }
}

/// Opens a directory of a store, and not the mount point, which something else may be mounted
/// over.
fn open(inventory: &Inventory, at: FilesystemIx) -> Result<Gauge, String> {
    let store = inventory.stores.iter().find(|store| store.filesystem == at);
    let node = || inventory.nodes.iter().find(|node| node.filesystem == at && node.path.is_dir());
    let path = store.map(|store| &store.root).or_else(|| node().map(|node| &node.path));
    let path: &Path = path.unwrap_or(&inventory.filesystems[at.get()].mount);
    Gauge::open(path).map_err(|error| format!("{}: {error}", path.display()))
}
