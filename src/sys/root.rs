//! A directory that is named by configuration, opened once: the top of a store.
//!
//! Everything that is read, proven or deleted in a store hangs on the descriptor that is opened
//! here. On the way symlinks are followed only where root alone could have made them, so that no
//! user can send root's programs elsewhere; and what the way allows is kept, since it tells who
//! could use the store at all ([`Way::admits`]) and who could exchange it ([`Way::is_trusted`]).

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{CWD, FileType, Mode, Stat};
use rustix::io::Errno;

use super::beneath::HANDLE;
use super::mounts;

/// As many symlinks as the kernel follows (path_resolution(7)).
const MOST_SYMLINKS: usize = 40;

/// An open directory, and how it was reached. Compares and prints by path; derefs to it.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
    fd: Arc<OwnedFd>,
    device: u64,
    inode: u64,
    way: Way,
}

impl Root {
    /// Opens an absolute path.
    ///
    /// # Errors
    /// `NotADirectory` for anything else than a directory; `PermissionDenied` for a symlink that
    /// somebody else than root could have made; `Unsupported` for a mount in a directory that
    /// somebody else than root can write, if its filesystem waits for a process or a server (a user
    /// can mount FUSE in his own directories, and need never answer); else as `open`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut walk = Walk::new()?;
        walk.go(path)?;
        let Walk { here, mut steps, .. } = walk;
        let stat = rustix::fs::fstat(&here)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        steps.push(Step::of(&stat));
        Ok(Self {
            path: path.to_path_buf(),
            fd: Arc::new(here),
            device: stat.st_dev,
            inode: stat.st_ino,
            way: Way { steps },
        })
    }

    /// The descriptor, opened with `O_PATH`.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The path that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode number: the same directory has the same, whatever it is called.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Uid of its owner.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.way.steps.last().map_or(0, |step| step.uid)
    }

    /// The way to it.
    #[must_use]
    pub fn way(&self) -> &Way {
        &self.way
    }
}

impl Deref for Root {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for Root {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PartialEq for Root {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.identity() == other.identity()
    }
}

impl Eq for Root {}

/// The directories from `/` to a directory, itself included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    steps: Vec<Step>,
}

/// What one directory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Uid of its owner.
    pub uid: u32,
    /// Its permission bits.
    pub mode: u32,
}

impl Step {
    fn of(stat: &Stat) -> Self {
        Self { uid: stat.st_uid, mode: stat.st_mode & 0o7777 }
    }

    /// Whether nobody but root can make, rename or exchange entries of it that are root's. In a
    /// sticky directory others can add entries, and not touch ours.
    fn is_trusted(self, trusted: &[u32]) -> bool {
        trusted.contains(&self.uid) && (self.mode & 0o022 == 0 || self.mode & 0o1000 != 0)
    }
}

impl Way {
    /// A way of these directories, the first on top.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps }
    }

    /// Whether the directory, and each on the way to it, belongs to root (in a user namespace: to its
    /// root, or to somebody outside of it), and nobody else can exchange it.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.is_trusted_by(trusted_uids())
    }

    fn is_trusted_by(&self, trusted: &[u32]) -> bool {
        self.steps.iter().all(|step| step.is_trusted(trusted))
    }

    /// Whether `who` may reach what lies in the directory. Wide: an access list can grant what the
    /// group's bits stand for, so those count for everybody.
    #[must_use]
    pub fn admits(&self, who: &Who) -> bool {
        who.is_privileged
            || self.steps.iter().all(|step| {
                let owns = who.uids.iter().any(|range| range.contains(&step.uid));
                step.mode & 0o011 != 0 || (owns && step.mode & 0o100 != 0)
            })
    }
}

/// Somebody who may want to reach a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Who {
    /// Permissions do not stop them: root, or the capability to pass them over.
    pub is_privileged: bool,
    /// The uids that they can act as.
    pub uids: Vec<Range<u32>>,
}

