//! `layersweep explain REF`

use super::args::{ExplainArgs, Format, Global};
use super::exit::Exit;
use super::failure::Failure;
use super::{deciding, output, surveying, terminal};
use crate::config::Config;
use crate::report::{json, text};
use crate::survey::lookup::{self, Subject};

pub(super) fn run(global: &Global, config: &Config, own: &ExplainArgs) -> Result<Exit, Failure> {
    let surveyed = surveying::survey(global)?;
    let survey = &surveyed.survey;
    let subject = lookup::look_up(survey, &own.reference).map_err(|error| Failure::BadArgument {
        message: error.to_string(),
        hint: match error {
            lookup::Error::Unknown(_) => {
                "`layersweep images` and `layersweep layers` list what there is".into()
            }
            lookup::Error::Ambiguous { .. } => {
                "give more of the id, the whole name, or the store with --graphroot or --containerd-root"
                    .into()
            }
            lookup::Error::Store { .. } | lookup::Error::Missing { .. } => String::new(),
            lookup::Error::Outside { .. } => "name its store with --graphroot DIR".into(),
        },
    })?;
    let mut document = json::explain(survey, subject);
    if let Subject::Image(at) = subject {
        document.remember(surveyed.ages.of(at), &surveyed.memory.lives(survey, at)?);
        let (rulings, plan) = deciding::judge(global, config, &surveyed, at)?;
        document.judge(at, rulings, &plan);
    }
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::explain(&document, &terminal::screen()))?,
    }
    Ok(surveyed.exit())
}
