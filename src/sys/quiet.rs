//! Reading without a trace: no access time changes, nothing is created, no symlink is followed in the last
//! component, and below a store's directories ([`Within`]) in no component.
//!
//! `O_NOATIME` is granted to the owner of a file and to `CAP_FOWNER`. If it is refused, the file is read without
//! it; then only the mount's `relatime` protects the access time.

mod within;

use std::convert::Infallible;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rayon::prelude::*;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

use super::beneath::{self, AS_IT_IS, DIRECTORY, HANDLE, Opener};

pub use within::{Below, Within, if_present, is_absent, is_symlink};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Directory,
    File,
    /// A symlink; never followed.
    Symlink,
    Special,
}

/// Entry of a directory, except `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Name: any bytes except NUL and `/`.
    pub name: OsString,
    pub kind: FileKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeFacts {
    pub device: u64,
    pub inode: u64,
    /// Length in bytes.
    pub length: u64,
    pub modified: Option<Timestamp>,
    pub kind: FileKind,
    pub links: u64,
    pub owner: u32,
    /// True for the character device 0/0, with which overlayfs hides a name of lower layers.
    pub is_whiteout: bool,
}

impl InodeFacts {
    /// Returns the device and inode number, which are the same under every name.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

fn kind_of(mode: FileType) -> FileKind {
    match mode {
        FileType::Directory => FileKind::Directory,
        FileType::RegularFile => FileKind::File,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Special,
    }
}

fn open(path: &Path, extra: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | extra;
    match rustix::fs::openat(CWD, path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(rustix::io::Errno::PERM) => {
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from)
        }
        other => other.map_err(io::Error::from),
    }
}

pub(super) fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Reads a file of at most `limit` bytes completely.
pub(super) fn read_whole(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let too_long =
        || io::Error::new(io::ErrorKind::FileTooLarge, format!("longer than the limit of {limit} bytes"));
    if length > limit {
        return Err(too_long());
    }
    let mut content = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(too_long());
    }
    Ok(content)
}

/// Lists a directory, sorted by name.
///
/// # Errors
/// If it cannot be opened or read completely, or is a symlink.
pub fn list(path: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let directory = open(path, OFlags::DIRECTORY)?;
    entries(directory, || Ok(()), |name| Ok(facts(&path.join(name))?.kind))
}

/// Returns the entries of a directory. `admit` may refuse a further entry; `kind` is used on filesystems that do
/// not list the kind with the name.
pub(super) fn entries(
    directory: OwnedFd,
    mut admit: impl FnMut() -> io::Result<()>,
    kind: impl Fn(&OsString) -> io::Result<FileKind>,
) -> io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    // `Dir::new` uses the descriptor itself; `read_from` would open it again, without NOATIME.
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        admit()?;
        let name = OsString::from_vec(name.to_vec());
        let kind = match entry.file_type() {
            FileType::Unknown => kind(&name)?,
            known => kind_of(known),
        };
        entries.push(DirectoryEntry { name, kind });
    }
    entries.par_sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Examines an inode without opening it; a symlink is examined itself.
///
/// # Errors
/// If it does not exist or its directory cannot be searched.
pub fn facts(path: &Path) -> io::Result<InodeFacts> {
    Ok(facts_of(&rustix::fs::statat(CWD, path, AS_IT_IS)?))
}

pub(super) fn kind_in(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<FileKind> {
    Ok(facts_of(&rustix::fs::statat(directory, name, AS_IT_IS)?).kind)
}

fn born_of(handle: BorrowedFd<'_>) -> io::Result<Option<Timestamp>> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    Ok(born(&rustix::fs::statx(handle, c"", flags, StatxFlags::BTIME)?))
}

/// Returns the creation time of an inode; `None` if the filesystem does not store it. It cannot be set, but depends
/// on the node's clock at that time.
#[must_use]
pub fn born(stat: &Statx) -> Option<Timestamp> {
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    time(stat.stx_btime).filter(|_| known)
}

/// Converts a time; `None` if it is out of range.
#[must_use]
pub fn time(time: StatxTimestamp) -> Option<Timestamp> {
    Timestamp::new(time.tv_sec, i32::try_from(time.tv_nsec).unwrap_or(0)).ok()
}

/// Returns the allocated bytes (512 × `st_blocks`) and the length of an inode.
fn size_of(stat: &Stat) -> (u64, u64) {
    let [blocks, length] = [stat.st_blocks, stat.st_size].map(|number| u64::try_from(number).unwrap_or(0));
    (blocks.saturating_mul(512), length)
}

/// Times of an inode that determine its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Modification time, which a copy may keep and which can be set.
    Modified,
    /// Newest of all times; those of status change and birth cannot be set.
    All,
}

