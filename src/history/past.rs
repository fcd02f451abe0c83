//! Lives of images with their uses and ends, for a trace of the node's past.

use std::collections::HashMap;

use jiff::Timestamp;
use rusqlite::Connection;

use super::known::{self, Life};
use super::values::{from_json, maybe_time, store, time};
use crate::model::StoreId;
use crate::model::deletion::plan::Reason;
use crate::model::repull::KnownOrigin;

#[derive(Clone, Debug)]
pub struct PastLife {
    pub life: Life,
    /// `None`: no evidence.
    pub origin: Option<KnownOrigin>,
    /// Begin and end of the existence of each container that used it; no end: it exists.
    pub uses: Vec<(Timestamp, Option<Timestamp>)>,
    /// Deletion by layersweep in this life. If no scan has been made since, the life has no end yet.
    pub deletion: Option<(Timestamp, Reason)>,
}

/// By row of the life: begin and end of each container.
type ContainerUses = HashMap<i64, Vec<(Timestamp, Option<Timestamp>)>>;

type Deletions = HashMap<(StoreId, String), Vec<(Timestamp, Reason)>>;

/// Returns all lives, those of an image in their order.
///
/// # Errors
/// When the database cannot be read.
pub fn lives(from: &Connection) -> rusqlite::Result<Vec<PastLife>> {
    let mut uses = uses(from)?;
    let mut origins = origins(from)?;
    let deletions = deletions(from)?;
    let mut ends: HashMap<(StoreId, String), Timestamp> = HashMap::new();
    let lives = known::all_lives(from)?.into_iter().map(|life| {
        let key = (life.store.clone(), life.image_id.clone());
        let begin = ends.get(&key).copied().unwrap_or(Timestamp::MIN).max(life.age.first_detected);
        let end = life.gone_since.unwrap_or(Timestamp::MAX);
        let of_image = deletions.get(&key).into_iter().flatten();
        let deletion = of_image.copied().find(|(time, _)| *time > begin && *time <= end);
        if let Some(end) = life.gone_since {
            ends.insert(key, end);
        }
        PastLife {
            origin: origins.remove(&life.row),
            uses: uses.remove(&life.row).unwrap_or_default(),
            deletion,
            life,
        }
    });
    Ok(lives.collect())
}

fn uses(from: &Connection) -> rusqlite::Result<ContainerUses> {
    let mut uses: HashMap<_, Vec<_>> = HashMap::new();
    let mut select = from.prepare_cached(
        "SELECT image, first_seen, coalesce(gone_since, last_seen) AS until FROM containers
         WHERE image IS NOT NULL ORDER BY first_seen",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let used = (time(row, "first_seen")?, maybe_time(row, "until")?);
        uses.entry(row.get("image")?).or_default().push(used);
    }
    Ok(uses)
}

fn origins(from: &Connection) -> rusqlite::Result<HashMap<i64, KnownOrigin>> {
    let mut select = from.prepare_cached("SELECT id, origin FROM images WHERE origin IS NOT NULL")?;
    let origins = select.query_map([], |row| Ok((row.get("id")?, from_json(row, "origin").ok())))?;
    let known = origins.map(|row| row.map(|(id, origin): (i64, _)| Some((id, origin?))));
    known.filter_map(Result::transpose).collect()
}

fn deletions(from: &Connection) -> rusqlite::Result<Deletions> {
    let mut deletions = Deletions::new();
    let mut select = from.prepare_cached(
        "SELECT at, store_kind, root, driver, object_id, reason FROM deletions
         WHERE kind = 'image' AND store_kind IS NOT NULL AND (error IS NULL OR outcome = 'unknown') ORDER BY at",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let Ok(store) = store(row, "store_kind") else { continue };
        let deletion = (time(row, "at")?, row.get("reason")?);
        deletions.entry((store, row.get("object_id")?)).or_default().push(deletion);
    }
    Ok(deletions)
}
