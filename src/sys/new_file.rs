//! Files that are there whole or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Puts a file with `content` in the place of `path`, where nothing is or a regular file.
///
/// With `keeps_owner`, that file's owner and mode stay, and a new one has `mode` as far as the umask lets it;
/// otherwise it has exactly `mode`.
///
/// # Errors
/// Why it was not written; then what was there before is there still.
pub fn replace(path: &Path, content: &[u8], mode: u32, keeps_owner: bool) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path does not name a file"))?;
    // Held open, so that nobody can put another directory in its place.
    let directory = open_directory(directory_of(path))?;
    let old = match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(facts) if FileType::from_raw_mode(facts.st_mode).is_file() => Some(facts),
        Ok(_) => return Err(io::Error::other("the path exists and is not a regular file")),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(error.into()),
    };
    let new = NewFile { content, mode: Mode::from_raw_mode(mode), old, keeps_owner };
    // A name that nobody can foresee, and that no collector of metrics reads.
    let part = format!(".layersweep-{:016x}.part", fastrand::u64(..));
    let written = new
        .unnamed(&directory, &part)
        .or_else(|error| {
            tracing::debug!(%error, "unnamed files are not supported here");
            new.named(&directory, &part)
        })
        .and_then(|()| Ok(rustix::fs::renameat(&directory, &part, &directory, name)?));
    if written.is_err() {
        // What failed is told; a part that cannot be removed either says so by being there.
        let _ = rustix::fs::unlinkat(&directory, &part, AtFlags::empty());
    } else if let Err(error) = rustix::fs::fsync(&directory) {
        tracing::debug!(%error, path = %path.display(), "syncing the directory");
    }
    written
}

/// The directory of a file.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A symbolic link that its owner could point to any directory.
#[derive(Debug, thiserror::Error)]
#[error("{} is a symbolic link of the user {owner}, who could point it to any directory", path.display())]
pub struct ForeignLink {
    path: PathBuf,
    owner: u32,
}

/// Opens a directory; the kernel does the same for symlinks in `/tmp` (`fs.protected_symlinks`), here it holds for all.
///
/// # Errors
/// [`ForeignLink`] if the path leads through a symlink that belongs neither to root nor to the caller, and the errors
/// of opening it.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    /// As the kernel.
    const MOST_LINKS: usize = 40;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |name: &OsStr| rustix::fs::open(name, flags | OFlags::PATH, Mode::empty());
    let names = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<OsString>>();
    let (mut here, mut rest, mut links) = (open(OsStr::new("."))?, names(path), 0);
    while let Some(name) = rest.pop() {
        if name == "/" {
            here = open(&name)?;
            continue;
        }
        let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(&here, &name, how, Mode::empty())?;
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
        if links > MOST_LINKS {
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
    /// Through a file that has no name while it is written: nothing stays behind when we are killed.
    fn unnamed(&self, directory: &OwnedFd, part: &str) -> io::Result<()> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = self.fill(rustix::fs::openat(directory, ".", flags, self.mode)?)?;
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(rustix::fs::linkat(CWD, open, directory, part, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Where the filesystem has no such files.
    fn named(&self, directory: &OwnedFd, part: &str) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.fill(rustix::fs::openat(directory, part, flags, self.mode)?).map(drop)
    }

    fn fill(&self, file: OwnedFd) -> io::Result<File> {
        let mut file = File::from(file);
        match (&self.old, self.keeps_owner) {
            (Some(old), true) => {
                // Only root may give files away.
                if let Err(error) = fchown(&file, Some(old.st_uid), Some(old.st_gid)) {
                    tracing::info!(%error, "the owner of a file that is replaced could not be restored");
                }
                rustix::fs::fchmod(&file, Mode::from_raw_mode(old.st_mode & 0o7777))?;
            }
            (None, true) => {}
            // Whatever the umask has taken away.
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
    fn both_ways_of_writing_give_the_same() {
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
        // What somebody has planted is neither followed nor written over.
        std::os::unix::fs::symlink("other", dir.path().join("link")).unwrap();
        new.unnamed(&directory, "link").unwrap_err();
        new.named(&directory, "link").unwrap_err();
        assert!(!dir.path().join("other").exists());
    }

    #[test]
    fn of_several_at_once_each_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::thread::scope(|scope| {
            for letter in b'a'..b'e' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..5 {
                        replace(path, &[letter; 100_000], 0o644, false).unwrap();
                        let content = std::fs::read(path).unwrap();
                        assert!(content.len() == 100_000 && content.iter().all(|one| *one == content[0]));
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no part is left");
    }

    #[test]
    fn directory_behind_symlink_of_another_user_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("real/sub")).unwrap();
        std::os::unix::fs::symlink("real/../real", at("link")).unwrap();
        std::os::unix::fs::symlink(at("link/sub"), at("whole")).unwrap();
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        let inode = |path: &Path| open_directory(path).map(|fd| rustix::fs::fstat(fd).unwrap().st_ino);
        let sub = at("real/sub").metadata().unwrap().ino();
        for path in ["real/sub", "link/sub", "whole", "./link/../real//sub/."] {
            assert_eq!(inode(&at(path)).unwrap(), sub, "{path}");
        }
        assert_eq!(inode(Path::new(".")).unwrap(), std::fs::metadata(".").unwrap().ino());
        for (path, error) in [("none", Errno::NOENT), ("circle", Errno::LOOP)] {
            assert_eq!(Errno::from_io_error(&open_directory(&at(path)).unwrap_err()), Some(error));
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::lchown(at("link"), Some(12345), None).unwrap();
        for path in ["link/sub", "whole"] {
            let error = replace(&at(path).join("file"), b"new", 0o644, false).unwrap_err().to_string();
            assert!(error.contains("link is a symbolic link of the user 12345"), "{error}");
        }
        assert_eq!(std::fs::read_dir(at("real/sub")).unwrap().count(), 0);
    }

    /// A link, a socket and a directory stay as they are.
    #[test]
    fn nothing_but_a_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("other"), "mine").unwrap();
        std::os::unix::fs::symlink(at("other"), at("link")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for name in ["link", "directory", "socket"] {
            for keeps_owner in [true, false] {
                let before = at(name).symlink_metadata().unwrap().ino();
                let error = replace(&at(name), b"new", 0o644, keeps_owner).unwrap_err();
                assert!(error.to_string().contains("not a regular file"), "{name}: {error}");
                assert_eq!(at(name).symlink_metadata().unwrap().ino(), before, "{name}");
            }
        }
        assert_eq!(std::fs::read_to_string(at("other")).unwrap(), "mine");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "no part is left");
    }
}
