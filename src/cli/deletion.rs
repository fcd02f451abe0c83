//! Common part of `gc` and `rm`: plan, question, run and output.

use super::ask;
use super::global::Global;
use crate::app::gc::{Gc, GcResult, Planned};
use crate::cli::input::args::Format;
use crate::cli::screen::{output, stop, terminal};
use crate::model::OutcomeKind;
use crate::model::deletion::plan::{Plan, TargetKind};
use crate::model::text::display::count;
use crate::report::{json, text};
use crate::services::error::{Error, Exit};
use crate::services::gc_request::GcRequest;
use crate::services::observer::Observer;
use crate::sys::stop::is_requested;

/// Maximum number of plans, if the node changes between plan and deletion.
const ATTEMPTS: u32 = 5;

/// Plans, asks, deletes and prints. With JSON, a refusal is also printed as a document.
pub(super) fn run(global: &Global, request: GcRequest<'_>) -> Result<Exit, Error> {
    let dry_run = request.dry_run;
    let asks = !dry_run && ask::asks(global, request.command().as_str())?;
    if !dry_run && !asks {
        // Listen from the start: the lock or the runtime, which are waited for first, may never be available.
        stop::listen()?;
    }
    let mut gc = Gc::new(request, global)?;
    let done = attempts(&mut gc, |gc| carry_out(global, gc, dry_run, asks));
    done.map_err(|error| {
        let (error, refused) = refusal(&gc, error);
        match refused.filter(|_| global.format == Format::Json).map(|gc| output::json(&json::gc(&gc))) {
            Some(Err(unwritten)) => unwritten,
            _ => error,
        }
    })
}

/// Deletes what a person has confirmed, with the messages to `observer`.
pub(super) fn run_confirmed(request: GcRequest<'_>, observer: &dyn Observer) -> Result<GcResult, Error> {
    let mut gc = Gc::new(request, observer)?;
    let done = attempts(&mut gc, |gc| {
        let planned = gc.plan(false)?;
        gc.act(planned)
    });
    done.map_err(|error| refusal(&gc, error).0)
}

/// Plans and works, again if the node has changed between plan and deletion.
fn attempts<'a, T>(
    gc: &mut Gc<'a>,
    mut work: impl FnMut(&mut Gc<'a>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut attempt = 1;
    loop {
        match work(gc) {
            // Nothing was deleted, and a new plan may succeed. Its scan measures only changes and is fast.
            Err(error) if error.is_stale() && attempt < ATTEMPTS && !is_requested() => {
                tracing::info!("{error}; scanning again");
                attempt += 1;
            }
            done => return done,
        }
    }
}

/// Records a refusal, and returns it with its result; other errors have none.
fn refusal(gc: &Gc<'_>, error: Error) -> (Error, Option<GcResult>) {
    if error.exit != Exit::Refused {
        return (error, None);
    }
    let error =
        if is_requested() { Error::failed("stopped by a signal before anything was deleted") } else { error };
    let refused = gc.refused(&error);
    (error, Some(refused))
}

fn carry_out(global: &Global, gc: &mut Gc<'_>, dry_run: bool, asks: bool) -> Result<Exit, Error> {
    let planned = gc.plan(asks)?;
    if dry_run {
        return print(global, &planned.result);
    }
    if asks && (planned.is_unfinished || !planned.result.plan.steps.is_empty()) {
        // To stderr: stdout contains only the result.
        output::on_stderr(&text::gc(&json::gc(&planned.result), &terminal::screen()))?;
        if !ask::confirm(&question(&planned))? {
            match global.format {
                Format::Json => output::json(&json::gc(&planned.result))?,
                Format::Table if gc.has_resumed() => output::text("Nothing more was deleted.\n")?,
                Format::Table => output::text("Nothing was deleted.\n")?,
            }
            return Ok(Exit::Done);
        }
    }
    stop::listen()?;
    let result = global.watch(|| gc.act(planned))?;
    print(global, &result)
}

fn print(global: &Global, result: &GcResult) -> Result<Exit, Error> {
    // A timer prints only runs with an effect.
    let is_nothing = result.plan.outcome == OutcomeKind::NotNeeded && result.resumed == 0;
    if global.format == Format::Table && global.quiet && is_nothing {
        return Ok(result.exit);
    }
    let mut document = json::gc(result);
    if global.format == Format::Table && !terminal::is_one() {
        // Outside a terminal, the events were logged.
        document.events.clear();
    }
    output::result(global.format, &document, text::gc)?;
    Ok(result.exit)
}

fn question(planned: &Planned) -> String {
    let plan = &planned.result.plan;
    match (planned.is_unfinished, plan.steps.is_empty()) {
        (true, true) => "Finish the interrupted deletion?".to_owned(),
        (true, false) => format!("Finish the interrupted deletion, then: {}", question_of(plan)),
        (false, _) => question_of(plan),
    }
}

fn question_of(plan: &Plan) -> String {
    let containers = [TargetKind::Container, TargetKind::Sandbox, TargetKind::Log];
    let kinds: [(&[TargetKind], &str, &str); 3] = [
        (&[TargetKind::Leak], "leak", "leaks"),
        (&containers, "container, sandbox or log", "containers, sandboxes and logs"),
        (&[TargetKind::Image, TargetKind::Artifact], "image", "images"),
    ];
    let mut parts = Vec::new();
    for (kinds, singular, plural) in kinds {
        let number = plan.steps.iter().filter(|step| kinds.contains(&step.target.kind)).count();
        if number > 0 {
            parts.push(count(number, singular, plural));
        }
    }
    format!("Delete {}?", parts.join(", "))
}
