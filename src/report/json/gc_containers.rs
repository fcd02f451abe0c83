//! Dead containers, sandboxes and logs in the document of a run.

use super::gc::{DeletedDoc, GcDoc, GcErrorDoc, KeptDoc};
use super::parts::WarningDoc;
use super::{ExplainDoc, FateDoc};
use crate::execute::containers::{Deletion, Doomed, Plan, Ran, Stopped};
use crate::model::Outcome;

/// Puts what a collection of containers has done, or would do, before the images.
pub fn add_containers(document: &mut GcDoc, store: &str, plan: &Plan, ran: Option<&Ran>) {
    let mut deleted: Vec<_> = match ran {
        None => plan.goes.iter().map(|doomed| planned(doomed, store)).collect(),
        Some(ran) => ran.deletions.iter().map(|deletion| done(deletion, store)).collect(),
    };
    let predicted = deleted.iter().fold(0_u64, |sum, one| sum.saturating_add(one.predicted_bytes));
    document.predicted_bytes = document.predicted_bytes.saturating_add(predicted);
    if let (Some(ran), Some(measured)) = (ran, &mut document.measured_bytes) {
        *measured = ran.deletions.iter().fold(*measured, |sum, one| sum.saturating_add(one.measured_bytes));
    }
    if document.outcome == Outcome::NotNeeded && !deleted.is_empty() {
        document.outcome = Outcome::Reached;
    }
    deleted.append(&mut document.deleted);
    document.deleted = deleted;
    document.kept.extend(plan.kept.iter().map(|stays| KeptDoc {
        kind: stays.kind.as_str(),
        id: stays.id.clone(),
        names: stays.names.clone(),
        rule: stays.rule,
        detail: stays.detail.clone(),
    }));
    document.errors.extend(plan.problems.iter().map(|problem| GcErrorDoc {
        id: problem.id.clone(),
        step: problem.step.to_owned(),
        message: problem.message.clone(),
    }));
    if let Some(why) = &plan.pods_unknown {
        let message = format!("no pod counts as gone: {why}");
        document.warnings.push(WarningDoc { path: String::new(), message, incomplete: false });
    }
    if plan.over_total > 0 {
        let message =
            format!("{} more dead containers stay than may, since rules keep them", plan.over_total);
        document.warnings.push(WarningDoc { path: String::new(), message, incomplete: false });
    }
    match ran.and_then(|ran| ran.stopped.as_ref()) {
        None => {}
        Some(stopped) => {
            document.outcome = Outcome::Failed;
            if *stopped == Stopped::Signal && !document.errors.iter().any(|error| error.step == "stop") {
                let message = "a signal ended the run before its plan did".to_owned();
                document.errors.push(GcErrorDoc { id: None, step: "stop".into(), message });
            }
        }
    }
}

fn planned(doomed: &Doomed, store: &str) -> DeletedDoc {
    DeletedDoc {
        kind: doomed.kind.as_str(),
        id: doomed.id.clone(),
        names: doomed.names.clone(),
        // Logs lie in no store.
        store: if doomed.gains.is_empty() { String::new() } else { store.to_owned() },
        reason: doomed.reason.as_str(),
        predicted_bytes: doomed.predicted_bytes(),
        measured_bytes: None,
        usage_after_percent: None,
        at: None,
        group: None,
        byproduct_bytes: 0,
        differs: false,
    }
}

fn done(deletion: &Deletion, store: &str) -> DeletedDoc {
    DeletedDoc {
        measured_bytes: Some(deletion.measured_bytes),
        usage_after_percent: deletion.usage_after_percent.map(|used| (used * 100.0).round() / 100.0),
        at: Some(deletion.at),
        differs: deletion.is_off(),
        ..planned(&deletion.doomed, store)
    }
}

impl ExplainDoc {
    /// Fills in what a collection of containers would do with this one.
    pub fn judge_container(&mut self, plan: &Plan) {
        let step = plan.goes.iter().enumerate().find(|(_, doomed)| doomed.id == self.id);
        let kept = plan.kept.iter().find(|stays| stays.id == self.id);
        self.fate = match (step, kept) {
            (Some((place, doomed)), _) => Some(FateDoc {
                goes: true,
                rule: doomed.reason.as_str(),
                detail: Some(doomed.reason.describe().into()),
                place: Some(place + 1),
                predicted_bytes: Some(doomed.predicted_bytes()),
            }),
            (None, Some(stays)) => Some(FateDoc {
                goes: false,
                rule: stays.rule,
                detail: Some(stays.detail.clone()),
                place: None,
                predicted_bytes: None,
            }),
            (None, None) => None,
        };
    }
}
