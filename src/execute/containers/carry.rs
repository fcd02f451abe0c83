//! Plan and run, whichever way things are looked at and removed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::execute::containers::account::Account;
use crate::execute::containers::deeds::Done;
use crate::execute::containers::plan::Stage;
use crate::execute::containers::proof::Found;
use crate::execute::containers::{Doomed, Plan, Problem, Ran, Scope, Stopped, Witness};
use crate::execute::hands::Blind;
use crate::execute::measure::Patience;

/// A way to look at containers and to remove them.
pub(super) trait Way {
    /// One look.
    type Seen;

    fn look(&mut self) -> Result<Self::Seen, Blind>;

    /// What a stage takes, as if all of `gone` were gone already.
    fn stage(&self, stage: Stage, seen: &Self::Seen, gone: &[Doomed]) -> Plan;

    /// The proof right before a deletion.
    fn prove(&mut self, doomed: &Doomed) -> Result<Found, Blind>;

    fn remove(&self, doomed: &Doomed) -> Result<Done, Blind>;
}

/// How a run goes on.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub(super) scope: Scope,
    /// Set by a signal: nothing more is begun.
    pub(super) stop: &'a AtomicBool,
    /// How long to wait for late frees.
    pub(super) patience: Patience,
}

pub(super) fn dry<W: Way>(way: &mut W, scope: Scope, account: &mut Account<'_>) -> Result<Plan, Blind> {
    let seen = way.look()?;
    let mut plan = Plan::default();
    for stage in Stage::ALL.into_iter().filter(|stage| stage.is_in(scope)) {
        let mut own = way.stage(stage, &seen, &plan.goes);
        account.predict(&mut own.goes);
        for doomed in &own.goes {
            account.remove(doomed);
        }
        plan.add(own);
    }
    Ok(plan)
}

pub(super) fn run<W: Way>(
    way: &mut W,
    how: How<'_>,
    account: &mut Account<'_>,
    witness: &mut dyn Witness,
) -> Result<Ran, Blind> {
    let mut ran = Ran::default();
    for stage in Stage::ALL.into_iter().filter(|stage| stage.is_in(how.scope)) {
        // What the stage before has removed is gone by now, what would not go is still there.
        let seen = match way.look() {
            Ok(seen) => seen,
            Err(blind) if stage == Stage::ALL[0] => return Err(blind),
            Err(blind) => {
                ran.blind(&blind, how.stop);
                break;
            }
        };
        let mut own = way.stage(stage, &seen, &[]);
        account.predict(&mut own.goes);
        let goes = own.goes.clone();
        ran.plan.add(own);
        for doomed in goes {
            if how.stop.load(Ordering::Relaxed) {
                ran.stopped = Some(Stopped::Signal);
                return Ok(ran);
            }
            if let Err(blind) = one(way, doomed, how.patience, account, witness, &mut ran) {
                ran.blind(&blind, how.stop);
                return Ok(ran);
            }
            if ran.stopped.is_some() {
                return Ok(ran);
            }
        }
    }
    Ok(ran)
}

/// Proves, deletes, looks, measures.
fn one<W: Way>(
    way: &mut W,
    doomed: Doomed,
    patience: Patience,
    account: &mut Account<'_>,
    witness: &mut dyn Witness,
    ran: &mut Ran,
) -> Result<(), Blind> {
    // What stands in its way may have gone since.
    let doomed = account.predicted_now(doomed);
    match way.prove(&doomed)? {
        Found::Gone => return Ok(()),
        Found::Kept { rule, detail } => {
            ran.plan.spare(doomed, rule, detail);
            return Ok(());
        }
        Found::MayGo => {}
    }
    witness.begins(&doomed);
    let before = account.before(&doomed);
    let removed = way.remove(&doomed).inspect_err(|blind| witness.unproven(&doomed, &blind.what))?;
    match removed {
        Done::Gone => {}
        Done::Unknown { message } => {
            witness.unproven(&doomed, &message);
            ran.plan.problems.push(Problem { id: Some(doomed.id.clone()), step: "remove", message });
            ran.stopped = Some(Stopped::Signal);
            return Ok(());
        }
        Done::Kept { rule, detail } => {
            witness.spared(&doomed);
            ran.plan.spare(doomed, rule, detail);
            return Ok(());
        }
        Done::Refused { step, message } => {
            witness.refused(&doomed, &message);
            ran.plan.problems.push(Problem { id: Some(doomed.id.clone()), step, message });
            return Ok(());
        }
    }
    account.remove(&doomed);
    witness.gone(&doomed);
    let deletion = account.measured(doomed, &before, patience, &mut ran.plan.problems);
    witness.deleted(&deletion);
    ran.deletions.push(deletion);
    Ok(())
}
