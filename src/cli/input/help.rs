//! The command line for clap, with changes that its derive macros do not support.

use clap::{Command, CommandFactory, FromArgMatches};

use crate::cli::input::args::Args;

/// Exit statuses with their meanings.
pub const EXIT_STATUS: [(&str, &str); 7] = [
    ("0", "Done, or nothing to do. A closed pipe is no failure."),
    ("1", "An operation failed, or nothing has that name. What was done is still reported."),
    ("2", "Bad usage or configuration; or a deletion without -y where no terminal can answer."),
    ("3", "Done, but something could not be read: figures are lower bounds."),
    ("4", "The target was not reached, although the run had no error."),
    (
        "5",
        "Refused: another run holds the lock, a listing was partial, or a deletion could not be proven safe.",
    ),
    ("10", "No store was found."),
];

/// Parses the arguments of this process.
pub fn parse() -> Result<Args, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns the program with all its commands. The `-h` of a command contains only its own options.
pub fn command() -> Command {
    let mut program = Args::command();
    program.build();
    let codes: Vec<_> = EXIT_STATUS.iter().map(|(code, meaning)| format!("  {code:<3} {meaning}")).collect();
    program.mut_subcommands(without_global_help).after_help(format!(
        "Exit codes:\n{}\n\n`man layersweep`: what the commands do; `man layersweep.toml`: the configuration",
        codes.join("\n")
    ))
}

fn without_global_help(command: Command) -> Command {
    let details = command.get_after_help().cloned();
    let page = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let manual = format!("`man {page}`: what it does, in which order, what it never does, and its columns");
    // Replaces the global options in the `-h` of every command.
    let global = "`layersweep -h`: options of all commands (stores, configuration, output, measuring)";
    let (short, long) = match details {
        Some(details) => (format!("{details}\n\n{manual}\n{global}"), format!("{details}\n\n{manual}")),
        None => (format!("{manual}\n{global}"), manual),
    };
    command
        .mut_args(|arg| if arg.is_global_set() { arg.hide_short_help(true) } else { arg })
        .mut_subcommands(without_global_help)
        .after_help(short)
        .after_long_help(long)
}
