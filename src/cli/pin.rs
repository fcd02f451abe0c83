//! `layersweep pin add|remove|list`

use jiff::Timestamp;

use super::global::Global;
use crate::app::pins;
use crate::cli::input::args::{Format, PinArgs, PinCommand};
use crate::cli::screen::{output, terminal};
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

pub(super) fn run(global: &Global, args: &PinArgs) -> Result<Exit, Error> {
    let mut list = match &args.command {
        PinCommand::Add { patterns, note } => pins::add(&global.request, global, patterns, note.as_deref())?,
        PinCommand::Remove { patterns } => pins::remove(&global.request, global, patterns)?,
        PinCommand::List => pins::list(&global.request, global)?,
    };
    let is_list = matches!(args.command, PinCommand::List);
    let exit = if is_list { list.exit() } else { Exit::Done };
    let missing = list.missing.take();
    let document = json::pins(Timestamp::now(), list);
    match global.format {
        Format::Json => output::json(&document)?,
        Format::Table if is_list && global.quiet => {
            output::ids(document.list.pins.iter().map(|pin| pin.pattern.as_str()))?;
        }
        Format::Table if is_list => output::text(&text::pins(&document, &terminal::screen()))?,
        Format::Table => output::text(&text::pins_changed(&document))?,
    }
    missing.map_or(Ok(exit), Err)
}
