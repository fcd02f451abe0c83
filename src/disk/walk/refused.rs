//! Subdirectories that could not be opened: mount points, and directories without permission.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::queue::{Child, TreeOrigin};
use super::tree_directory::TreeDirectory;
use super::worker::Worker;
use crate::sys::beneath::AS_IT_IS;

impl Worker<'_, '_> {
    /// Counts a directory that cannot be opened, as `du` does.
    pub fn count_unopened(
        &mut self,
        origin: TreeOrigin,
        parent: &OwnedFd,
        place: &Arc<TreeDirectory>,
        name: &CStr,
    ) {
        match rustix::fs::statat(parent, name, AS_IT_IS) {
            Ok(stat) => {
                self.count_alone(origin, parent.as_fd(), place, Some(name), &stat);
            }
            Err(error) => self.fail(origin.tree, place, Some(name), "examining", error),
        }
    }

    /// Records a mount point without entering it. Exception: a directory that is mounted over itself, as
    /// containers/storage does with `overlay`, is read.
    pub fn mount_point(
        &mut self,
        origin: TreeOrigin,
        parent: &OwnedFd,
        place: &Arc<TreeDirectory>,
        child: Child,
    ) {
        match self.walk.opener.mounted_on_itself(parent.as_fd(), &child.name, child.ino) {
            Some(fd) => self.read(origin, fd, TreeDirectory::below(place, child.name)),
            None => self.note_mount(origin.tree, place, Some(&child.name)),
        }
    }
}
