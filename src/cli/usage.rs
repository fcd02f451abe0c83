//! `layersweep usage`

use super::args::UsageArgs;
use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::usage;
use crate::config::Config;
use crate::report::{json, text};

pub(super) fn run(global: &Global, config: &Config, args: &UsageArgs) -> Result<Exit, Error> {
    let found = usage::usage(&global.request, global, config, args.by)?;
    let document = json::usage(&found);
    output::result(global.format, &document, text::usage)?;
    Ok(found.exit())
}
