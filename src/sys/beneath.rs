//! Opens paths below a directory: never through a symlink, never outside of it, and into another mount only if the
//! caller allows it.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, Dir, DirEntry, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::{Errno, Result};

/// Flags for opening a directory to read it. `O_NOATIME`: reading a store must not change it.
pub const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOATIME)
    .union(OFlags::CLOEXEC);

/// Flags for opening anything only to examine it: this does not activate devices or fifos.
pub const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Flags for examining a name itself. They follow no symlink, trigger no automount, and do not query servers, which
/// may not answer (for example the process behind a user's FUSE mount on the name).
pub const AS_IT_IS: AtFlags =
    AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT).union(AtFlags::STATX_DONT_SYNC);

/// Maximum number of retries. `openat2` returns `EAGAIN` if another process renamed or mounted something meanwhile.
const RETRIES: u32 = 1000;

/// Method for opening paths below directories: `openat2` (Linux 5.6) if the kernel and its seccomp filters allow
/// it, otherwise step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// The kernel enforces the rules.
    Openat2,
    /// This module enforces them: one `openat` for each component, with a comparison of mount ids.
    Steps,
}

impl Opener {
    /// Tries `openat2` once on `dir`. `ENOSYS` comes from old kernels, `EPERM` from old seccomp filters; with
    /// `O_PATH` there is no other reason for an `EPERM`.
    #[must_use]
    pub fn detect(dir: BorrowedFd<'_>) -> Self {
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        match rustix::fs::openat2(dir, c".", HANDLE, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => Self::Steps,
            _ => Self::Openat2,
        }
    }

    /// Returns the method for all directories, detected on the first one.
    #[must_use]
    pub fn usual(dir: BorrowedFd<'_>) -> Self {
        static USUAL: OnceLock<Opener> = OnceLock::new();
        *USUAL.get_or_init(|| Self::detect(dir))
    }

    /// Opens the directory `name`, an entry of `parent`.
    ///
    /// # Errors
    /// `XDEV` if it is a mount point, `NOENT` if it no longer exists, `NOTDIR` or `LOOP` if it is not a directory
    /// (any more), and the other errors of `open`.
    pub fn directory(self, parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
        match self {
            // Without RESOLVE_BENEATH: see `beneath`.
            Self::Openat2 => without_atime(DIRECTORY, |flags| {
                let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
                retry(|| rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve))
            }),
            Self::Steps => on_same_mount(parent, name, DIRECTORY),
        }
    }

    /// Opens `path`, any number of components below `root`; the empty path is `root` itself. With `into_mounts` the
    /// path may cross into another mount; otherwise the result is `XDEV`.
    ///
    /// # Errors
    /// See [`Self::directory`]; `XDEV` also if the path is absolute or contains `..`, and `NAMETOOLONG` if it is
    /// too long for the kernel.
    pub fn beneath(
        self,
        root: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
        into_mounts: bool,
    ) -> Result<OwnedFd> {
        // `..` could not leave the root, but its target depends on concurrent renames.
        if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(Errno::XDEV);
        }
        match self {
            Self::Openat2 => {
                let mut resolve = ResolveFlags::NO_SYMLINKS;
                resolve.set(ResolveFlags::NO_XDEV, !into_mounts);
                // A single component cannot leave its parent. RESOLVE_BENEATH would only cost a check of all
                // ancestors, which takes the kernel's global mount lock.
                resolve.set(ResolveFlags::BENEATH, path.components().nth(1).is_some());
                let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
                without_atime(flags, |flags| {
                    retry(|| rustix::fs::openat2(root, path, flags, Mode::empty(), resolve))
                })
            }
            Self::Steps => steps(root, path, flags, into_mounts),
        }
    }

    /// Opens the mount point `name`, an entry of `parent`, if it is a directory that is mounted on itself, as storage
    /// drivers mount their own: that hides nothing. `covered`: inode number of the entry, as `parent` lists it.
    #[must_use]
    pub fn mounted_on_itself(self, parent: BorrowedFd<'_>, name: &CStr, covered: u64) -> Option<OwnedFd> {
        let covered = (rustix::fs::fstat(parent).ok()?.st_dev, covered);
        let is_same = |stat: Stat| (stat.st_dev, stat.st_ino) == covered;
        rustix::fs::statat(parent, name, AS_IT_IS).ok().filter(|stat| is_same(*stat))?;
        let opened =
            self.beneath(parent, Path::new(OsStr::from_bytes(name.to_bytes())), DIRECTORY, true).ok()?;
        rustix::fs::fstat(&opened).is_ok_and(is_same).then_some(opened)
    }
}

