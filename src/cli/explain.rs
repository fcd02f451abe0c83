//! `layersweep explain REF`

use super::args::{ExplainArgs, Format, Global};
use super::containing::Dead;
use super::exit::Exit;
use super::failure::Failure;
use super::{deciding, output, runtime, surveying, terminal};
use crate::config::Config;
use crate::cri::Options;
use crate::execute::containers::{Plan, Scope};
use crate::report::{json, text};
use crate::stores::Survey;
use crate::stores::lookup::{self, Subject};

pub(super) fn run(global: &Global, config: &Config, own: &ExplainArgs) -> Result<Exit, Failure> {
    let surveyed = surveying::survey_to_judge(global, false, config)?;
    let survey = &surveyed.survey;
    let subject = lookup::look_up(survey, &own.reference).map_err(|error| Failure::of_lookup(&error))?;
    let mut document = json::explain(survey, subject);
    if let Subject::Image(at) = subject {
        document.remember(surveyed.ages.of(at), &surveyed.memory.lives(survey, at)?);
        let (rulings, plan) = deciding::judge(global, config, &surveyed, at)?;
        document.judge(at, rulings, &plan);
    }
    if let Subject::Container(_) = subject
        && let Some(plan) = containers(global, config, survey)
    {
        document.judge_container(&plan);
    }
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::explain(&document, &terminal::screen()))?,
    }
    Ok(surveyed.exit())
}

/// What a collection of containers would do now, if there is a runtime to ask: what a container
/// is doing, and since when it is dead, only that knows.
fn containers(global: &Global, config: &Config, survey: &Survey) -> Option<Plan> {
    if global.sysroot.is_some() {
        return None;
    }
    let plan = || {
        let client = runtime::connect(global, &Options::default().probing()).ok()?;
        let request = surveying::request(global).ok()?;
        let scope = Scope { containers: true, logs: false };
        let plan = Dead::of(config, scope, &client).plan(&request, survey);
        plan.map_err(|blind| tracing::info!("what becomes of it is not known: {blind}")).ok()
    };
    plan()
}
