//! JSON document of `replay`.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::app::replay::{ReplayResult, ReplayRow, ReplayedImage};
use crate::services::documents::UnreadDocument;

/// Document of `layersweep replay`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayDoc {
    /// Common fields of all documents; the kind is `replay`.
    #[serde(flatten)]
    pub header: Header,
    /// True if every trace could be read.
    pub complete: bool,
    /// Traces that were played: one for each filesystem with images of each node.
    pub traces: u64,
    /// Of these, traces that say that a program made them: no node has this past.
    pub generated: u64,
    /// Images in the traces whose layers are unknown. What they shared is not counted when they are pulled again.
    pub images_without_layers: u64,
    /// Traces that could not be read.
    pub traces_unread: u64,
    /// The first 100 of them.
    pub unread: Vec<UnreadDocument>,
    /// Setting that differs between the rows; null without a variation.
    pub varied: Option<String>,
    /// Time between two runs.
    pub period_seconds: i64,
    /// Results: one row for each value; without a variation the policy, and others for comparison.
    pub rows: Vec<ReplayRow>,
    /// Images that the policy of the first row would have deleted, in order; empty for several traces.
    pub deleted: Vec<ReplayedImage>,
}

#[must_use]
pub fn replay(
    now: Timestamp,
    result: ReplayResult,
    varied: Option<&str>,
    period: SignedDuration,
) -> ReplayDoc {
    ReplayDoc {
        header: Header::new(DocumentKind::Replay, now),
        complete: result.unread == 0,
        traces: result.traces,
        generated: result.generated,
        images_without_layers: result.images_without_layers,
        traces_unread: result.unread,
        unread: result.problems,
        varied: varied.map(str::to_owned),
        period_seconds: period.as_secs(),
        rows: result.rows,
        deleted: result.deleted,
    }
}
