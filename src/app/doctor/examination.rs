//! What is looked at, and what was found so far.

use std::path::Path;

use super::check::{Check, Status};
use crate::app::request::Request;
use crate::config::Config;
use crate::stores;

/// The remedy for what may not be read.
pub(super) const AS_ROOT: &str = "run as root, or with CAP_DAC_READ_SEARCH";

/// An examination of the node, under way.
pub(super) struct Examination<'a> {
    pub(super) request: &'a Request,
    pub(super) config: &'a Config,
    /// What the stores are asked for: nothing is measured.
    pub(super) stores: &'a stores::Request,
    pub(super) checks: Vec<Check>,
    /// Something could not be read.
    pub(super) unread: bool,
}

impl Examination<'_> {
    pub(super) fn note(&mut self, check: Check) {
        self.checks.push(check);
    }

    pub(super) fn warning(
        &mut self,
        name: &'static str,
        object: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.note(Check::new(name, Status::Warning, object, message, remedy));
    }

    pub(super) fn error(
        &mut self,
        name: &'static str,
        object: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.note(Check::new(name, Status::Error, object, message, remedy));
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
        self.stores.sysroot.display(path).display().to_string()
    }
}
