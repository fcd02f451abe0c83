//! `layersweep explain REF`

use super::args::ExplainArgs;
use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::explain;
use crate::config::Config;
use crate::report::{json, text};

pub(super) fn run(global: &Global, config: &Config, args: &ExplainArgs) -> Result<Exit, Error> {
    let explanation = explain::explain(&global.request, global, config, &args.reference)?;
    let document = json::explanation(&explanation);
    output::result(global.format, &document, text::explain)?;
    Ok(explanation.result.exit())
}
