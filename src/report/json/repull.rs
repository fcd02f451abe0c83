//! JSON document of `history --repull`.

use jiff::Timestamp;
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::app::history::{HistoryOrigin, Repull};
use crate::history::runs::Command;
use crate::model::repull::PullReferences;

/// Document of `layersweep history --repull`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RepullDoc {
    /// Common fields of all documents; the kind is `history-repull`.
    #[serde(flatten)]
    pub header: Header,
    /// Source of the records.
    #[serde(flatten)]
    pub origin: HistoryOrigin,
    /// Id of the run; null if the records contain no run that deleted an image.
    pub run_id: Option<String>,
    /// `gc` or `rm`; `sweep` and `scan` delete no images.
    pub command: Option<Command>,
    /// Start of the run.
    pub started_at: Option<Timestamp>,
    /// Images that the run deleted, in its order. A deletion whose end was not seen is included.
    pub images: Vec<RepullImageDoc>,
}

/// Deleted image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RepullImageDoc {
    /// Id of the image.
    pub id: String,
    /// Names at its deletion.
    pub names: Vec<String>,
    /// Root of its store.
    pub store: String,
    /// References by which it can be pulled again, one for each repository.
    pub references: Vec<String>,
    /// True if every reference contains a digest; a tag may mean another image by now.
    pub by_digest: bool,
    /// Reason why there is no reference: for example `built here`.
    pub not_pullable: Option<&'static str>,
}

/// Builds the document of `history --repull`.
pub fn repull(now: Timestamp, past: Repull) -> RepullDoc {
    let images = past.images.into_iter().map(|(deletion, references)| {
        let by_digest = matches!(references, PullReferences::ByDigest(_));
        let (references, not_pullable) = match references {
            PullReferences::ByDigest(references) | PullReferences::ByTag(references) => (references, None),
            PullReferences::None(why) => (Vec::new(), Some(why)),
        };
        RepullImageDoc {
            id: deletion.id,
            names: deletion.names,
            store: deletion
                .store
                .map(|store| store.root().to_string_lossy().into_owned())
                .unwrap_or_default(),
            references,
            by_digest,
            not_pullable,
        }
    });
    RepullDoc {
        header: Header::new(DocumentKind::HistoryRepull, now),
        origin: past.origin,
        images: images.collect(),
        command: past.run.as_ref().map(|run| run.command),
        started_at: past.run.as_ref().map(|run| run.started),
        run_id: past.run.map(|run| run.run_id),
    }
}
