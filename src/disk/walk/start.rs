//! Opens the first directory or file of a tree.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::queue::TreeOrigin;
use super::tree_directory::TreeDirectory;
use super::types::{Tree, TreeScope};
use super::worker::Worker;
use crate::disk::top::Top;
use crate::sys::beneath::{DIRECTORY, HANDLE};

impl Worker<'_, '_> {
    pub fn start(&mut self, tree_ix: usize) {
        let walk = self.walk;
        let tree = &walk.trees[tree_ix];
        let root = match walk.roots.get(tree.root) {
            Some(Ok(root)) => root,
            Some(Err(error)) => return self.fail(tree_ix, &TreeDirectory::start(), None, "opening", *error),
            None => return self.fail(tree_ix, &TreeDirectory::start(), None, "opening", Errno::INVAL),
        };
        if tree.scope != TreeScope::Whole {
            return self.count_start(tree_ix, root, tree);
        }
        match root.open(walk.opener, &tree.path, DIRECTORY) {
            Err(Errno::XDEV) => self.note_mount(tree_ix, &TreeDirectory::start(), None),
            Ok(fd) => {
                let origin = self.origin(tree_ix);
                self.read(origin, fd, TreeDirectory::start());
            }
            Err(Errno::NOTDIR | Errno::LOOP) => self.count_start(tree_ix, root, tree),
            Err(error) => {
                self.fail(tree_ix, &TreeDirectory::start(), None, "opening", error);
                if error == Errno::ACCESS || error == Errno::PERM {
                    self.count_start(tree_ix, root, tree);
                }
            }
        }
    }

    /// Counts the start of a tree without anything below it.
    fn count_start(&mut self, tree_ix: usize, root: &Top, tree: &Tree<'_>) {
        let place = TreeDirectory::start();
        let opened;
        let handle = if tree.path.as_os_str().is_empty() {
            root.fd()
        } else {
            match root.open(self.walk.opener, &tree.path, HANDLE) {
                Ok(fd) => opened = fd,
                Err(Errno::XDEV) => return self.note_mount(tree_ix, &place, None),
                Err(error) => return self.fail(tree_ix, &place, None, "opening", error),
            }
            opened.as_fd()
        };
        let stat = match rustix::fs::fstat(handle) {
            Ok(stat) => stat,
            Err(error) => return self.fail(tree_ix, &place, None, "examining", error),
        };
        let origin = self.origin(tree_ix);
        self.count_alone(origin, handle, &place, None, &stat);
    }

    fn origin(&self, tree: usize) -> TreeOrigin {
        let root = self.walk.trees[tree].root;
        let xfs = self.walk.xfs.get(root).copied().flatten();
        TreeOrigin { tree, reflinks: self.walk.reflinks.get(root).copied().flatten(), xfs }
    }
}
