//! Files that the user names for us to write: nothing is ever written over but a regular file, and
//! nothing is written into a store.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::app::error::Error;
use crate::sys::new_file::{ForeignLink, directory_of, open_directory};

/// Why nothing is written to a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    #[error("is a directory")]
    Directory,
    #[error("is a symbolic link, and links are not followed")]
    Link,
    #[error("{0}")]
    ForeignLink(io::Error),
    /// A device, a socket, a pipe.
    #[error("is not a regular file")]
    Irregular,
    #[error("does not name a file")]
    Nameless,
    #[error("lies in {}, which belongs to a store and is only read", .0.display())]
    InStore(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Unfit {
    /// What to name instead.
    pub(super) fn hint(&self) -> &'static str {
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

    /// The same of `path`, which `flag` has named.
    pub(super) fn of(&self, flag: &str, path: &Path) -> Error {
        Error::usage(format!("{flag} {}: {self}", path.display())).hint(self.hint())
    }
}

/// Whether a file may be made or written over: it is a regular file, or there is none.
pub(super) fn check(path: &Path) -> Result<(), Unfit> {
    if let Err(error) = open_directory(directory_of(path))
        && error.get_ref().is_some_and(|error| error.is::<ForeignLink>())
    {
        return Err(Unfit::ForeignLink(error));
    }
    match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_dir() => return Err(Unfit::Directory),
        Ok(facts) if facts.is_symlink() => return Err(Unfit::Link),
        Ok(facts) if !facts.is_file() => return Err(Unfit::Irregular),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    match path.file_name().is_none() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        true => Err(Unfit::Nameless),
        false => Ok(()),
    }
}

/// Whether a file lies in none of these directories, which need not exist.
pub(super) fn outside<P: AsRef<Path>>(path: &Path, roots: impl IntoIterator<Item = P>) -> Result<(), Unfit> {
    let Ok(directory) = fs::canonicalize(directory_of(path)) else { return Ok(()) };
    for root in roots {
        if fs::canonicalize(&root).is_ok_and(|root| is_below(&directory, &root)) {
            return Err(Unfit::InStore(root.as_ref().into()));
        }
    }
    Ok(())
}

/// Whether a directory is another one or lies below it, under whatever names they are mounted.
/// Both without symlinks.
pub(super) fn is_below(directory: &Path, top: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|facts| (facts.dev(), facts.ino())).ok();
    let Some(top_is) = identity(top) else { return false };
    directory.starts_with(top) || directory.ancestors().any(|path| identity(path) == Some(top_is))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_outside_of_stores() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("old"), "old").unwrap();
        std::os::unix::fs::symlink(at("old"), at("link")).unwrap();
        std::os::unix::fs::symlink(dir.path(), at("beside")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        check(&at("old")).unwrap();
        check(&at("none/new")).unwrap();
        assert!(matches!(check(dir.path()), Err(Unfit::Directory)));
        assert!(matches!(check(&at("link")), Err(Unfit::Link)));
        assert!(matches!(check(&at("socket")), Err(Unfit::Irregular)));
        assert!(matches!(check(Path::new("/dev/null")), Err(Unfit::Irregular)));
        assert!(matches!(check(&at("new/")), Err(Unfit::Nameless)));
        assert!(matches!(check(&at("old/new")), Err(Unfit::Io(_))));
        outside(&at("new"), ["/nonexistent"]).unwrap();
        outside(&at("new"), [at("none")]).unwrap();
        assert!(matches!(outside(&at("beside/new"), [dir.path()]), Err(Unfit::InStore(_))));
    }
}
