//! The story of an image: its stays in a store, and what ended each of them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::known::{self, Life};
use super::runs::{self, Certainty, Command, DeletionRow};
use super::values::{from_json, store};
use crate::model::StoreId;
use crate::model::text::{path_text, reference};

#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    pub store: StoreId,
    pub image_id: String,
    /// Name that the user's reference means; `None` if that is an id or a digest.
    pub meant_name: Option<String>,
    /// Its lives, the latest first. Empty if only a deletion is recorded.
    pub lives: Vec<Life>,
    /// Deletions of the image, with failed attempts; the latest first.
    pub deletions: Vec<RecordedDeletion>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecordedDeletion {
    pub run_id: String,
    pub command: Command,
    pub row: DeletionRow,
}

impl RecordedDeletion {
    /// Returns true if the object is deleted, or if that is unknown.
    fn may_have_succeeded(&self) -> bool {
        self.row.error.is_none() || self.row.certainty == Certainty::Unknown
    }
}

impl Story {
    /// Returns the deletion that ended a life, if layersweep did it. A deletion belongs to the life that is found to
    /// have ended next after it.
    #[must_use]
    pub fn deletion_of(&self, life: &Life) -> Option<&RecordedDeletion> {
        let before = self.lives.iter().filter(|other| other.age.life < life.age.life);
        let begin = before.filter_map(|other| other.gone_since).max().unwrap_or(Timestamp::MIN);
        let end = life.gone_since.unwrap_or(Timestamp::MAX);
        let in_life = |deletion: &&RecordedDeletion| deletion.row.at > begin && deletion.row.at <= end;
        self.deletions.iter().filter(in_life).find(|deletion| deletion.may_have_succeeded())
    }

    /// Returns the names that the image had last, from the records.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match (self.lives.first(), self.deletions.first()) {
            (Some(life), _) if !life.names.is_empty() => &life.names,
            (_, Some(deletion)) => &deletion.row.names,
            (Some(life), None) => &life.names,
            (None, None) => &[],
        }
    }

    /// Returns the time of the last known event.
    fn last_event(&self) -> Option<Timestamp> {
        let life = self.lives.first().map(|life| life.gone_since.unwrap_or(life.last_seen));
        life.max(self.deletions.first().map(|deletion| deletion.row.at))
    }
}

/// Returns the story of one image.
///
/// # Errors
/// When the database cannot be read.
pub fn of_image(from: &Connection, store: &StoreId, image_id: &str) -> rusqlite::Result<Story> {
    let deletions = from
        .prepare_cached(
            "SELECT deletions.*, run_id, command FROM deletions JOIN runs ON runs.id = run
             WHERE kind = 'image' AND store_kind = ?1 AND root = ?2 AND driver = ?3 AND object_id = ?4
             ORDER BY at DESC, run DESC",
        )?
        .query_map(
            params![store.kind(), path_text::to_text(store.root()), store.driver(), image_id],
            deletion,
        )?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let lives = known::lives(from, store, image_id)?;
    Ok(Story { store: store.clone(), image_id: image_id.to_owned(), meant_name: None, lives, deletions })
}

/// Returns the stories of the images that `reference` names or named: by a name in full or short, a digest, an id or
/// the start of one. Whole names and ids take precedence over starts of ids. The latest first.
///
/// # Errors
/// When the database cannot be read.
pub fn find(from: &Connection, reference: &str) -> rusqlite::Result<Vec<Story>> {
    let mut exact = BTreeMap::new();
    let mut by_start = BTreeMap::new();
    let mut add = |store: StoreId, id: String, names: &[String], digests: &[String]| {
        if reference::is_of_image(reference, &id, names, digests) {
            let meant = names.iter().find(|name| reference::means_name(reference, name)).cloned();
            let known: &mut Option<String> = exact.entry((store, id)).or_default();
            *known = known.take().or(meant);
        } else if reference::starts_id_of_image(reference, &id, digests) {
            by_start.insert((store, id), None);
        }
    };
    let mut select = from.prepare_cached(
        "SELECT kind, root, driver, image_id, names, former_names, digests
         FROM images JOIN stores ON stores.id = images.store",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let Ok(store) = store(row, "kind") else { continue };
        let mut names: Vec<String> = from_json(row, "names").unwrap_or_default();
        names.extend(from_json::<Vec<String>>(row, "former_names").unwrap_or_default());
        add(store, row.get("image_id")?, &names, &from_json::<Vec<_>>(row, "digests").unwrap_or_default());
    }
    let mut select = from.prepare_cached(
        "SELECT DISTINCT store_kind, root, driver, object_id, names FROM deletions
         WHERE kind = 'image' AND store_kind IS NOT NULL",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let Ok(store) = store(row, "store_kind") else { continue };
        let names: Vec<String> = from_json(row, "names").unwrap_or_default();
        add(store, row.get("object_id")?, &names, &[]);
    }
    let found = if exact.is_empty() { by_start } else { exact };
    let mut stories = found
        .into_iter()
        .map(|((store, id), meant_name)| Ok(Story { meant_name, ..of_image(from, &store, &id)? }))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    stories.sort_by_key(|story| std::cmp::Reverse(story.last_event()));
    Ok(stories)
}

fn deletion(row: &Row<'_>) -> rusqlite::Result<RecordedDeletion> {
    Ok(RecordedDeletion {
        run_id: row.get("run_id")?,
        command: row.get("command")?,
        row: runs::deletion(row)?,
    })
}
