//! `layersweep man DIR`

mod descriptions;
mod sections;

use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::cli::input::args::{Args, ManArgs};
use crate::cli::input::help::EXIT_STATUS;
use crate::config::keys::KEYS;
use crate::services::error::{Error, Exit};
use descriptions::{CONFIGURATION, CONFIGURATION_EXAMPLES, DESCRIPTIONS};
use sections::{ENVIRONMENT, EXAMPLES, FILES, OTHERS};

/// Writes a page for the program and for each command.
pub fn run(args: &ManArgs) -> Result<Exit, Error> {
    let mut command = Args::command().disable_help_subcommand(true);
    command.build();
    let names = names(&command);
    let written = std::fs::create_dir_all(&args.dir)
        .and_then(|()| pages(command, &names, &args.dir))
        .and_then(|()| std::fs::write(args.dir.join("layersweep.toml.5"), configuration()));
    written.map_err(|error| {
        Error::failed(format!("writing the man pages to {}: {error}", args.dir.display()))
            .hint("name a directory that can be written to")
    })?;
    Ok(Exit::Done)
}

/// Returns the names of the pages of a command and all commands below it.
fn names(command: &Command) -> Vec<String> {
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    std::iter::once(page_name(command)).chain(below.flat_map(names)).collect()
}

fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn pages(command: Command, names: &[String], dir: &Path) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages(command.clone(), names, dir)?;
    }
    let mut text = Vec::new();
    let name = page(command, names, &mut text)?;
    // The sentence mentions two kinds of help; a man page is the long one.
    let text = String::from_utf8_lossy(&text).replace(" (see a summary with \\*(Aq\\-h\\*(Aq)", "");
    std::fs::write(dir.join(name), text)
}

/// Writes the page of one command and returns its file name.
///
/// Most sections are laid out by `clap_mangen`. The synopsis comes from `--help`, because `clap_mangen` lists
/// all options there and hides the arguments. Lists below the options of `--help` are added to the description.
/// Global options are only on the page of the program.
fn page(mut command: Command, names: &[String], to: &mut Vec<u8>) -> io::Result<String> {
    let usage = command.render_usage().to_string();
    let name = page_name(&command);
    let is_program = name == names[0];
    let details = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string)
        .filter(|details| details.contains("\n  "))
        .unwrap_or_default();
    let description = DESCRIPTIONS
        .iter()
        .find(|(page, _)| *page == name)
        .map_or(&[][..], |(_, paragraphs)| paragraphs)
        .join("\n");
    let has_commands = command.get_subcommands().any(|command| !command.is_hide_set());
    if !is_program {
        command = command.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
    }
    let source = concat!("layersweep ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).source(source).manual("layersweep");
    man.render_title(to)?;
    man.render_name_section(to)?;
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).text([bold(usage.trim_start_matches("Usage:").trim())]);
    synopsis.to_writer(to)?;
    describe(&format!("{description}\n{details}")).to_writer(to)?;
    man.render_options_section(to)?;
    if !is_program {
        let mut global = Roff::new();
        let text = [
            roman("Options of all commands (stores, configuration, output, measuring) are described in "),
            bold("layersweep"),
            roman("(1)."),
        ];
        global.control("PP", []).text(text).to_writer(to)?;
    }
    if has_commands {
        man.render_subcommands_section(to)?;
    }
    let examples = EXAMPLES.iter().find(|(page, _)| *page == name).map_or(&[][..], |(_, examples)| examples);
    list("EXAMPLES", examples).to_writer(to)?;
    list("EXIT STATUS", &EXIT_STATUS).to_writer(to)?;
    list("FILES", &FILES).to_writer(to)?;
    list("ENVIRONMENT", &ENVIRONMENT).to_writer(to)?;
    see_also(&name, names).to_writer(to)?;
    to.flush()?;
    Ok(man.get_filename())
}

