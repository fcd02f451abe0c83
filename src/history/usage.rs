//! Usage history: a series of points for each filesystem.
//!
//! Single readings are kept for a week. Then they are rolled up into days, which are deleted after two years. A day has
//! its minimum and maximum, so a spike of five minutes is still visible a year later.

mod points;

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::Serialize;

pub use points::{Point, Range, Span, roll_up};

use super::values::{micros, signed, time, unsigned};
use crate::model::Filesystem;

/// Maximum number of readings of a filesystem in a minute. One more replaces the newest, so that scans in an endless loop
/// do not fill the database.
const MAX_PER_MINUTE: i64 = 8;
const KEEP_SINGLE: SignedDuration = SignedDuration::from_hours(7 * 24);
const KEEP_DAYS: SignedDuration = SignedDuration::from_hours(731 * 24);

/// A filesystem with a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KnownFilesystem {
    /// Row in the database.
    #[serde(skip)]
    pub id: i64,
    /// Mount point.
    pub mount: String,
    /// Type of the filesystem.
    pub fstype: String,
    /// Device at the last reading.
    pub device: String,
    /// Size at the last reading.
    pub capacity_bytes: u64,
    /// Time of the first reading.
    pub first_seen: Timestamp,
    /// Time of the last reading.
    pub last_seen: Timestamp,
}

/// A filesystem with its points, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    pub filesystem: KnownFilesystem,
    pub points: Vec<Point>,
}

/// Finds `seen` among the known filesystems.
///
/// Device numbers and names in `/dev` may change with a reboot (`sda` becomes `sdb`), and the mount table has no UUID.
/// Users ask for a place: "how full was /var?". So the mount point and the type must be equal, and also the device
/// (the filesystem was grown) or the exact size (the device was renamed). If device and size differ, the disk was
/// replaced, and a new series begins.
#[must_use]
pub fn identify<'a>(known: &'a [KnownFilesystem], seen: &Filesystem) -> Option<&'a KnownFilesystem> {
    let mount = seen.mount.to_string_lossy();
    let same_place: Vec<_> =
        known.iter().filter(|known| known.mount == mount && known.fstype == seen.fstype).collect();
    let same_device = same_place.iter().filter(|known| known.device == seen.device);
    let same_size = same_place.iter().filter(|known| known.capacity_bytes == seen.capacity_bytes);
    let same_both = same_device.clone().filter(|known| known.capacity_bytes == seen.capacity_bytes);
    same_both
        .max_by_key(|known| known.last_seen)
        .or_else(|| same_device.max_by_key(|known| known.last_seen))
        .or_else(|| same_size.max_by_key(|known| known.last_seen))
        .copied()
}

/// Returns the time before which points that are kept for `keep` are due. Only whole spans become due.
pub(super) fn horizon(now: Timestamp, keep: SignedDuration, span: Span) -> Timestamp {
    span.begin(now.saturating_sub(keep).unwrap_or(Timestamp::MIN))
}

/// Adds a reading of each filesystem. Readings whose numbers contradict each other are skipped. The same reading may be
/// added again.
pub fn record(tx: &Transaction<'_>, now: Timestamp, filesystems: &[Filesystem]) -> rusqlite::Result<()> {
    for filesystem in filesystems.iter().filter(|filesystem| filesystem.used_percent().is_some()) {
        let id = filesystem_row(tx, now, filesystem)?;
        let minute_ago = now.saturating_sub(SignedDuration::from_secs(60)).unwrap_or(Timestamp::MIN);
        tx.prepare_cached(
            "DELETE FROM usage WHERE filesystem = ?1 AND span = 0 AND at = (
                 SELECT max(at) FROM usage WHERE filesystem = ?1 AND span = 0 AND at > ?2 AND at < ?3
                 HAVING count(*) >= ?4)",
        )?
        .execute(params![id, micros(minute_ago), micros(now), MAX_PER_MINUTE])?;
        put(tx, id, &Point::reading(now, filesystem))?;
    }
    Ok(())
}

