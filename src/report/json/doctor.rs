//! The document of `layersweep doctor`.

use jiff::Timestamp;
use serde::Serialize;

use super::parts::Header;
use crate::app::doctor::{Check, Status};

/// `layersweep doctor`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DoctorDoc {
    /// What every document begins with; its kind is `doctor`.
    #[serde(flatten)]
    pub header: Header,
    /// Everything that was to be looked at could be read.
    pub complete: bool,
    /// The worst status of all checks: `ok`, `note`, `warning` or `error`.
    pub status: Status,
    /// How many checks have which status.
    pub counts: CountsDoc,
    /// What was looked at, in the order of looking.
    pub checks: Vec<Check>,
}

/// How many checks have which status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CountsDoc {
    /// Nothing wrong.
    pub ok: usize,
    /// Worth knowing, nothing to do.
    pub note: usize,
    /// Something does not work as it could.
    pub warning: usize,
    /// Pods get evicted, or we cannot do our work.
    pub error: usize,
}

/// The document.
pub fn doctor(now: Timestamp, complete: bool, checks: Vec<Check>) -> DoctorDoc {
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let counts = CountsDoc {
        ok: count(Status::Ok),
        note: count(Status::Note),
        warning: count(Status::Warning),
        error: count(Status::Error),
    };
    let worst = checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok);
    DoctorDoc { header: Header::new("doctor", now), complete, status: worst, counts, checks }
}
