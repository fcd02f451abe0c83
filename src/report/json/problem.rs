//! What went wrong in a run.

use serde::Serialize;

use crate::model::plan::Problem;

/// Something that went wrong.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProblemDoc {
    /// The object; null where it is about the run.
    pub id: Option<String>,
    /// What failed: `begin`, `resume`, `read`, `list`, `prove`, `lock`, `stop` (a signal ended the run),
    /// `stop-container`, `remove`, `remove-image`, `untag`, `measure` or `kubelet`.
    pub step: &'static str,
    /// Why.
    pub message: String,
    /// What to do about it; null where there is nothing.
    pub hint: Option<String>,
    /// Bytes that were freed all the same, where the object was removed in part; null otherwise.
    pub measured_bytes: Option<i64>,
}

impl From<&Problem> for ProblemDoc {
    fn from(problem: &Problem) -> Self {
        Self {
            id: problem.id.clone(),
            step: problem.phase.as_str(),
            message: problem.message.clone(),
            hint: problem.hint.clone(),
            measured_bytes: problem.measured_bytes,
        }
    }
}
