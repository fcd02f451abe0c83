//! `report --html FILE`: the page goes to a file in one piece, or to stdout.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use crate::cli::outfile::{self, directory};

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
    pub(super) fn check(path: &Path, sysroot: Option<&Path>) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let bad = |what: &str, hint: &str| {
            Err(Failure::BadArgument {
                message: format!("--html {}: {what}", path.display()),
                hint: hint.into(),
            })
        };
        outfile::check(path).map_err(|unfit| unfit.of("--html", path))?;
        let directory = match fs::canonicalize(directory(path)) {
            Ok(directory) => directory,
            Err(error) => return bad(&format!("its directory: {error}"), "make the directory first"),
        };
        let root = sysroot.and_then(|root| fs::canonicalize(root).ok());
        if let Some(root) = root.filter(|root| root != Path::new("/"))
            && directory.starts_with(&root)
        {
            return bad(
                "lies on the disk that --sysroot names, which is never written to",
                "name a file elsewhere",
            );
        }
        Ok(Self::File(path.to_path_buf()))
    }

    /// Refuses a file inside a store: reading never writes there.
    pub(super) fn outside<'a>(&self, roots: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
        let Self::File(path) = self else { return Ok(()) };
        outfile::outside(path, roots).map_err(|unfit| unfit.of("--html", path))
    }

    /// Writes the page. A file appears whole or stays as it was.
    pub(super) fn write(&self, page: &str) -> Result<(), Failure> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(page.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::Output)
            }
            Self::File(path) => replace(path, page.as_bytes()).map_err(|error| Failure::NotThere {
                message: format!("writing the page {}: {error}", path.display()),
                hint: "name a file on another filesystem, or `-` for standard output".into(),
            }),
        }
    }
}

/// Puts `content` in the place of `path`, through a new file beside it.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = format!(".layersweep-report-{:016x}.part", fastrand::u64(..));
    let beside = directory(path).join(name);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    let written = fill(&mut file, content, path).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // What failed is told; a part that cannot be removed either says so by being there.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn fill(file: &mut File, content: &[u8], old: &Path) -> io::Result<()> {
    // A file that is written over keeps who may read it.
    if let Ok(facts) = fs::symlink_metadata(old) {
        file.set_permissions(facts.permissions())?;
    }
    file.write_all(content)?;
    file.sync_all()
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
        assert!(complaint(Path::new("/dev/null"), None).contains("no regular file"));
        assert!(complaint(&at("none/a.html"), None).contains("directory"));
        assert!(complaint(&at("old.html/a"), None).contains("--html"));
        assert!(complaint(&at("a.html"), Some(dir.path())).contains("never written to"));
        assert!(Target::check(&at("a.html"), Some(Path::new("/"))).is_ok());
        let target = Target::check(&at("old.html"), None).unwrap();
        let store = dir.path().to_str().unwrap();
        assert!(target.outside([store].into_iter()).is_err());
        target.outside(["/nonexistent"].into_iter()).unwrap();
        target.write("new").unwrap();
        assert_eq!(fs::read_to_string(at("old.html")).unwrap(), "new");
        assert_eq!(fs::metadata(at("old.html")).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no part is left");
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