impl Times {
    /// Returns the kind and the newest time of an open inode.
    fn of(self, handle: BorrowedFd<'_>) -> io::Result<(FileType, Option<Timestamp>)> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
        let wish = StatxFlags::TYPE | StatxFlags::MTIME | StatxFlags::CTIME | StatxFlags::BTIME;
        let stat = rustix::fs::statx(handle, c"", flags, wish)?;
        let modified = time(stat.stx_mtime);
        let newest = match self {
            Self::Modified => modified,
            Self::All => modified.max(time(stat.stx_ctime)).max(born(&stat)),
        };
        Ok((FileType::from_raw_mode(stat.stx_mode.into()), newest))
    }
}

/// Returns the newest of these times of `top` and everything below it, without mounts.
fn newest(top: OwnedFd, times: Times, limit: usize) -> io::Result<Option<Timestamp>> {
    let (kind, mut newest) = times.of(top.as_fd())?;
    let mut count = 1_usize;
    if kind != FileType::Directory {
        return Ok(newest);
    }
    let opener = Opener::usual(top.as_fd());
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let directory = match opener.beneath(top.as_fd(), &path, DIRECTORY, false) {
            Err(Errno::XDEV) => continue,
            other => other?,
        };
        for entry in beneath::entries(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            count += 1;
            if count > limit {
                return Ok(None);
            }
            // A mount is not even examined: its filesystem may never answer.
            let handle = match opener.beneath(directory.as_fd(), name_of(name), HANDLE, false) {
                Err(Errno::XDEV) => continue,
                other => other?,
            };
            let (kind, time) = times.of(handle.as_fd())?;
            newest = newest.max(time);
            if kind == FileType::Directory {
                waiting.push(path.join(name_of(name)));
            }
        }
    }
    Ok(newest)
}

/// Calls `found` with each regular file in `top` and below it, and its allocated bytes. See [`walk_below`].
///
/// # Errors
/// If `top` cannot be opened.
pub fn files_below(
    top: &Path,
    leaves_out: &dyn Fn(&InodeFacts) -> bool,
    found: &mut dyn FnMut(PathBuf, InodeFacts, u64),
) -> io::Result<()> {
    walk_below(&open(top, OFlags::DIRECTORY)?, leaves_out, &mut |step| {
        if let Step::Entry(path, facts, bytes) = step
            && facts.kind == FileKind::File
        {
            found(top.join(path), *facts, bytes);
        }
    });
    Ok(())
}

