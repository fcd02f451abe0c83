//! Room for containerd to delete with on a full disk.

use crate::cri::{StorePlace, StoreType};
use crate::history::Place;
use crate::stores::containers_storage::edit::ReserveFile;

/// In our state directory, where that lies beside containerd's root.
pub(super) fn of(place: &Place, store: &StorePlace) -> Option<ReserveFile> {
    // The stores of podman and CRI-O have reserve files of their own.
    if store.store_type != StoreType::Containerd {
        return None;
    }
    let reserve = ReserveFile::in_state_dir(&place.dir, &store.root).unwrap_or_else(|error| {
        tracing::debug!("no reserve file: {error}");
        None
    });
    prepare(reserve.as_ref());
    reserve
}

/// A run goes on without it.
pub(super) fn prepare(reserve: Option<&ReserveFile>) {
    if let Some(Err(error)) = reserve.map(ReserveFile::prepare) {
        tracing::debug!("the reserve file is not prepared: {error}");
    }
}
