//! `layersweep usage`

use jiff::Timestamp;

use super::args::UsageArgs;
use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::{comparison, usage};
use crate::config::Config;
use crate::model::refs::GroupBy;
use crate::report::{json, text};

pub(super) fn run(global: &Global, config: &Config, args: &UsageArgs) -> Result<Exit, Error> {
    if let Some(since) = args.since {
        let by = args.by.unwrap_or(GroupBy::Container);
        let since = since.at(Timestamp::now());
        let compared = comparison::since(&global.request, global, since)?;
        output::result(global.format, &json::growth(&compared, since, by), text::growth)?;
        return Ok(if compared.is_complete() { Exit::Done } else { Exit::Incomplete });
    }
    let found = usage::usage(&global.request, global, config, args.by)?;
    let document = json::usage(&found);
    output::result(global.format, &document, text::usage)?;
    Ok(found.exit())
}
