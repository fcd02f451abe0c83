//! The document of `layersweep pin`.

use jiff::Timestamp;
use serde::Serialize;

use super::SCHEMA_VERSION;
use crate::history::pins::Pin;

/// `layersweep pin list`; `pin add` and `pin remove` print it with what they changed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PinsDoc {
    /// Version of this document's shape.
    pub schema_version: u32,
    /// `pins`.
    pub kind: &'static str,
    /// When the document was made, RFC 3339 UTC.
    #[cfg_attr(test, schemars(with = "String"))]
    pub generated_at: Timestamp,
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
    #[cfg_attr(test, schemars(with = "String"))]
    pub added_at: Timestamp,
}

/// The document.
#[must_use]
pub fn pins(now: Timestamp, database: Option<String>, complete: bool, pins: Vec<Pin>) -> PinsDoc {
    let entry = |pin: Pin| PinDoc { pattern: pin.pattern, note: pin.note, added_at: pin.added };
    PinsDoc {
        schema_version: SCHEMA_VERSION,
        kind: "pins",
        generated_at: now,
        database,
        complete,
        pins: pins.into_iter().map(entry).collect(),
        added: Vec::new(),
        removed: Vec::new(),
    }
}
