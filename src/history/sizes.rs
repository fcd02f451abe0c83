//! Cache of the sizes of finished layers, in a table of its own (`migrations/0001_history.sql`). A row that cannot be
//! decoded counts as missing.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, Transaction, params};

use super::values::{self, micros, signed};
use crate::disk::size_cache::{SETTLED_AFTER, SizeCache, StoreSizes};
use crate::model::StoreId;
use crate::model::text::path_text;

/// Time after which a store is deleted from the cache if no scan finds it.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Minimum time between updates of a store's `last_used`, which saves a write in most scans.
const USED_EVERY: SignedDuration = SignedDuration::from_hours(24);

/// Loads all sizes. `seed` selects the layer that the next scan measures again, and must be another number each time.
///
/// # Errors
/// Errors of SQLite. A row that cannot be decoded is skipped.
pub fn load(connection: &Connection, seed: u64) -> rusqlite::Result<SizeCache> {
    let mut cache = SizeCache { seed, settled_after: SETTLED_AFTER, ..SizeCache::default() };
    let mut select = connection.prepare("SELECT kind, root, driver, sizes FROM layer_sizes")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (Ok(store), Some(sizes)) =
            (values::store(row, "kind"), StoreSizes::decode(row.get_ref(3)?.as_blob()?))
        else {
            tracing::debug!("cached sizes do not make sense");
            continue;
        };
        cache.stores.insert(store, sizes);
    }
    Ok(cache)
}

/// Stores the sizes of each store after a scan (`None`: unchanged), and deletes stores that no scan has found for long.
/// `now` is by the wall clock.
///
/// # Errors
/// Errors of SQLite.
pub fn store(
    transaction: &Transaction<'_>,
    stores: &[(StoreId, Option<StoreSizes>)],
    now: Timestamp,
) -> rusqlite::Result<()> {
    let now = micros(now);
    for (store, sizes) in stores {
        let (kind, root) = (store.kind(), path_text::to_text(store.root()));
        match sizes {
            Some(sizes) => transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO layer_sizes (kind, root, driver, last_used, sizes)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![kind, root, store.driver(), now, sizes.encode()])?,
            // `abs`: the update is also needed if the clock was set back.
            None => transaction
                .prepare_cached(
                    "UPDATE layer_sizes SET last_used = ?4
                     WHERE kind = ?1 AND root = ?2 AND driver = ?3 AND abs(last_used - ?4) >= ?5",
                )?
                .execute(params![kind, root, store.driver(), now, signed(USED_EVERY.as_micros())])?,
        };
    }
    let limit = now.saturating_sub(signed(FORGOTTEN_AFTER.as_micros()));
    transaction.prepare_cached("DELETE FROM layer_sizes WHERE last_used < ?1")?.execute([limit])?;
    Ok(())
}

#[cfg(test)]
mod tests;
