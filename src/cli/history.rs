//! `layersweep history`

use jiff::{SignedDuration, Timestamp};

use super::args::{HistoryArgs, HistoryCommand, HistoryUsageArgs};
use super::global::Global;
use super::output;
use super::values::Since;
use crate::app::error::{Error, Exit};
use crate::app::history;
use crate::history::runs::Query;
use crate::report::{json, text};

/// So many runs unless told otherwise.
const LIMIT: usize = 50;
/// How far back readings are shown unless told otherwise.
const WINDOW: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) fn run(global: &Global, own: &HistoryArgs) -> Result<Exit, Error> {
    let now = Timestamp::now();
    match &own.command {
        None if own.scans => kept_scans(global, own, now),
        None => past_runs(global, own, now),
        Some(HistoryCommand::Usage(more)) => past_usage(global, own, more, now),
    }
}

fn past_runs(global: &Global, own: &HistoryArgs, now: Timestamp) -> Result<Exit, Error> {
    let query = Query {
        since: own.since.map(|since| since.at(now)),
        limit: own.limit.unwrap_or(LIMIT),
        kind: own.kind,
        quiet: own.all,
    };
    let past = history::past_runs(&global.request, global, &query)?;
    let exit = past.origin.exit();
    let document = json::history(now, past);
    output::result(global.format, &document, text::history)?;
    Ok(exit)
}

fn kept_scans(global: &Global, own: &HistoryArgs, now: Timestamp) -> Result<Exit, Error> {
    let since = own.since.map(|since| since.at(now));
    let kept = history::kept_scans(&global.request, global, since)?;
    let exit = kept.origin.exit();
    let document = json::history_scans(now, kept);
    output::result(global.format, &document, text::history_scans)?;
    Ok(exit)
}

fn past_usage(
    global: &Global,
    own: &HistoryArgs,
    more: &HistoryUsageArgs,
    now: Timestamp,
) -> Result<Exit, Error> {
    if own.all || own.kind.is_some() || own.limit.is_some() || own.scans {
        return Err(Error::usage(
            "--all, --kind, --limit and --scans are about runs; `history usage` shows none",
        )
        .hint("`layersweep history usage --help` lists its own flags"));
    }
    let since = Some(more.since.or(own.since).unwrap_or(Since::Ago(WINDOW)).at(now));
    let past = history::past_usage(&global.request, global, since, more.filesystem.as_deref())?;
    let exit = past.origin.exit();
    let document = json::history_usage(now, past);
    output::result(global.format, &document, text::history_usage)?;
    Ok(exit)
}
