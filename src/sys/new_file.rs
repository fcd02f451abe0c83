//! Atomic writing of files: a file exists completely or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Writes a file with `content` at `path`, where nothing or a regular file exists.
///
/// With `keeps_owner`, an existing file's owner and mode are kept, and a new file has `mode` minus the umask;
/// otherwise the file has exactly `mode`.
///
/// # Errors
/// If it was not written; then the previous state is unchanged.
pub fn replace(path: &Path, content: &[u8], mode: u32, keeps_owner: bool) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path does not name a file"))?;
    // The directory is held open, so that it cannot be replaced by another one.
    let directory = open_directory(directory_of(path))?;
    let old = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(facts) if FileType::from_raw_mode(facts.st_mode).is_file() => Some(facts),
        Ok(_) => return Err(io::Error::other("the path exists and is not a regular file")),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(error.into()),
    };
    let new = NewFile { content, mode: Mode::from_raw_mode(mode), old, keeps_owner };
    // Random, so that no other process can predict it, and with a suffix that collectors of metrics ignore.
    let part = format!(".layersweep-{:016x}.part", fastrand::u64(..));
    let written = new
        .unnamed(&directory, &part)
        .or_else(|error| {
            tracing::debug!(%error, "unnamed files are not supported here");
            new.named(&directory, &part)
        })
        .and_then(|()| Ok(rustix::fs::renameat(&directory, &part, &directory, name)?));
    if written.is_err() {
        // The caller gets the original error. If the part cannot be removed either, the remaining file shows it.
        let _ = rustix::fs::unlinkat(&directory, &part, AtFlags::empty());
    } else if let Err(error) = rustix::fs::fsync(&directory) {
        tracing::debug!(%error, path = %path.display(), "syncing the directory");
    }
    written
}

#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Error: a symbolic link whose owner could point it to any directory.
#[derive(Debug, thiserror::Error)]
#[error("{} is a symbolic link of the user {owner}, who could point it to any directory", path.display())]
pub struct ForeignLink {
    path: PathBuf,
    owner: u32,
}

/// Opens a directory, and refuses symlinks of other users. The kernel does the same for symlinks in `/tmp`
/// (`fs.protected_symlinks`); here it applies to all directories.
///
/// # Errors
/// [`ForeignLink`] if the path contains a symlink that belongs neither to root nor to the caller, and the errors of
/// opening the directory.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    /// Maximum number of symlinks, as in the kernel.
    const MAX_LINKS: usize = 40;
    fn names(path: &Path) -> Vec<OsString> {
        path.iter().rev().map(OsStr::to_owned).collect()
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(".", flags | OFlags::PATH, Mode::empty())?;
    let (mut rest, mut links) = (names(path), 0);
    while let Some(name) = rest.pop() {
        if name == "/" {
            here = rustix::fs::open(&name, flags | OFlags::PATH, Mode::empty())?;
            continue;
        }
        let entry_flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(&here, &name, entry_flags, Mode::empty())?;
        let facts = rustix::fs::fstat(&entry)?;
        if !FileType::from_raw_mode(facts.st_mode).is_symlink() {
            here = entry;
            continue;
        }
        if facts.st_uid != 0 && facts.st_uid != rustix::process::geteuid().as_raw() {
            let parent =
                std::fs::read_link(format!("/proc/self/fd/{}", here.as_raw_fd())).unwrap_or_default();
            return Err(io::Error::other(ForeignLink { path: parent.join(name), owner: facts.st_uid }));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&entry, "", Vec::new())?;
        rest.extend(names(Path::new(OsStr::from_bytes(target.as_bytes()))));
    }
    Ok(rustix::fs::openat(&here, ".", flags | OFlags::RDONLY, Mode::empty())?)
}

struct NewFile<'a> {
    content: &'a [u8],
    mode: Mode,
    old: Option<Stat>,
    keeps_owner: bool,
}

