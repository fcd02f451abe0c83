//! What every document begins with.

use jiff::Timestamp;
use serde::Serialize;

/// Version of the documents' shape; a field is never renamed or removed within one.
pub const SCHEMA_VERSION: u32 = 1;

/// What every document begins with.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Header {
    /// Version of this document's shape.
    pub schema_version: u32,
    /// What kind of document this is: the name of its command, or a part of that.
    pub kind: &'static str,
    /// When the document was made, RFC 3339 UTC.
    #[cfg_attr(test, schemars(with = "String"))]
    pub generated_at: Timestamp,
}

impl Header {
    pub(super) fn new(kind: &'static str, generated_at: Timestamp) -> Self {
        Self { schema_version: SCHEMA_VERSION, kind, generated_at }
    }
}
