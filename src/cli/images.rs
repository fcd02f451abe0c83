//! `layersweep images`

use super::args::{Format, ImagesArgs};
use super::global::Global;
use super::{filter, output, terminal};
use crate::app::error::{Error, Exit};
use crate::app::observer::Observer as _;
use crate::app::reach;
use crate::config::Config;
use crate::report::json;
use crate::report::text;

pub(super) fn run(global: &Global, config: &Config, own: &ImagesArgs) -> Result<Exit, Error> {
    let (result, _) = reach::scan(&global.request, global, config)?;
    let scan = &result.scan;
    let now = scan.taken_at;
    let all = scan.inventory.images.len();
    let fair = json::fair(scan);
    let mut images: Vec<_> = json::known_images(&result, &fair)
        .into_iter()
        .filter(|image| own.filter.iter().all(|filter| filter.passes(image, now)))
        .collect();
    filter::sort(&mut images, own.sort);
    let document = json::images(&result, &fair, images);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => {
            if global.quiet {
                output::ids(document.images.iter().map(|image| image.id.as_str()))?;
            } else if document.images.is_empty() {
                // No headline over nothing. stdout holds results alone, and there is none.
                global.note(&nothing_to_show(all));
            } else {
                output::text(&text::images(
                    &document.images,
                    &document.fair_bytes,
                    now,
                    &terminal::screen(),
                ))?;
            }
        }
    }
    Ok(result.exit())
}

/// Why there is no row, of so many images.
fn nothing_to_show(all: usize) -> String {
    match all {
        0 => "there are no images".into(),
        1 => "the only image does not match --filter".into(),
        all => format!("none of the {all} images matches --filter"),
    }
}