impl NewFile<'_> {
    /// Writes through a file that has no name meanwhile: nothing remains if this process is killed.
    fn unnamed(&self, directory: &OwnedFd, part: &str) -> io::Result<()> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = self.fill(rustix::fs::openat(directory, ".", flags, self.mode)?)?;
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(rustix::fs::linkat(CWD, open, directory, part, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Writes to a named file, for filesystems without unnamed files.
    fn named(&self, directory: &OwnedFd, part: &str) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.fill(rustix::fs::openat(directory, part, flags, self.mode)?).map(drop)
    }

    fn fill(&self, file: OwnedFd) -> io::Result<File> {
        let mut file = File::from(file);
        match (&self.old, self.keeps_owner) {
            (Some(old), true) => {
                // Only root may change the owner of a file.
                if let Err(error) = fchown(&file, Some(old.st_uid), Some(old.st_gid)) {
                    tracing::info!(%error, "the owner of a file that is replaced could not be restored");
                }
                rustix::fs::fchmod(&file, Mode::from_raw_mode(old.st_mode & 0o7777))?;
            }
            (None, true) => {}
            // Restores the bits that the umask removed.
            (_, false) => rustix::fs::fchmod(&file, self.mode)?,
        }
        file.write_all(self.content)?;
        file.sync_all()?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn both_ways_of_writing_give_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let directory = OwnedFd::from(File::open(dir.path()).unwrap());
        let mode = Mode::from_raw_mode(0o640);
        let new = NewFile { content: b"page", mode, old: None, keeps_owner: true };
        new.unnamed(&directory, "unnamed").unwrap();
        new.named(&directory, "named").unwrap();
        for name in ["unnamed", "named"] {
            let part = dir.path().join(name);
            assert_eq!(std::fs::read_to_string(&part).unwrap(), "page", "{name}");
            assert_eq!(part.metadata().unwrap().mode() & 0o027, 0, "{name}");
        }
        // A symlink at the name is neither followed nor overwritten.
        std::os::unix::fs::symlink("other", dir.path().join("link")).unwrap();
        new.unnamed(&directory, "link").unwrap_err();
        new.named(&directory, "link").unwrap_err();
        assert!(!dir.path().join("other").exists());
    }

    #[test]
    fn concurrent_writers_leave_complete_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::thread::scope(|scope| {
            for letter in b'a'..b'e' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..5 {
                        replace(path, &[letter; 100_000], 0o644, false).unwrap();
                        let content = std::fs::read(path).unwrap();
                        assert!(content.len() == 100_000 && content.iter().all(|byte| *byte == content[0]));
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no part is left");
    }

    #[test]
    fn directory_behind_symlink_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("real/sub")).unwrap();
        std::os::unix::fs::symlink("real/../real", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("link/sub"), dir.path().join("whole")).unwrap();
        std::os::unix::fs::symlink("circle", dir.path().join("circle")).unwrap();
        fn inode(path: &Path) -> u64 {
            rustix::fs::fstat(open_directory(path).unwrap()).unwrap().st_ino
        }
        let sub = dir.path().join("real/sub").metadata().unwrap().ino();
        for name in ["real/sub", "link/sub", "whole", "./link/../real//sub/."] {
            assert_eq!(inode(&dir.path().join(name)), sub, "{name}");
        }
        assert_eq!(inode(Path::new(".")), std::fs::metadata(".").unwrap().ino());
        for (name, error) in [("none", Errno::NOENT), ("circle", Errno::LOOP)] {
            assert_eq!(
                Errno::from_io_error(&open_directory(&dir.path().join(name)).unwrap_err()),
                Some(error)
            );
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::lchown(dir.path().join("link"), Some(12345), None).unwrap();
        for name in ["link/sub", "whole"] {
            let error =
                replace(&dir.path().join(name).join("file"), b"new", 0o644, false).unwrap_err().to_string();
            assert!(error.contains("link is a symbolic link of the user 12345"), "{error}");
        }
        assert_eq!(std::fs::read_dir(dir.path().join("real/sub")).unwrap().count(), 0);
    }

    /// A link, a socket and a directory are not replaced.
    #[test]
    fn only_regular_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("other"), "mine").unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        for name in ["link", "directory", "socket"] {
            for keeps_owner in [true, false] {
                let before = dir.path().join(name).symlink_metadata().unwrap().ino();
                let error = replace(&dir.path().join(name), b"new", 0o644, keeps_owner).unwrap_err();
                assert!(error.to_string().contains("not a regular file"), "{name}: {error}");
                assert_eq!(dir.path().join(name).symlink_metadata().unwrap().ino(), before, "{name}");
            }
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("other")).unwrap(), "mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "no part is left");
    }
}
