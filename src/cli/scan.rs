//! `layersweep scan`

use super::args::{Format, ScanArgs};
use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::{reserve, scan};
use crate::report::json;
use crate::report::text;

pub(super) fn run(global: &Global, own: &ScanArgs) -> Result<Exit, Error> {
    let result = match own.no_record {
        true => scan::scan(&global.request, global)?,
        false => scan::scan_and_record(&global.request, global)?,
    };
    if own.reserve {
        reserve::create_all(&result.scan, &result.state.directory, global);
    }
    let document = json::scan(&result);
    // A timer wants to hear of what is wrong alone.
    if global.format == Format::Json || !global.quiet {
        output::result(global.format, &document, text::scan)?;
    }
    let exit = result.exit();
    // The program ends: a large store would take a moment to be dropped.
    std::mem::forget(document);
    std::mem::forget(result);
    Ok(exit)
}
