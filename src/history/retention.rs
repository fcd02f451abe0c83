//! How much history is kept. What is there now is always kept.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};

/// Ended lives of images, and stores that were not seen, are kept for two years.
pub const LIVES_DAYS: i64 = 730;

/// Maximum number of ended lives; about 9 MiB.
pub const LIVES: u32 = 20_000;

/// Containers that are gone are kept for half a year.
pub const CONTAINERS_DAYS: i64 = 183;

/// Maximum number of them; about 6 MiB.
pub const CONTAINERS: u32 = 20_000;

/// That an image would not go is kept for a month after it may be tried again: then no run has
/// wanted it to go for as long.
pub const ATTEMPTS_DAYS: i64 = 30;

const DAY: i64 = 86_400;

/// Once a day: looking takes longer than recording a scan that finds all as it was.
pub(super) fn is_due(last: Timestamp, now: Timestamp) -> bool {
    last.as_second().div_euclid(DAY) < now.as_second().div_euclid(DAY)
}

/// Deletes what is older than that.
pub(super) fn forget(from: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let before = |days: i64| {
        let limit = now.saturating_sub(SignedDuration::from_hours(24 * days));
        limit.unwrap_or(Timestamp::MIN).as_microsecond()
    };
    for (table, days, rows) in [("containers", CONTAINERS_DAYS, CONTAINERS), ("images", LIVES_DAYS, LIVES)] {
        // The first row beyond the limit, if there is one, is found in the index alone.
        from.prepare_cached(&format!(
            "DELETE FROM {table} WHERE gone_since IS NOT NULL AND gone_since <= max(?1, coalesce(
                     (SELECT gone_since FROM {table} WHERE gone_since IS NOT NULL
                      ORDER BY gone_since DESC LIMIT 1 OFFSET ?2), ?1))"
        ))?
        .execute(params![before(days), rows])?;
    }
    from.prepare_cached("DELETE FROM stores WHERE last_seen <= ?1")?.execute([before(LIVES_DAYS)])?;
    from.prepare_cached("DELETE FROM attempts WHERE next_try <= ?1")?.execute([before(ATTEMPTS_DAYS)])?;
    Ok(())
}
