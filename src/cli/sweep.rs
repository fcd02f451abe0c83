//! `layersweep sweep`

use jiff::Timestamp;

use super::ask;
use super::global::Global;
use crate::app::sweep::{Sweep, SweepRequest, SweepResult};
use crate::cli::input::args::{Format, SweepArgs};
use crate::cli::screen::{output, stop, terminal};
use crate::config::Config;
use crate::model::OutcomeKind;
use crate::policy::leaks::{Decision, LeakPlan, LeakRequest};
use crate::report::{json, text};
use crate::services::error::{Error, Exit};

pub(super) fn run(global: &Global, config: &Config, args: &SweepArgs) -> Result<Exit, Error> {
    let leaks = LeakRequest {
        classes: args.class.clone(),
        min_age: config.leaks.min_age,
        repair: args.repair.clone(),
    };
    // A dry run without an action would show nothing.
    let delete = args.delete || (args.dry_run && args.repair.is_empty());
    let request = SweepRequest { request: &global.request, leaks, delete, dry_run: args.dry_run };
    let changes = request.changes() && !args.dry_run;
    let asks = changes && ask::asks(global, if delete { "sweep --delete" } else { "sweep --repair" })?;
    let mut sweep = Sweep::new(request, global)?;
    match carry_out(global, &mut sweep, asks) {
        Err(refusal) if changes && refusal.exit == Exit::Refused && global.format == Format::Json => {
            let (request, now) = (sweep.request(), Timestamp::now());
            let document =
                json::sweep_refused(sweep.run_id(), &request.leaks, request.delete, &refusal.message, now);
            output::json(&document)?;
            Err(refusal)
        }
        other => other,
    }
}

fn carry_out(global: &Global, sweep: &mut Sweep<'_>, asks: bool) -> Result<Exit, Error> {
    let planned = sweep.plan(asks)?;
    if !sweep.request().changes() || sweep.request().dry_run {
        return print(global, &planned);
    }
    if asks && (planned.is_unfinished || !planned.plan.order.is_empty()) {
        // To stderr: stdout contains only the result.
        output::on_stderr(&text::sweep(&json::sweep(&planned), &terminal::screen()))?;
        if !ask::confirm(&question(&planned))? {
            match global.format {
                Format::Json => output::json(&json::sweep(&planned))?,
                Format::Table => output::text("Nothing was deleted.\n")?,
            }
            return Ok(Exit::Done);
        }
    }
    stop::listen()?;
    let result = global.watch(|| sweep.act(planned))?;
    print(global, &result)
}

fn print(global: &Global, result: &SweepResult) -> Result<Exit, Error> {
    let document = json::sweep(result);
    let quiet = matches!(document.outcome, OutcomeKind::Reported | OutcomeKind::NotNeeded);
    // A timer prints only runs with an effect.
    if global.format == Format::Json || !global.quiet || !quiet {
        output::result(global.format, &document, text::sweep)?;
    }
    Ok(result.exit)
}

fn question(planned: &SweepResult) -> String {
    match (planned.is_unfinished, planned.plan.order.is_empty()) {
        (true, true) => "Finish the interrupted deletion?".to_owned(),
        (true, false) => format!("Finish the interrupted deletion, then: {}", question_of(&planned.plan)),
        (false, _) => question_of(&planned.plan),
    }
}

fn question_of(plan: &LeakPlan) -> String {
    let repairs = plan.turns().filter(|entry| entry.decision == Decision::Repair).count();
    let deletions = plan.order.len() - repairs;
    let bytes = text::bytes(plan.predicted_bytes());
    match (deletions, repairs) {
        (1, 0) => format!("Delete this finding ({bytes})?"),
        (deletions, 0) => format!("Delete these {deletions} findings ({bytes})?"),
        (0, 1) => "Repair this finding?".to_owned(),
        (0, repairs) => format!("Repair these {repairs} findings?"),
        (deletions, repairs) => format!("Delete {deletions} findings ({bytes}) and repair {repairs}?"),
    }
}
