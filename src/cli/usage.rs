//! `layersweep usage`

use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::scan;
use crate::report::{json, text};

pub(super) fn run(global: &Global) -> Result<Exit, Error> {
    let result = scan::scan(&global.request, global)?;
    let document = json::usage(&result);
    output::result(global.format, &document, |it, _| text::usage(it))?;
    Ok(result.exit())
}
