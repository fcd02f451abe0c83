//! Resolution of a path below a root that no symlink can leave.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// Maximum number of symlinks, as in the kernel for one lookup (path_resolution(7)).
const MAX_SYMLINKS: usize = 40;

/// Maximum length of a path in Linux. The remaining path must not exceed it after symlinks were inserted.
const MAX_PATH_BYTES: usize = 4096;

/// Returns the host path of `inside`, which is an absolute path inside the root. Correct only if all parts of the root
/// are below `root`.
pub(super) fn below(root: &Path, inside: &Path) -> PathBuf {
    join(root, inside.strip_prefix("/").unwrap_or(inside))
}

/// Returns `base/rest`, without the trailing slash that `Path::join` adds for an empty `rest`.
pub(super) fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_path_buf() } else { base.join(rest) }
}

/// Resolves `path` by examining each of its components. `place` returns the host path for a path inside the root
/// without symlinks, since the parts of a root may be in different places.
pub(super) fn by_components(path: &Path, place: impl Fn(&Path) -> PathBuf) -> io::Result<PathBuf> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT.into());
    }
    let mut todo: VecDeque<OsString> = names(path).collect();
    let mut inside = PathBuf::from("/");
    let mut symlinks = 0;
    let mut placed = place(&inside);
    let mut metadata = std::fs::symlink_metadata(&placed)?;
    while let Some(name) = todo.pop_front() {
        if !metadata.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if name == ".." {
            inside.pop();
            placed = place(&inside);
            metadata = std::fs::symlink_metadata(&placed)?;
            continue;
        }
        let next = inside.join(&name);
        let next_placed = place(&next);
        let next_metadata = std::fs::symlink_metadata(&next_placed)?;
        if !next_metadata.is_symlink() {
            (inside, placed, metadata) = (next, next_placed, next_metadata);
            continue;
        }
        symlinks += 1;
        if symlinks > MAX_SYMLINKS {
            return Err(Errno::LOOP.into());
        }
        let target = std::fs::read_link(&next_placed)?;
        for name in names(&target).rev() {
            todo.push_front(name);
        }
        if todo.iter().map(|name| name.as_bytes().len() + 1).sum::<usize>() > MAX_PATH_BYTES {
            return Err(Errno::NAMETOOLONG.into());
        }
        if target.is_absolute() {
            inside = PathBuf::from("/");
            placed = place(&inside);
            metadata = std::fs::symlink_metadata(&placed)?;
        }
    }
    Ok(placed)
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}
