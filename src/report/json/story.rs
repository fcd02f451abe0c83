//! Lives of an image and what ended them, as JSON.

use jiff::Timestamp;
use serde::Serialize;

use super::DeletionDoc;
use crate::app::explain::{AbsentImage, Presence};
use crate::history::known::Life;
use crate::history::story::Story;
use crate::model::text::names::names;

/// Image of the records, with all its lives.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoryDoc {
    /// Id of the image.
    pub id: String,
    /// Root of its store.
    pub store: String,
    /// Name that the reference means, which the image may have lost; null for an id or a digest.
    pub meant_name: Option<String>,
    /// Names that it had last, from the records.
    pub names: Vec<String>,
    /// `absent`; `renamed` if it is there under other names; `recorded` if the last scan found it and the store was
    /// not read since, or not in full.
    pub presence: Presence,
    /// Names that it has now, if it is renamed.
    pub names_now: Vec<String>,
    /// Its lives, the latest first. Empty if the records know only its deletion.
    pub lives: Vec<LifeDoc>,
    /// Deletions, with failed attempts; the latest first.
    pub deletions: Vec<DeletionDoc>,
}

names! {
    /// Program that ended a life of an image.
    EndedBy {
        Layersweep = "layersweep",
        Other = "other",
    }
}

/// Life of an image, from its first detection to its deletion.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LifeDoc {
    /// Number of the life, from 1.
    pub life: u32,
    /// Earliest proven time at which the image was here in this life.
    pub first_detected: Timestamp,
    /// Last time at which a scan found it.
    pub last_seen: Timestamp,
    /// Time from which it was absent.
    pub absent_since: Option<Timestamp>,
    /// Last known use by a container.
    pub last_used: Option<Timestamp>,
    /// Number of containers seen that were made from it.
    pub use_count: u64,
    /// Names when it was last seen.
    pub names: Vec<String>,
    /// Bytes that its deletion would have freed when it was last seen.
    pub frees_bytes: u64,
    /// Program that ended the life: `layersweep` or `other`; null while the image is there. A deletion that
    /// layersweep began and whose end it has not seen counts as its own.
    pub ended_by: Option<EndedBy>,
    /// Deletion that ended the life; null if another program did it.
    pub deletion: Option<DeletionDoc>,
}

impl StoryDoc {
    /// Builds the object from the records alone.
    pub fn recorded(story: &Story) -> Self {
        let is_gone = story
            .lives
            .first()
            .is_none_or(|life| life.gone_since.is_some() || story.deletion_of(life).is_some());
        Self::new(story, is_gone)
    }

    /// Builds the object of an image that a reference does not name now.
    pub fn absent(image: &AbsentImage) -> Self {
        Self {
            presence: image.presence,
            names_now: image.names_now.clone(),
            ..Self::new(&image.story, image.presence == Presence::Absent)
        }
    }

    fn new(story: &Story, is_gone: bool) -> Self {
        let lives = story
            .lives
            .iter()
            .enumerate()
            .map(|(position, life)| LifeDoc::new(story, life, is_gone || position > 0));
        Self {
            id: story.image_id.clone(),
            store: story.store.root().to_string_lossy().into_owned(),
            meant_name: story.meant_name.clone(),
            names: story.names().to_vec(),
            presence: if is_gone { Presence::Absent } else { Presence::Recorded },
            names_now: Vec::new(),
            lives: lives.collect(),
            deletions: story.deletions.iter().map(DeletionDoc::with_run).collect(),
        }
    }
}

impl LifeDoc {
    /// Builds the object of a life that has ended or not.
    pub fn new(story: &Story, life: &Life, has_ended: bool) -> Self {
        let deletion = story.deletion_of(life).map(DeletionDoc::with_run);
        let ended_by = match &deletion {
            Some(_) => EndedBy::Layersweep,
            None => EndedBy::Other,
        };
        Self {
            life: life.age.life,
            first_detected: life.age.first_detected,
            last_seen: life.last_seen,
            absent_since: life.gone_since,
            last_used: life.age.last_used,
            use_count: life.age.use_count,
            names: life.names.clone(),
            frees_bytes: life.frees_bytes,
            ended_by: (has_ended || life.gone_since.is_some()).then_some(ended_by),
            deletion,
        }
    }
}