fn steps(root: BorrowedFd<'_>, path: &Path, flags: OFlags, into_mounts: bool) -> Result<OwnedFd> {
    let mut names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let mut here: Option<OwnedFd> = None;
    let mut name = names.next();
    loop {
        let parent = here.as_ref().map_or(root, AsFd::as_fd);
        let Some(entry) = name else {
            return open_entry(parent, c".", flags);
        };
        name = names.next();
        let entry = std::ffi::CString::new(entry.as_bytes()).map_err(|_| Errno::INVAL)?;
        let wanted = if name.is_some() { HANDLE | OFlags::DIRECTORY } else { flags };
        let fd = if into_mounts {
            open_entry(parent, &entry, wanted)?
        } else {
            on_same_mount(parent, &entry, wanted)?
        };
        if name.is_none() {
            return Ok(fd);
        }
        here = Some(fd);
    }
}

/// Opens the file of the handle `fd` (`O_PATH`) again, for reading. Only for regular files: opening a device or a
/// fifo has effects.
pub fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let magic = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    without_atime(flags | OFlags::NOATIME, |flags| {
        retry(|| rustix::fs::openat(CWD, &*magic, flags, Mode::empty()))
    })
}

/// Returns the kernel's number of the mount that `fd` is on: the first column of `/proc/self/mountinfo`. Unlike
/// `st_dev`, it distinguishes bind mounts.
pub fn mount_id(fd: BorrowedFd<'_>) -> Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(fd, c"", flags, StatxFlags::MNT_ID) {
        Ok(facts) if facts.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Ok(facts.stx_mnt_id),
        // A user's FUSE mount refuses even root.
        Ok(_) | Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => mount_id_of_handle(fd),
        Err(error) => Err(error),
    }
}

/// Works like [`mount_id`] without querying the filesystem, as `statx` does. For a handle on a mount that may not
/// answer.
pub fn mount_id_of_handle(fd: BorrowedFd<'_>) -> Result<u64> {
    use std::os::fd::AsRawFd;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok()).ok_or(Errno::NOSYS)
}

/// Opens a handle first: opening it in another way may query a filesystem that never answers.
fn on_same_mount(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
    let handle = open_entry(parent, name, HANDLE | flags.intersection(OFlags::DIRECTORY))?;
    same_mount(parent, handle.as_fd())?;
    if flags.contains(OFlags::PATH) {
        return Ok(handle);
    }
    if flags.contains(OFlags::DIRECTORY) {
        return open_entry(handle.as_fd(), c".", flags);
    }
    let fd = open_entry(parent, name, flags)?;
    same_mount(parent, fd.as_fd())?;
    Ok(fd)
}

fn same_mount(parent: BorrowedFd<'_>, child: BorrowedFd<'_>) -> Result<()> {
    let is_same = match (mount_id(parent), mount_id(child)) {
        (Ok(parent), Ok(child)) => parent == child,
        // Without statx and /proc, only the device can be compared, which misses bind mounts.
        _ => rustix::fs::fstat(parent)?.st_dev == rustix::fs::fstat(child)?.st_dev,
    };
    if is_same { Ok(()) } else { Err(Errno::XDEV) }
}

