//! `layersweep usage`

use jiff::Timestamp;

use super::global::Global;
use crate::app::{comparison, usage};
use crate::cli::input::args::UsageArgs;
use crate::cli::screen::output;
use crate::config::Config;
use crate::model::refs::GroupBy;
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

pub(super) fn run(global: &Global, config: &Config, args: &UsageArgs) -> Result<Exit, Error> {
    if let Some(since) = args.since {
        let by = args.by.unwrap_or(GroupBy::Container);
        let since = since.before(Timestamp::now())?;
        let compared = comparison::since(&global.request, global, since)?;
        output::result(global.format, &json::growth(&compared, since, by), |document, screen| {
            text::growth(document, screen, args.all)
        })?;
        return Ok(if compared.is_complete() { Exit::Done } else { Exit::Incomplete });
    }
    let found = usage::usage(&global.request, global, config, args.by)?;
    let document = json::usage(&found);
    output::result(global.format, &document, |document, screen| text::usage(document, screen, args.all))?;
    Ok(found.exit())
}
