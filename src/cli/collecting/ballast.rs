//! Room for containerd to delete with on a full disk.

use crate::cri::{StorePlace, StoreType};
use crate::history::Place;
use crate::stores::containers_storage::edit::Ballast;

/// In our state directory, where that lies beside containerd's root.
pub(super) fn of(place: &Place, store: &StorePlace) -> Option<Ballast> {
    // Without containerd's database in between, podman's and CRI-O's stores have their own.
    if store.store_type != StoreType::Containerd {
        return None;
    }
    let ballast = Ballast::in_state_dir(&place.dir, &store.root).unwrap_or_else(|error| {
        tracing::debug!("no ballast: {error}");
        None
    });
    prepare(ballast.as_ref());
    ballast
}

/// A run goes on without it.
pub(super) fn prepare(ballast: Option<&Ballast>) {
    if let Some(Err(error)) = ballast.map(Ballast::prepare) {
        tracing::debug!("the ballast is not prepared: {error}");
    }
}
