//! `layersweep images`

use super::args::{Format, Global, ImagesArgs};
use super::exit::Exit;
use super::failure::Failure;
use super::{filter, output, surveying, terminal};
use crate::report::json::{self, ImagesDoc};
use crate::report::text;

pub(super) fn run(global: &Global, own: &ImagesArgs) -> Result<Exit, Failure> {
    let surveyed = surveying::survey(global)?;
    let survey = &surveyed.survey;
    let now = survey.taken_at;
    let mut images: Vec<_> =
        surveyed.images().filter(|image| own.filter.iter().all(|filter| filter.passes(image, now))).collect();
    filter::sort(&mut images, own.sort);
    let document = ImagesDoc {
        schema_version: json::SCHEMA_VERSION,
        kind: "images",
        generated_at: now,
        complete: survey.is_complete(),
        images,
        warnings: json::warnings(survey),
    };
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => {
            if global.quiet {
                output::ids(document.images.iter().map(|image| image.id.as_str()))?;
            } else {
                output::text(&text::images(&document.images, now, &terminal::screen()))?;
            }
        }
    }
    Ok(surveyed.exit())
}
