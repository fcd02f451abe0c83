//! JSON document of `usage --since`.

use jiff::Timestamp;
use serde::Serialize;

use super::TakenDoc;
use super::parts::{DocumentKind, Header};
use crate::model::documents::comparison::{FilesystemGrowth, ScanComparison};
use crate::model::refs::GroupBy;

/// Document of `layersweep usage --since`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrowthDoc {
    /// Common fields of all documents; the kind is `usage-growth`.
    #[serde(flatten)]
    pub header: Header,
    /// True if both scans read everything. If false, the figures of what was not read are missing.
    pub complete: bool,
    /// Kind of groups: `container`, `namespace`, `owner`, `repository` or `registry`.
    pub by: GroupBy,
    /// Time that `--since` named.
    pub since: Timestamp,
    /// First scan: the last kept one that had begun at that time, or else the oldest.
    pub before: TakenDoc,
    /// Second scan: the present state, with the id `now`.
    pub after: TakenDoc,
    /// True if no kept scan is as old as `since`: then the growth is only that since `before`.
    pub begins_later: bool,
    /// Seconds between the scans.
    pub seconds: i64,
    /// Filesystems that both scans contain.
    pub filesystems: Vec<FilesystemGrowth>,
}

/// Builds the document of `usage --since`.
pub fn growth(compared: &ScanComparison, since: Timestamp, by: GroupBy) -> GrowthDoc {
    let ScanComparison { before, after } = compared;
    GrowthDoc {
        header: Header::new(DocumentKind::UsageGrowth, after.taken_at),
        complete: compared.is_complete(),
        by,
        since,
        before: TakenDoc::of(before),
        after: TakenDoc::of(after),
        begins_later: before.taken_at > since,
        seconds: compared.seconds(),
        filesystems: compared.growth(by),
    }
}