impl Who {
    /// The user with this uid; 0 is privileged.
    #[must_use]
    pub fn user(uid: u32) -> Self {
        Self { is_privileged: uid == 0, uids: vec![uid..uid.saturating_add(1)] }
    }
}

/// Uids whose directories cannot lead us astray: root's and our own. In a user namespace what lies
/// outside of it, `/` and `/home` for example, belongs to the overflow uid.
fn trusted_uids() -> &'static [u32] {
    static TRUSTED: OnceLock<Vec<u32>> = OnceLock::new();
    TRUSTED.get_or_init(|| {
        let mut trusted = vec![0, rustix::process::geteuid().as_raw()];
        if !is_first_user_namespace() {
            let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
            trusted.push(overflow.trim().parse().unwrap_or(65534));
        }
        trusted
    })
}

/// Whether uids mean here what they mean to the kernel.
#[must_use]
pub fn is_first_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

struct Walk {
    here: OwnedFd,
    mount: Option<u64>,
    /// The directories above `here`.
    steps: Vec<Step>,
    /// Handles of the directories above, for `..` in a symlink.
    above: Vec<(OwnedFd, Option<u64>)>,
    symlinks: usize,
}

impl Walk {
    fn new() -> io::Result<Self> {
        let here = rustix::fs::openat(CWD, "/", HANDLE, Mode::empty())?;
        let mount = mount_of(&here);
        Ok(Self { here, mount, steps: Vec::new(), above: Vec::new(), symlinks: 0 })
    }

    fn to_the_top(&mut self) -> io::Result<()> {
        *self = Self { symlinks: self.symlinks, ..Self::new()? };
        Ok(())
    }

