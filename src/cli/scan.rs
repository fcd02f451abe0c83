//! `layersweep scan`

use super::global::Global;
use crate::cli::input::args::{Format, ScanArgs};
use crate::cli::screen::output;
use crate::report::json;
use crate::report::text;
use crate::services::error::{Error, Exit};
use crate::services::{reserve, scan};

pub(super) fn run(global: &Global, args: &ScanArgs) -> Result<Exit, Error> {
    if args.uses {
        return scan::record_uses(&global.request, global);
    }
    let result = if args.no_record {
        scan::scan(&global.request, global)?
    } else {
        scan::scan_and_record(&global.request, global)?
    };
    if args.reserve {
        reserve::create_all(&result.scan, &result.state.directory, global);
    }
    let document = json::scan(&result);
    // A timer prints only problems.
    if global.format == Format::Json || !global.quiet {
        output::result(global.format, &document, text::scan)?;
    }
    let exit = result.exit();
    // The program ends: freeing the memory of a large store would take a moment.
    std::mem::forget(document);
    std::mem::forget(result);
    Ok(exit)
}
