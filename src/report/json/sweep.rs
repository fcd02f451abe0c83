//! The document of `sweep`: every finding with what becomes of it, and what was done.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

use super::build::{leak as leak_doc, path};
use super::gc::{DeletedDoc, deletion, step};
use super::parts::{Header, LeakDoc};
use crate::app::sweep::SweepResult;
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::plan::{Action, Phase, Problem, Target};
use crate::model::{Finding, LeakClass};
use crate::policy::leaks::{Decision, KeepReason, LeakRequest, command, is_for_a_person, reason};

/// `layersweep sweep`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SweepDoc {
    /// What every document begins with; its kind is `sweep`.
    #[serde(flatten)]
    pub header: Header,
    /// Everything was read: figures are exact.
    pub complete: bool,
    /// Names the run in `history`; null where nothing was to be deleted or repaired.
    pub run_id: Option<String>,
    /// Nothing was changed: `deleted` and `repaired` are what a run would do.
    pub dry_run: bool,
    /// Leaks that are proven safe to delete were to be deleted.
    pub delete: bool,
    /// Classes that were to be repaired.
    pub repair: Vec<LeakClass>,
    /// Classes that were asked for; empty for all.
    pub classes: Vec<LeakClass>,
    /// Nothing younger is touched, in seconds.
    pub min_age_seconds: u64,
    /// Images and layers that a run which was killed had begun to delete, and this one finished.
    pub resumed: usize,
    /// Every finding of these classes.
    pub leaks: Vec<SweepLeakDoc>,
    /// Bytes predicted to be freed by the deletions; without `--delete`,
    /// from what it would delete.
    pub predicted_bytes: u64,
    /// Bytes that were freed, by what was removed in part as well; null where nothing was to be
    /// deleted. Negative where others wrote
    /// more meanwhile.
    pub measured_bytes: Option<i64>,
    /// What was deleted, in order; for a dry run, what would be.
    pub deleted: Vec<SweptDoc>,
    /// What was repaired; for a dry run, what would be.
    pub repaired: Vec<LeakObjectDoc>,
    /// What was to go and stays after all, since the proof right before its deletion failed.
    pub kept: Vec<LeakObjectDoc>,
    /// What went wrong on the way.
    pub errors: Vec<Problem>,
    /// `reported` (nothing was to be changed), `not_needed`, `done`, `failed` or `refused`.
    pub outcome: OutcomeKind,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<Finding>,
}

/// A finding and what becomes of it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SweepLeakDoc {
    /// The finding, as `scan` has it.
    #[serde(flatten)]
    pub leak: LeakDoc,
    /// `delete` (by `sweep --delete`), `repair` (by `sweep --repair CLASS`, if it is asked for) or
    /// `none`.
    pub action: &'static str,
    /// Bytes its deletion would free, at its turn; 0 for what stays.
    pub predicted_bytes: u64,
    /// Why it stays, or what to do about it, in words; empty where `action` is all there is to say.
    pub remedy: String,
    /// It stays, and a person can do something about it: neither too young, nor in use, nor about to be
    /// collected.
    pub for_a_person: bool,
    /// The whole command that removes it, for whoever knows that nobody needs it; null where no single one does.
    pub command: Option<String>,
}

/// A leak that was deleted.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SweptDoc {
    /// Its class.
    pub class: LeakClass,
    /// Its path.
    pub path: String,
    /// The deletion, as `gc` has it.
    #[serde(flatten)]
    pub deleted: DeletedDoc,
}

/// A finding that was repaired, or that stays after all.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakObjectDoc {
    /// Its class.
    pub class: LeakClass,
    /// Its id or name.
    pub id: String,
    /// Its path.
    pub path: String,
    /// Root of its store.
    pub store: String,
    /// Why it stays; null for what was repaired.
    pub detail: Option<String>,
}

