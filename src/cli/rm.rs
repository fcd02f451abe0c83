//! `layersweep rm REF...`

use super::args::RmArgs;
use super::deletion;
use super::global::Global;
use crate::app::error::{Error, Exit};
use crate::app::gc_request::{GcRequest, Selection};
use crate::config::Config;

pub(super) fn run(global: &Global, config: &Config, args: &RmArgs) -> Result<Exit, Error> {
    let request = GcRequest {
        request: &global.request,
        config,
        selection: Selection::Rm { references: &args.references, all_tags: args.all_tags },
        dry_run: args.dry_run,
        while_runtime_runs: args.while_runtime_runs,
    };
    deletion::run(global, request)
}
