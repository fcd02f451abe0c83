//! `layersweep completions SHELL`

use clap::CommandFactory;

use super::args::{Args, CompletionsArgs};
use super::output;
use crate::app::error::{Error, Exit};

const NAME: &str = "layersweep";

/// Prints what the shell is to source.
pub(super) fn run(own: &CompletionsArgs) -> Result<Exit, Error> {
    let mut script = Vec::new();
    clap_complete::generate(own.shell, &mut Args::command(), NAME, &mut script);
    output::text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
