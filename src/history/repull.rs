//! Images that a run deleted, with what pulling them again needs.

use rusqlite::{Connection, OptionalExtension, params};

use super::runs::{self, Command, DeletionRow};
use super::values::{from_json, time};
use crate::model::repull::{DeletedImage, KnownOrigin};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRun {
    pub run_id: String,
    pub command: Command,
    pub started: jiff::Timestamp,
}

/// Finds a run by its id, or, without one, the last run that deleted an image.
///
/// # Errors
/// When the database cannot be read.
pub fn run(from: &Connection, run_id: Option<&str>) -> rusqlite::Result<Option<FoundRun>> {
    from.prepare_cached(
        "SELECT run_id, command, started FROM runs
         WHERE iif(?1 IS NULL,
             EXISTS (SELECT 1 FROM deletions WHERE run = runs.id AND kind = 'image'
                     AND (error IS NULL OR deletions.outcome = 'unknown')),
             run_id = ?1)
         ORDER BY started DESC, id DESC LIMIT 1",
    )?
    .query_row([run_id], |row| {
        Ok(FoundRun {
            run_id: row.get("run_id")?,
            command: row.get("command")?,
            started: time(row, "started")?,
        })
    })
    .optional()
}

/// Returns the images that a run deleted, also those whose deletion it began and did not see end, in its order. A
/// deletion belongs to the life of the image that is found to have ended next after it: the digests in other lives may
/// be others.
///
/// # Errors
/// When the database cannot be read.
pub fn deleted_images(from: &Connection, run_id: &str) -> rusqlite::Result<Vec<(DeletionRow, DeletedImage)>> {
    from.prepare_cached(
        "SELECT deletions.*, images.former_names, images.digests, images.origin
         FROM deletions
         JOIN runs ON runs.id = run
         LEFT JOIN stores ON stores.kind = store_kind AND stores.root = deletions.root
             AND stores.driver = deletions.driver
         LEFT JOIN images ON images.id = (
             SELECT id FROM images WHERE store = stores.id AND image_id = object_id
             ORDER BY coalesce(gone_since < at, 0), life LIMIT 1)
         WHERE run_id = ?1 AND deletions.kind = 'image'
             AND (error IS NULL OR deletions.outcome = 'unknown')
         ORDER BY position",
    )?
    .query_map(params![run_id], |row| {
        let deletion = runs::deletion(row)?;
        // Without a life, only what the deletion itself recorded is known.
        let image = DeletedImage {
            names: deletion.names.clone(),
            former_names: from_json(row, "former_names").unwrap_or_default(),
            digests: from_json(row, "digests").unwrap_or_default(),
            origin: from_json::<KnownOrigin>(row, "origin").ok(),
        };
        Ok((deletion, image))
    })?
    .collect()
}
