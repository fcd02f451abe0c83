//! The document of `layersweep pin`.

use jiff::Timestamp;
use serde::Serialize;

use super::parts::Header;
use crate::app::pins::PinList;
use crate::history::pins::Pin;

/// `layersweep pin list`; `pin add` and `pin remove` print it with what they changed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinsDoc {
    /// What every document begins with; its kind is `pins`.
    #[serde(flatten)]
    pub header: Header,
    /// The database; null where nothing was ever recorded.
    pub database: Option<String>,
    /// The database could be read, or there is none; if false, the list is unknown.
    pub complete: bool,
    /// The keep-list as it is now.
    pub pins: Vec<PinDoc>,
    /// Patterns that this run added.
    pub added: Vec<String>,
    /// Patterns that this run removed.
    pub removed: Vec<String>,
}

/// An entry of the keep-list.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinDoc {
    /// The pattern.
    pub pattern: String,
    /// Why, in the operator's words; may be empty.
    pub note: String,
    /// Since when.
    pub added_at: Timestamp,
}

/// The document.
pub fn pins(now: Timestamp, list: PinList) -> PinsDoc {
    let entry = |pin: Pin| PinDoc { pattern: pin.pattern, note: pin.note, added_at: pin.added };
    PinsDoc {
        header: Header::new("pins", now),
        database: list.database,
        complete: list.complete,
        pins: list.pins.into_iter().map(entry).collect(),
        added: list.added,
        removed: list.removed,
    }
}
