//! Requests for `gc` and `rm`.

use std::path::PathBuf;

use crate::config::Config;
use crate::history::runs::Command;
use crate::model::text::names::names;
use crate::policy::PolicyKind;
use crate::services::request::Request;

names! {
    Only {
        Images = "images",
        /// Dead containers, and sandboxes without containers.
        Containers = "containers",
        /// Logs of deleted pods, and dangling links to logs.
        Logs = "logs",
        Leaks = "leaks",
    }
}

#[derive(Clone, Debug)]
pub enum Selection<'a> {
    /// Everything that the policy selects, limited to these kinds; empty: as configured. Policy `kubelet` is only for a
    /// dry run, and so is the comparison with others.
    Gc { only: Vec<Only>, policy: PolicyKind, compare: bool },
    /// The named images, and those of the lines of lists (`listed`), which need not be on this node. `all_tags`: a name
    /// means the image with all its names.
    Rm { references: &'a [String], listed: &'a [ListLine], all_tags: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListLine {
    pub place: String,
    pub reference: String,
    /// Root of the only store that the line means; `None`: every store.
    pub store: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct GcRequest<'a> {
    pub request: &'a Request,
    pub config: &'a Config,
    pub selection: Selection<'a>,
    pub dry_run: bool,
    /// Deletes directly even while the runtime that owns the store is running.
    pub while_runtime_runs: bool,
}

impl GcRequest<'_> {
    pub fn command(&self) -> Command {
        match self.selection {
            Selection::Gc { .. } => Command::Gc,
            Selection::Rm { .. } => Command::Rm,
        }
    }

    pub(crate) fn is_gc(&self) -> bool {
        matches!(self.selection, Selection::Gc { .. })
    }

    /// Returns true if only kinds are requested that a runtime alone deletes.
    pub(crate) fn is_for_runtime(&self) -> bool {
        let Selection::Gc { only, .. } = &self.selection else { return false };
        !only.is_empty() && only.iter().all(|kind| matches!(kind, Only::Containers | Only::Logs))
    }

    /// Returns true if only other kinds than images are requested.
    pub(crate) fn leaves_out_images(&self) -> bool {
        matches!(&self.selection, Selection::Gc { only, .. } if !only.is_empty() && !only.contains(&Only::Images))
    }
}
