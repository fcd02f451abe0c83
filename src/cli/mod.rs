//! The command line: parses the arguments, calls one use case and writes its result.

mod ask;
mod completions;
mod config;
mod deletion;
mod diff;
mod doctor;
mod explain;
mod explore;
mod fits;
mod gc;
mod global;
mod history;
mod images;
mod input;
mod layers;
mod metrics;
mod observer;
mod page;
mod pin;
mod replay;
mod report;
mod rm;
mod scan;
mod screen;
mod serve;
mod settings;
mod shared;
mod sweep;
mod usage;
mod waste;

use std::process::ExitCode;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use input::args::{Args, Command};
use input::{help, man};
use screen::full_screen::LogWriter;
use screen::{output, terminal};

use crate::services::error::{Error, Exit};
use crate::services::observer::Observer as _;
use crate::services::user_records;
use crate::sys::processes::helper;
use crate::sys::{allocator, sync};

pub fn main() -> ExitCode {
    allocator::keep_little();
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == helper::ARGUMENT => return helper::serve(arguments),
        Some(first) if first == sync::ARGUMENT => return sync::serve(),
        Some(first) if first == completions::ARGUMENT => return completions::names(arguments),
        _ => {}
    }
    // The running program, even if its file was replaced or deleted.
    helper::set_program("/proc/self/exe");
    let args = match help::parse() {
        Ok(args) => args,
        Err(error) => return usage_error(&error).into(),
    };
    output::set_color(args.global.color);
    terminal::set_screen(!args.global.no_trunc, !args.global.quiet);
    output::set_store_flags(&args.global);
    log_to_stderr(args.global.verbose);
    carry_out(&args).unwrap_or_else(|error| observer::report(&error)).into()
}

fn carry_out(args: &Args) -> Result<Exit, Error> {
    // These commands must work with an invalid configuration.
    match &args.command {
        Command::Completions(args) => return completions::run(args),
        Command::Man(args) => return man::run(args),
        Command::Doctor(doctor_args) if !doctor_args.suggest => return doctor::run(&args.global),
        Command::Config(config_args) => return config::run(&args.global, config_args),
        Command::Report(report) if !report.merge.is_empty() => return report::merge(&args.global, report),
        _ => {}
    }
    let command_flags = args.command.settings(&args.global);
    let (mut global, config) =
        settings::read(&args.global, &command_flags, args.command.needs_configuration())?;
    if let Some(choice) = user_records::choose(&global.request, args.command.records()) {
        global.note(&choice.note);
        global.request.state_dir = choice.dir;
    }
    let done = match &args.command {
        Command::Completions(_) | Command::Man(_) | Command::Config(_) => Ok(Exit::Done),
        Command::Doctor(_) => doctor::suggest(&global, &config),
        Command::Scan(args) => scan::run(&global, args),
        Command::Usage(args) => usage::run(&global, &config, args),
        Command::Images(args) => images::run(&global, &config, args),
        Command::Layers(args) => layers::run(&global, args),
        Command::Waste(args) => waste::run(&global, args),
        Command::Explore(args) => explore::run(&global, &config, args),
        Command::Fits(args) => fits::run(&global, &config, args),
        Command::Explain(args) => explain::run(&global, &config, args),
        Command::Sweep(args) => sweep::run(&global, &config, args),
        Command::Gc(args) => gc::run(&global, &config, args),
        Command::Rm(args) => rm::run(&global, &config, args),
        Command::History(args) => history::run(&global, &config, args),
        Command::Replay(replay_args) => replay::run(&global, &config, args, replay_args),
        Command::Report(args) => report::run(&global, &config, args),
        Command::Diff(args) => diff::run(&global, args),
        Command::Pin(args) => pin::run(&global, args),
        Command::Metrics(args) => metrics::run(&global, &config, args),
    };
    metrics::after(&global, &config, args, &done);
    done
}

/// Prints an error of clap. Help and version are written to stdout and are not an error.
fn usage_error(error: &clap::Error) -> Exit {
    // A failure to print cannot be reported anywhere.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Done }
}

/// Starts logging to stderr: warnings by default, actions with `-v`, every step with `-vv` and more.
/// `LAYERSWEEP_LOG` sets levels for all modules or for some: `warn,layersweep::cri=debug`.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let default = Targets::new().with_default(level);
    let configured = std::env::var("LAYERSWEEP_LOG").ok().map(|text| text.parse::<Targets>());
    let (filter, error) = match configured {
        None => (default, None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (default, Some(error)),
    };
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(LogWriter::default)
        // journald adds its own timestamps.
        .without_time()
        // The module of a message only helps a reader who knows the source.
        .with_target(verbose > 1)
        .with_ansi(false)
        .finish()
        .with(filter)
        .init();
    if let Some(error) = error {
        tracing::warn!("LAYERSWEEP_LOG: {error}; ignored");
    }
}
