//! Location of a directory as a chain of names. Paths are built only for messages and for reopening directories that
//! were closed.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum bytes of a path in one system call, with a margin (`PATH_MAX` is 4096).
const PATH_BYTES: usize = 3500;

/// A directory at or below the start of a tree; the start itself has no name.
#[derive(Debug)]
pub struct TreeDirectory {
    parent: Option<Arc<Self>>,
    name: Box<CStr>,
}

impl TreeDirectory {
    pub fn start() -> Arc<Self> {
        Arc::new(Self { parent: None, name: Box::default() })
    }

    pub fn is_start(&self) -> bool {
        self.parent.is_none()
    }

    pub fn below(parent: &Arc<Self>, name: Box<CStr>) -> Arc<Self> {
        Arc::new(Self { parent: Some(Arc::clone(parent)), name })
    }

    fn names(&self) -> Vec<&OsStr> {
        let mut names = Vec::new();
        let mut directory = self;
        while let Some(parent) = &directory.parent {
            names.push(OsStr::from_bytes(directory.name.to_bytes()));
            directory = parent;
        }
        names.reverse();
        names
    }

    /// Returns the path below `start`, the path of the tree. It may be longer than `PATH_MAX`.
    pub fn path(&self, start: &Path) -> PathBuf {
        let mut path = start.as_os_str().to_owned();
        for name in self.names() {
            path.push("/");
            path.push(name);
        }
        path.into()
    }

    /// Returns the path of an entry of this directory below the start; without an entry, of the directory.
    pub fn relative(&self, entry: Option<&OsStr>) -> PathBuf {
        self.names().into_iter().chain(entry).collect()
    }

    /// Returns the path from the start in pieces that fit into a system call; empty for the start itself.
    pub fn pieces(&self) -> Vec<PathBuf> {
        let mut pieces: Vec<PathBuf> = Vec::new();
        for name in self.names() {
            match pieces.last_mut() {
                Some(piece) if piece.as_os_str().len() + name.len() < PATH_BYTES => {
                    piece.push(name);
                }
                _ => pieces.push(name.into()),
            }
        }
        pieces
    }
}

impl Drop for TreeDirectory {
    /// Drops the chain in a loop: nested drops of 100,000 directories would overflow the stack.
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        while let Some(mut place) = parent.and_then(Arc::into_inner) {
            parent = place.parent.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(names: impl IntoIterator<Item = Box<CStr>>) -> Arc<TreeDirectory> {
        names.into_iter().fold(TreeDirectory::start(), |parent, name| TreeDirectory::below(&parent, name))
    }

    #[test]
    fn paths_and_pieces() {
        assert_eq!(TreeDirectory::start().path(Path::new("/r/t")), Path::new("/r/t"));
        assert!(TreeDirectory::start().pieces().is_empty());
        let deep = chain([c"a".into(), c"b".into()]);
        assert_eq!(deep.path(Path::new("/r")), Path::new("/r/a/b"));
        assert_eq!(deep.relative(Some(OsStr::new("c"))), Path::new("a/b/c"));
        assert_eq!(TreeDirectory::start().relative(None), Path::new(""));
        assert_eq!(deep.pieces(), [Path::new("a/b")]);
    }

    #[test]
    fn very_deep_chain_is_split_and_dropped() {
        let name: Box<CStr> = c"0123456789012345678901234567890123456789".into();
        let deep = chain(std::iter::repeat_n(name, 200_000));
        let pieces = deep.pieces();
        assert!(pieces.len() > 1000);
        assert!(pieces.iter().all(|piece| piece.as_os_str().len() <= PATH_BYTES));
        let sum: usize = pieces.iter().map(|piece| piece.components().count()).sum();
        assert_eq!(sum, 200_000);
        drop(deep);
    }
}
