//! Usage history: one series per filesystem.
//!
//! Single readings are kept for a week, then rolled up into hours, after a quarter into
//! days, and forgotten after two years. Lows and highs survive every step, so a spike of
//! five minutes is still there a year later.

mod points;

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::Serialize;

pub use points::{Point, Range, Span, roll_up};

use super::values::{micros, signed, time, unsigned};
use crate::model::Filesystem;

/// Readings closer to each other than this become one point with a low and a high, so that
/// a scan in an endless loop does not fill the database.
const TOGETHER: SignedDuration = SignedDuration::from_secs(60);
const KEEP_SINGLE: SignedDuration = SignedDuration::from_hours(7 * 24);
const KEEP_HOURS: SignedDuration = SignedDuration::from_hours(90 * 24);
const KEEP_DAYS: SignedDuration = SignedDuration::from_hours(731 * 24);

/// A filesystem that has a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KnownFilesystem {
    /// Row in the database.
    #[serde(skip)]
    pub id: i64,
    /// Where it was mounted.
    pub mount: String,
    /// Its type.
    pub fstype: String,
    /// Its device when last seen.
    pub device: String,
    /// Its size when last seen.
    pub capacity_bytes: u64,
    /// First reading ever.
    pub first_seen: Timestamp,
    /// Last reading.
    pub last_seen: Timestamp,
}

/// A filesystem with its points, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    pub filesystem: KnownFilesystem,
    pub points: Vec<Point>,
}

/// Which of the known filesystems `seen` is.
///
/// Neither device numbers nor names in `/dev` survive a reboot for certain (`sda` becomes
/// `sdb`), and the mount table has no UUID. What people ask for is the place: "how full was
/// /var?". So the mount point and the type must agree, and then either the device (the
/// filesystem was grown) or the size to the byte (the device was renamed). If both differ,
/// the disk was replaced, and its series starts anew.
#[must_use]
pub fn identify<'a>(known: &'a [KnownFilesystem], seen: &Filesystem) -> Option<&'a KnownFilesystem> {
    let mount = seen.mount.to_string_lossy();
    let here = || known.iter().filter(|one| one.mount == mount && one.fstype == seen.fstype);
    let newest = |same: &dyn Fn(&KnownFilesystem) -> bool| {
        here().filter(|one| same(one)).max_by_key(|one| one.last_seen)
    };
    newest(&|one| one.device == seen.device && one.capacity_bytes == seen.capacity_bytes)
        .or_else(|| newest(&|one| one.device == seen.device))
        .or_else(|| newest(&|one| one.capacity_bytes == seen.capacity_bytes))
}

/// Before when what is kept for `keep` is due, seen from `now`: only whole spans become due.
pub(super) fn horizon(now: Timestamp, keep: SignedDuration, span: Span) -> Timestamp {
    span.begin(now.saturating_sub(keep).unwrap_or(Timestamp::MIN))
}

/// Adds a reading of each filesystem. Numbers that contradict each other are left out.
pub fn record(tx: &Transaction<'_>, at: Timestamp, filesystems: &[Filesystem]) -> rusqlite::Result<()> {
    for filesystem in filesystems.iter().filter(|one| one.used_percent().is_some()) {
        let id = know(tx, at, filesystem)?;
        let mut point = Point::reading(at, filesystem);
        let since = at.saturating_sub(TOGETHER).unwrap_or(Timestamp::MIN);
        let near = tx
            .prepare_cached(
                "SELECT * FROM usage
                 WHERE filesystem = ?1 AND span = 0 AND at > ?2 AND at <= ?3 AND capacity = ?4",
            )?
            .query_row(params![id, micros(since), micros(at), signed(point.capacity_bytes)], read_point)
            .optional()?;
        if let Some(near) = near {
            point = near.with(&point);
        }
        put(tx, id, &point)?;
    }
    Ok(())
}

/// Adds a reading of each filesystem as a point of its own: after a deletion the readings of
/// the minute before it say nothing any more. The same reading may be added again.
pub fn record_alone(tx: &Transaction<'_>, at: Timestamp, filesystems: &[Filesystem]) -> rusqlite::Result<()> {
    for filesystem in filesystems.iter().filter(|one| one.used_percent().is_some()) {
        let id = know(tx, at, filesystem)?;
        put(tx, id, &Point::reading(at, filesystem))?;
    }
    Ok(())
}

/// Its row, with what may have changed brought up to date.
fn know(tx: &Transaction<'_>, at: Timestamp, seen: &Filesystem) -> rusqlite::Result<i64> {
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
        .execute(params![known.id, seen.device, capacity, micros(at)])?;
        return Ok(known.id);
    }
    tx.execute(
        "INSERT INTO filesystems (mount, fstype, device, capacity, first_seen, last_seen)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5)",
        params![mount, seen.fstype, seen.device, capacity, micros(at)],
    )?;
    Ok(tx.last_insert_rowid())
}

