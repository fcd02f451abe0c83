//! Retention of the history. Objects that are present are always kept.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};

use crate::model::RecordBound;

/// Days for which ended lives of images, and stores that were not seen, are kept: two years.
pub const LIVES_DAYS: i64 = 730;

/// Maximum number of ended lives; they take about 9 MiB.
pub const LIVES: u32 = 20_000;

/// Days for which containers that are gone are kept: half a year.
pub const CONTAINERS_DAYS: i64 = 183;

/// Maximum number of containers that are gone; they take about 6 MiB.
pub const CONTAINERS: u32 = 20_000;

/// Days for which a failed deletion is kept after the next attempt is allowed. No run has tried to delete the image
/// for that long.
pub const ATTEMPTS_DAYS: i64 = 30;

const DAY: i64 = 86_400;

/// Checks whether retention is due, which it is once a day: the check for old rows takes longer than recording a scan
/// without changes.
pub(super) fn is_due(last: Timestamp, now: Timestamp) -> bool {
    last.as_second().div_euclid(DAY) < now.as_second().div_euclid(DAY)
}

/// Deletes the rows that are older, or exceed the maximum numbers.
pub(super) fn forget(from: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    for (table, days, rows) in [("containers", CONTAINERS_DAYS, CONTAINERS), ("images", LIVES_DAYS, LIVES)] {
        // The index alone finds the first row beyond the maximum number.
        from.prepare_cached(&format!(
            "DELETE FROM {table} WHERE gone_since IS NOT NULL AND gone_since <= max(?1, coalesce(
                     (SELECT gone_since FROM {table} WHERE gone_since IS NOT NULL
                      ORDER BY gone_since DESC LIMIT 1 OFFSET ?2), ?1))"
        ))?
        .execute(params![days_before(now, days), rows])?;
    }
    from.prepare_cached("DELETE FROM stores WHERE last_seen <= ?1")?
        .execute([days_before(now, LIVES_DAYS)])?;
    from.prepare_cached("DELETE FROM attempts WHERE next_try <= ?1")?
        .execute([days_before(now, ATTEMPTS_DAYS)])?;
    Ok(())
}

/// Deletes the rows of a store of another user that exceed the bound: first those that are gone, and those that dropped
/// out of sight, the oldest first.
pub(super) fn bound(from: &Connection, store: i64) -> rusqlite::Result<()> {
    for table in ["containers", "images"] {
        from.prepare_cached(&format!(
            "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE store = ?1
                 ORDER BY gone_since IS NULL AND last_seen IS NULL DESC, coalesce(gone_since, last_seen) DESC, id DESC
                 LIMIT -1 OFFSET ?2)"
        ))?
        .execute(params![store, RecordBound::OBJECTS])?;
    }
    Ok(())
}

/// Returns the time `days` before `now`, in microseconds.
fn days_before(now: Timestamp, days: i64) -> i64 {
    let limit = now.saturating_sub(SignedDuration::from_hours(24 * days));
    limit.unwrap_or(Timestamp::MIN).as_microsecond()
}
