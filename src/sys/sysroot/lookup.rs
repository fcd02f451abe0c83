//! Resolves a path below a root that no symlink may leave.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// As many symlinks as the kernel follows in one lookup (path_resolution(7)).
const MAX_SYMLINKS: usize = 40;

/// Linux limits a path to this many bytes; what symlinks add up to may not exceed it either.
const MAX_PATH_BYTES: usize = 4096;

/// Places `path` below `root`. The kernel does it where it can (`openat2`, Linux 5.6), because
/// it cannot be raced; else component by component.
pub(super) fn in_root(root: &Path, path: &Path) -> io::Result<PathBuf> {
    match by_kernel(root, path) {
        // ENOSYS: old kernel. EPERM: a seccomp filter that does not know the call.
        // EAGAIN: a rename raced with `..`. ESTALE: see `by_kernel`.
        Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::STALE) => {
            by_components(path, |inside| below(root, inside))
        }
        other => Ok(other?),
    }
}

/// Where `inside`, absolute inside the root, lies if nothing is special about the root.
pub(super) fn below(root: &Path, inside: &Path) -> PathBuf {
    join(root, inside.strip_prefix("/").unwrap_or(inside))
}

/// `base/rest`, without the trailing slash that `Path::join` leaves for an empty `rest`.
pub(super) fn join(base: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { base.to_path_buf() } else { base.join(rest) }
}

fn by_kernel(root: &Path, path: &Path) -> Result<PathBuf, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root_fd = rustix::fs::openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(&root_fd, path, flags, Mode::empty(), how)?;
    path_of(&found).ok_or(Errno::STALE)
}

/// The path of an open file, if it still leads to that file (it need not: the file may have
/// been moved or removed meanwhile, or `/proc` may not be there).
fn path_of(fd: &OwnedFd) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let there = std::fs::symlink_metadata(&path).ok()?;
    let here = rustix::fs::fstat(fd).ok()?;
    (there.dev() == here.st_dev && there.ino() == here.st_ino).then_some(path)
}

/// Places `path` by looking at each of its components, where `place` says where a path inside
/// the root that holds no symlinks lies for us. For kernels without `openat2`, and for roots
/// whose parts are in different places.
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

/// The names in a path, `..` among them.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}
