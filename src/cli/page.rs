//! `--html FILE`: writes a page to a file in one piece, or to stdout.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::global::Global;
use crate::cli::input::args::Format;
use crate::cli::screen::outfile::{self, is_below};
use crate::model::text::display::bytes;
use crate::services::database;
use crate::services::error::Error;
use crate::services::observer::Observer as _;
use crate::services::request::Request;
use crate::stores;
use crate::sys::new_file::{directory_of, replace};

/// Mode of a new page: it contains much about a node, so it is not readable for all users.
const MODE: u32 = 0o640;

#[derive(Debug)]
pub(super) enum Target {
    Stdout,
    /// Regular file, which may exist already.
    File(PathBuf),
}

impl Target {
    /// Returns the checked destination, if there is one: outside the stores and the records.
    pub(super) fn named(
        html: Option<&Path>,
        format: Format,
        request: &Request,
    ) -> Result<Option<Self>, Error> {
        let target = html.map(|path| Self::check(path, request.sysroot.as_deref())).transpose()?;
        if matches!(target, Some(Self::Stdout)) && format == Format::Json {
            return Err(Error::usage("--html - and --format json both write to standard output")
                .hint("name a file for the page; its document is the same"));
        }
        if let Some(target) = &target {
            let roots = request.stores().map(|request| stores::directories(&request)).unwrap_or_default();
            target.outside(roots.iter().map(PathBuf::as_path))?;
            target.outside_records(&database::state_directory(request).dir)?;
        }
        Ok(target)
    }

    fn outside_records(&self, directory: &Path) -> Result<(), Error> {
        match self {
            Self::File(path) if outfile::outside(path, [directory]).is_err() => {
                let problem = format!("is in {}, which has layersweep's records", directory.display());
                Err(bad(path, &problem, "name a file elsewhere"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the destination before anything is measured. Only a regular file can be replaced, and no file
    /// is written to the disk that is examined.
    fn check(path: &Path, sysroot: Option<&Path>) -> Result<Self, Error> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        outfile::check(path).map_err(|unfit| unfit.of("--html", path))?;
        let directory = match fs::canonicalize(directory_of(path)) {
            Ok(directory) => directory,
            Err(error) => {
                return Err(bad(path, &format!("its directory: {error}"), "create the directory first"));
            }
        };
        let root = sysroot.and_then(|root| fs::canonicalize(root).ok());
        if let Some(root) = root.filter(|root| root != Path::new("/"))
            && (is_below(&directory, &root) || outfile::is_on_disk_of(&directory, &root))
        {
            let problem = "is on the disk that --sysroot names, which is never written to";
            return Err(bad(path, problem, "name a file elsewhere"));
        }
        Ok(Self::File(path.to_path_buf()))
    }

    /// Returns an error for a file inside a store or its runroot, which reading must not change.
    pub(super) fn outside<'a>(&self, roots: impl Iterator<Item = &'a Path>) -> Result<(), Error> {
        let Self::File(path) = self else { return Ok(()) };
        outfile::outside(path, roots).map_err(|unfit| unfit.of("--html", path))
    }

    /// Returns an error for a page that would replace one of the files that are read for it.
    pub(super) fn beside(&self, read: &[PathBuf]) -> Result<(), Error> {
        match self {
            Self::File(path) if read.iter().any(|file| is_input(file, path)) => {
                Err(bad(path, "is one of the files to read", "name another file for the page"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the page and says where it is.
    pub(super) fn write_page(&self, page: serde_json::Result<String>, global: &Global) -> Result<(), Error> {
        let page = page.map_err(io::Error::from).map_err(Error::output)?;
        self.write(&page)?;
        if let Self::File(path) = self {
            global.note(&format!("the page is in {} ({})", path.display(), bytes(page.len() as u64)));
        }
        Ok(())
    }

    /// Writes the page. A file is replaced as a whole or not at all.
    fn write(&self, page: &str) -> Result<(), Error> {
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

/// Returns true if `file`, or standard input for `-`, is the file at `path`.
fn is_input(file: &Path, path: &Path) -> bool {
    outfile::is_same(if file == Path::new("-") { Path::new("/dev/stdin") } else { file }, path)
}

fn bad(path: &Path, problem: &str, hint: &str) -> Error {
    Error::usage(format!("--html {}: {problem}", path.display())).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn problem(path: &Path, sysroot: Option<&Path>) -> String {
        Target::check(path, sysroot).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        fs::write(file("old.html"), "old").unwrap();
        fs::set_permissions(file("old.html"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink(file("old.html"), file("link.html")).unwrap();
        assert!(problem(dir.path(), None).contains("is a directory"));
        assert!(problem(&file("link.html"), None).contains("symbolic link"));
        assert!(problem(Path::new("/dev/null"), None).contains("not a regular file"));
        assert!(problem(&file("none/a.html"), None).contains("directory"));
        assert!(problem(&file("old.html/a"), None).contains("--html"));
        assert!(problem(&file("a.html"), Some(dir.path())).contains("never written to"));
        assert!(Target::check(&file("a.html"), Some(Path::new("/"))).is_ok());
        let target = Target::check(&file("old.html"), None).unwrap();
        assert!(target.outside([dir.path()].into_iter()).is_err());
        target.outside([Path::new("/nonexistent")].into_iter()).unwrap();
        target.write("new").unwrap();
        assert_eq!(fs::read_to_string(file("old.html")).unwrap(), "new");
        assert_eq!(fs::metadata(file("old.html")).unwrap().permissions().mode() & 0o777, 0o640);
        // The file keeps its owner, and a new one is not readable for all users.
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(file("old.html"), Some(1234), Some(1235)).unwrap();
            target.write("newer").unwrap();
            let facts = fs::metadata(file("old.html")).unwrap();
            assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o777), (1234, 1235, 0o640));
        }
        Target::check(&file("fresh.html"), None).unwrap().write("fresh").unwrap();
        assert_eq!(fs::read_to_string(file("fresh.html")).unwrap(), "fresh");
        assert_eq!(fs::metadata(file("fresh.html")).unwrap().permissions().mode() & 0o027, 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no part is left");
    }

    #[test]
    fn failed_write_leaves_no_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        let target = Target::check(&path, None).unwrap();
        fs::create_dir(&path).unwrap();
        let error = target.write("page").unwrap_err();
        assert!(error.to_string().contains("report.html"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no part is left");
    }
}
