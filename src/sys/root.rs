//! Top directory of a store, as configured, opened once.
//!
//! Everything that is read, proven or deleted in a store uses the descriptor that is opened here. Symlinks on the
//! path are followed only if root alone could have created them, so that a user cannot redirect root's programs.
//! The permissions along the path are recorded: they determine who can use the store at all
//! ([`DirectoryChain::admits`]) and who could replace it ([`DirectoryChain::is_trusted`]).

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::beneath::{DIRECTORY, HANDLE, Opener, mount_id, mount_id_of_handle, reopen};
use super::servers;
use super::users::trusted_uids;

/// Maximum number of symlinks, as in the kernel (path_resolution(7)).
const MAX_SYMLINKS: usize = 40;

/// An open directory and the path to it. Derefs to that path, which contains no symlinks.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
    fd: Arc<OwnedFd>,
    device: u64,
    inode: u64,
    way: DirectoryChain,
}

impl Root {
    /// Opens an absolute path.
    ///
    /// # Errors
    /// `NotADirectory` if it is not a directory. `PermissionDenied` for a symlink that a user other than root could
    /// have made. `Unsupported` for a mount in a directory that a user other than root can write, if its filesystem
    /// depends on a process or server: a user can mount FUSE in his own directories, and may never answer.
    /// Otherwise the errors of `open`.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_in(Path::new("/"), path)
    }

    /// Opens a path that is absolute inside `top`, a mounted disk that the caller named. The directories above
    /// `top` are not checked, and symlinks cannot lead out of it.
    pub fn open_in(top: &Path, path: &Path) -> io::Result<Self> {
        Self::open_by(PathWalk::new(top, None)?, path)
    }

    /// Works like [`Self::open`], and opens no directory of `opened` again.
    pub(super) fn open_once(opened: &OpenedDirectories, path: &Path) -> io::Result<Self> {
        Self::open_by(PathWalk::new(Path::new("/"), Some(opened))?, path)
    }

    fn open_by(mut walk: PathWalk<'_>, path: &Path) -> io::Result<Self> {
        walk.follow(path, false)?;
        let PathWalk { here, reached: path, above, .. } = walk;
        let steps = above.iter().map(|directory| directory.rights).chain([here.rights]).collect();
        let OpenedDirectory { device, inode, .. } = *here;
        Ok(Self { path, fd: Arc::clone(&here.fd), device, inode, way: DirectoryChain { steps } })
    }

    /// Returns the descriptor, opened with `O_PATH`.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn directory(&self) -> io::Result<OwnedFd> {
        let opener = Opener::detect(self.fd());
        Ok(opener.beneath(self.fd(), Path::new(""), DIRECTORY, false)?)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the device and inode number, which are the same under every name of the directory.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    #[must_use]
    pub fn owner(&self) -> u32 {
        self.way.steps.last().map_or(0, |step| step.uid)
    }

    #[must_use]
    pub fn way(&self) -> &DirectoryChain {
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

/// Owners and modes of the directories from `/` to a directory, including itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DirectoryChain {
    steps: Vec<DirectoryRights>,
}

/// Returns the way to a directory, or to the directory of a file. One that cannot be opened may be reachable for any
/// user.
pub(super) fn way_to(path: &Path) -> DirectoryChain {
    let root = match (Root::open(path), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == ErrorKind::NotADirectory => Root::open(parent),
        (root, _) => root,
    };
    root.map(|root| root.way).unwrap_or_default()
}

/// Opens any file with `O_PATH`, and returns it with its path. The path is followed with the same care as in
/// [`Root::open`].
pub fn find(path: &Path) -> io::Result<(Arc<OwnedFd>, PathBuf)> {
    find_by(PathWalk::new(Path::new("/"), None)?, path)
}

/// Works like [`find`], and opens no directory of `opened` again.
pub(super) fn find_once(opened: &OpenedDirectories, path: &Path) -> io::Result<(Arc<OwnedFd>, PathBuf)> {
    find_by(PathWalk::new(Path::new("/"), Some(opened))?, path)
}

/// Works like [`find`] for a path that does not have to be found. Mounts whose filesystem depends on a process or
/// server are not entered, even if root mounted them.
pub fn find_at_hand(path: &Path) -> io::Result<(Arc<OwnedFd>, PathBuf)> {
    find_by(PathWalk { trusts_servers: false, ..PathWalk::new(Path::new("/"), None)? }, path)
}

