//! `layersweep usage`

use super::args::Format;
use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::scan;
use crate::report::{json, text};

pub(super) fn run(global: &Global) -> Result<Exit, Error> {
    let result = scan::scan(&global.request, global)?;
    let document = json::usage(&result);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::usage(&document))?,
    }
    Ok(result.exit())
}
