//! What is looked at, and what was found so far.

use std::path::Path;

use serde::Serialize;

use crate::app::request::Request;
use crate::config::Config;
use crate::model::names::names;
use crate::stores;

names! {
    /// How much a finding matters.
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
    /// What kind of check; `docs/doctor.md` has them all.
    pub name: &'static str,
    /// `ok`, `note`, `warning` or `error`.
    pub status: Status,
    /// What was looked at: a file, a socket, a mount point; empty for the node as a whole.
    pub object: String,
    /// What was found.
    pub message: String,
    /// What to do about it; empty where there is nothing to do.
    pub remedy: String,
}

impl Check {
    /// A check with any outcome.
    pub fn new(
        name: &'static str,
        status: Status,
        object: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name, status, object: object.into(), message: message.into(), remedy: remedy.into() }
    }

    /// Nothing wrong.
    pub fn ok(name: &'static str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, object, message, "")
    }

    /// Notes.
    pub fn note(name: &'static str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(name, Status::Note, object, message, "")
    }
}

/// The remedy for what may not be read.
pub(super) const AS_ROOT: &str = "run as root, or with CAP_DAC_READ_SEARCH";

/// An examination of the node, under way.
pub(super) struct Examination<'a> {
    pub(super) request: &'a Request,
    pub(super) config: &'a Config,
    /// What the stores are asked for: nothing is measured.
    pub(super) stores: &'a stores::ScanRequest,
    pub(super) checks: Vec<Check>,
    /// Something could not be read.
    pub(super) unread: bool,
}

impl Examination<'_> {
    /// Nothing is wrong with it.
    pub(super) fn ok(&mut self, name: &'static str, object: impl Into<String>, message: impl Into<String>) {
        self.checks.push(Check::ok(name, object, message));
    }

    pub(super) fn note(&mut self, name: &'static str, object: impl Into<String>, message: impl Into<String>) {
        self.checks.push(Check::note(name, object, message));
    }

    pub(super) fn warning(
        &mut self,
        name: &'static str,
        object: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.checks.push(Check::new(name, Status::Warning, object, message, remedy));
    }

    pub(super) fn error(
        &mut self,
        name: &'static str,
        object: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.checks.push(Check::new(name, Status::Error, object, message, remedy));
    }

    /// A warning that something could not be looked at.
    pub(super) fn unread(&mut self, name: &'static str, object: impl Into<String>, error: &std::io::Error) {
        self.unread = true;
        let remedy = match error.kind() {
            std::io::ErrorKind::PermissionDenied => AS_ROOT,
            _ => "check the kernel log (dmesg) and the disk",
        };
        self.warning(name, object, format!("it cannot be read: {error}"), remedy);
    }

    /// It is somebody else's disk: nothing runs there.
    pub(super) fn is_foreign(&self) -> bool {
        self.stores.sysroot.is_foreign()
    }

    /// A path as the node itself names it.
    pub(super) fn shown(&self, path: &Path) -> String {
        self.stores.sysroot.shown(path)
    }
}
