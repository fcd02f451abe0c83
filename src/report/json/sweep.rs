//! JSON document of `sweep`: every leak with its verdict, and the deletions and repairs.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Serialize;

use super::DeletionDoc;
use super::build::{leak as leak_doc, path};
use super::parts::{DocumentKind, Header, LeakDoc};
use crate::app::sweep::SweepResult;
use crate::model::deletion::outcome::{Outcome, OutcomeKind};
use crate::model::deletion::plan::{Action, Phase, Problem, Target};
use crate::model::{Finding, LeakClass};
use crate::policy::leaks::{
    Decision, KeepReason, LeakDecision, LeakRequest, command, needs_a_person, reason,
};

/// Document of `layersweep sweep`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SweepDoc {
    /// Common fields of all documents; the kind is `sweep`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read and the figures are exact.
    pub complete: bool,
    /// Id of the run in `history`; null if the run had nothing to delete or repair.
    pub run_id: Option<String>,
    /// True if nothing was changed: `deleted` and `repaired` contain what a run would do.
    pub dry_run: bool,
    /// True with `--delete`: leaks that are proven safe to delete are deleted.
    pub delete: bool,
    /// Classes named by `--repair`.
    pub repair: Vec<LeakClass>,
    /// Classes named as arguments; empty for all.
    pub classes: Vec<LeakClass>,
    /// Minimum age of a leak that is deleted, in seconds.
    pub min_age_seconds: u64,
    /// Number of images and layers whose deletion a killed run had begun and this run finished.
    pub resumed: usize,
    /// Leaks of the requested classes.
    pub leaks: Vec<SweepLeakDoc>,
    /// Bytes predicted to be freed by the deletions; without `--delete`, by those that it would make.
    pub predicted_bytes: u64,
    /// Bytes freed, including by partial deletions; null without `--delete`. Negative if other processes
    /// wrote more meanwhile.
    pub measured_bytes: Option<i64>,
    /// Deletions in order; for a dry run, predicted ones.
    pub deleted: Vec<DeletionDoc>,
    /// Repairs; for a dry run, predicted ones.
    pub repaired: Vec<LeakObjectDoc>,
    /// Leaks that were to be deleted and are kept, because the proof right before the deletion failed.
    pub kept: Vec<LeakObjectDoc>,
    /// Failures during the run.
    pub errors: Vec<Problem>,
    /// `reported` (no change was requested), `not_needed`, `done`, `failed` or `refused`.
    pub outcome: OutcomeKind,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

/// Leak with its verdict.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SweepLeakDoc {
    /// Facts about the leak, as in `scan`.
    #[serde(flatten)]
    pub leak: LeakDoc,
    /// `delete` (by `sweep --delete`) or `repair` (by `sweep --repair CLASS`, if the class is named); null if it is kept.
    pub action: Option<Action>,
    /// Bytes that its deletion would free, after those before it; 0 if it is kept.
    pub predicted_bytes: u64,
    /// Reason why it is kept, or advice, in words; empty if `action` says everything.
    pub remedy: String,
    /// True if it is kept and an operator can act: it is not too young, not in use, and no garbage collection
    /// will delete it.
    pub needs_operator: bool,
    /// Complete command that removes a broken image or unmounts a leaked mount; null for other leaks.
    pub command: Option<String>,
}

/// Leak that was repaired, or kept by a failed proof.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakObjectDoc {
    /// Class of leak.
    pub class: LeakClass,
    /// Id or name of the object.
    pub id: String,
    /// Path on the disk.
    pub path: String,
    /// Root of its store.
    pub store: String,
    /// Reason why it is kept; null if it was repaired.
    pub detail: Option<String>,
}

pub fn sweep(facts: &SweepResult) -> SweepDoc {
    let SweepResult { leaks, plan, .. } = facts;
    let scan = facts.scan();
    let acts = facts.delete || !leaks.repair.is_empty();
    let mut document = SweepDoc {
        complete: scan.is_complete(),
        run_id: facts.run_id.clone(),
        dry_run: facts.dry_run,
        resumed: facts.resumed,
        leaks: plan.entries.iter().map(|entry| finding(facts, entry)).collect(),
        predicted_bytes: plan.predicted_bytes(),
        warnings: scan.inventory.findings.clone(),
        ..unstarted(leaks, facts.delete, scan.taken_at)
    };
    let mounts: Vec<_> =
        scan.inventory.filesystems.iter().map(|filesystem| filesystem.mount.clone()).collect();
    match &facts.outcome {
        Some(outcome) => add_outcome(&mut document, facts, outcome, &mounts),
        None if acts => {
            let steps = plan.steps(&scan.inventory);
            let deletions = steps.iter().filter(|step| step.action == Action::Delete && facts.delete);
            let deleted = deletions.map(|planned| DeletionDoc::planned(planned, &mounts));
            document.deleted = deleted.collect();
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
    document.deleted = outcome.deletions.iter().map(|done| DeletionDoc::done(done, mounts)).collect();
    document.repaired = outcome.repaired.iter().filter_map(|target| object(target, None)).collect();
    document.measured_bytes = facts.delete.then(|| outcome.measured_bytes());
    let kept = outcome.plan.kept.iter();
    document.kept = kept.filter_map(|kept| object(&kept.target, Some(kept.detail.clone()))).collect();
    document.errors.clone_from(&outcome.plan.problems);
    document.outcome = outcome.kind();
}

/// Builds the document of a run that was refused before it began.
pub fn sweep_refused(
    run_id: &str,
    leaks: &LeakRequest,
    delete: bool,
    message: &str,
    now: Timestamp,
) -> SweepDoc {
    SweepDoc {
        run_id: Some(run_id.to_owned()),
        errors: vec![Problem::new(None, Phase::Begin, message)],
        outcome: OutcomeKind::Refused,
        ..unstarted(leaks, delete, now)
    }
}

/// Builds the document of a request, without any result.
fn unstarted(leaks: &LeakRequest, delete: bool, now: Timestamp) -> SweepDoc {
    SweepDoc {
        header: Header::new(DocumentKind::Sweep, now),
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

fn finding(facts: &SweepResult, entry: &LeakDecision) -> SweepLeakDoc {
    let inventory = &facts.scan().inventory;
    let leak = &inventory[entry.leak];
    let (action, remedy) = match &entry.decision {
        Decision::Delete(_) => (Some(Action::Delete), String::new()),
        Decision::Repair => (Some(Action::Repair), String::new()),
        Decision::Stay(stay @ KeepReason::NotRequested) => {
            (Some(Action::Repair), reason(inventory, leak, stay, facts.leaks.min_age))
        }
        Decision::Stay(stay) => (None, reason(inventory, leak, stay, facts.leaks.min_age)),
    };
    let stay = match &entry.decision {
        Decision::Stay(stay) => Some(stay),
        Decision::Delete(_) | Decision::Repair => None,
    };
    let needs_operator = stay.is_some_and(|stay| needs_a_person(leak, stay));
    SweepLeakDoc {
        leak: leak_doc(facts.scan(), entry.leak),
        needs_operator,
        command: needs_operator.then(|| command(inventory, leak)).flatten(),
        action,
        predicted_bytes: entry.gain.frees_bytes,
        remedy,
    }
}

fn object(target: &Target, detail: Option<String>) -> Option<LeakObjectDoc> {
    let leak = target.leak.as_ref()?;
    let (id, store) = (target.id.clone(), target.store_root());
    Some(LeakObjectDoc { class: leak.class, id, path: path(&leak.path), store, detail })
}
