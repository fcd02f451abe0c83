//! `layersweep rm REF...`

use super::args::RmArgs;
use super::deletion;
use super::global::Global;
use crate::app::error::{Error, Exit};
use crate::app::gc_request::{GcRequest, Selection};
use crate::config::Config;

pub(super) fn run(global: &Global, config: &Config, own: &RmArgs) -> Result<Exit, Error> {
    let asked = GcRequest {
        request: &global.request,
        config,
        selection: Selection::Rm { references: &own.references, all_tags: own.all_tags },
        dry_run: own.dry_run,
        while_runtime_runs: own.while_runtime_runs,
    };
    deletion::run(global, asked)
}
