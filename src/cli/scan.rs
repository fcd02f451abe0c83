//! `layersweep scan`

use super::args::{Format, ScanArgs};
use super::global::Global;
use super::{output, terminal};
use crate::app::error::{Error, Exit};
use crate::app::scan;
use crate::report::json;
use crate::report::text;

pub(super) fn run(global: &Global, own: &ScanArgs) -> Result<Exit, Error> {
    let result = match own.no_record {
        true => scan::scan(&global.request, global)?,
        false => scan::scan_and_record(&global.request, global)?,
    };
    let document = json::scan(&result);
    match global.format {
        Format::Json => output::json(&document)?,
        // A timer wants to hear of what is wrong alone.
        Format::Table if global.quiet => {}
        Format::Table => output::text(&text::scan(&document, &terminal::screen()))?,
    }
    Ok(result.exit())
}
