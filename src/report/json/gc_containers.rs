//! What a collection of containers would do, in the document of one container.

use super::{ExplainDoc, FateDoc};
use crate::model::Plan;

impl ExplainDoc {
    /// Fills in what a collection of containers would do with this one.
    pub fn judge_container(&mut self, plan: &Plan) {
        let step = plan.steps.iter().enumerate().find(|(_, step)| step.target.id == self.id);
        let kept = plan.kept.iter().find(|kept| kept.target.id == self.id);
        self.fate = match (step, kept) {
            (Some((place, step)), _) => Some(FateDoc {
                goes: true,
                rule: step.cause.reason().as_str(),
                detail: Some(step.cause.describe().into()),
                place: Some(place + 1),
                predicted_bytes: Some(step.predicted_bytes()),
            }),
            (None, Some(stays)) => Some(FateDoc {
                goes: false,
                rule: stays.rule.as_str(),
                detail: Some(stays.detail.clone()),
                place: None,
                predicted_bytes: None,
            }),
            (None, None) => None,
        };
    }
}
