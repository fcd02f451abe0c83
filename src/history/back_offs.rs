//! Images whose deletion failed, so that they are not tried again at once.

use std::collections::HashMap;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, params};

use super::values::{micros, store, time};
pub use crate::model::BackOff;
use crate::model::StoreId;
use crate::model::text::path_text;

pub fn load(connection: &Connection) -> rusqlite::Result<HashMap<(StoreId, String), BackOff>> {
    connection
        .prepare_cached("SELECT * FROM attempts")?
        .query_map([], |row| {
            let back_off = BackOff {
                failures: row.get("failures")?,
                next_try: time(row, "next_try")?,
                last_error: row.get("last_error")?,
            };
            Ok(((store(row, "kind")?, row.get("image_id")?), back_off))
        })?
        .collect()
}

/// Records a deletion attempt that failed at `tried` (record time), unless a later attempt is already recorded.
pub fn set(
    tx: &Transaction<'_>,
    store: &StoreId,
    image_id: &str,
    tried: Timestamp,
    back_off: &BackOff,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO attempts (kind, root, driver, image_id, failures, tried, next_try, last_error)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT DO UPDATE SET failures = ?5, tried = ?6, next_try = ?7, last_error = ?8
             WHERE tried <= excluded.tried",
    )?
    .execute(params![
        store.kind(),
        path_text::to_text(store.root()),
        store.driver(),
        image_id,
        back_off.failures,
        micros(tried),
        micros(back_off.next_try),
        back_off.last_error,
    ])?;
    Ok(())
}

/// Deletes the failed attempts of an image that was deleted at `deleted` (record time).
pub fn clear(
    tx: &Transaction<'_>,
    store: &StoreId,
    image_id: &str,
    deleted: Timestamp,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "DELETE FROM attempts WHERE kind = ?1 AND root = ?2 AND driver = ?3 AND image_id = ?4 AND tried <= ?5",
    )?
    .execute(params![store.kind(), path_text::to_text(store.root()), store.driver(), image_id, micros(deleted)])?;
    Ok(())
}

/// Deletes the attempts of all images that are no longer in a store. `store` is the store's row. Called after a
/// complete scan has been written.
pub(super) fn forget_gone(tx: &Transaction<'_>, store: i64, now: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "DELETE FROM attempts
         WHERE (kind, root, driver) = (SELECT kind, root, driver FROM stores WHERE id = ?1) AND tried <= ?2
           AND NOT EXISTS (SELECT 1 FROM images
                           WHERE store = ?1 AND images.image_id = attempts.image_id AND gone_since IS NULL)",
    )?
    .execute(params![store, micros(now)])?;
    Ok(())
}

/// Deletes the attempts of an image that was pulled again. `store` is the store's row.
pub(super) fn forget(
    tx: &Transaction<'_>,
    store: i64,
    image_id: &str,
    now: Timestamp,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "DELETE FROM attempts
         WHERE (kind, root, driver) = (SELECT kind, root, driver FROM stores WHERE id = ?1)
           AND image_id = ?2 AND tried <= ?3",
    )?
    .execute(params![store, image_id, micros(now)])?;
    Ok(())
}
