//! What is asked of `gc` and `rm`.

use super::request::Request;
use crate::config::Config;
use crate::history::runs::Command;
use crate::model::names::names;

names! {
    /// Kinds of what is collected.
    Only {
        Images = "images",
        /// Dead containers, and sandboxes without containers.
        Containers = "containers",
        /// Logs of deleted pods, and dangling links to logs.
        Logs = "logs",
        Leaks = "leaks",
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct GcRequest<'a> {
    pub request: &'a Request,
    pub config: &'a Config,
    /// `gc` or `rm`.
    pub command: Command,
    pub dry_run: bool,
    /// Somebody is asked between plan and act.
    pub asks: bool,
    /// Direct deletion even while the runtime that owns the store is at work.
    pub while_runtime_runs: bool,
    /// The images that were named; none of them for a collection by policy.
    pub named: &'a [String],
    /// A name means the image with all its names.
    pub all_tags: bool,
    /// The kinds that are collected, whatever the configuration says; none means: as configured.
    pub only: Vec<Only>,
}

impl GcRequest<'_> {
    /// Whether a kind is left out.
    pub(super) fn leaves_out(&self, kind: Only) -> bool {
        !self.only.is_empty() && !self.only.contains(&kind)
    }
}