/// Works like [`Opener::beneath`], for reading, but also crosses into mounts below `start`. Mounts of filesystems
/// that may never answer are not even examined, even if root mounted them; they result in `XDEV`.
pub fn into_mounts(
    opener: Opener,
    start: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    /// podman mounts and unmounts all the time, so that the kind of a mount may be unknown for a moment.
    const TRIES: u32 = 5;
    let mut opened = into_mounts_once(opener, start, path, flags);
    for _ in 1..TRIES {
        if opened.as_ref().err() != Some(&Errno::XDEV) {
            break;
        }
        opened = into_mounts_once(opener, start, path, flags);
    }
    opened
}

fn into_mounts_once(
    opener: Opener,
    start: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    match opener.beneath(start, path, flags, false) {
        Err(Errno::XDEV) if is_plain => {}
        other => return other,
    }
    let mut here = opener.beneath(start, Path::new(""), HANDLE, false)?;
    for name in path.components().filter(|part| matches!(part, Component::Normal(_))) {
        let name = Path::new(name.as_os_str());
        here = match opener.beneath(here.as_fd(), name, HANDLE, false) {
            Err(Errno::XDEV) => onto_mount(opener, here.as_fd(), name)?,
            other => other?,
        };
    }
    // The file that was found is opened through its handle, because its name may lead elsewhere by now.
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&here)?.st_mode);
    match kind {
        FileType::Directory if !flags.contains(OFlags::PATH) => {
            opener.beneath(here.as_fd(), Path::new(""), flags, false)
        }
        FileType::Directory => Ok(here),
        _ if flags.contains(OFlags::DIRECTORY) => Err(Errno::NOTDIR),
        _ if flags.contains(OFlags::PATH) => Ok(here),
        FileType::RegularFile => reopen(here.as_fd()),
        FileType::Symlink => Err(Errno::LOOP),
        _ => Err(Errno::NXIO),
    }
}

/// Opens a mount point as a handle, which does not query the mounted filesystem.
fn onto_mount(opener: Opener, parent: BorrowedFd<'_>, name: &Path) -> rustix::io::Result<OwnedFd> {
    let handle = opener.beneath(parent, name, HANDLE, true)?;
    let mount = mount_id_of_handle(handle.as_fd()).ok();
    // Even if root mounted it: a server that hangs does not belong to a store.
    if servers::waits_for_others(mount, false) { Err(Errno::XDEV) } else { Ok(handle) }
}

