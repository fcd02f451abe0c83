//! Starting on a tree that the caller named.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::place::Place;
use super::queue::Origin;
use super::types::{Tree, TreeScope};
use super::worker::Worker;
use crate::sys::beneath::{DIRECTORY, HANDLE, mount_id, mount_id_of_handle};
use crate::sys::mounts::{self, underlying};

impl Worker<'_, '_> {
    pub fn start(&mut self, at: usize) {
        let walk = self.walk;
        let tree = &walk.trees[at];
        let root = match walk.roots.get(tree.root) {
            Some(Ok(root)) => root.as_fd(),
            Some(Err(error)) => return self.fail(at, &Place::start(), None, "opening", *error),
            None => return self.fail(at, &Place::start(), None, "opening", Errno::INVAL),
        };
        if tree.scope == TreeScope::EntryOnly {
            return self.count_start(at, root, tree);
        }
        // A mount below a root hides what the root's filesystem has there, and shows another one's:
        // a running container's `merged` shows the whole image.
        match self.open_start(root, tree, DIRECTORY) {
            Err(Errno::XDEV) => self.note_mount(at, &Place::start(), None),
            Ok(fd) => {
                let origin = self.origin(at, fd.as_fd());
                self.read(origin, fd, Place::start());
            }
            Err(Errno::NOTDIR | Errno::LOOP) => self.count_start(at, root, tree),
            Err(error) => {
                self.fail(at, &Place::start(), None, "opening", error);
                if error == Errno::ACCESS || error == Errno::PERM {
                    self.count_start(at, root, tree);
                }
            }
        }
    }

    /// Counts the start of a tree without what lies below it.
    fn count_start(&mut self, at: usize, root: BorrowedFd<'_>, tree: &Tree) {
        let place = Place::start();
        let held;
        let handle = if tree.path.as_os_str().is_empty() {
            root
        } else {
            match self.open_start(root, tree, HANDLE) {
                Ok(fd) => held = fd,
                Err(Errno::XDEV) => return self.note_mount(at, &place, None),
                Err(error) => return self.fail(at, &place, None, "opening", error),
            }
            held.as_fd()
        };
        let stat = match rustix::fs::fstat(handle) {
            Ok(stat) => stat,
            Err(error) => return self.fail(at, &place, None, "examining", error),
        };
        let origin = self.origin(at, handle);
        self.count_alone(origin, handle, &place, None, &stat);
    }

    /// Opens the start of a tree; `XDEV` where that, or a directory on the way, is a mount that shows
    /// something else than it covers. Storage drivers and systemd units mount directories on
    /// themselves.
    fn open_start(&self, root: BorrowedFd<'_>, tree: &Tree, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let opener = self.walk.opener;
        match opener.beneath(root, &tree.path, flags, false) {
            Err(Errno::XDEV) => {}
            other => return other,
        }
        // A handle asks nothing of the filesystem that is mounted there.
        let handle = opener.beneath(root, &tree.path, HANDLE, true)?;
        let mounts = mounts::read().map_err(|_| Errno::XDEV)?;
        let mount = |fd: BorrowedFd<'_>| Some(underlying(&mounts, mount_id_of_handle(fd).ok()?)?.id);
        match mount(root).is_some() && mount(root) == mount(handle.as_fd()) {
            true => opener.beneath(root, &tree.path, flags, true),
            false => Err(Errno::XDEV),
        }
    }

    fn origin(&self, tree: usize, fd: BorrowedFd<'_>) -> Origin {
        let xfs = self.walk.xfs.as_ref().and_then(|known| known.number(fd));
        Origin { tree, filesystem: self.filesystem(fd), xfs }
    }

    /// What tells the filesystem of a tree from others. Not `st_dev`: btrfs has one for
    /// each subvolume, and they share extents.
    fn filesystem(&self, fd: BorrowedFd<'_>) -> u64 {
        if !self.walk.collector.collects() {
            return 0;
        }
        let device = mount_id(fd).ok().and_then(|id| {
            let mount = self.walk.mounts.iter().find(|mount| mount.id == id)?;
            Some(rustix::fs::makedev(mount.device.0, mount.device.1))
        });
        device.or_else(|| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev)).unwrap_or(0)
    }
}
