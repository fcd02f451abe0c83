//! The command line: arguments in, one call, one rendering out.

mod address;
mod args;
mod ask;
mod completions;
mod deletion;
mod diff;
mod doctor;
mod explain;
mod filter;
mod gc;
mod global;
mod help;
mod history;
mod images;
mod layers;
mod man;
mod metrics;
mod observer;
mod outfile;
mod output;
mod pin;
mod progress;
mod report;
mod report_page;
mod rm;
mod scan;
mod serve;
mod settings;
mod shared;
mod stop;
mod sweep;
mod terminal;
mod usage;
mod values;

use std::process::ExitCode;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use args::{Args, Command};

use crate::app::error::{Error, Exit};
use crate::app::observer::Observer as _;
use crate::app::user_records;
use crate::sys::{allocator, helper, sync};

/// Runs the program.
pub fn main() -> ExitCode {
    allocator::keep_little();
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == helper::ARGUMENT => return helper::serve(arguments),
        Some(first) if first == sync::ARGUMENT => return sync::serve(),
        Some(first) if first == completions::ARGUMENT => return completions::names(arguments),
        _ => {}
    }
    // This very program, whatever has become of its file.
    helper::set_program("/proc/self/exe");
    let args = match help::parse() {
        Ok(args) => args,
        Err(error) => return usage_error(&error).into(),
    };
    output::set_color(args.global.color);
    terminal::set_truncates(!args.global.no_trunc);
    output::set_store_flags(&args.global);
    log_to_stderr(args.global.verbose);
    carry_out(&args).unwrap_or_else(|error| observer::report(&error)).into()
}

fn carry_out(args: &Args) -> Result<Exit, Error> {
    // These must work whatever the configuration says.
    match &args.command {
        Command::Completions(own) => return completions::run(own),
        Command::Man(own) => return man::run(own),
        Command::Doctor => return doctor::run(&args.global),
        _ => {}
    }
    let (mut global, config) = settings::read(&args.global, &args.command.settings(&args.global))?;
    if let Some(choice) = user_records::choose(&global.request, args.command.records()) {
        global.note(&choice.note);
        global.request.state_dir = choice.dir;
    }
    let done = match &args.command {
        Command::Completions(_) | Command::Man(_) | Command::Doctor => Ok(Exit::Done),
        Command::Scan(own) => scan::run(&global, own),
        Command::Usage(own) => usage::run(&global, &config, own),
        Command::Images(own) => images::run(&global, &config, own),
        Command::Layers(own) => layers::run(&global, own),
        Command::Explain(own) => explain::run(&global, &config, own),
        Command::Sweep(own) => sweep::run(&global, &config, own),
        Command::Gc(own) => gc::run(&global, &config, own),
        Command::Rm(own) => rm::run(&global, &config, own),
        Command::History(own) => history::run(&global, own),
        Command::Report(own) => report::run(&global, &config, own),
        Command::Diff(own) => diff::run(&global, own),
        Command::Pin(own) => pin::run(&global, own),
        Command::Metrics(own) => metrics::run(&global, &config, own),
    };
    metrics::after(&global, &config, args, &done);
    done
}

/// Help and version go to stdout and are no error; the rest is bad usage.
fn usage_error(error: &clap::Error) -> Exit {
    // Nothing can be done about a terminal that is gone.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Done }
}

/// Warnings by default; `-v` tells what is done, `-vv` and more every step.
/// `LAYERSWEEP_LOG` takes levels, for all or by module: `warn,layersweep::cri=debug`.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let usual = || Targets::new().with_default(level);
    let asked = std::env::var("LAYERSWEEP_LOG").ok().map(|text| text.parse::<Targets>());
    let (filter, error) = match asked {
        None => (usual(), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (usual(), Some(error)),
    };
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        // journald has timestamps of its own.
        .without_time()
        // Whose line it is tells only who knows the source.
        .with_target(verbose > 1)
        .with_ansi(false)
        .finish()
        .with(filter)
        .init();
    if let Some(error) = error {
        tracing::warn!("LAYERSWEEP_LOG: {error}; ignored");
    }
}