fn find_by(mut walk: PathWalk<'_>, path: &Path) -> io::Result<(Arc<OwnedFd>, PathBuf)> {
    walk.follow(path, true)?;
    let PathWalk { here, reached: path, leaf, .. } = walk;
    Ok((leaf.map_or_else(|| Arc::clone(&here.fd), Arc::new), path))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DirectoryRights {
    pub uid: u32,
    pub mode: u32,
}

impl DirectoryRights {
    /// Records owner and mode. Write permission of the caller's own group is ignored: many systems give each user a
    /// separate group that may write.
    fn of(stat: &Stat) -> Self {
        let is_own_group = stat.st_gid == 0 || stat.st_gid == rustix::process::getegid().as_raw();
        let mode = stat.st_mode & 0o7777;
        Self { uid: stat.st_uid, mode: if is_own_group { mode & !0o020 } else { mode } }
    }

    /// Returns whether only trusted users can create, rename or replace the entries of root in it. In a sticky
    /// directory other users can add entries, but not change those of root.
    fn is_trusted(self, trusted: &[u32]) -> bool {
        trusted.contains(&self.uid) && (self.mode & 0o022 == 0 || self.mode & 0o1000 != 0)
    }
}

impl DirectoryChain {
    /// Creates a chain of these directories, the top one first.
    #[cfg(test)]
    pub fn new(steps: Vec<DirectoryRights>) -> Self {
        Self { steps }
    }

    /// Returns whether the directory and all directories above it belong to root, and no other user can replace it.
    /// (In a user namespace they may belong to its root, or to a user outside of it.)
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.is_trusted_by(trusted_uids())
    }

    fn is_trusted_by(&self, trusted: &[u32]) -> bool {
        self.steps.iter().all(|step| step.is_trusted(trusted))
    }

    /// Returns true if every user may reach the content of the directory.
    #[must_use]
    pub(super) fn admits_all(&self) -> bool {
        self.admits(&Who::default())
    }

    /// Returns whether `who` may reach the content of the directory. The answer is generous: an access list can
    /// grant everything that the group bits allow, so these count for everyone.
    #[must_use]
    pub fn admits(&self, who: &Who) -> bool {
        who.is_privileged
            || self.steps.iter().all(|step| {
                let owns = who.uids.iter().any(|range| range.contains(&step.uid));
                step.mode & 0o011 != 0 || (owns && step.mode & 0o100 != 0)
            })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Who {
    /// Permissions do not apply: the user is root, or has a capability to bypass them.
    pub is_privileged: bool,
    /// Uids that the user can act as.
    pub uids: Vec<Range<u32>>,
}

impl Who {
    /// Returns the user with this uid; 0 is privileged.
    #[must_use]
    pub fn user(uid: u32) -> Self {
        let uids = uid..uid.saturating_add(1);
        Self { is_privileged: uid == 0, uids: Vec::from([uids]) }
    }
}

/// Directories that were opened by lookups from `/`, and names that did not exist.
///
/// A look at the configuration of a node looks up some three hundred paths, nearly all of them in the same dozen
/// directories, and most of which do not exist. Opening each component of each path again took more time than anything
/// else in the proof of a deletion. So the lookups of one look share the directories that they have opened, and each
/// name is looked up once.
///
/// A look lasts for milliseconds and belongs to one moment: what a process replaces during it counts as replaced
/// afterwards, as if the file had been read first. Each proof begins a new one ([`Sysroot::at_once`]).
///
/// [`Sysroot::at_once`]: super::sysroot::Sysroot::at_once
#[derive(Debug, Default)]
pub(super) struct OpenedDirectories {
    /// By path without symlinks.
    entries: Mutex<HashMap<PathBuf, KnownEntry>>,
    /// Number of directories among them.
    opened: AtomicUsize,
}

/// Maximum number of directories that stay open: a process may have 256 descriptors, and make two looks at a time. The
/// first ones are the most frequent.
const MOST_OPENED: usize = 64;

#[derive(Clone, Debug)]
enum KnownEntry {
    Directory(Arc<OpenedDirectory>),
    /// A symlink of root's, and its target.
    Symlink(PathBuf),
    Absent,
}

impl OpenedDirectories {
    fn get(&self, path: &Path) -> Option<KnownEntry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    fn add(&self, path: PathBuf, entry: KnownEntry) {
        let is_directory = matches!(entry, KnownEntry::Directory(_));
        if is_directory && self.opened.fetch_add(1, Ordering::Relaxed) >= MOST_OPENED {
            return;
        }
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).insert(path, entry);
    }
}

/// A directory opened with `O_PATH`, and what was read when it was opened.
#[derive(Debug)]
struct OpenedDirectory {
    fd: Arc<OwnedFd>,
    device: u64,
    inode: u64,
    rights: DirectoryRights,
    mount: Option<u64>,
}

impl OpenedDirectory {
    fn new(fd: OwnedFd, mount: Option<u64>, stat: &Stat) -> Arc<Self> {
        let rights = DirectoryRights::of(stat);
        Arc::new(Self { fd: Arc::new(fd), device: stat.st_dev, inode: stat.st_ino, rights, mount })
    }
}

struct PathWalk<'a> {
    top: &'a Path,
    opened: Option<&'a OpenedDirectories>,
    here: Arc<OpenedDirectory>,
    /// Path of `here`, or of the file at the end of the path. It contains no symlinks.
    reached: PathBuf,
    /// The directories above `here`, for `..` in a symlink.
    above: Vec<Arc<OpenedDirectory>>,
    /// File at the end of the path, if it is not a directory.
    leaf: Option<OwnedFd>,
    symlinks: usize,
    /// Filesystems that root mounted are trusted to answer.
    trusts_servers: bool,
}

enum Next {
    Directory(Arc<OpenedDirectory>),
    Symlink(PathBuf),
    Other(OwnedFd),
}

