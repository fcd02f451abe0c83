//! Room for containerd to delete with on a full disk.

use crate::cri::{StorePlace, StoreType};
use crate::history::Place;
use crate::stores::containers_storage::edit::Ballast;

/// In our state directory, where that lies beside containerd's root.
pub(super) fn of(place: &Place, store: &StorePlace) -> Option<Ballast> {
    // The stores of podman and CRI-O have reserve files of their own.
    if store.store_type != StoreType::Containerd {
        return None;
    }
    let reserve = Ballast::in_state_dir(&place.dir, &store.root).unwrap_or_else(|error| {
        tracing::debug!("no reserve file: {error}");
        None
    });
    prepare(reserve.as_ref());
    reserve
}

/// A run goes on without it.
pub(super) fn prepare(reserve: Option<&Ballast>) {
    if let Some(Err(error)) = reserve.map(Ballast::prepare) {
        tracing::debug!("the reserve file is not prepared: {error}");
    }
}
