//! `layersweep history`

use jiff::{SignedDuration, Timestamp};

use super::global::Global;
use crate::app::{history, replay};
use crate::cli::input::args::{Format, HistoryArgs, HistoryCommand, HistoryExportArgs, HistoryUsageArgs};
use crate::cli::input::values::Since;
use crate::cli::screen::output;
use crate::config::Config;
use crate::history::runs::Query;
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

/// Default number of runs.
const LIMIT: usize = 50;
/// Word for the last run that deleted an image.
const LAST: &str = "last";
/// Default period of the usage readings.
const WINDOW: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) const MONTH: SignedDuration = SignedDuration::from_hours(30 * 24);

pub(super) fn run(global: &Global, config: &Config, args: &HistoryArgs) -> Result<Exit, Error> {
    let now = Timestamp::now();
    match &args.command {
        None if args.scans => kept_scans(global, args, now),
        None if args.repull.is_some() => repull(global, args, now),
        None => match &args.image {
            Some(image) => past_images(global, args, image, now),
            None => past_runs(global, args, now),
        },
        Some(HistoryCommand::Usage(usage_args)) => past_usage(global, args, usage_args, now),
        Some(HistoryCommand::Export(export_args)) => export(global, config, export_args, now),
    }
}

fn past_runs(global: &Global, args: &HistoryArgs, now: Timestamp) -> Result<Exit, Error> {
    let query = Query {
        since: args.since.map(|since| since.at(now)),
        limit: args.limit.unwrap_or(LIMIT),
        kind: args.kind,
        quiet: args.all,
    };
    let past = history::past_runs(&global.request, global, &query)?;
    let exit = past.origin.exit();
    let document = json::history(now, past);
    output::result(global.format, &document, text::history)?;
    Ok(exit)
}

fn past_images(global: &Global, args: &HistoryArgs, image: &str, now: Timestamp) -> Result<Exit, Error> {
    let query = Query {
        since: args.since.map(|since| since.at(now)),
        limit: args.limit.unwrap_or(0),
        ..Query::default()
    };
    let past = history::past_images(&global.request, global, image, &query)?;
    let exit = past.runs.origin.exit();
    let document = json::history_of_images(now, past);
    output::result(global.format, &document, text::history)?;
    Ok(exit)
}

fn repull(global: &Global, args: &HistoryArgs, now: Timestamp) -> Result<Exit, Error> {
    let run_id = args.repull.as_deref().filter(|run_id| *run_id != LAST);
    let past = history::repull(&global.request, global, run_id)?;
    let exit = past.exit();
    let is_list = global.format != Format::Json;
    if is_list {
        past.check_is_of_one_store()?;
    }
    let document = json::repull(now, past);
    if !is_list {
        output::json(&document)?;
        return Ok(exit);
    }
    if !global.quiet {
        output::on_stderr(&text::repull_notes(&document))?;
    }
    output::ids(text::repull_references(&document).into_iter())?;
    Ok(exit)
}

fn kept_scans(global: &Global, args: &HistoryArgs, now: Timestamp) -> Result<Exit, Error> {
    let since = args.since.map(|since| since.at(now));
    let kept = history::kept_scans(&global.request, global, since)?;
    let exit = kept.origin.exit();
    let document = json::history_scans(now, kept);
    output::result(global.format, &document, text::history_scans)?;
    Ok(exit)
}

fn past_usage(
    global: &Global,
    args: &HistoryArgs,
    usage_args: &HistoryUsageArgs,
    now: Timestamp,
) -> Result<Exit, Error> {
    if args.all || args.kind.is_some() || args.limit.is_some() || args.scans || args.repull.is_some() {
        return Err(Error::usage(
            "--all, --kind, --limit, --scans and --repull are about runs; `history usage` shows none",
        )
        .hint("`layersweep history usage --help` lists its own flags"));
    }
    let since = Some(usage_args.since.or(args.since).unwrap_or(Since::Ago(WINDOW)).at(now));
    let past = history::past_usage(&global.request, global, since, usage_args.filesystem.as_deref())?;
    let exit = past.origin.exit();
    let document = json::history_usage(now, past);
    output::result(global.format, &document, text::history_usage)?;
    Ok(exit)
}

fn export(global: &Global, config: &Config, args: &HistoryExportArgs, now: Timestamp) -> Result<Exit, Error> {
    let since = args.since.unwrap_or(Since::Ago(MONTH)).before(now)?;
    output::lines(|write| replay::export(&global.request, global, config, (since, args.hash_names), write))?;
    Ok(Exit::Done)
}
