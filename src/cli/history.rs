//! `layersweep history`, `layersweep history usage`

use std::collections::HashSet;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use super::args::{Format, HistoryArgs, HistoryCommand, HistoryUsageArgs};
use super::global::Global;
use super::values::Since;
use super::{output, terminal};
use crate::app::database::Database;
use crate::app::error::{Error, Exit};
use crate::history::{Access, pictures, runs, usage};
use crate::report::{json, text};

/// Runs shown unless asked otherwise.
const LIMIT: usize = 50;
/// How far back readings are shown unless asked otherwise.
const WINDOW: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) fn run(global: &Global, own: &HistoryArgs) -> Result<Exit, Error> {
    match &own.command {
        None if own.scans => kept_scans(global, own),
        None => past_runs(global, own),
        Some(HistoryCommand::Usage(more)) => past_usage(global, own, more),
    }
}

fn past_runs(global: &Global, own: &HistoryArgs) -> Result<Exit, Error> {
    let now = Timestamp::now();
    let since = own.since.map(|since| since.at(now));
    let (records, unsaved) = Database::open_with_waiting(&global.request, global)?;
    let query = runs::Query {
        since,
        limit: own.limit.unwrap_or(LIMIT),
        kind: own.kind.map(Into::into),
        quiet: own.all,
    };
    let (found, quiet) =
        records.read(|connection| Ok((runs::list(connection, &query)?, runs::quiet(connection, since)?)))?;
    let origin =
        json::Origin { now, database: records.path(), complete: !records.unreadable, since, unsaved };
    let document = json::history(origin, found, &quiet);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::history(&document, &terminal::screen()))?,
    }
    Ok(if records.unreadable { Exit::Incomplete } else { Exit::Done })
}

fn kept_scans(global: &Global, own: &HistoryArgs) -> Result<Exit, Error> {
    let now = Timestamp::now();
    let since = own.since.map(|since| since.at(now));
    let open = Database::open(&global.request, global, Access::Read)?;
    let kept = open.read(pictures::all)?;
    let unsaved = HashSet::new();
    let origin = json::Origin { now, database: open.path(), complete: !open.unreadable, since, unsaved };
    let document = json::history_scans(origin, kept);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::history_scans(&document, &terminal::screen()))?,
    }
    Ok(if open.unreadable { Exit::Incomplete } else { Exit::Done })
}

fn past_usage(global: &Global, own: &HistoryArgs, more: &HistoryUsageArgs) -> Result<Exit, Error> {
    if own.all || own.kind.is_some() || own.limit.is_some() || own.scans {
        return Err(Error::usage(
            "--all, --kind, --limit and --scans are about runs; `history usage` shows none",
        )
        .hint("`layersweep history usage --help` lists its own flags"));
    }
    let now = Timestamp::now();
    let since = Some(more.since.or(own.since).unwrap_or(Since::Ago(WINDOW)).at(now));
    let (records, unsaved) = Database::open_with_waiting(&global.request, global)?;
    let known = records.read(usage::filesystems)?;
    let mount = match &more.filesystem {
        None => None,
        Some(path) => Some(usage::mount_of(&known, path).ok_or_else(|| unknown(path, &known))?),
    };
    let (series, acts) = records
        .read(|connection| Ok((usage::series(connection, since, mount)?, runs::acts(connection, since)?)))?;
    let origin =
        json::Origin { now, database: records.path(), complete: !records.unreadable, since, unsaved };
    let document = json::history_usage(origin, series, acts);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::history_usage(&document, &terminal::screen(), &[]))?,
    }
    Ok(if records.unreadable { Exit::Incomplete } else { Exit::Done })
}

fn unknown(path: &Path, known: &[usage::Known]) -> Error {
    let mut mounts: Vec<_> = known.iter().map(|known| known.mount.as_str()).collect();
    mounts.dedup();
    Error::usage(format!("--filesystem {}: no reading of such a filesystem", path.display())).hint(
        match mounts.as_slice() {
            [] => "`layersweep scan` records how full the filesystems of its stores are".into(),
            mounts => format!("there are readings of {}", mounts.join(", ")),
        },
    )
}