pub fn add_present(series: &mut [Series], now: Timestamp, filesystems: &[Filesystem]) {
    let known: Vec<_> = series.iter().map(|series| series.filesystem.clone()).collect();
    for filesystem in filesystems.iter().filter(|filesystem| filesystem.used_percent().is_some()) {
        let same = identify(&known, filesystem).map(|known| known.id);
        let series = series.iter_mut().find(|series| Some(series.filesystem.id) == same);
        // A clock that was set back must not disorder the points.
        if let Some(series) = series.filter(|series| series.points.last().is_none_or(|last| last.time < now))
        {
            series.points.push(Point::reading(now, filesystem));
        }
    }
}

/// Returns the row of a filesystem, which is added or updated.
fn filesystem_row(tx: &Transaction<'_>, now: Timestamp, seen: &Filesystem) -> rusqlite::Result<i64> {
    let mount = seen.mount.to_string_lossy();
    let known = tx
        .prepare_cached("SELECT * FROM filesystems WHERE mount = ?1")?
        .query_map([&mount], read_known)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let capacity = signed(seen.capacity_bytes);
    if let Some(known) = identify(&known, seen) {
        tx.prepare_cached(
            "UPDATE filesystems SET device = ?2, capacity = ?3, last_seen = max(last_seen, ?4) WHERE id = ?1",
        )?
        .execute(params![known.id, seen.device, capacity, micros(now)])?;
        return Ok(known.id);
    }
    tx.execute(
        "INSERT INTO filesystems (mount, fstype, device, capacity, first_seen, last_seen)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5)",
        params![mount, seen.fstype, seen.device, capacity, micros(now)],
    )?;
    Ok(tx.last_insert_rowid())
}

/// Rolls up and deletes the points that are due. Cheap if no point is due.
pub fn thin(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let days = horizon(now, KEEP_DAYS, Span::Day);
    let ids = tx
        .prepare_cached("SELECT id FROM filesystems")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for id in ids {
        roll_up_due(tx, id, horizon(now, KEEP_SINGLE, Span::Day))?;
        forget(tx, id, Span::Day, days)?;
    }
    tx.prepare_cached(
        "DELETE FROM filesystems
         WHERE last_seen < ?1 AND NOT EXISTS (SELECT 1 FROM usage WHERE filesystem = filesystems.id)",
    )?
    .execute([micros(days)])?;
    Ok(())
}

fn roll_up_due(tx: &Transaction<'_>, id: i64, until: Timestamp) -> rusqlite::Result<()> {
    let due = tx
        .prepare_cached("SELECT * FROM usage WHERE filesystem = ?1 AND span = 0 AND at < ?2")?
        .query_map(params![id, micros(until)], read_point)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    if due.is_empty() {
        return Ok(());
    }
    for point in roll_up(&due) {
        // The day may exist already, if a reading was saved late.
        let existing = tx
            .prepare_cached(
                "SELECT * FROM usage WHERE filesystem = ?1 AND span = ?2 AND at = ?3 AND capacity = ?4",
            )?
            .query_row(
                params![id, point.span.seconds(), micros(point.time), signed(point.capacity_bytes)],
                read_point,
            )
            .optional()?;
        put(tx, id, &existing.map_or(point, |existing| existing.with(&point)))?;
    }
    forget(tx, id, Span::Single, until)
}

fn forget(tx: &Transaction<'_>, id: i64, span: Span, until: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached("DELETE FROM usage WHERE filesystem = ?1 AND span = ?2 AND at < ?3")?
        .execute(params![id, span.seconds(), micros(until)])?;
    Ok(())
}