/// Returns the page of the configuration file, layersweep.toml(5).
fn configuration() -> String {
    let mut page = Roff::new();
    let source = concat!("layersweep ", env!("CARGO_PKG_VERSION"));
    page.control("TH", ["layersweep.toml", "5", "", source, "layersweep"]);
    page.control("SH", ["NAME"]).text([roman("layersweep.toml - configuration of layersweep")]);
    let mut text = page.to_roff() + &describe(CONFIGURATION).to_roff();
    let mut keys = Roff::new();
    keys.control("SH", ["KEYS"]);
    for key in &KEYS {
        let (first, rest) = key.meaning.split_at(1);
        let words = format!("{}{rest}. Default: {}.", first.to_uppercase(), key.default).replace('`', "");
        keys.control("TP", []).text([bold(key.name)]).text([roman(words)]);
    }
    text += &keys.to_roff();
    text += &list("EXAMPLES", &CONFIGURATION_EXAMPLES).to_roff();
    text += &list("FILES", &FILES[..1]).to_roff();
    let mut related = Roff::new();
    related.control("SH", ["SEE ALSO"]);
    related.text([roman("layersweep(1), layersweep-config(1), layersweep-doctor(1), layersweep-gc(1)")]);
    text + &related.to_roff()
}

/// Builds a section of terms with their meanings; empty without terms.
fn list(title: &str, entries: &[(&str, &str)]) -> Roff {
    let mut section = Roff::new();
    if !entries.is_empty() {
        section.control("SH", [title]);
    }
    for (term, meaning) in entries {
        section.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
    }
    section
}

/// Lists the related pages: all others on the page of the program, otherwise the parent and the commands
/// below.
fn see_also(page: &str, names: &[String]) -> Roff {
    let is_program = page == names[0];
    let related = names.iter().filter(|name| {
        *name != page && (is_program || is_subcommand(name, page) || is_subcommand(page, name))
    });
    let pages = related.map(|name| format!("{name}(1)"));
    let all: Vec<_> = pages.chain(OTHERS.map(str::to_owned)).collect();
    let mut section = Roff::new();
    section.control("SH", ["SEE ALSO"]).text([roman(all.join(", "))]);
    section
}

/// Returns true if `page` is the page of a command below `parent`.
fn is_subcommand(page: &str, parent: &str) -> bool {
    page.strip_prefix(parent).is_some_and(|rest| rest.starts_with('-'))
}

/// Converts the text to a description. Each line is a paragraph; a line that begins with blanks is an entry
/// of a list: a term, at least two blanks, and its meaning.
fn describe(details: &str) -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["DESCRIPTION"]);
    for line in details.lines().filter(|line| !line.is_empty()) {
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
    use clap::Parser as _;

    #[test]
    fn every_page_has_examples_that_parse() {
        let mut program = Args::command().disable_help_subcommand(true);
        program.build();
        let (pages, examples): (Vec<_>, Vec<_>) =
            (names(&program), EXAMPLES.iter().map(|(page, _)| *page).collect());
        let missing: Vec<_> = pages.iter().filter(|page| !examples.contains(&page.as_str())).collect();
        assert!(missing.is_empty() && examples.len() == pages.len(), "{missing:?}");
        for (line, _) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let line = line.split(" > ").flat_map(|part| part.split(" | ")).next().unwrap_or_default();
            // Only a note has blanks inside quotes.
            let words = line.replace('\'', "").replace("needed offline", "note");
            let parsed = Args::try_parse_from(words.split_whitespace());
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn every_page_has_a_description() {
        let mut program = Args::command().disable_help_subcommand(true);
        program.build();
        let described: Vec<_> = DESCRIPTIONS.iter().map(|(page, _)| *page).collect();
        let mut pages = names(&program);
        pages.retain(|page| !described.contains(&page.as_str()));
        assert!(pages.is_empty(), "{pages:?}");
        for page in ["layersweep-gc", "layersweep-rm", "layersweep-sweep"] {
            let (_, paragraphs) = DESCRIPTIONS.iter().find(|(name, _)| *name == page).unwrap();
            assert!(paragraphs.iter().any(|paragraph| paragraph.contains(" never ")), "{page}");
            assert!(paragraphs.iter().any(|paragraph| paragraph.starts_with("  PREDICTED")), "{page}");
        }
    }

    #[test]
    fn indented_lines_are_list_entries() {
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
