//! `layersweep usage`

use super::args::Format;
use super::global::Global;
use super::output;
use crate::app::error::{Error, Exit};
use crate::app::scan;
use crate::model::StoreIx;
use crate::report::json::{self, UsageDoc};
use crate::report::text;

pub(super) fn run(global: &Global) -> Result<Exit, Error> {
    let surveyed = scan::scan(&global.request, global)?;
    let survey = &surveyed.survey;
    let inventory = &survey.inventory;
    let document = UsageDoc {
        schema_version: json::SCHEMA_VERSION,
        kind: "usage",
        generated_at: survey.taken_at,
        complete: survey.is_complete(),
        filesystems: inventory.filesystems.iter().map(json::filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|at| json::usage_store(survey, StoreIx::from(at))).collect(),
        totals: json::totals(survey),
        warnings: json::warnings(survey),
    };
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => output::text(&text::usage(&document))?,
    }
    Ok(surveyed.exit())
}
