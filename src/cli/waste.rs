//! `layersweep waste [IMAGE]`

use super::global::Global;
use crate::app::waste;
use crate::cli::input::args::{Format, WasteArgs};
use crate::cli::screen::output;
use crate::report::{json, text};
use crate::services::error::{Error, Exit};
use crate::services::observer::Observer as _;

/// Number of files that are listed without `--all`.
const LISTED: usize = 50;

pub(super) fn run(global: &Global, args: &WasteArgs) -> Result<Exit, Error> {
    let most = if args.all { usize::MAX } else { LISTED };
    let files = args.files.then_some(most);
    let image = args.image.as_deref().map(|image| (image, None));
    let found = waste::waste(&global.request, global, image, files)?;
    let document = json::waste(&found);
    if global.quiet && global.format == Format::Table {
        output::ids(document.images.iter().map(|image| image.id.as_str()))?;
    } else if document.images.is_empty() && global.format == Format::Table {
        global.note("no image has layers");
    } else {
        output::result(global.format, &document, text::waste)?;
    }
    Ok(found.result.exit())
}
