//! `layersweep gc`

use super::args::GcArgs;
use super::deletion;
use super::global::Global;
use crate::app::error::{Error, Exit};
use crate::app::gc_request::GcRequest;
use crate::config::Config;
use crate::history::runs::Command;

pub(super) fn run(global: &Global, config: &Config, own: &GcArgs) -> Result<Exit, Error> {
    let asked = GcRequest {
        request: &global.request,
        config,
        command: Command::Gc,
        dry_run: own.dry_run,
        asks: false,
        while_runtime_runs: own.while_runtime_runs,
        named: &[],
        all_tags: false,
        only: own.only.clone(),
    };
    deletion::run(global, asked)
}
