//! Sizes of finished layers from one scan to the next: a table of its own
//! (`migrations/0001_history.sql`), only a cache. Whatever in it does not make sense counts as
//! absent.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, Transaction, params};

use super::values::{self, micros, signed};
use crate::disk::size_cache::{SETTLED_AFTER, SizeCache, StoreSizes};
use crate::model::{StoreId, path_text};

/// How long a store is kept that no scan meets any more.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(30 * 24);

/// How exactly it is noted that a store was met: a write less for each scan.
const USED_EVERY: SignedDuration = SignedDuration::from_hours(24);

/// Reads all sizes. `seed` chooses the one that the next scan measures again: another number
/// each time.
///
/// # Errors
/// What SQLite says. Rows that do not make sense are no error.
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

/// Writes what a scan leaves of each store (`None`: it is as it was), and forgets stores that were
/// not met for long. `now` is by the wall clock.
///
/// # Errors
/// What SQLite says.
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
            // A clock that went back is a clock, too.
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
