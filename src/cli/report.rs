//! `layersweep report`

use std::io;

use jiff::{SignedDuration, Timestamp};

use super::args::{Format, ReportArgs};
use super::global::Global;
use super::output;
use super::report_page::Target;
use super::values::Since;
use crate::app::error::{Error, Exit};
use crate::app::observer::Observer as _;
use crate::app::report;
use crate::config::Config;
use crate::model::display::bytes;
use crate::report::{html, json, text};

/// Default period of readings and runs.
const WINDOW: SignedDuration = SignedDuration::from_hours(30 * 24);

pub(super) fn run(global: &Global, config: &Config, args: &ReportArgs) -> Result<Exit, Error> {
    let target = args.html.as_deref().map(|path| Target::check(path, global.request.sysroot.as_deref()));
    let target = target.transpose()?;
    if matches!(target, Some(Target::Stdout)) && global.format == Format::Json {
        return Err(Error::usage("--html - and --format json both write to standard output")
            .hint("name a file for the page; its document is the same"));
    }
    let since = args.since.unwrap_or(Since::Ago(WINDOW)).at(Timestamp::now());
    let report = report::report(&global.request, global, config, since)?;
    let exit = report.exit();
    if let Some(target) = &target {
        target.outside(report.places())?;
    }
    if let Some(target) = target {
        let document = json::report(&report, json::Extent::Largest);
        let page = html::page(&document).map_err(io::Error::from).map_err(Error::output)?;
        target.write(&page)?;
        if let Target::File(path) = &target {
            global.note(&format!("the report is in {} ({})", path.display(), bytes(page.len() as u64)));
        }
        if global.format == Format::Table {
            return Ok(exit);
        }
    }
    let document = json::report(&report, json::Extent::Everything);
    output::result(global.format, &document, text::report)?;
    Ok(exit)
}
