//! Facts from which the causes of the usage are determined.

use std::path::Path;

use jiff::SignedDuration;

use crate::history::ages::InventoryAges;
use crate::model::refs::{Live, Root};
use crate::model::text::display::shell_word;
use crate::model::{FilesystemIx, PrintedCommand, Size};
use crate::policy::leaks::LeakPlan;
use crate::services::diagnosis::holders::StoppedHolders;
use crate::services::diagnosis::parts::Divided;
use crate::services::diagnosis::{Cause, CauseGroup, CauseKind, Planned, least};
use crate::stores::Scan;
use crate::stores::other_usage::OtherUsers;

#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub scan: &'a Scan,
    pub other_users: &'a OtherUsers,
    pub stopped: &'a StoppedHolders,
    pub ages: &'a InventoryAges,
    pub divided: &'a [Divided],
    pub leaks: &'a LeakPlan,
    pub min_age: SignedDuration,
    /// Bytes that would be freed now, by filesystem.
    pub planned: &'a [Planned],
}

impl Context<'_> {
    pub(super) fn least(&self, ix: FilesystemIx) -> u64 {
        least(&self.scan.inventory[ix])
    }

    /// Returns true for a number of files that matters on a filesystem that is short of inodes.
    pub(super) fn has_many_inodes(&self, ix: FilesystemIx, inodes: u64) -> bool {
        /// Minimum number of files of a directory that is named for them.
        const LEAST_INODES: u64 = 1000;
        let filesystem = &self.scan.inventory[ix];
        filesystem.is_short_of_inodes() && inodes >= (filesystem.inodes / 20).max(LEAST_INODES)
    }

    /// Returns a path as the node itself names it.
    pub(super) fn inside(&self, path: &Path) -> String {
        self.scan.sysroot.shown(path)
    }

    /// Returns the command that shows a file, as the node itself names it, and the processes that have it open. On a disk
    /// of another node no process has.
    pub(super) fn shows_file(&self, path: &str) -> PrintedCommand {
        let tool = if self.scan.sysroot.is_foreign() { "ls -l" } else { "fuser -v" };
        PrintedCommand::Shows(format!("{tool} {}", shell_word(path)))
    }

    /// Returns a cause whose title is its text, and that only a person can judge.
    pub(super) fn cause(&self, ix: FilesystemIx, kind: CauseKind, bytes: u64, text: String) -> Cause {
        Cause {
            kind,
            title: text.clone(),
            text,
            remedy: String::new(),
            command: None,
            frees_bytes: 0,
            frees_inodes: 0,
            keeps_bytes: 0,
            used_after_percent: None,
            reaches_low: false,
            bytes,
            filesystem: self.scan.inventory.filesystems[ix.get()].mount.to_string_lossy().into_owned(),
            id: None,
            path: None,
            group: CauseGroup::OnlyYouCanJudge,
            filesystem_ix: ix,
        }
    }

    /// Returns the size that is freed on a filesystem if only this root is deleted.
    pub(super) fn alone(&self, live: &Live<'_>, ix: FilesystemIx, root: Root) -> Size {
        let nodes = live.last_held(root).map(|node| &self.scan.inventory.nodes[node.get()]);
        nodes.filter(|node| node.filesystem == ix).map(|node| node.size).sum()
    }

    /// Returns the size that is freed on a filesystem if all these roots are deleted.
    pub(super) fn frees(&self, ix: FilesystemIx, roots: &[Root]) -> Size {
        let freed = self.scan.refs.live().last_held_by(roots);
        let freed = freed.into_iter().map(|node| &self.scan.inventory[node]);
        freed.filter(|node| node.filesystem == ix).map(|node| node.size).sum()
    }
}
