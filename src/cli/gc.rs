//! `layersweep gc`

use super::deletion;
use super::global::Global;
use crate::app::pins;
use crate::cli::input::args::GcArgs;
use crate::config::Config;
use crate::policy::PolicyKind;
use crate::services::error::{Error, Exit};
use crate::services::gc_request::{GcRequest, Selection};
use crate::services::observer::{Audience, Observer as _};

pub(super) fn run(global: &Global, config: &Config, args: &GcArgs) -> Result<Exit, Error> {
    let request = GcRequest {
        request: &global.request,
        config,
        selection: Selection::Gc {
            only: args.only.clone(),
            policy: args.policy.unwrap_or(PolicyKind::Exact),
            compare: args.compare,
        },
        dry_run: args.dry_run,
        while_runtime_runs: args.while_runtime_runs,
    };
    for problem in config.shadowed_rules() {
        let message = format!("{}: {}: {}", problem.origin.short(), problem.field, problem.message);
        global.warn(Audience::Usual, &message, &problem.remedy);
    }
    if args.dry_run {
        pins::warn_unmatched(&global.request, global, config);
    }
    deletion::run(global, request)
}