    fn go(&mut self, path: &Path) -> io::Result<()> {
        if !path.is_absolute() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not an absolute path"));
        }
        let mut waiting = parts(path);
        while let Some(part) = waiting.pop_front() {
            match part {
                Part::Top => self.to_the_top()?,
                Part::Up => self.up(),
                Part::Down(name) => {
                    if let Some(target) = self.down(&name)? {
                        self.symlinks += 1;
                        if self.symlinks > MOST_SYMLINKS {
                            return Err(Errno::LOOP.into());
                        }
                        for part in parts(&target).into_iter().rev() {
                            waiting.push_front(part);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn up(&mut self) {
        if let Some((above, mount)) = self.above.pop() {
            self.here = above;
            self.mount = mount;
            self.steps.pop();
        }
    }

    /// Goes to an entry; where that is a symlink, stays and returns where it leads.
    fn down(&mut self, name: &OsStr) -> io::Result<Option<PathBuf>> {
        let step = Step::of(&rustix::fs::fstat(&self.here)?);
        let is_trusted = step.is_trusted(trusted_uids());
        let next = rustix::fs::openat(&self.here, name, HANDLE, Mode::empty())?;
        let mount = mount_of(&next);
        // Before it is examined: that may already wait for somebody.
        if mount != self.mount && !is_trusted && waits_for_others(mount) {
            let message = "lies on a filesystem that a user has mounted and that may never answer";
            return Err(io::Error::new(ErrorKind::Unsupported, message));
        }
        let stat = rustix::fs::fstat(&next)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if is_trusted && trusted_uids().contains(&stat.st_uid) => {
                let target = rustix::fs::readlinkat(&next, c"", Vec::new())?;
                Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes()))))
            }
            FileType::Symlink => {
                let name = name.to_string_lossy();
                let message = format!("{name} is a symlink that others than root can exchange; not followed");
                Err(io::Error::new(ErrorKind::PermissionDenied, message))
            }
            FileType::Directory => {
                self.steps.push(step);
                let above = std::mem::replace(&mut self.here, next);
                self.above.push((above, self.mount));
                self.mount = mount;
                Ok(None)
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }
}

enum Part {
    Top,
    Up,
    Down(OsString),
}

fn parts(path: &Path) -> VecDeque<Part> {
    let part = |component| match component {
        Component::Prefix(_) | Component::CurDir => None,
        Component::RootDir => Some(Part::Top),
        Component::ParentDir => Some(Part::Up),
        Component::Normal(name) => Some(Part::Down(OsStr::from_bytes(name.as_bytes()).to_owned())),
    };
    path.components().filter_map(part).collect()
}

/// From `fdinfo`, which asks no filesystem; `statx` may.
fn mount_of(fd: &OwnedFd) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// Whether reading in the mount needs a process or a server to answer; what is not known does.
fn waits_for_others(mount: Option<u64>) -> bool {
    let Ok(all) = mounts::read() else { return true };
    let mount = all.iter().find(|one| Some(one.id) == mount);
    mount.is_none_or(|mount| {
        const WAITING: [&str; 10] =
            ["fuse", "nfs", "cifs", "smb", "9p", "afs", "ceph", "autofs", "coda", "virtiofs"];
        WAITING.iter().any(|kind| mount.fstype.starts_with(kind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn opens_through_symlinks_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        symlink("../a", dir.path().join("a/same")).unwrap();
        symlink(dir.path().join("a"), dir.path().join("absolute")).unwrap();
        let facts = std::fs::metadata(dir.path().join("a/b")).unwrap();
        for path in ["a/b", "a/same/b", "absolute/b", "absolute/../a/./b"] {
            let root = Root::open(&dir.path().join(path)).unwrap();
            assert_eq!(root.identity(), (facts.dev(), facts.ino()), "{path}");
            assert_eq!(root.owner(), facts.uid());
            assert!(root.way().is_trusted(), "{path}: {:?}", root.way());
            assert_eq!(&*root, dir.path().join(path));
        }
        let kind = |path: &str| Root::open(&dir.path().join(path)).unwrap_err().kind();
        assert_eq!(kind("none"), ErrorKind::NotFound);
        symlink("circle", dir.path().join("circle")).unwrap();
        assert_eq!(Root::open(&dir.path().join("circle")).unwrap_err().raw_os_error(), Some(libc_eloop()));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(kind("file"), ErrorKind::NotADirectory);
        assert_eq!(kind("file/x"), ErrorKind::NotADirectory);
    }

    fn libc_eloop() -> i32 {
        Errno::LOOP.raw_os_error()
    }

    #[test]
    fn no_symlink_of_a_directory_that_others_write() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir_all(open.join("real")).unwrap();
        symlink("real", open.join("link")).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(Root::open(&open.join("link")).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let root = Root::open(&open.join("real")).unwrap();
        assert!(!root.way().is_trusted());
        // Sticky: what is ours there stays ours.
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(Root::open(&open.join("link")).unwrap().way().is_trusted());
    }

    #[test]
    fn who_can_reach_and_who_can_exchange() {
        let step = |uid, mode| Step { uid, mode };
        let root = step(0, 0o755);
        let user = Who { is_privileged: false, uids: vec![1000..1001, 100_000..165_536] };
        for (steps, trusted, admits) in [
            (vec![root, root], true, true),
            (vec![root, step(0, 0o700)], true, false),
            (vec![root, step(0, 0o710)], true, true),
            (vec![root, step(0, 0o700), root], true, false),
            (vec![root, step(1000, 0o700)], false, true),
            (vec![root, step(100_005, 0o700)], false, true),
            (vec![root, step(1001, 0o700)], false, false),
            (vec![root, step(0, 0o777)], false, true),
            (vec![root, step(0, 0o1777), root], true, true),
            (vec![root, step(0, 0o775)], false, true),
        ] {
            let way = Way::new(steps);
            assert_eq!(way.is_trusted_by(&[0]), trusted, "{way:?}");
            assert_eq!(way.admits(&user), admits, "{way:?}");
            assert!(way.admits(&Who::user(0)));
        }
    }
}
