//! The location of a directory as a chain of names: paths are built only for messages and
//! for reopening directories that were closed.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a path that the kernel takes in one call, with room to spare (`PATH_MAX` is
/// 4096).
const PATH_BYTES: usize = 3500;

/// A directory below the start of a tree; the start itself has no name.
#[derive(Debug)]
pub struct TreeDirectory {
    parent: Option<Arc<Self>>,
    name: Box<CStr>,
}

impl TreeDirectory {
    /// The start of a tree.
    pub fn start() -> Arc<Self> {
        Arc::new(Self { parent: None, name: Box::default() })
    }

    /// Whether it is the start of a tree.
    pub fn is_start(&self) -> bool {
        self.parent.is_none()
    }

    /// The entry `name` of `parent`.
    pub fn below(parent: &Arc<Self>, name: Box<CStr>) -> Arc<Self> {
        Arc::new(Self { parent: Some(Arc::clone(parent)), name })
    }

    /// The names from the start down to here.
    fn names(&self) -> Vec<&OsStr> {
        let mut names = Vec::new();
        let mut here = self;
        while let Some(parent) = &here.parent {
            names.push(OsStr::from_bytes(here.name.to_bytes()));
            here = parent;
        }
        names.reverse();
        names
    }

    /// The path below the tree's own `start`, however long it gets.
    pub fn path(&self, start: &Path) -> PathBuf {
        let mut path = start.as_os_str().to_owned();
        for name in self.names() {
            path.push("/");
            path.push(name);
        }
        path.into()
    }

    /// The way from the start in pieces that the kernel takes; none for the start itself.
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
    /// One after the other: a chain of 100,000 directories would overflow the stack if
    /// each dropped its parent inside its own drop.
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
        assert_eq!(deep.pieces(), [Path::new("a/b")]);
    }

    #[test]
    fn a_very_deep_chain_has_short_pieces_and_drops() {
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
