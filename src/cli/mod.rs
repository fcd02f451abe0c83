//! The command line: arguments in, one call, one rendering out.

mod args;
mod ask;
mod collecting;
mod completions;
mod containing;
mod containing_recording;
mod deciding;
mod diff;
mod directly;
mod doctor;
mod exit;
mod explain;
mod failure;
mod filter;
mod gc;
mod history;
mod images;
mod layers;
mod leak_recording;
mod man;
mod metrics;
mod outfile;
mod output;
mod picturing;
mod pin;
mod progress;
mod recording;
mod records;
mod report;
mod rm;
mod runtime;
mod scan;
mod settings;
mod stop;
mod surveying;
mod sweep;
mod terminal;
mod usage;
mod values;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use exit::Exit;
use failure::Failure;

use crate::config::Config;
use crate::sys::{helper, sync};

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == helper::ARGUMENT => return helper::serve(arguments),
        Some(first) if first == sync::ARGUMENT => return sync::serve(),
        _ => {}
    }
    // This very program, whatever has become of its file.
    helper::set_program("/proc/self/exe");
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage_error(&error).into(),
    };
    output::set_color(args.global.color);
    log_to_stderr(args.global.verbose);
    carry_out(args).unwrap_or_else(Failure::report).into()
}

fn carry_out(mut args: Args) -> Result<Exit, Failure> {
    let config = match args.command {
        // They must work whatever the configuration says.
        Command::Completions(_) | Command::Man(_) | Command::Doctor => {
            Config::defaults(&[]).map_err(Failure::Config)?
        }
        _ => {
            let flags = args.command.settings(&args.global);
            settings::settle(&mut args.global, &flags)?
        }
    };
    let done = match &args.command {
        Command::Scan(own) => scan::run(&args.global, own),
        Command::Usage => usage::run(&args.global),
        Command::Images(own) => images::run(&args.global, own),
        Command::Layers(own) => layers::run(&args.global, own),
        Command::Explain(own) => explain::run(&args.global, &config, own),
        Command::Sweep(own) => sweep::run(&args.global, &config, own),
        Command::Gc(own) => gc::run(&args.global, &config, own),
        Command::Rm(own) => rm::run(&args.global, &config, own),
        Command::History(own) => history::run(&args.global, own),
        Command::Report(own) => report::run(&args.global, &config, own),
        Command::Diff(own) => diff::run(&args.global, own),
        Command::Pin(own) => pin::run(&args.global, own),
        Command::Doctor => doctor::run(&mut args.global),
        Command::Completions(own) => completions::run(own),
        Command::Metrics(own) => metrics::run(&args.global, &config, own),
        Command::Man(own) => man::run(own),
    };
    metrics::after(&args.global, &config, &args.command, &done);
    done
}

/// Help and version go to stdout and are no error; the rest is bad usage.
fn usage_error(error: &clap::Error) -> Exit {
    // Nothing can be done about a terminal that is gone.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Done }
}

/// Warnings by default; `-v` tells what is done, `-vv` and more every step.
/// `LAYERSWEEP_LOG` takes the filter language of `tracing-subscriber`.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = std::env::var("LAYERSWEEP_LOG").unwrap_or_else(|_| level.to_owned());
    let filter = tracing_subscriber::EnvFilter::builder().parse_lossy(filter);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // journald has timestamps of its own.
        .without_time()
        // Whose line it is tells only who knows the source.
        .with_target(verbose > 1)
        .with_ansi(false)
        .init();
}
