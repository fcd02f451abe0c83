//! Reserve files: space for the first deletion on a full disk.

use crate::cri::RuntimeStore;
use crate::editor::ReserveFile;
use crate::history::StateDirectory;
use crate::model::StoreIx;
use crate::model::text::display::bytes;
use crate::services::observer::Observer;
use crate::stores::Scan;

/// Returns the reserve file in the state directory, if that is on the same filesystem as containerd's root.
pub(crate) fn of_runtime(directory: &StateDirectory, store: &RuntimeStore) -> Option<ReserveFile> {
    // Each store that is edited has its own reserve file.
    if store.kind.facts().is_editable {
        return None;
    }
    ReserveFile::in_state_dir(&directory.dir, &store.root).unwrap_or_else(|error| {
        tracing::debug!("no reserve file: {error}");
        None
    })
}

/// Returns the reserve files of all stores of a scan that can have one, without duplicates.
pub(crate) fn of_all(scan: &Scan, directory: &StateDirectory) -> Vec<ReserveFile> {
    let stores = (0..scan.inventory.stores.len()).map(StoreIx::from);
    let mut files: Vec<ReserveFile> =
        stores.flat_map(|store_ix| of_store(scan, store_ix, directory)).collect();
    files.sort_by(|a, b| a.path().cmp(b.path()));
    files.dedup_by(|a, b| a.path() == b.path());
    files
}

pub(crate) fn of_store(scan: &Scan, store_ix: StoreIx, directory: &StateDirectory) -> Vec<ReserveFile> {
    let store = &scan.inventory[store_ix];
    let files = match &scan.editable[store_ix.get()] {
        _ if store.read_only => return Vec::new(),
        Some(places) => ReserveFile::of_store(places, &directory.dir),
        None => ReserveFile::in_state_dir(&directory.dir, &store.root).map(Vec::from_iter),
    };
    // A missing state directory is not an error: it does not contain a reserve file yet.
    files.unwrap_or_default()
}

/// Creates the reserve files of a scan where there is room. On another machine's disk nothing is written.
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

pub(crate) fn missing(scan: &Scan, directory: &StateDirectory) -> Vec<ReserveFile> {
    let mut files = of_all(scan, directory);
    files.retain(|reserve| !reserve.exists());
    files
}

/// Reports which of the missing reserve files were created, because they count as used space.
pub(crate) fn report_made(missing: &[ReserveFile], observer: &dyn Observer) {
    for reserve in missing.iter().filter(|reserve| reserve.exists()) {
        let (size, path) = (bytes(reserve.taken_bytes()), reserve.path().display());
        observer
            .note(&format!("made the reserve file {path} ({size}), for the first deletion on a full disk"));
    }
}

/// Creates or fills a reserve file. A failure is only logged: the run continues without it.
pub(crate) fn prepare(reserve: Option<&ReserveFile>) {
    if let Some(Err(error)) = reserve.map(ReserveFile::prepare) {
        tracing::debug!("the reserve file is not prepared: {error}");
    }
}