fn put(tx: &Transaction<'_>, id: i64, point: &Point) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT OR REPLACE INTO usage
         (filesystem, span, at, capacity, readings, used_low, used_mean, used_high, available_low,
          available_mean, available_high, inodes, inodes_free_low, inodes_free_mean, inodes_free_high)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    )?
    .execute(params![
        id,
        point.span.seconds(),
        micros(point.time),
        signed(point.capacity_bytes),
        signed(point.readings),
        signed(point.used.min),
        signed(point.used.avg),
        signed(point.used.max),
        signed(point.available.min),
        signed(point.available.avg),
        signed(point.available.max),
        signed(point.inodes),
        signed(point.inodes_free.min),
        signed(point.inodes_free.avg),
        signed(point.inodes_free.max),
    ])?;
    Ok(())
}

/// Returns the series of all filesystems, or only those of `mount`, with the points whose spans end at `since` or later
/// (`None`: all points). Sorted by mount point; the filesystem that was last seen there comes first.
pub fn series(
    connection: &Connection,
    since: Option<Timestamp>,
    mount: Option<&str>,
) -> rusqlite::Result<Vec<Series>> {
    let since = since.map_or(i64::MIN, micros);
    let known = filesystems(connection)?;
    let wanted = known.into_iter().filter(|known| mount.is_none_or(|mount| known.mount == mount));
    let mut series = Vec::new();
    for filesystem in wanted {
        let mut points = Vec::new();
        for span in Span::ALL {
            // A span may begin before a time that it covers.
            let from = since.saturating_sub(span.seconds().saturating_mul(1_000_000));
            let found = connection
                .prepare_cached("SELECT * FROM usage WHERE filesystem = ?1 AND span = ?2 AND at >= ?3 AND at + ?2 * 1000000 >= ?4")?
                .query_map(params![filesystem.id, span.seconds(), from, since], read_point)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            points.extend(found);
        }
        points.sort_by_key(|point| (point.time, point.span, point.capacity_bytes));
        series.push(Series { filesystem, points });
    }
    Ok(series)
}

pub fn filesystems(connection: &Connection) -> rusqlite::Result<Vec<KnownFilesystem>> {
    connection
        .prepare_cached("SELECT * FROM filesystems ORDER BY mount, last_seen DESC, id")?
        .query_map([], read_known)?
        .collect()
}

/// Returns the mount point among `known` that contains `path`, which is the longest prefix.
#[must_use]
pub fn mount_of<'a>(known: &'a [KnownFilesystem], path: &Path) -> Option<&'a str> {
    let above = known.iter().map(|known| known.mount.as_str()).filter(|mount| path.starts_with(mount));
    above.max_by_key(|mount| Path::new(mount).components().count())
}

fn read_known(row: &Row<'_>) -> rusqlite::Result<KnownFilesystem> {
    Ok(KnownFilesystem {
        id: row.get("id")?,
        mount: row.get("mount")?,
        fstype: row.get("fstype")?,
        device: row.get("device")?,
        capacity_bytes: unsigned(row, "capacity")?,
        first_seen: time(row, "first_seen")?,
        last_seen: time(row, "last_seen")?,
    })
}

fn read_point(row: &Row<'_>) -> rusqlite::Result<Point> {
    fn range(row: &Row<'_>, [low, mean, high]: [&str; 3]) -> rusqlite::Result<Range> {
        Ok(Range { min: unsigned(row, low)?, avg: unsigned(row, mean)?, max: unsigned(row, high)? })
    }
    Ok(Point {
        span: Span::of_seconds(row.get("span")?),
        time: time(row, "at")?,
        capacity_bytes: unsigned(row, "capacity")?,
        readings: unsigned(row, "readings")?,
        used: range(row, ["used_low", "used_mean", "used_high"])?,
        available: range(row, ["available_low", "available_mean", "available_high"])?,
        inodes: unsigned(row, "inodes")?,
        inodes_free: range(row, ["inodes_free_low", "inodes_free_mean", "inodes_free_high"])?,
    })
}

#[cfg(test)]
mod tests;
