//! The configuration: built-in defaults, the files of the vendor and the administrator, drop-ins
//! and flags become one checked [`Config`].
//!
//! Later sources override earlier ones, key by key. Only the lists in `[protect]` and the rules for
//! images add up, so that a drop-in never removes the protection that another file gives. All problems are reported at once, with file, line
//! and column. `docs/configuration.md` describes the keys.

mod fragment;
pub mod keys;
mod problem;
mod settings;
mod source;
#[cfg(test)]
mod tests;
pub mod values;

use std::io;
use std::path::{Path, PathBuf};

use crate::sys::quiet::FileKind;
use crate::sys::sysroot::Sysroot;
use source::{Sources, UNKNOWN_KEY};

pub use fragment::{Textfile, Via};
pub use problem::{ConfigOrigin, ConfigProblem, Invalid};
pub use settings::{Config, Containers, Leaks, STATE_DIR, Stores};
pub use source::Flag;

/// File of the vendor or the package.
const VENDOR_FILE: &str = "/usr/lib/layersweep/layersweep.toml";
/// File of the administrator.
const FILE: &str = "/etc/layersweep/layersweep.toml";
/// Directory of the drop-ins, which are read in the order of their names.
const DROP_INS: &str = "/etc/layersweep/layersweep.toml.d";

/// Maximum size of a configuration file; a larger file is an error.
const MAX_FILE_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads the configuration below `root`. With `only` (`--config`) no other file is read.
    ///
    /// # Errors
    /// All problems, if there are any.
    pub fn load(root: &Sysroot, only: Option<&Path>, flags: &[Flag]) -> Result<Self, Invalid> {
        let (config, problems) = Self::load_or_defaults(root, only, flags)?;
        if problems.is_empty() { Ok(config) } else { Err(Invalid(problems)) }
    }

    /// Reads the configuration for a command that deletes nothing. With any problem in the files the result is the
    /// built-in defaults, the flags, and the state directory if the files name it: no other records are used.
    ///
    /// # Errors
    /// When the flags alone are invalid.
    pub fn load_or_defaults(
        root: &Sysroot,
        only: Option<&Path>,
        flags: &[Flag],
    ) -> Result<(Self, Vec<ConfigProblem>), Invalid> {
        let mut sources = Sources::default();
        let mut files = Vec::new();
        for (path, must_exist) in files_to_read(root, only, &mut sources.problems) {
            match root.read(&path, MAX_FILE_BYTES) {
                Ok(text) => {
                    sources.file(&path, &text);
                    files.push(path);
                }
                Err(error) if is_absent(root, &path, &error) && !must_exist => {}
                Err(error) => sources.problems.push(unreadable(&path, &error)),
            }
        }
        let (config, problems) = Self::finish(sources, flags, files);
        if problems.is_empty() {
            return Ok((config, problems));
        }
        match Self::defaults(flags) {
            Ok(defaults) => Ok((Self { state_dir: config.state_dir, ..defaults }, problems)),
            Err(_) => Err(Invalid(problems)),
        }
    }

    /// Returns the built-in defaults with `flags` applied, without any file.
    ///
    /// # Errors
    /// When the flags are invalid.
    pub fn defaults(flags: &[Flag]) -> Result<Self, Invalid> {
        let (config, problems) = Self::finish(Sources::default(), flags, Vec::new());
        if problems.is_empty() { Ok(config) } else { Err(Invalid(problems)) }
    }

    fn finish(mut sources: Sources, flags: &[Flag], files: Vec<PathBuf>) -> (Self, Vec<ConfigProblem>) {
        for flag in flags {
            sources.flag(flag);
        }
        let config = Self::of(&mut sources, files);
        for problem in sources.problems.iter_mut().filter(|problem| problem.message == UNKNOWN_KEY) {
            if let Some(similar) = keys::similar(&problem.field) {
                problem.remedy = format!("did you mean {similar}?");
            }
        }
        (config, sources.problems)
    }
}

/// Returns the files in the order in which they are read, each with whether it must exist.
fn files_to_read(
    root: &Sysroot,
    only: Option<&Path>,
    problems: &mut Vec<ConfigProblem>,
) -> Vec<(PathBuf, bool)> {
    if let Some(only) = only {
        return vec![(only.to_path_buf(), true)];
    }
    let mut files = vec![(VENDOR_FILE.into(), false), (FILE.into(), false)];
    match root.list(Path::new(DROP_INS)) {
        // Editors and package managers leave copies with other endings.
        Ok(entries) => files.extend(entries.into_iter().filter_map(|entry| {
            let name = entry.name.to_str()?;
            let is_drop_in = name.ends_with(".toml") && !name.starts_with('.');
            let is_file = matches!(entry.kind, FileKind::File | FileKind::Symlink);
            (is_drop_in && is_file).then(|| (Path::new(DROP_INS).join(name), true))
        })),
        Err(error) if is_absent(root, Path::new(DROP_INS), &error) => {}
        Err(error) => problems.push(unreadable(Path::new(DROP_INS), &error)),
    }
    files
}

/// Returns true if `error` means that `path` does not exist. A link whose target is missing exists: its target may not be
/// mounted yet, and the protections in it are unknown.
fn is_absent(root: &Sysroot, path: &Path, error: &io::Error) -> bool {
    let mut above = path.ancestors().filter(|path| path.parent().is_some());
    error.kind() == io::ErrorKind::NotFound
        && !above.any(|path| {
            let here = root.root().join(path.strip_prefix("/").unwrap_or(path));
            let facts = std::fs::symlink_metadata(here);
            facts.is_ok_and(|facts| facts.file_type().is_symlink()) && root.resolve(path).is_err()
        })
}

fn unreadable(path: &Path, error: &io::Error) -> ConfigProblem {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or let this user read it",
        io::ErrorKind::NotFound => "create the file, or name another",
        _ => "",
    };
    ConfigProblem {
        origin: ConfigOrigin::File(path.to_path_buf()),
        field: String::new(),
        message: format!("cannot be read: {error}"),
        remedy: remedy.into(),
    }
}
