//! Proofs that no user outside the store needs an image or a layer.

use super::error::Refusal;
use crate::stores::containers_storage::outside::OutsideNeeds;
use crate::stores::containers_storage::records::ImageRecord;

/// Reads the current needs of other stores. Takes no lock of the store, and is never called under one.
pub type LookOutside = Box<dyn Fn() -> OutsideNeeds + Send + Sync>;

/// Refuses an image that a user outside the store needs.
pub(super) fn prove_image_outside(outside: &OutsideNeeds, image: &ImageRecord) -> Result<(), Refusal> {
    prove_known(outside)?;
    match outside.of_image(image) {
        Some(need) => Err(Refusal::UsedElsewhere { id: image.id.clone(), by: need.by.clone() }),
        None => Ok(()),
    }
}

/// Refuses layers that a user outside the store needs.
pub(super) fn prove_layers_outside(outside: &OutsideNeeds, ids: &[String]) -> Result<(), Refusal> {
    prove_known(outside)?;
    match ids.iter().find_map(|id| Some((id, outside.of_layer(id)?))) {
        Some((id, need)) => Err(Refusal::UsedElsewhere { id: id.clone(), by: need.by.clone() }),
        None => Ok(()),
    }
}

fn prove_known(outside: &OutsideNeeds) -> Result<(), Refusal> {
    match outside.unknown() {
        Some(root) => Err(Refusal::BorrowerUnknown(root.to_path_buf())),
        None => Ok(()),
    }
}
