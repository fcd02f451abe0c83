//! Result of one check.

use std::ffi::OsStr;
use std::io;

use serde::Serialize;

use crate::model::text::names::names;

/// Remedy for a file without read permission.
pub(super) const AS_ROOT: &str = "run as root, or with CAP_DAC_READ_SEARCH";

names! {
    Status {
        /// No problem was found.
        Ok = "ok",
        /// Worth knowing, nothing has to be done.
        Note = "note",
        /// Something does not work well, or will fail when it is needed.
        Warning = "warning",
        /// Pods are evicted, or layersweep cannot work.
        Error = "error",
    }
}

/// Result of a check.
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
    /// Something could not be read, so that problems may be missing.
    #[serde(skip)]
    pub is_unread: bool,
}

impl Check {
    /// Creates a result. The table of checks adds the name.
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

    /// Creates a warning about an object that could not be read.
    pub(super) fn unread(object: impl AsRef<OsStr>, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => AS_ROOT,
            _ => "check the kernel log (dmesg) and the disk",
        };
        let check = Self::warning(object, format!("it cannot be read: {error}"), remedy);
        Self { is_unread: true, ..check }
    }
}
