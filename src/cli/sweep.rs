//! `layersweep sweep`

use jiff::Timestamp;

use super::args::{Format, SweepArgs};
use super::global::Global;
use super::{ask, output, stop, terminal};
use crate::app::error::{Error, Exit};
use crate::app::sweep::{Sweep, SweepRequest, SweepResult};
use crate::config::Config;
use crate::model::OutcomeKind;
use crate::policy::leaks::{Decision, LeakPlan, LeakRequest};
use crate::report::{json, text};

pub(super) fn run(global: &Global, config: &Config, own: &SweepArgs) -> Result<Exit, Error> {
    let leaks =
        LeakRequest { classes: own.class.clone(), min_age: config.leaks.min_age, repair: own.repair.clone() };
    // A dry run of nothing would tell nothing.
    let delete = own.delete || (own.dry_run && own.repair.is_empty());
    let asked = SweepRequest { request: &global.request, leaks, delete, dry_run: own.dry_run };
    let changes = asked.changes() && !own.dry_run;
    let asks = changes && ask::asks(global, if delete { "sweep --delete" } else { "sweep --repair" })?;
    let mut sweep = Sweep::new(asked, global)?;
    match carry_out(global, &mut sweep, asks) {
        Err(refusal) if changes && refusal.exit == Exit::Refused && global.format == Format::Json => {
            let (asked, at) = (sweep.asked(), Timestamp::now());
            let document =
                json::sweep_refused(sweep.run_id(), &asked.leaks, asked.delete, &refusal.message, at);
            output::json(&document)?;
            Err(refusal)
        }
        other => other,
    }
}

fn carry_out(global: &Global, sweep: &mut Sweep<'_>, asks: bool) -> Result<Exit, Error> {
    let planned = sweep.plan(asks)?;
    if !sweep.asked().changes() || sweep.asked().dry_run {
        return print(global, &planned);
    }
    if asks && (planned.is_unfinished || !planned.plan.order.is_empty()) {
        // Not to stdout, which holds the result alone.
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
    let result = global.watch(|| sweep.act(planned));
    print(global, &result)
}

fn print(global: &Global, result: &SweepResult) -> Result<Exit, Error> {
    let document = json::sweep(result);
    let quiet = matches!(document.outcome, OutcomeKind::Reported | OutcomeKind::NotNeeded);
    // From a timer: only what happened.
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
    let going = plan.order.len() - repairs;
    let bytes = text::bytes(plan.predicted_bytes());
    match (going, repairs) {
        (1, 0) => format!("Delete this finding ({bytes})?"),
        (going, 0) => format!("Delete these {going} findings ({bytes})?"),
        (0, 1) => "Repair this finding?".to_owned(),
        (0, repairs) => format!("Repair these {repairs} findings?"),
        (going, repairs) => format!("Delete {going} findings ({bytes}) and repair {repairs}?"),
    }
}
