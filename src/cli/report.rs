//! `layersweep report`

use jiff::{SignedDuration, Timestamp};

use super::global::Global;
use super::page::Target;
use super::settings;
use crate::app::{fleet, report};
use crate::cli::input::args::{Format, GlobalFlags, ReportArgs};
use crate::cli::input::values::Since;
use crate::cli::screen::output;
use crate::cli::screen::own_commands::Notation;
use crate::config::Config;
use crate::report::{html, json, text};
use crate::services::error::{Error, Exit};
use crate::services::observer::{Audience, Observer as _};

/// Default period of readings and runs.
const WINDOW: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Maximum number of lines about documents that could not be read.
const PROBLEMS: usize = 20;

pub(super) fn run(global: &Global, config: &Config, args: &ReportArgs) -> Result<Exit, Error> {
    let target = Target::named(args.html.as_deref(), global.format, &global.request)?;
    let since = args.since.unwrap_or(Since::Ago(WINDOW)).at(Timestamp::now());
    let report = report::report(&global.request, global, config, since)?;
    let exit = report.exit();
    if let Some(target) = &target {
        target.outside(report.places())?;
    }
    if let Some(target) = target {
        let document = json::report(&report, json::Extent::Largest);
        let page = html::page(&document, &|json| output::with_store_flags(json, Notation::Json), &|text| {
            output::with_store_flags(text, Notation::Text)
        });
        target.write_page(page, global)?;
        if global.format == Format::Table {
            return Ok(exit);
        }
    }
    let document = json::report(&report, json::Extent::Everything);
    output::result(global.format, &document, text::report)?;
    Ok(exit)
}

/// Adds up the documents of many nodes. The configuration of this machine does not matter.
pub(super) fn merge(flags: &GlobalFlags, args: &ReportArgs) -> Result<Exit, Error> {
    let (global, ..) = settings::read_anyway(flags)?;
    let target = Target::named(args.html.as_deref(), global.format, &global.request)?;
    if let Some(target) = &target {
        target.beside(&args.merge)?;
    }
    let merged = fleet::merge(&args.merge)?;
    for problem in merged.problems.iter().take(PROBLEMS) {
        let message = format!("{}: {}; not counted", problem.place, problem.reason);
        global.warn(Audience::Always, &message, "");
    }
    let more = merged.unread.saturating_sub(PROBLEMS as u64);
    if more > 0 {
        global.warn(Audience::Always, &format!("{more} more documents could not be read; not counted"), "");
    }
    let document = json::fleet(Timestamp::now(), merged);
    let exit = if document.complete { Exit::Done } else { Exit::Incomplete };
    if let Some(target) = target {
        target.write_page(html::fleet_page(&document), &global)?;
        if global.format == Format::Table {
            return Ok(exit);
        }
    }
    output::result(global.format, &document, text::fleet)?;
    Ok(exit)
}
