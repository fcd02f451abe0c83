//! Checks of files that the user names as output: only a regular file is replaced, and no file is written
//! into a store.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::services::error::Error;
use crate::sys::new_file::{ForeignLink, directory_of, open_directory};

#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("is a directory")]
    Directory,
    #[error("is a symbolic link, and links are not followed")]
    Link,
    #[error("{0}")]
    ForeignLink(io::Error),
    #[error("is not a regular file")]
    Irregular,
    #[error("does not name a file")]
    Nameless,
    #[error("is in {}, which belongs to a store and is only read", .0.display())]
    InStore(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Unfit {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Directory => "name a file in it",
            Self::Link => "name the file it points to",
            Self::ForeignLink(_) => "name the directory that the link leads to",
            Self::Irregular => "name a regular file, or one that does not exist yet",
            Self::Nameless => "name a file",
            Self::InStore(_) => "name a file elsewhere",
            Self::Io(_) => "",
        }
    }

    pub fn of(&self, flag: &str, path: &Path) -> Error {
        Error::usage(format!("{flag} {}: {self}", path.display())).hint(self.hint())
    }
}

/// Returns an error unless `path` is a regular file or does not exist.
pub fn check(path: &Path) -> Result<(), Unfit> {
    if let Err(error) = open_directory(directory_of(path))
        && error.get_ref().is_some_and(|error| error.is::<ForeignLink>())
    {
        return Err(Unfit::ForeignLink(error));
    }
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Err(Unfit::Directory),
        Ok(metadata) if metadata.is_symlink() => return Err(Unfit::Link),
        Ok(metadata) if !metadata.is_file() => return Err(Unfit::Irregular),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    if path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        Err(Unfit::Nameless)
    } else {
        Ok(())
    }
}

/// Returns an error if a file is in one of these directories, which need not exist.
pub fn outside<P: AsRef<Path>>(path: &Path, roots: impl IntoIterator<Item = P>) -> Result<(), Unfit> {
    let Ok(directory) = fs::canonicalize(directory_of(path)) else { return Ok(()) };
    for root in roots {
        if fs::canonicalize(&root).is_ok_and(|root| is_below(&directory, &root)) {
            return Err(Unfit::InStore(root.as_ref().into()));
        }
    }
    Ok(())
}

/// Returns true if a directory is `top` or below it, also under the name of another mount. Both paths must be
/// free of symlinks.
pub fn is_below(directory: &Path, top: &Path) -> bool {
    let Some(identity_of_top) = identity(top) else { return false };
    directory.starts_with(top) || directory.ancestors().any(|path| identity(path) == Some(identity_of_top))
}

pub fn is_same(a: &Path, b: &Path) -> bool {
    identity(a).is_some() && identity(a) == identity(b)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok()
}

/// Magic number of a tmpfs, see `statfs(2)`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Returns true if a directory is on the same disk as a root, and that disk is not the running system's own.
/// A part of the disk may be mounted in a second place.
pub fn is_on_disk_of(directory: &Path, root: &Path) -> bool {
    let disk = device(root);
    disk.is_some() && disk == device(directory) && disk != device(Path::new("/")) && !is_tmpfs(root)
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).map(|metadata| metadata.dev()).ok()
}

/// Returns true for a directory in memory, which is not on any disk.
fn is_tmpfs(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|facts| facts.f_type == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_outside_stores_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("old"), "old").unwrap();
        std::os::unix::fs::symlink(path("old"), path("link")).unwrap();
        std::os::unix::fs::symlink(dir.path(), path("beside")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        check(&path("old")).unwrap();
        check(&path("none/new")).unwrap();
        assert!(matches!(check(dir.path()), Err(Unfit::Directory)));
        assert!(matches!(check(&path("link")), Err(Unfit::Link)));
        assert!(matches!(check(&path("socket")), Err(Unfit::Irregular)));
        assert!(matches!(check(Path::new("/dev/null")), Err(Unfit::Irregular)));
        assert!(matches!(check(&path("new/")), Err(Unfit::Nameless)));
        assert!(matches!(check(&path("old/new")), Err(Unfit::Io(_))));
        outside(&path("new"), ["/nonexistent"]).unwrap();
        outside(&path("new"), [path("none")]).unwrap();
        assert!(matches!(outside(&path("beside/new"), [dir.path()]), Err(Unfit::InStore(_))));
    }
}