impl<'a> PathWalk<'a> {
    fn new(top: &'a Path, opened: Option<&'a OpenedDirectories>) -> io::Result<Self> {
        let known = opened.and_then(|opened| opened.get(top));
        let here = match known {
            Some(KnownEntry::Directory(directory)) => directory,
            _ => Self::open_top(top, opened)?,
        };
        let (reached, above) = (top.to_path_buf(), Vec::new());
        Ok(Self { top, opened, here, reached, above, leaf: None, symlinks: 0, trusts_servers: true })
    }

    fn open_top(top: &Path, opened: Option<&OpenedDirectories>) -> io::Result<Arc<OpenedDirectory>> {
        let fd = rustix::fs::openat(CWD, top, HANDLE | OFlags::DIRECTORY, Mode::empty())?;
        // The starting point is not a mount that may not answer.
        let mount = mount_id(fd.as_fd()).ok();
        let stat = rustix::fs::fstat(&fd)?;
        let directory = OpenedDirectory::new(fd, mount, &stat);
        if let Some(opened) = opened {
            opened.add(top.to_path_buf(), KnownEntry::Directory(Arc::clone(&directory)));
        }
        Ok(directory)
    }

    fn follow(&mut self, path: &Path, any_kind: bool) -> io::Result<()> {
        if !path.is_absolute() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not an absolute path"));
        }
        let mut waiting = parts(path);
        while let Some(part) = waiting.pop_front() {
            match part {
                PathPart::Top if self.above.is_empty() => {}
                PathPart::Top => {
                    let Self { symlinks, trusts_servers, .. } = *self;
                    *self = Self { symlinks, trusts_servers, ..Self::new(self.top, self.opened)? };
                }
                PathPart::Up => self.up(),
                PathPart::Down(name) => {
                    let path = self.reached.join(&name);
                    match self.down(&name, &path)? {
                        Next::Directory(directory) => {
                            self.above.push(std::mem::replace(&mut self.here, directory));
                            self.reached = path;
                        }
                        Next::Symlink(target) => {
                            self.symlinks += 1;
                            if self.symlinks > MAX_SYMLINKS {
                                return Err(Errno::LOOP.into());
                            }
                            for part in parts(&target).into_iter().rev() {
                                waiting.push_front(part);
                            }
                        }
                        Next::Other(leaf) if any_kind && waiting.is_empty() => {
                            self.leaf = Some(leaf);
                            self.reached = path;
                        }
                        Next::Other(_) => return Err(Errno::NOTDIR.into()),
                    }
                }
            }
        }
        Ok(())
    }

    fn up(&mut self) {
        if let Some(above) = self.above.pop() {
            self.here = above;
            self.reached.pop();
        }
    }

    /// Finds the entry `name` of this directory, whose path is `path`.
    fn down(&self, name: &OsStr, path: &Path) -> io::Result<Next> {
        match self.opened.and_then(|opened| opened.get(path)) {
            Some(KnownEntry::Directory(directory)) => return Ok(Next::Directory(directory)),
            Some(KnownEntry::Symlink(target)) => return Ok(Next::Symlink(target)),
            Some(KnownEntry::Absent) => return Err(Errno::NOENT.into()),
            None => {}
        }
        let next = self.look_up(name);
        if let Some(opened) = self.opened {
            let entry = match &next {
                Ok(Next::Directory(directory)) => Some(KnownEntry::Directory(Arc::clone(directory))),
                Ok(Next::Symlink(target)) => Some(KnownEntry::Symlink(target.clone())),
                Err(error) if error.kind() == ErrorKind::NotFound => Some(KnownEntry::Absent),
                Ok(Next::Other(_)) | Err(_) => None,
            };
            entry.into_iter().for_each(|entry| opened.add(path.to_path_buf(), entry));
        }
        next
    }

    fn look_up(&self, name: &OsStr) -> io::Result<Next> {
        let here = &*self.here;
        let is_trusted = here.rights.is_trusted(trusted_uids());
        // Usually it is on the same mount, and needs no further check.
        let same = rustix::fs::openat2(&here.fd, name, HANDLE, Mode::empty(), ResolveFlags::NO_XDEV);
        let (next, mount) = match same {
            Ok(next) => (next, here.mount),
            Err(error @ Errno::NOENT) => return Err(error.into()),
            Err(_) => {
                let next = rustix::fs::openat(&here.fd, name, HANDLE, Mode::empty())?;
                let mount = mount_id_of_handle(next.as_fd()).ok();
                (next, mount)
            }
        };
        // This check must be before the file is examined, which may already wait for a server.
        if mount != here.mount && servers::waits_for_others(mount, is_trusted && self.trusts_servers) {
            let message = if self.trusts_servers {
                "is on a filesystem that a user mounted and that may hang"
            } else {
                "is on a filesystem that may hang"
            };
            return Err(io::Error::new(ErrorKind::Unsupported, message));
        }
        let stat = rustix::fs::fstat(&next)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if is_trusted && trusted_uids().contains(&stat.st_uid) => {
                let target = rustix::fs::readlinkat(&next, c"", Vec::new())?;
                Ok(Next::Symlink(PathBuf::from(OsString::from_vec(target.into_bytes()))))
            }
            FileType::Symlink => {
                let name = name.to_string_lossy();
                let message = format!(
                    "{name} is a symlink that users other than root can replace; not \
                    followed"
                );
                Err(io::Error::new(ErrorKind::PermissionDenied, message))
            }
            FileType::Directory => Ok(Next::Directory(OpenedDirectory::new(next, mount, &stat))),
            _ => Ok(Next::Other(next)),
        }
    }
}

