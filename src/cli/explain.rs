//! `layersweep explain REF`

use super::global::Global;
use crate::app::explain;
use crate::cli::input::args::ExplainArgs;
use crate::cli::screen::output;
use crate::config::Config;
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

pub(super) fn run(global: &Global, config: &Config, args: &ExplainArgs) -> Result<Exit, Error> {
    let explanation = explain::explain(&global.request, global, config, &args.reference, None)?;
    let document = json::explanation(&explanation);
    output::result(global.format, &document, |document, screen| text::explain(document, screen, args.all))?;
    Ok(explanation.result.exit())
}