/// Rolls up and forgets what is due. Cheap where nothing is.
pub fn thin(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let days = horizon(now, KEEP_DAYS, Span::Day);
    let ids = tx
        .prepare_cached("SELECT id FROM filesystems")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<i64>>>()?;
    for id in ids {
        step(tx, id, (Span::Single, horizon(now, KEEP_SINGLE, Span::Hour)), Span::Hour)?;
        step(tx, id, (Span::Hour, horizon(now, KEEP_HOURS, Span::Day)), Span::Day)?;
        forget(tx, id, Span::Day, days)?;
    }
    tx.prepare_cached(
        "DELETE FROM filesystems
         WHERE last_seen < ?1 AND NOT EXISTS (SELECT 1 FROM usage WHERE filesystem = filesystems.id)",
    )?
    .execute([micros(days)])?;
    Ok(())
}

/// Rolls up the points of one span that lie before a time.
fn step(tx: &Transaction<'_>, id: i64, (from, until): (Span, Timestamp), to: Span) -> rusqlite::Result<()> {
    let due = tx
        .prepare_cached("SELECT * FROM usage WHERE filesystem = ?1 AND span = ?2 AND at < ?3")?
        .query_map(params![id, from.seconds(), micros(until)], read_point)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    if due.is_empty() {
        return Ok(());
    }
    for point in roll_up(&due, to) {
        // A reading may come late, from a run that could not save it in time.
        let there = tx
            .prepare_cached(
                "SELECT * FROM usage WHERE filesystem = ?1 AND span = ?2 AND at = ?3 AND capacity = ?4",
            )?
            .query_row(params![id, to.seconds(), micros(point.at), signed(point.capacity_bytes)], read_point)
            .optional()?;
        put(tx, id, &there.map_or(point, |there| there.with(&point)))?;
    }
    forget(tx, id, from, until)
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
        micros(point.at),
        signed(point.capacity_bytes),
        signed(point.readings),
        signed(point.used.low),
        signed(point.used.mean),
        signed(point.used.high),
        signed(point.available.low),
        signed(point.available.mean),
        signed(point.available.high),
        signed(point.inodes),
        signed(point.inodes_free.low),
        signed(point.inodes_free.mean),
        signed(point.inodes_free.high),
    ])?;
    Ok(())
}

/// The series since a time (all of it without one), each with the points that reach into
/// it; those on the mount point `mount` alone, if one is given. Sorted by mount, the
/// filesystem last seen there first.
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
            // The begin of a span may lie before a time that it covers.
            let from = since.saturating_sub(span.seconds().saturating_mul(1_000_000));
            let found = connection
                .prepare_cached("SELECT * FROM usage WHERE filesystem = ?1 AND span = ?2 AND at >= ?3 AND at + ?2 * 1000000 >= ?4")?
                .query_map(params![filesystem.id, span.seconds(), from, since], read_point)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            points.extend(found);
        }
        points.sort_by_key(|point| (point.at, point.span, point.capacity_bytes));
        series.push(Series { filesystem, points });
    }
    Ok(series)
}

/// All filesystems that have a series.
pub fn filesystems(connection: &Connection) -> rusqlite::Result<Vec<KnownFilesystem>> {
    connection
        .prepare_cached("SELECT * FROM filesystems ORDER BY mount, last_seen DESC, id")?
        .query_map([], read_known)?
        .collect()
}

/// The mount among `known` that holds `path`: the longest that it starts with.
#[must_use]
pub fn mount_of<'a>(known: &'a [KnownFilesystem], path: &Path) -> Option<&'a str> {
    let above = known.iter().map(|one| one.mount.as_str()).filter(|mount| path.starts_with(mount));
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
    let number = |column| unsigned(row, column);
    let range = |low, mean, high| {
        Ok::<_, rusqlite::Error>(Range { low: number(low)?, mean: number(mean)?, high: number(high)? })
    };
    Ok(Point {
        span: Span::of_seconds(row.get("span")?),
        at: time(row, "at")?,
        capacity_bytes: number("capacity")?,
        readings: number("readings")?,
        used: range("used_low", "used_mean", "used_high")?,
        available: range("available_low", "available_mean", "available_high")?,
        inodes: number("inodes")?,
        inodes_free: range("inodes_free_low", "inodes_free_mean", "inodes_free_high")?,
    })
}

#[cfg(test)]
mod tests;
