//! `layersweep rm REF...`

use super::args::RmArgs;
use super::deletion;
use super::global::Global;
use crate::app::error::{Error, Exit};
use crate::app::gc_request::GcRequest;
use crate::config::Config;
use crate::history::runs::Command;

pub(super) fn run(global: &Global, config: &Config, own: &RmArgs) -> Result<Exit, Error> {
    let asked = GcRequest {
        request: &global.request,
        config,
        command: Command::Rm,
        dry_run: own.dry_run,
        asks: false,
        while_runtime_runs: own.while_runtime_runs,
        named: &own.references,
        all_tags: own.all_tags,
        only: Vec::new(),
    };
    deletion::run(global, asked)
}
