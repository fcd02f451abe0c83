//! JSON document of `layersweep pin`.

use jiff::Timestamp;
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::app::pins::PinList;

/// Document of `layersweep pin list`; `pin add` and `pin remove` print it with their changes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinsDoc {
    /// Common fields of all documents; the kind is `pins`.
    #[serde(flatten)]
    pub header: Header,
    #[serde(flatten)]
    pub list: PinList,
}

pub fn pins(now: Timestamp, list: PinList) -> PinsDoc {
    PinsDoc { header: Header::new(DocumentKind::Pins, now), list }
}