enum PathPart {
    Top,
    Up,
    Down(OsString),
}

fn parts(path: &Path) -> VecDeque<PathPart> {
    let parts = path.components().filter_map(|component| match component {
        Component::Prefix(_) | Component::CurDir => None,
        Component::RootDir => Some(PathPart::Top),
        Component::ParentDir => Some(PathPart::Up),
        Component::Normal(name) => Some(PathPart::Down(OsStr::from_bytes(name.as_bytes()).to_owned())),
    });
    parts.collect()
}

#[cfg(test)]
impl Root {
    /// Creates a root of a path that need not exist, for tests that do not read anything.
    pub(crate) fn for_tests(path: &Path) -> Self {
        Self { path: path.to_path_buf(), ..Self::open(Path::new("/")).expect("the root directory") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn own_symlinks_are_followed() {
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
            assert_eq!(&*root, std::fs::canonicalize(dir.path().join(path)).unwrap(), "{path}");
        }
        symlink("circle", dir.path().join("circle")).unwrap();
        assert_eq!(Root::open(&dir.path().join("circle")).unwrap_err().raw_os_error(), Some(libc_eloop()));
        std::fs::write(dir.path().join("file"), "").unwrap();
        for (path, kind) in [
            ("none", ErrorKind::NotFound),
            ("file", ErrorKind::NotADirectory),
            ("file/x", ErrorKind::NotADirectory),
        ] {
            assert_eq!(Root::open(&dir.path().join(path)).unwrap_err().kind(), kind, "{path}");
        }
    }

    fn libc_eloop() -> i32 {
        Errno::LOOP.raw_os_error()
    }

    #[test]
    fn lookups_of_one_look_agree() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        let opened = OpenedDirectories::default();
        fn kind(opened: &OpenedDirectories, path: &Path) -> Option<ErrorKind> {
            find_once(opened, path).err().map(|error| error.kind())
        }
        let absent = dir.path().join("a/none");
        for _ in 0..2 {
            for path in ["a/b", "link/b", "link/../a/b", "a/b"] {
                let [once, alone] = [
                    Root::open_once(&opened, &dir.path().join(path)).unwrap(),
                    Root::open(&dir.path().join(path)).unwrap(),
                ];
                assert_eq!(
                    (once.path(), once.identity(), once.way()),
                    (alone.path(), alone.identity(), alone.way())
                );
            }
            assert_eq!(kind(&opened, &absent), Some(ErrorKind::NotFound));
        }
        // The look does not see changes that happen during it.
        std::fs::write(&absent, "").unwrap();
        std::fs::rename(dir.path().join("a/b"), dir.path().join("moved")).unwrap();
        assert_eq!(kind(&opened, &absent), Some(ErrorKind::NotFound));
        for path in ["a/b", "moved"] {
            assert_eq!(kind(&opened, &dir.path().join(path)), None);
        }
        for number in 0..2 * MOST_OPENED {
            let path = dir.path().join(number.to_string());
            std::fs::create_dir(&path).unwrap();
            assert_eq!(kind(&opened, &path), None);
        }
        let entries = opened.entries.lock().unwrap();
        let directories = entries.values().filter(|entry| matches!(entry, KnownEntry::Directory(_)));
        assert_eq!(directories.count(), MOST_OPENED);
    }

