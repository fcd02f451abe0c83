//! `layersweep images`

use super::global::Global;
use crate::cli::input::args::{Format, ImagesArgs};
use crate::cli::input::filter;
use crate::cli::screen::{output, terminal};
use crate::config::Config;
use crate::report::json;
use crate::report::text;
use crate::services::error::{Error, Exit};
use crate::services::observer::Observer as _;
use crate::services::reach;

pub(super) fn run(global: &Global, config: &Config, args: &ImagesArgs) -> Result<Exit, Error> {
    let (result, _) = reach::scan(&global.request, global, config)?;
    let scan = &result.scan;
    let now = scan.taken_at;
    let all = scan.inventory.images.len();
    let fair = json::fair(scan);
    let mut images: Vec<_> = json::known_images(&result, &fair)
        .into_iter()
        .filter(|image| args.filter.iter().all(|filter| filter.passes(image, now)))
        .collect();
    filter::sort(&mut images, args.sort);
    let document = json::images(&result, &fair, images);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => {
            if global.quiet {
                output::ids(document.images.iter().map(|image| image.id.as_str()))?;
            } else if document.images.is_empty() {
                // An empty table would be only a headline; stdout contains results only, so a note is printed
                // instead.
                global.note(&nothing_to_show(all));
            } else {
                output::text(&text::images(
                    &document.images,
                    all,
                    &document.fair_bytes,
                    now,
                    &terminal::screen(),
                ))?;
            }
        }
    }
    Ok(result.exit())
}

fn nothing_to_show(all: usize) -> String {
    match all {
        0 => "there are no images".into(),
        1 => "the only image does not match --filter".into(),
        all => format!("none of the {all} images matches --filter"),
    }
}
