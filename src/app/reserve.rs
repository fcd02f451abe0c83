//! The reserve files: room for the first deletion on a full disk.

use super::observer::Observer;
use crate::cri::RuntimeStore;
use crate::editor::ReserveFile;
use crate::history::StateDirectory;
use crate::model::StoreKind;
use crate::model::display::bytes;
use crate::stores::Scan;

/// In our state directory, where that lies beside containerd's root.
pub(super) fn of_runtime(directory: &StateDirectory, store: &RuntimeStore) -> Option<ReserveFile> {
    // The stores of podman and CRI-O have reserve files of their own.
    if store.store_type != StoreKind::Containerd {
        return None;
    }
    ReserveFile::in_state_dir(&directory.dir, &store.root).unwrap_or_else(|error| {
        tracing::debug!("no reserve file: {error}");
        None
    })
}

/// Those of all stores of a scan that can have one, each once.
pub(super) fn of_all(scan: &Scan, directory: &StateDirectory) -> Vec<ReserveFile> {
    let mut all: Vec<ReserveFile> = Vec::new();
    for (store, places) in scan.inventory.stores.iter().zip(&scan.places) {
        if store.read_only {
            continue;
        }
        let found = match (store.kind, places) {
            (StoreKind::Containerd, _) => {
                ReserveFile::in_state_dir(&directory.dir, &store.root).map(|one| one.into_iter().collect())
            }
            (StoreKind::ContainersStorage, Some(places)) => ReserveFile::of_store(places, &directory.dir),
            (StoreKind::ContainersStorage, None) => continue,
        };
        // Without a state directory there is none yet.
        all.extend(found.unwrap_or_default());
    }
    all.sort_by(|a, b| a.path().cmp(b.path()));
    all.dedup_by(|a, b| a.path() == b.path());
    all
}

/// Creates those of a scan where there is room, and where we may write.
pub fn create_all(scan: &Scan, directory: &StateDirectory, observer: &dyn Observer) {
    if directory.foreign {
        return;
    }
    for reserve in of_all(scan, directory).iter().filter(|reserve| !reserve.is_ready()) {
        let path = reserve.path().display();
        match reserve.prepare() {
            Ok(true) => report_made(std::slice::from_ref(reserve), observer),
            Ok(false) => observer.note(&format!("there is no room for the reserve file {path}")),
            Err(error) => observer.note(&format!("the reserve file {path} cannot be made: {error}")),
        }
    }
}

/// Those of a scan that are not there.
pub(super) fn missing(scan: &Scan, directory: &StateDirectory) -> Vec<ReserveFile> {
    let mut all = of_all(scan, directory);
    all.retain(|reserve| !reserve.exists());
    all
}

/// Says which of them were made: they are a part of what is used.
pub(super) fn report_made(missing: &[ReserveFile], observer: &dyn Observer) {
    for reserve in missing.iter().filter(|reserve| reserve.exists()) {
        let (size, path) = (bytes(reserve.taken_bytes()), reserve.path().display());
        observer
            .note(&format!("made the reserve file {path} ({size}), for the first deletion on a full disk"));
    }
}

/// A run goes on without it.
pub(super) fn prepare(reserve: Option<&ReserveFile>) {
    if let Some(Err(error)) = reserve.map(ReserveFile::prepare) {
        tracing::debug!("the reserve file is not prepared: {error}");
    }
}