/// Builds the document.
pub fn sweep(facts: &SweepResult) -> SweepDoc {
    let SweepResult { leaks, plan, .. } = facts;
    let scan = facts.scan();
    let acts = facts.delete || !leaks.repair.is_empty();
    let mut document = SweepDoc {
        complete: scan.is_complete(),
        run_id: facts.run_id.clone(),
        dry_run: facts.dry_run,
        resumed: facts.resumed,
        leaks: (0..plan.entries.len()).map(|at| finding(facts, at)).collect(),
        predicted_bytes: plan.predicted_bytes(),
        warnings: scan.inventory.findings.clone(),
        ..asked(leaks, facts.delete, scan.taken_at)
    };
    let mounts: Vec<_> = scan.inventory.filesystems.iter().map(|one| one.mount.clone()).collect();
    match &facts.outcome {
        Some(outcome) => add_outcome(&mut document, facts, outcome, &mounts),
        None if acts => {
            let steps = plan.steps(&scan.inventory);
            let goes = steps.iter().filter(|step| step.action == Action::Delete && facts.delete);
            let goes = goes.filter_map(|one| swept(&one.target, step(one, &mounts)));
            document.deleted = goes.collect();
            let repairs = steps.iter().filter(|step| step.action == Action::Repair);
            document.repaired = repairs.filter_map(|step| object(&step.target, None)).collect();
            let nothing = document.deleted.is_empty() && document.repaired.is_empty();
            document.outcome = if nothing { OutcomeKind::NotNeeded } else { OutcomeKind::Done };
        }
        None => {}
    }
    document
}

fn add_outcome(document: &mut SweepDoc, facts: &SweepResult, outcome: &Outcome, mounts: &[PathBuf]) {
    let done = outcome.deletions.iter();
    let done = done.filter_map(|one| swept(&one.step.target, deletion(one, mounts)));
    document.deleted = done.collect();
    document.repaired = outcome.repaired.iter().filter_map(|target| object(target, None)).collect();
    document.measured_bytes = facts.delete.then(|| outcome.measured_bytes());
    let kept = outcome.plan.kept.iter();
    document.kept = kept.filter_map(|kept| object(&kept.target, Some(kept.detail.clone()))).collect();
    document.errors.clone_from(&outcome.plan.problems);
    document.outcome = outcome.kind();
}

/// A run that was refused before it began.
pub fn sweep_refused(
    run_id: &str,
    leaks: &LeakRequest,
    delete: bool,
    message: &str,
    at: Timestamp,
) -> SweepDoc {
    SweepDoc {
        run_id: Some(run_id.to_owned()),
        errors: vec![Problem::new(None, Phase::Begin, message)],
        outcome: OutcomeKind::Refused,
        ..asked(leaks, delete, at)
    }
}

/// What was asked for, and nothing found or done yet.
fn asked(leaks: &LeakRequest, delete: bool, at: Timestamp) -> SweepDoc {
    SweepDoc {
        header: Header::new("sweep", at),
        complete: false,
        run_id: None,
        dry_run: false,
        delete,
        repair: leaks.repair.clone(),
        classes: leaks.classes.clone(),
        min_age_seconds: u64::try_from(leaks.min_age.as_secs()).unwrap_or(0),
        resumed: 0,
        leaks: Vec::new(),
        predicted_bytes: 0,
        measured_bytes: None,
        deleted: Vec::new(),
        repaired: Vec::new(),
        kept: Vec::new(),
        errors: Vec::new(),
        outcome: OutcomeKind::Reported,
        warnings: Vec::new(),
    }
}

fn leak_at(facts: &SweepResult, at: usize) -> &crate::model::Leak {
    &facts.scan().inventory.leaks[facts.plan.entries[at].leak.get()]
}

fn finding(facts: &SweepResult, at: usize) -> SweepLeakDoc {
    let entry = &facts.plan.entries[at];
    let leak = leak_at(facts, at);
    let (action, remedy) = match &entry.decision {
        Decision::Delete(_) => ("delete", String::new()),
        Decision::Repair => ("repair", String::new()),
        Decision::Stay(stay @ KeepReason::NotRequested) => {
            ("repair", reason(leak, stay, facts.leaks.min_age))
        }
        Decision::Stay(stay) => ("none", reason(leak, stay, facts.leaks.min_age)),
    };
    let stay = match &entry.decision {
        Decision::Stay(stay) => Some(stay),
        Decision::Delete(_) | Decision::Repair => None,
    };
    let for_a_person = stay.is_some_and(|stay| is_for_a_person(leak, stay));
    SweepLeakDoc {
        leak: leak_doc(facts.scan(), entry.leak),
        for_a_person,
        command: for_a_person.then(|| command(leak)).flatten(),
        action,
        predicted_bytes: entry.gain.frees_bytes,
        remedy,
    }
}

fn swept(target: &Target, deleted: DeletedDoc) -> Option<SweptDoc> {
    let leak = target.leak.as_ref()?;
    Some(SweptDoc { class: leak.class, path: path(&leak.path), deleted })
}

fn object(target: &Target, detail: Option<String>) -> Option<LeakObjectDoc> {
    let leak = target.leak.as_ref()?;
    let (id, store) = (target.id.clone(), target.store_root());
    Some(LeakObjectDoc { class: leak.class, id, path: path(&leak.path), store, detail })
}
