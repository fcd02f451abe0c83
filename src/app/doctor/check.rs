//! The result of one check.

use std::ffi::OsStr;
use std::io;

use serde::Serialize;

use crate::model::names::names;

/// The remedy for a file without read permission.
pub(super) const AS_ROOT: &str = "run as root, or with CAP_DAC_READ_SEARCH";

names! {
    /// Severity of the finding.
    Status {
        /// Looked at, nothing wrong.
        Ok = "ok",
        /// Notes, nothing to do.
        Note = "note",
        /// Something does not work as it could, or will not at a bad time.
        Warning = "warning",
        /// Pods get evicted, or we cannot do our work.
        Error = "error",
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "CheckDoc"))]
pub struct Check {
    /// Name of the check, as listed in `docs/doctor.md`.
    pub name: &'static str,
    /// `ok`, `note`, `warning` or `error`.
    pub status: Status,
    /// Object of the check: a file, a socket, a mount point; empty for the node as a whole.
    pub object: String,
    /// Result, as a clause.
    pub message: String,
    /// Remedy; empty where nothing has to be done.
    pub remedy: String,
    /// Something could not be read, so more may be wrong.
    #[serde(skip)]
    pub is_unread: bool,
}

impl Check {
    /// A check with any outcome. The table of checks adds its name.
    pub fn new(
        status: Status,
        object: impl AsRef<OsStr>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let object = object.as_ref().to_string_lossy().into_owned();
        Self { name: "", status, object, message: message.into(), remedy: remedy.into(), is_unread: false }
    }

    pub fn ok(object: impl AsRef<OsStr>, message: impl Into<String>) -> Self {
        Self::new(Status::Ok, object, message, "")
    }

    pub fn note(object: impl AsRef<OsStr>, message: impl Into<String>) -> Self {
        Self::new(Status::Note, object, message, "")
    }

    pub fn warning(object: impl AsRef<OsStr>, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Status::Warning, object, message, remedy)
    }

    pub fn error(object: impl AsRef<OsStr>, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Status::Error, object, message, remedy)
    }

    /// A warning that something could not be read.
    pub(super) fn unread(object: impl AsRef<OsStr>, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => AS_ROOT,
            _ => "check the kernel log (dmesg) and the disk",
        };
        let check = Self::warning(object, format!("it cannot be read: {error}"), remedy);
        Self { is_unread: true, ..check }
    }
}
