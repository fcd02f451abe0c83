//! `layersweep doctor`

use jiff::Timestamp;

use super::global::Global;
use super::settings;
use crate::app::doctor;
use crate::app::doctor::suggest;
use crate::cli::input::args::GlobalFlags;
use crate::cli::screen::output;
use crate::config::Config;
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

pub(super) fn run(flags: &GlobalFlags) -> Result<Exit, Error> {
    let (global, config, problems) = settings::read_anyway(flags)?;
    let found = doctor::doctor(&global.request, &config, &problems)?;
    let complete = found.complete;
    let document = json::doctor(Timestamp::now(), complete, found.checks);
    output::result(global.format, &document, |document, screen| {
        text::doctor(document, screen, global.quiet)
    })?;
    Ok(match (document.counts.error, complete) {
        (0, true) => Exit::Done,
        (0, false) => Exit::Incomplete,
        _ => Exit::Failed,
    })
}

pub(super) fn suggest(global: &Global, config: &Config) -> Result<Exit, Error> {
    let found = suggest::suggest(&global.request, global, config)?;
    let document = json::doctor_suggest(Timestamp::now(), found);
    output::result(global.format, &document, |document, _| text::doctor_suggest(document))?;
    Ok(Exit::Done)
}
