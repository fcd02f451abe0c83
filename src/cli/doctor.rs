//! `layersweep doctor`

use jiff::Timestamp;

use super::args::{Format, GlobalFlags};
use super::{output, settings, terminal};
use crate::app::doctor;
use crate::app::error::{Error, Exit};
use crate::report::{json, text};

pub(super) fn run(flags: &GlobalFlags) -> Result<Exit, Error> {
    let (global, config, problems) = settings::read_anyway(flags)?;
    let found = doctor::doctor(&global.request, &config, &problems)?;
    let complete = found.complete;
    let document = json::doctor(Timestamp::now(), complete, found.checks);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::doctor(&document, &terminal::screen(), global.quiet))?,
    }
    Ok(match (document.counts.error, complete) {
        (0, true) => Exit::Done,
        (0, false) => Exit::Incomplete,
        _ => Exit::Failed,
    })
}
