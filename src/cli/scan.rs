//! `layersweep scan`

use super::args::{Format, Global, ScanArgs};
use super::exit::Exit;
use super::failure::Failure;
use super::surveying::Surveyed;
use super::{output, surveying, terminal};
use crate::model::{ContainerIx, LeakIx, NodeIx, StoreIx};
use crate::report::json::{self, ScanDoc};
use crate::report::text;

pub(super) fn run(global: &Global, own: &ScanArgs) -> Result<Exit, Failure> {
    let surveyed = match own.no_record {
        true => surveying::survey(global)?,
        false => surveying::survey_and_record(global)?,
    };
    let document = document(&surveyed);
    match global.format {
        Format::Json => output::json(&document)?,
        // A timer wants to hear of what is wrong alone.
        Format::Table if global.quiet => {}
        Format::Table => output::text(&text::scan(&document, &terminal::screen()))?,
    }
    Ok(surveyed.exit())
}

/// All that was found.
pub(super) fn document(surveyed: &Surveyed) -> ScanDoc {
    let survey = &surveyed.survey;
    let inventory = &survey.inventory;
    ScanDoc {
        schema_version: json::SCHEMA_VERSION,
        kind: "scan",
        generated_at: survey.taken_at,
        complete: survey.is_complete(),
        sysroot: survey.sysroot.is_foreign().then(|| survey.sysroot.root().to_string_lossy().into_owned()),
        filesystems: inventory.filesystems.iter().map(json::filesystem).collect(),
        stores: (0..inventory.stores.len()).map(|at| json::store(survey, StoreIx::from(at))).collect(),
        images: surveyed.images().collect(),
        layers: (0..inventory.nodes.len()).filter_map(|at| json::layer(survey, NodeIx::from(at))).collect(),
        containers: (0..inventory.containers.len())
            .map(|at| json::container(survey, ContainerIx::from(at)))
            .collect(),
        leaks: (0..inventory.leaks.len()).map(|at| json::leak(survey, LeakIx::from(at))).collect(),
        totals: json::totals(survey),
        scan: json::effort(survey),
        warnings: json::warnings(survey),
    }
}
