//! Subdirectories that could not be opened: mount points, and directories without permission.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::queue::{Child, TreeOrigin};
use super::tree_directory::TreeDirectory;
use super::worker::Worker;
use crate::sys::beneath::{AS_IT_IS, DIRECTORY};

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
        dev: u64,
        child: Child,
    ) {
        let covered = (dev, child.ino);
        let opened = rustix::fs::statat(parent, &*child.name, AS_IT_IS)
            .ok()
            .filter(|stat| (stat.st_dev, stat.st_ino) == covered)
            .and_then(|_| {
                let name = PathBuf::from(OsStr::from_bytes(child.name.to_bytes()));
                self.walk.opener.beneath(parent.as_fd(), &name, DIRECTORY, true).ok()
            })
            .filter(|fd| rustix::fs::fstat(fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == covered));
        match opened {
            Some(fd) => self.read(origin, fd, TreeDirectory::below(place, child.name)),
            None => self.note_mount(origin.tree, place, Some(&child.name)),
        }
    }
}
