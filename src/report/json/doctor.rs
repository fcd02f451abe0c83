//! JSON document of `layersweep doctor`.

use jiff::Timestamp;
use serde::Serialize;

use super::parts::{DocumentKind, Header};
use crate::app::doctor::suggest::Suggestions;
use crate::app::doctor::{Check, Status};

/// Document of `layersweep doctor`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoctorDoc {
    /// Common fields of all documents; the kind is `doctor`.
    #[serde(flatten)]
    pub header: Header,
    /// True if all checks could read everything.
    pub complete: bool,
    /// Worst status of all checks: `ok`, `note`, `warning` or `error`.
    pub status: Status,
    /// Number of checks by status.
    pub counts: CountsDoc,
    /// Checks in the order in which they ran.
    pub checks: Vec<Check>,
}

/// Number of checks by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CountsDoc {
    /// Checks without findings.
    pub ok: usize,
    /// Checks with a finding that requires no action.
    pub note: usize,
    /// Checks of something that does not work as well as it could.
    pub warning: usize,
    /// Checks of something that evicts pods or prevents layersweep from working.
    pub error: usize,
}

pub fn doctor(now: Timestamp, complete: bool, checks: Vec<Check>) -> DoctorDoc {
    let mut counts = CountsDoc::default();
    for check in &checks {
        match check.status {
            Status::Ok => counts.ok += 1,
            Status::Note => counts.note += 1,
            Status::Warning => counts.warning += 1,
            Status::Error => counts.error += 1,
        }
    }
    let worst = checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok);
    DoctorDoc { header: Header::new(DocumentKind::Doctor, now), complete, status: worst, counts, checks }
}

/// Document of `layersweep doctor --suggest`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoctorSuggestDoc {
    /// Common fields of all documents; the kind is `doctor-suggest`.
    #[serde(flatten)]
    pub header: Header,
    #[serde(flatten)]
    pub suggestions: Suggestions,
}

pub fn doctor_suggest(now: Timestamp, suggestions: Suggestions) -> DoctorSuggestDoc {
    DoctorSuggestDoc { header: Header::new(DocumentKind::DoctorSuggest, now), suggestions }
}
