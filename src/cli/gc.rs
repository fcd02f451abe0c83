//! `layersweep gc`

use super::args::GcArgs;
use super::collecting::Job;
use super::global::Global;
use crate::app::error::{Error, Exit};
use crate::config::Config;
use crate::history::runs::Command;

pub(super) fn run(global: &Global, config: &Config, own: &GcArgs) -> Result<Exit, Error> {
    let mut job = Job::new(global, config, Command::Gc, own.via);
    job.dry_run = own.dry_run;
    job.while_runtime_runs = own.while_runtime_runs;
    job.only = Some(own.only.as_slice()).filter(|only| !only.is_empty());
    job.run()
}
