//! Forecasts when filesystems will be full, from their recorded usage.

use jiff::{SignedDuration, Timestamp};
use rusqlite::Connection;

use crate::history::Access;
use crate::history::usage::{self, Span};
use crate::history::{clock, known, runs};
use crate::model::Filesystem;
use crate::policy::forecast::{Forecast, FreedAt, UsageReading, forecast};
use crate::services::database::Database;
use crate::services::request::Request;

const SINCE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Returns a forecast for each of the filesystems, or `None` where the records do not allow one. Records of another
/// machine's disk are not used. Problems of the database are reported elsewhere.
pub fn read(request: &Request, filesystems: &[Filesystem]) -> Vec<Option<Forecast>> {
    let database = Database::open(request, Access::Read).ok().filter(|database| !database.directory.foreign);
    database
        .and_then(|database| database.read(|connection| of(connection, filesystems)).ok())
        .unwrap_or_else(|| vec![None; filesystems.len()])
}

/// Returns a forecast for each of the filesystems, given with their present usage, or `None` where the records do
/// not allow one.
///
/// # Errors
/// When the database cannot be read.
pub fn of<'a>(
    connection: &Connection,
    filesystems: impl IntoIterator<Item = &'a Filesystem>,
) -> rusqlite::Result<Vec<Option<Forecast>>> {
    let now = record_time(connection)?;
    let since = now.saturating_sub(SINCE).unwrap_or(Timestamp::MIN);
    let known = usage::filesystems(connection)?;
    let freed = runs::freed(connection, since)?;
    let mut forecasts = Vec::new();
    for filesystem in filesystems {
        let Some(same) = usage::identify(&known, filesystem) else {
            forecasts.push(None);
            continue;
        };
        let all = usage::series(connection, Some(since), Some(&same.mount))?;
        let readings: Vec<_> = all
            .into_iter()
            .filter(|series| series.filesystem.id == same.id)
            .flat_map(|series| series.points)
            .filter(|point| point.span == Span::Single)
            .map(|point| UsageReading {
                time: point.time,
                capacity_bytes: point.capacity_bytes,
                available_bytes: point.available.avg,
            })
            .collect();
        let freed_here: Vec<_> = freed
            .iter()
            .filter(|(_, store, _)| usage::mount_of(&known, store) == Some(same.mount.as_str()))
            .map(|(time, _, bytes)| FreedAt { time: *time, bytes: *bytes })
            .collect();
        forecasts.push(forecast(&readings, &freed_here, filesystem.available_bytes, now));
    }
    Ok(forecasts)
}

fn record_time(connection: &Connection) -> rusqlite::Result<Timestamp> {
    let last = known::clock(connection)?;
    let now = crate::sys::clock::read().map(|now| clock::advance(last.as_ref(), &now).state.record_time);
    Ok(now.unwrap_or_else(|_| Timestamp::now()))
}
