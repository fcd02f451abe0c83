//! When filesystems are full, from their recorded usage.

use jiff::{SignedDuration, Timestamp};
use rusqlite::Connection;

use super::database::Database;
use super::request::Request;
use crate::history::Access;
use crate::history::usage::{self, Span};
use crate::history::{clock, known, runs};
use crate::model::Filesystem;
use crate::policy::forecast::{Forecast, FreedAt, UsageReading, forecast};

/// The longest window of a forecast.
const SINCE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// When these filesystems are full, as far as their past says; never of another machine's disk.
/// What is wrong with the database is reported elsewhere.
pub fn read(request: &Request, filesystems: &[Filesystem]) -> Vec<Option<Forecast>> {
    let opened = Database::open(request, Access::Read).ok();
    let own = opened.filter(|database| !database.directory.foreign);
    own.and_then(|database| database.read(|from| of(from, filesystems)).ok())
        .unwrap_or_else(|| vec![None; filesystems.len()])
}

/// A forecast for each of these filesystems, where there is one. They are as they are now.
///
/// # Errors
/// When the database cannot be read.
pub fn of<'a>(
    from: &Connection,
    filesystems: impl IntoIterator<Item = &'a Filesystem>,
) -> rusqlite::Result<Vec<Option<Forecast>>> {
    let now = record_time(from)?;
    let since = now.saturating_sub(SINCE).unwrap_or(Timestamp::MIN);
    let known = usage::filesystems(from)?;
    let freed = runs::freed(from, since)?;
    let one = |filesystem: &Filesystem| {
        let Some(same) = usage::identify(&known, filesystem) else { return Ok(None) };
        let all = usage::series(from, Some(since), Some(&same.mount))?;
        let readings: Vec<_> = all
            .into_iter()
            .filter(|series| series.filesystem.id == same.id)
            .flat_map(|series| series.points)
            .filter(|point| point.span == Span::Single)
            .map(|point| UsageReading {
                at: point.at,
                capacity_bytes: point.capacity_bytes,
                available_bytes: point.available.mean,
            })
            .collect();
        let here: Vec<_> = freed
            .iter()
            .filter(|(_, store, _)| usage::mount_of(&known, store) == Some(same.mount.as_str()))
            .map(|(at, _, bytes)| FreedAt { at: *at, bytes: *bytes })
            .collect();
        Ok(forecast(&readings, &here, filesystem.available_bytes, now))
    };
    filesystems.into_iter().map(one).collect()
}

/// The present in the time of the records.
fn record_time(from: &Connection) -> rusqlite::Result<Timestamp> {
    let last = known::clock(from)?;
    let now = crate::sys::clock::read().map(|now| clock::advance(last.as_ref(), &now).state.record_time);
    Ok(now.unwrap_or_else(|_| Timestamp::now()))
}
