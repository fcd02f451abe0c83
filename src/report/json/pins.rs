//! The document of `layersweep pin`.

use jiff::Timestamp;
use serde::Serialize;

use super::parts::Header;
use crate::app::pins::PinList;

/// `layersweep pin list`; `pin add` and `pin remove` print it with what they changed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinsDoc {
    /// What every document begins with; its kind is `pins`.
    #[serde(flatten)]
    pub header: Header,
    #[serde(flatten)]
    pub list: PinList,
}

/// The document.
pub fn pins(now: Timestamp, list: PinList) -> PinsDoc {
    PinsDoc { header: Header::new("pins", now), list }
}
