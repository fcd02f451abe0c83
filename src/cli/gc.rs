//! `layersweep gc`

use super::args::GcArgs;
use super::deletion;
use super::global::Global;
use crate::app::error::{Error, Exit};
use crate::app::gc_request::{GcRequest, Selection};
use crate::config::Config;
use crate::policy::PolicyKind;

pub(super) fn run(global: &Global, config: &Config, own: &GcArgs) -> Result<Exit, Error> {
    let asked = GcRequest {
        request: &global.request,
        config,
        selection: Selection::Gc { only: own.only.clone(), policy: own.policy.unwrap_or(PolicyKind::Exact) },
        dry_run: own.dry_run,
        while_runtime_runs: own.while_runtime_runs,
    };
    deletion::run(global, asked)
}