/// Step of a walk. Paths are relative to its top.
#[derive(Debug)]
pub enum Step<'a> {
    /// A directory that is entered, the top included, and its own allocated bytes.
    Directory(&'a Path, u64),
    /// Any other entry of the directory that was entered last and not left, and its allocated bytes.
    Entry(&'a Path, &'a InodeFacts, u64),
    /// The directory that was entered last cannot be read, for example because its path is too long.
    Unread(&'a Path),
    /// A mount point, which is not entered.
    Mount(&'a Path),
    /// End of the directory that was entered last and not left.
    End,
}

/// Walks over everything in an open directory, depth first. Directories that `leaves_out` accepts are left out. Mounts are
/// not entered (their filesystem may never answer), except a directory that is mounted on itself. Entries that disappear
/// meanwhile or cannot be read are skipped.
pub fn walk_below(
    start: &OwnedFd,
    leaves_out: &dyn Fn(&InodeFacts) -> bool,
    visit: &mut dyn FnMut(Step<'_>),
) {
    let walked = walk_until(start, leaves_out, &mut |step| {
        visit(step);
        ControlFlow::<Infallible>::Continue(())
    });
    let ControlFlow::Continue(()) = walked;
}

/// As [`walk_below`], but ends when `visit` breaks the walk.
pub fn walk_until<B>(
    start: &OwnedFd,
    leaves_out: &dyn Fn(&InodeFacts) -> bool,
    visit: &mut dyn FnMut(Step<'_>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let opener = Opener::usual(start.as_fd());
    // `None` is the end of a directory.
    let own_bytes = rustix::fs::fstat(start).map_or(0, |stat| size_of(&stat).0);
    let mut waiting = vec![Some((PathBuf::new(), own_bytes, None))];
    // Directories on the path that are mounted on themselves: what is in them is opened from there.
    let mut mounts: Vec<(OwnedFd, PathBuf)> = Vec::new();
    while let Some(next) = waiting.pop() {
        let Some((below, own_bytes, mount)) = next else {
            visit(Step::End)?;
            continue;
        };
        while mounts.last().is_some_and(|(_, top)| !below.starts_with(top)) {
            mounts.pop();
        }
        mounts.extend(mount.map(|mount| (mount, below.clone())));
        visit(Step::Directory(&below, own_bytes))?;
        waiting.push(None);
        let (from, top) = mounts.last().map_or((start, Path::new("")), |(mount, top)| (mount, top));
        let inside = below.strip_prefix(top).unwrap_or(&below);
        let Ok(directory) = opener.beneath(from.as_fd(), inside, DIRECTORY, false) else {
            visit(Step::Unread(&below))?;
            continue;
        };
        let Ok(entries) = beneath::entries(&directory) else {
            visit(Step::Unread(&below))?;
            continue;
        };
        for entry in entries.map_while(Result::ok) {
            let name = entry.file_name();
            let path = below.join(name_of(name));
            let (handle, mount) = match opener.beneath(directory.as_fd(), name_of(name), HANDLE, false) {
                Err(Errno::XDEV) => match opener.mounted_on_itself(directory.as_fd(), name, entry.ino()) {
                    Some(mount) => (rustix::io::dup(&mount), Some(mount)),
                    None => {
                        visit(Step::Mount(&path))?;
                        continue;
                    }
                },
                handle => (handle, None),
            };
            let Ok(stat) = handle.and_then(rustix::fs::fstat) else { continue };
            let (facts, bytes) = (facts_of(&stat), size_of(&stat).0);
            if facts.kind != FileKind::Directory {
                visit(Step::Entry(&path, &facts, bytes))?;
            } else if !leaves_out(&facts) {
                waiting.push(Some((path, bytes, mount)));
            }
        }
    }
    ControlFlow::Continue(())
}

fn name_of(entry: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(entry.to_bytes()))
}

/// Returns whether an open file or directory is marked immutable or append-only (`chattr(1)`), so that even root
/// cannot remove its content. `false` if unknown.
#[must_use]
pub fn has_immutable_flag(open: BorrowedFd<'_>) -> bool {
    use rustix::fs::{IFlags, ioctl_getflags};
    ioctl_getflags(open).is_ok_and(|flags| flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND))
}

/// Examines an inode in a directory without opening it, with its allocated bytes and its mode.
///
/// # Errors
/// If the directory cannot be searched, or does not contain the name.
pub fn facts_in(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<(InodeFacts, u64, u32)> {
    let stat = rustix::fs::statat(directory, name, AS_IT_IS)?;
    Ok((facts_of(&stat), u64::try_from(stat.st_blocks).unwrap_or(0) * 512, stat.st_mode))
}

#[allow(clippy::useless_conversion)] // the width of `st_nlink` differs by architecture
fn facts_of(stat: &Stat) -> InodeFacts {
    InodeFacts {
        device: stat.st_dev,
        inode: stat.st_ino,
        length: u64::try_from(stat.st_size).unwrap_or(0),
        modified: Timestamp::new(stat.st_mtime, i32::try_from(stat.st_mtime_nsec).unwrap_or(0)).ok(),
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
        links: stat.st_nlink.into(),
        owner: stat.st_uid,
        is_whiteout: stat.st_rdev == 0 && FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_listed_but_symlink_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b");
        std::fs::write(&file, b"12345").unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a")).unwrap();
        std::fs::create_dir(dir.path().join("c")).unwrap();
        let names: Vec<_> = list(dir.path()).unwrap().into_iter().map(|e| (e.name, e.kind)).collect();
        assert_eq!(
            names,
            [
                ("a".into(), FileKind::Symlink),
                ("b".into(), FileKind::File),
                ("c".into(), FileKind::Directory)
            ]
        );
        assert!(list(&dir.path().join("a")).is_err(), "a symlink is not listed");
    }
}
