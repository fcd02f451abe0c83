//! `layersweep replay`

use jiff::Timestamp;

use super::global::Global;
use super::history::MONTH;
use super::page::Target;
use super::settings;
use crate::app::replay::{self, ReplayRequest, Variant};
use crate::cli::input::args::{Args, Format, ReplayArgs};
use crate::cli::input::values::Since;
use crate::cli::screen::output;
use crate::config::{Config, Flag};
use crate::policy::kubelet::IMAGE_GC_PERIOD;
use crate::report::{html, json, text};
use crate::services::error::{Error, Exit};
use crate::services::observer::{Audience, Observer as _};

/// Settings that `--vary` takes: their flags, and keys of the configuration.
const VARIED: [(&str, &str); 5] = [
    ("--max-age", "images.max_age"),
    ("--min-age", "images.min_age"),
    ("--high", "images.high_percent"),
    ("--low", "images.low_percent"),
    ("--min-free", "images.min_free"),
];
/// Maximum number of lines about traces that could not be read.
const PROBLEMS: usize = 20;

pub(super) fn run(
    global: &Global,
    config: &Config,
    args: &Args,
    replay_args: &ReplayArgs,
) -> Result<Exit, Error> {
    let now = Timestamp::now();
    let variants = match &replay_args.vary {
        None => vec![Variant { value: None, policy: config.images.clone() }],
        Some(vary) => variants(args, vary)?,
    };
    let target = Target::named(replay_args.html.as_deref(), global.format, &global.request)?;
    if let Some(target) = &target {
        target.beside(&replay_args.files)?;
    }
    let period = replay_args.every.unwrap_or(IMAGE_GC_PERIOD);
    let replay_request = ReplayRequest {
        request: &global.request,
        config,
        files: &replay_args.files,
        since: replay_args.since.unwrap_or(Since::Ago(MONTH)).before(now)?,
        period,
        variants,
    };
    let result = replay::run(&replay_request, global)?;
    for problem in result.problems.iter().take(PROBLEMS) {
        let message = format!("{}: {}; not counted", problem.place, problem.reason);
        global.warn(Audience::Always, &message, "");
    }
    let exit = result.exit();
    let setting = replay_args.vary.as_ref().and_then(|vary| vary.split_once('='));
    let document = json::replay(now, result, setting.map(|(setting, _)| setting), period);
    if let Some(target) = target {
        target.write_page(html::replay_page(&document), global)?;
        if global.format == Format::Table {
            return Ok(exit);
        }
    }
    output::result(global.format, &document, text::replay)?;
    Ok(exit)
}

/// Returns the policy for each value of `SETTING=VALUE,…`, by the same checks as the flag of that name.
fn variants(args: &Args, vary: &str) -> Result<Vec<Variant>, Error> {
    let (setting, values) = vary.split_once('=').ok_or_else(|| wrong(vary, "no values"))?;
    let named = VARIED.iter().find(|(flag, _)| flag.trim_start_matches('-') == setting);
    let (flag, key) = named.ok_or_else(|| wrong(vary, "no such setting"))?;
    let others: Vec<_> =
        args.command.settings(&args.global).into_iter().filter(|other| other.flag != *flag).collect();
    let variants = values.split(',').map(|value| {
        let varied = Flag { key, flag, text: value.trim_end_matches('%').to_owned() };
        let flags: Vec<_> = others.iter().cloned().chain([varied]).collect();
        let config = settings::with_flags(&args.global, &flags)?;
        Ok(Variant { value: Some(value.to_owned()), policy: config.images })
    });
    variants.collect()
}

fn wrong(vary: &str, why: &str) -> Error {
    Error::usage(format!("--vary {vary}: {why}"))
        .hint("write --vary max-age=1d,3d,7d,off; min-age, high, low and min-free are also possible")
}