    #[test]
    fn symlink_in_a_shared_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir_all(open.join("real")).unwrap();
        symlink("real", open.join("link")).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(Root::open(&open.join("link")).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let root = Root::open(&open.join("real")).unwrap();
        assert!(!root.way().is_trusted());
        // In a sticky directory the caller's entries stay unchanged.
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(Root::open(&open.join("link")).unwrap().way().is_trusted());
    }

    #[test]
    fn chain_determines_access_and_trust() {
        fn step(uid: u32, mode: u32) -> DirectoryRights {
            DirectoryRights { uid, mode }
        }
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
            let way = DirectoryChain::new(steps);
            assert_eq!(way.is_trusted_by(&[0]), trusted, "{way:?}");
            assert_eq!(way.admits(&user), admits, "{way:?}");
            assert!(way.admits(&Who::user(0)));
        }
    }

    #[test]
    fn mounts_that_may_not_answer_are_refused() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["memory", "silent"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("file"), "below").unwrap();
        fn mount(directory: &Path, arguments: &[&str]) {
            let status = std::process::Command::new("mount").args(arguments).current_dir(directory).status();
            assert!(status.unwrap().success(), "{arguments:?}");
        }
        mount(dir.path(), &["-t", "tmpfs", "of-a-test", "memory"]);
        std::fs::create_dir(dir.path().join("memory/sub")).unwrap();
        std::fs::write(dir.path().join("memory/sub/file"), "above").unwrap();
        symlink("file", dir.path().join("memory/sub/link")).unwrap();
        mount(dir.path(), &["--bind", "memory/sub/file", "file"]);
        // A FUSE mount of a user's process: this process, which does not answer.
        let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        if let Ok(fuse) = &fuse {
            use std::os::fd::AsRawFd;
            let options = format!("fd={},rootmode=40000,user_id=4711,group_id=4711", fuse.as_raw_fd());
            let (flags, options) = (nix::mount::MsFlags::empty(), Some(options.as_str()));
            nix::mount::mount(Some("silent"), &dir.path().join("silent"), Some("fuse"), flags, options)
                .unwrap();
        }
        let top = std::fs::File::open(dir.path()).unwrap();
        let mut found = Vec::new();
        for opener in [Opener::Openat2, Opener::Steps] {
            let open = |path: &str, flags| {
                into_mounts(opener, top.as_fd(), Path::new(path), flags).map(std::fs::File::from)
            };
            let error = |path: &str, flags| open(path, flags).map(drop).unwrap_err();
            found.push((
                ["file", "memory/sub/file"]
                    .map(|path| open(path, OFlags::RDONLY).map(|file| io::read_to_string(file).unwrap())),
                ["memory/sub", "memory", ""].map(|path| open(path, DIRECTORY).is_ok()),
                error("memory/sub/none", HANDLE),
                error("memory/sub/link", OFlags::RDONLY | OFlags::NOFOLLOW),
                error("memory/../file", HANDLE),
                fuse.is_ok().then(|| {
                    let tries = [("silent", HANDLE), ("silent", DIRECTORY), ("silent/file", OFlags::RDONLY)];
                    tries.map(|(path, flags)| error(path, flags))
                }),
            ));
        }
        drop(top);
        for name in ["file", "memory", "silent"] {
            let _ = std::process::Command::new("umount").arg("-l").arg(dir.path().join(name)).status();
        }
        for found in found {
            assert_eq!(found.0, [Ok("above".to_owned()), Ok("above".to_owned())]);
            assert_eq!(found.1, [true; 3]);
            assert_eq!((found.2, found.3, found.4), (Errno::NOENT, Errno::LOOP, Errno::XDEV));
            assert_eq!(found.5.unwrap_or([Errno::XDEV; 3]), [Errno::XDEV; 3]);
        }
    }
}
