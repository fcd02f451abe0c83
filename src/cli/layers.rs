//! `layersweep layers`

use super::global::Global;
use crate::cli::input::args::{Format, LayersArgs};
use crate::cli::screen::{output, terminal};
use crate::report::json;
use crate::report::text::{self, Names};
use crate::services::error::{Error, Exit};
use crate::services::scan;

pub(super) fn run(global: &Global, args: &LayersArgs) -> Result<Exit, Error> {
    let result = scan::scan(&global.request, global)?;
    let document = json::layers(&result);
    let names = Names::of(&result.scan.inventory);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table => {
            if global.quiet {
                output::ids(document.layers.iter().map(|layer| layer.id.as_str()))?;
            } else if args.tree {
                output::text(&text::tree(&document.layers, &names, &terminal::screen()))?;
            } else {
                output::text(&text::layers(&document.layers, &names, &terminal::screen()))?;
            }
        }
    }
    Ok(result.exit())
}
