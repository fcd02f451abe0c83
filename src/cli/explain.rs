//! `layersweep explain REF`

use super::args::{ExplainArgs, Format};
use super::global::Global;
use super::{output, terminal};
use crate::app::error::{Error, Exit};
use crate::app::explain;
use crate::config::Config;
use crate::report::{json, text};

pub(super) fn run(global: &Global, config: &Config, own: &ExplainArgs) -> Result<Exit, Error> {
    let explanation = explain::explain(&global.request, global, config, &own.reference)?;
    let document = json::explanation(&explanation);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::explain(&document, &terminal::screen()))?,
    }
    Ok(explanation.result.exit())
}
