//! JSON document of `layersweep report --merge`: sums over many nodes.

use jiff::Timestamp;
use serde::Serialize;

use super::{DocumentKind, Header};
use crate::app::fleet::Merged;
use crate::model::documents::fleet::Fleet;
use crate::services::documents::UnreadDocument;

/// Document of `layersweep report --merge`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FleetDoc {
    /// Common fields of all documents; the kind is `report-merge`.
    #[serde(flatten)]
    pub header: Header,
    /// True if every document could be read, and everything on every node. If false, the sums are lower bounds.
    pub complete: bool,
    /// Number of documents, including those that do not count.
    pub documents: u64,
    /// Documents that do not count because a newer one is of the same node.
    pub documents_older: u64,
    /// Nodes with such documents.
    pub nodes_with_older: u64,
    /// Documents that could not be read.
    pub documents_unread: u64,
    /// The first 100 of the documents that could not be read.
    pub unread: Vec<UnreadDocument>,
    #[serde(flatten)]
    pub fleet: Fleet,
}

/// Builds the document of `report --merge`.
#[must_use]
pub fn fleet(now: Timestamp, merged: Merged) -> FleetDoc {
    FleetDoc {
        header: Header::new(DocumentKind::ReportMerge, now),
        complete: merged.unread == 0 && merged.fleet.nodes.incomplete == 0,
        documents: merged.documents,
        documents_older: merged.older,
        nodes_with_older: merged.nodes_with_older,
        documents_unread: merged.unread,
        unread: merged.problems,
        fleet: merged.fleet,
    }
}
