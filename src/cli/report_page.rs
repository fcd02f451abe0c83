//! `report --html FILE`: the page goes to a file in one piece, or to stdout.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::app::error::Error;
use crate::cli::outfile::{self, is_below};
use crate::sys::new_file::{directory_of, replace};

/// A new page tells much of a node: it is not for everybody.
const MODE: u32 = 0o640;

/// Where the page goes.
#[derive(Debug)]
pub(super) enum Target {
    /// `-`.
    Stdout,
    /// A regular file, there already or not.
    File(PathBuf),
}

impl Target {
    /// Looks at what the user named before anything is measured. Nothing is ever written over but a
    /// regular file, and nothing into the disk that is looked at.
    pub(super) fn check(path: &Path, sysroot: Option<&Path>) -> Result<Self, Error> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let bad = |what: &str, hint: &str| {
            Err(Error::usage(format!("--html {}: {what}", path.display())).hint(hint))
        };
        outfile::check(path).map_err(|unfit| unfit.of("--html", path))?;
        let directory = match fs::canonicalize(directory_of(path)) {
            Ok(directory) => directory,
            Err(error) => return bad(&format!("its directory: {error}"), "create the directory first"),
        };
        let root = sysroot.and_then(|root| fs::canonicalize(root).ok());
        if let Some(root) = root.filter(|root| root != Path::new("/"))
            && (is_below(&directory, &root) || is_on_disk_of(&directory, &root))
        {
            return bad(
                "is on the disk that --sysroot names, which is never written to",
                "name a file elsewhere",
            );
        }
        Ok(Self::File(path.to_path_buf()))
    }

    /// Refuses a file inside a store, its runroot included: reading never writes there.
    pub(super) fn outside<'a>(&self, roots: impl Iterator<Item = &'a Path>) -> Result<(), Error> {
        let Self::File(path) = self else { return Ok(()) };
        outfile::outside(path, roots).map_err(|unfit| unfit.of("--html", path))
    }

    /// Writes the page. A file appears whole or stays as it was.
    pub(super) fn write(&self, page: &str) -> Result<(), Error> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(page.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::output)
            }
            Self::File(path) => replace(path, page.as_bytes(), MODE, true).map_err(|error| {
                Error::failed(format!("writing the page {}: {error}", path.display()))
                    .hint("name a file on another filesystem, or `-` for standard output")
            }),
        }
    }
}

/// Of a tmpfs, see `statfs(2)`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Whether a directory lies on the disk that a root is on, if that disk is not the running
/// system's own: a part of it may be mounted in a second place.
fn is_on_disk_of(directory: &Path, root: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|facts| facts.dev()).ok();
    // What is in memory is nobody's disk.
    let in_memory = || rustix::fs::statfs(root).is_ok_and(|facts| facts.f_type == TMPFS_MAGIC);
    let disk = device(root);
    disk.is_some() && disk == device(directory) && disk != device(Path::new("/")) && !in_memory()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn complaint(path: &Path, sysroot: Option<&Path>) -> String {
        Target::check(path, sysroot).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_are_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("old.html"), "old").unwrap();
        fs::set_permissions(at("old.html"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink(at("old.html"), at("link.html")).unwrap();
        assert!(complaint(dir.path(), None).contains("is a directory"));
        assert!(complaint(&at("link.html"), None).contains("symbolic link"));
        assert!(complaint(Path::new("/dev/null"), None).contains("not a regular file"));
        assert!(complaint(&at("none/a.html"), None).contains("directory"));
        assert!(complaint(&at("old.html/a"), None).contains("--html"));
        assert!(complaint(&at("a.html"), Some(dir.path())).contains("never written to"));
        assert!(Target::check(&at("a.html"), Some(Path::new("/"))).is_ok());
        let target = Target::check(&at("old.html"), None).unwrap();
        assert!(target.outside([dir.path()].into_iter()).is_err());
        target.outside([Path::new("/nonexistent")].into_iter()).unwrap();
        target.write("new").unwrap();
        assert_eq!(fs::read_to_string(at("old.html")).unwrap(), "new");
        assert_eq!(fs::metadata(at("old.html")).unwrap().permissions().mode() & 0o777, 0o640);
        // It stays its owner's, and a new one is not for everybody.
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(at("old.html"), Some(1234), Some(1235)).unwrap();
            target.write("newer").unwrap();
            let facts = fs::metadata(at("old.html")).unwrap();
            assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o777), (1234, 1235, 0o640));
        }
        Target::check(&at("fresh.html"), None).unwrap().write("fresh").unwrap();
        assert_eq!(fs::read_to_string(at("fresh.html")).unwrap(), "fresh");
        assert_eq!(fs::metadata(at("fresh.html")).unwrap().permissions().mode() & 0o027, 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no part is left");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        let target = Target::check(&path, None).unwrap();
        fs::create_dir(&path).unwrap();
        let error = target.write("page").unwrap_err();
        assert!(error.to_string().contains("report.html"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no part is left");
    }
}