fn open_entry(parent: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
    without_atime(flags, |flags| retry(|| rustix::fs::openat(parent, name, flags, Mode::empty())))
}

/// Opens with `O_NOATIME`, which only the owner and root may use; retries without it after `EPERM`.
pub fn without_atime(flags: OFlags, open: impl Fn(OFlags) -> Result<OwnedFd>) -> Result<OwnedFd> {
    match open(flags) {
        Err(Errno::PERM) if flags.contains(OFlags::NOATIME) => open(flags.difference(OFlags::NOATIME)),
        result => result,
    }
}

fn retry(open: impl Fn() -> Result<OwnedFd>) -> Result<OwnedFd> {
    for _ in 0..RETRIES {
        match open() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    open()
}

/// Lists a directory, without `.` and `..`. The directory is opened again, so that the position of
/// `directory` does not change.
///
/// # Errors
/// If the directory cannot be opened for reading.
pub fn entries(directory: impl AsFd) -> Result<impl Iterator<Item = Result<DirEntry>>> {
    fn is_dots(entry: &DirEntry) -> bool {
        matches!(entry.file_name().to_bytes(), b"." | b"..")
    }
    Ok(Dir::read_from(directory)?.filter(|entry| !entry.as_ref().is_ok_and(is_dots)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn with_both(check: impl Fn(Opener)) {
        check(Opener::Openat2);
        check(Opener::Steps);
    }

    #[test]
    fn symlinks_and_parents_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a/link")).unwrap();
        let root = File::open(dir.path()).unwrap();
        with_both(|opener| {
            for (path, expected) in [
                ("", Ok(())),
                ("a/b", Ok(())),
                ("./a/./b/", Ok(())),
                ("a/../a", Err(Errno::XDEV)),
                ("/", Err(Errno::XDEV)),
                ("a/none", Err(Errno::NOENT)),
            ] {
                let opened = opener.beneath(root.as_fd(), Path::new(path), DIRECTORY, false);
                assert_eq!(opened.map(drop), expected, "{path}");
            }
            for path in ["link", "link/b", "a/link"] {
                let opened = opener.beneath(root.as_fd(), Path::new(path), DIRECTORY, false);
                assert!(matches!(opened, Err(Errno::LOOP | Errno::NOTDIR)), "{path}");
            }
            assert!(matches!(
                opener.directory(root.as_fd(), c"link").map(drop),
                Err(Errno::LOOP | Errno::NOTDIR)
            ));
            assert!(opener.directory(root.as_fd(), c"a").is_ok());
            // A symlink can be opened as a handle without being followed.
            let link = opener.beneath(root.as_fd(), Path::new("a/link"), HANDLE, false).unwrap();
            let stat = rustix::fs::fstat(link).unwrap();
            assert!(rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink());
        });
    }

    #[test]
    fn mount_on_the_path_is_refused() {
        let root = File::open("/").unwrap();
        with_both(|opener| {
            // `self` is a symlink: it is opened and not followed.
            for (into_mounts, expected) in [(false, Err(Errno::XDEV)), (true, Ok(()))] {
                let opened = opener.beneath(root.as_fd(), Path::new("proc/self"), HANDLE, into_mounts);
                assert_eq!(opened.map(drop), expected);
            }
            assert_eq!(opener.directory(root.as_fd(), c"proc").map(drop), Err(Errno::XDEV));
        });
    }

    #[test]
    fn both_sources_of_the_mount_id_agree() {
        for path in ["/", "/proc", "/dev"] {
            let fd = File::open(path).unwrap();
            assert_eq!(mount_id(fd.as_fd()), mount_id_of_handle(fd.as_fd()));
        }
    }

    #[test]
    fn detects_what_the_kernel_offers() {
        let root = File::open("/").unwrap();
        // The detected method works.
        assert!(Opener::detect(root.as_fd()).directory(root.as_fd(), c"usr").is_ok());
    }
}
