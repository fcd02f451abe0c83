//! `layersweep completions SHELL`, `layersweep man DIR`

use std::path::Path;

use clap::CommandFactory;

use super::args::{Args, CompletionsArgs, ManArgs};
use super::exit::Exit;
use super::failure::Failure;
use super::output;

const NAME: &str = "layersweep";

/// Prints what the shell is to source.
pub(super) fn run(own: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(own.shell, &mut Args::command(), NAME, &mut script);
    output::text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

/// Writes a page for the program and one for each command.
pub(super) fn man(own: &ManArgs) -> Result<Exit, Failure> {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(&own.dir)
        .and_then(|()| clap_mangen::generate_to(command, &own.dir))
        .map_err(|error| cannot_write(&own.dir, &error))?;
    Ok(Exit::Done)
}

fn cannot_write(dir: &Path, error: &std::io::Error) -> Failure {
    Failure::NotThere {
        message: format!("writing the man pages to {}: {error}", dir.display()),
        hint: "name a directory that can be written to".into(),
    }
}
