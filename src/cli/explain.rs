//! `layersweep explain REF`

use super::args::{ExplainArgs, Format};
use super::global::Global;
use super::{output, terminal};
use crate::app::containers::Containers;
use crate::app::error::{Error, Exit};
use crate::app::policy_context;
use crate::app::runtime;
use crate::app::scan;
use crate::config::Config;
use crate::cri::Options;
use crate::execute::containers::Scope;
use crate::model::Plan;
use crate::model::plan::Target;
use crate::report::{json, text};
use crate::stores::Survey;
use crate::stores::lookup::{self, Subject};

pub(super) fn run(global: &Global, config: &Config, own: &ExplainArgs) -> Result<Exit, Error> {
    let surveyed = scan::scan_for_policy(&global.request, global, false, config)?;
    let survey = &surveyed.survey;
    let subject = lookup::look_up(survey, &own.reference).map_err(|error| Error::from(error))?;
    let mut document = json::explain(survey, subject);
    if let Subject::Image(at) = subject {
        document.remember(surveyed.ages.of(at), &surveyed.state.lives(survey, at)?);
        let (rulings, plan) = policy_context::judge(&global.request, global, config, &surveyed, at)?;
        document.judge(&Target::image(&survey.inventory, at), rulings, &plan);
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
    if global.request.sysroot.is_some() {
        return None;
    }
    let plan = || {
        let client = runtime::connect(&global.request, &Options::default().probing()).ok()?;
        let request = global.request.stores().ok()?;
        let scope = Scope { containers: true, logs: false };
        let plan = Containers::of(config, scope, &client).plan(None, &request, survey);
        plan.map_err(|blind| tracing::info!("what becomes of it is not known: {blind}")).ok()
    };
    plan()
}
