//! `layersweep man DIR`

use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use super::args::{Args, ManArgs};
use crate::app::error::{Error, Exit};

/// Writes a page for the program and one for each command.
pub(super) fn run(own: &ManArgs) -> Result<Exit, Error> {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    std::fs::create_dir_all(&own.dir).and_then(|()| pages(command, &own.dir)).map_err(|error| {
        Error::failed(format!("writing the man pages to {}: {error}", own.dir.display()))
            .hint("name a directory that can be written to")
    })?;
    Ok(Exit::Done)
}

fn pages(command: Command, dir: &Path) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages(command.clone(), dir)?;
    }
    let mut text = Vec::new();
    let name = page(command, &mut text)?;
    // It speaks of two kinds of help; a page is the long one.
    let text = String::from_utf8_lossy(&text).replace(" (see a summary with \\*(Aq\\-h\\*(Aq)", "");
    std::fs::write(dir.join(name), text)
}

/// Writes the page of one command; the name of its file.
///
/// The parts that `clap_mangen` lays out well are its own. The synopsis is as `--help` has it (with all
/// options by name it hid the arguments), and what `--help` tells below the options is the description.
fn page(mut command: Command, to: &mut Vec<u8>) -> io::Result<String> {
    let usage = command.render_usage().to_string();
    let details = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let has_commands = command.get_subcommands().any(|command| !command.is_hide_set());
    let source = concat!("layersweep ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).source(source).manual("layersweep");
    man.render_title(to)?;
    man.render_name_section(to)?;
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).text([bold(usage.trim_start_matches("Usage:").trim())]);
    synopsis.to_writer(to)?;
    match details {
        Some(details) => describe(&details).to_writer(to)?,
        None => man.render_description_section(to)?,
    }
    man.render_options_section(to)?;
    if has_commands {
        man.render_subcommands_section(to)?;
    }
    to.flush()?;
    Ok(man.get_filename())
}

/// Each line is a paragraph, and one that begins with blanks is an entry of a list: a term, two blanks or
/// more, what it means.
fn describe(details: &str) -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["DESCRIPTION"]);
    for line in details.lines() {
        match line.strip_prefix("  ").map(|entry| entry.split_once("  ").unwrap_or((entry, ""))) {
            Some((term, meaning)) => {
                page.control("TP", []).text([bold(term)]).text([roman(meaning.trim())]);
            }
            None => {
                page.control("PP", []).text([roman(line)]);
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_entries() {
        let text =
            describe("A scan is named by\n  last, last~1    the newest one\nEvery scan is kept.").to_roff();
        let lines: Vec<_> = text.lines().skip_while(|line| *line != ".SH DESCRIPTION").collect();
        assert_eq!(
            lines,
            [
                ".SH DESCRIPTION",
                ".PP",
                "A scan is named by",
                ".TP",
                "\\fBlast, last~1\\fR",
                "the newest one",
                ".PP",
                "Every scan is kept."
            ]
        );
    }
}
