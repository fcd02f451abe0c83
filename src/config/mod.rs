//! The configuration: built-in defaults, the files of the vendor and the administrator, drop-ins
//! and flags become one checked [`Config`].
//!
//! Later sources win over earlier ones, key by key; only the lists below `[protect]` add up, so
//! that a drop-in never takes away what another file protects. Everything wrong in all of them is
//! told at once, with its file and line. `docs/configuration.md` describes the keys.

mod build;
mod document;
mod keys;
#[cfg(test)]
mod tests;
pub mod values;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use jiff::SignedDuration;

use crate::sys::sysroot::{EntryKind, Sysroot};

pub use keys::{KEYS, Key, Kind};

/// The vendor's file.
pub const VENDOR_FILE: &str = "/usr/lib/layersweep/layersweep.toml";
/// The administrator's file.
pub const FILE: &str = "/etc/layersweep/layersweep.toml";
/// Drop-ins, taken in the order of their names.
pub const DROP_INS: &str = "/etc/layersweep/layersweep.toml.d";
/// Our own state, where nothing else is configured.
pub const STATE_DIR: &str = "/var/lib/layersweep";

/// No configuration file is longer than this; what is, is none.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// All settings, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where the database lives.
    pub state_dir: PathBuf,
    /// Which stores to read; none named: those that are found.
    pub stores: Stores,
    /// Which policy decides on images.
    pub decides: Decides,
    /// What it goes by. Images of static pods and sandboxes are for the caller to add.
    pub images: crate::policy::Policy,
    /// Where static pods are defined; `None`: their images are not protected.
    pub static_pods: Option<PathBuf>,
    /// Dead containers and logs.
    pub containers: Containers,
    /// Where the kubelet keeps what, as far as somebody has said so.
    pub kubelet: Kubelet,
    /// Leaks.
    pub leaks: Leaks,
    /// Metrics.
    pub metrics: Metrics,
    /// All processes that can use the stores are in our PID namespace, though it is not the machine's
    /// first: the node is itself a container.
    pub trust_pid_namespace: bool,
    /// The files that all this was read from, in order.
    pub files: Vec<PathBuf>,
}

/// Which stores to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stores {
    /// Graphroots of containers/storage.
    pub graphroots: Vec<PathBuf>,
    /// The runroot that belongs to the graphroot.
    pub runroot: Option<PathBuf>,
    /// Roots of containerd.
    pub containerd_roots: Vec<PathBuf>,
    /// The runtime's socket, for example `unix:///run/crio/crio.sock`.
    pub cri_endpoint: Option<String>,
}

/// A policy for images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decides {
    /// Ours.
    Exact,
    /// The kubelet's, rule for rule.
    Kubelet,
}

/// What is done about dead containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Containers {
    /// Dead containers and sandboxes are collected.
    pub enabled: bool,
    /// Logs of pods are collected.
    pub logs: bool,
    /// What stays of them; whose rules decide is [`Config::decides`]' to say.
    pub policy: crate::policy::containers::Policy,
}

/// Directories of the kubelet; `None`: where it usually has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubelet {
    /// Its own, which has `pods` in it.
    pub root_dir: Option<PathBuf>,
    /// Logs of pods.
    pub pod_logs_dir: Option<PathBuf>,
    /// Links to them.
    pub container_logs_dir: Option<PathBuf>,
}

/// What is done about leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaks {
    /// Those proven safe are deleted.
    pub delete: bool,
    /// None younger than this.
    pub min_age: SignedDuration,
}

/// What is done about metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Where commands that change them write them to at their end.
    pub textfile: Textfile,
}

/// Where metrics are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Textfile {
    /// Where node_exporter looks, if there is such a place.
    Auto,
    /// Nowhere.
    Off,
    /// To this file, or to `layersweep.prom` in this directory.
    At(PathBuf),
}

/// A flag that sets a key: `Flag { key: "images.high_percent", flag: "--high", text }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The key, as in [`KEYS`].
    pub key: &'static str,
    /// The flag as the user writes it.
    pub flag: &'static str,
    /// What the user wrote after it; a list has one `Flag` an element.
    pub text: String,
}

/// Where a setting was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: the built-in default.
    Default,
    /// In a file.
    File {
        /// Its path inside the root.
        file: PathBuf,
        /// The line, counted from 1; 0 where it is about the file as a whole.
        line: usize,
    },
    /// By a flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the built-in defaults"),
            Self::File { file, line: 0 } => write!(f, "{}", file.display()),
            Self::File { file, line } => write!(f, "{} line {line}", file.display()),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// The key concerned; empty where it is about a file as a whole.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it; empty where that is plain.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// A configuration that cannot be used: all that is wrong with it, at least one thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Invalid(pub Vec<Problem>);

impl Config {
    /// Reads the configuration below `root`. `only` (of `--config`) takes the place of all files.
    ///
    /// # Errors
    /// All that is wrong: what cannot be read or parsed, unknown keys, values that are none, and
    /// values that do not go together.
    pub fn load(root: &Sysroot, only: Option<&Path>, flags: &[Flag]) -> Result<Self, Invalid> {
        let mut problems = Vec::new();
        let mut settings = keys::Settings::default();
        let mut files = Vec::new();
        for (path, must_exist) in files_to_read(root, only, &mut problems) {
            match root.read(&path, MAX_FILE_BYTES) {
                Ok(text) => {
                    document::read(&path, &text, &mut settings, &mut problems);
                    files.push(path);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => {}
                Err(error) => problems.push(unreadable(&path, &error)),
            }
        }
        Self::finish(settings, flags, files, problems)
    }

    /// The built-in defaults and what flags say, without any file.
    ///
    /// # Errors
    /// As [`Self::load`], of the flags.
    pub fn defaults(flags: &[Flag]) -> Result<Self, Invalid> {
        Self::finish(keys::Settings::default(), flags, Vec::new(), Vec::new())
    }

    fn finish(
        mut settings: keys::Settings,
        flags: &[Flag],
        files: Vec<PathBuf>,
        mut problems: Vec<Problem>,
    ) -> Result<Self, Invalid> {
        for flag in flags {
            settings.set_by_flag(flag, &mut problems);
        }
        let config = build::build(&settings, files, &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(Invalid(problems)) }
    }
}

/// The files in the order of their reading, and whether each must be there.
fn files_to_read(root: &Sysroot, only: Option<&Path>, problems: &mut Vec<Problem>) -> Vec<(PathBuf, bool)> {
    if let Some(only) = only {
        return vec![(only.to_path_buf(), true)];
    }
    let mut files = vec![(VENDOR_FILE.into(), false), (FILE.into(), false)];
    match root.list(Path::new(DROP_INS)) {
        // In name order; what editors and packagers leave behind has other endings.
        Ok(entries) => files.extend(entries.into_iter().filter_map(|entry| {
            let name = entry.name.to_str()?;
            let is_ours = name.ends_with(".toml") && !name.starts_with('.');
            let is_file = matches!(entry.kind, EntryKind::File | EntryKind::Symlink);
            (is_ours && is_file).then(|| (Path::new(DROP_INS).join(name), true))
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => problems.push(unreadable(Path::new(DROP_INS), &error)),
    }
    files
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or let this user read it",
        io::ErrorKind::NotFound => "make the file, or name another",
        _ => "",
    };
    Problem {
        origin: Origin::File { file: path.to_path_buf(), line: 0 },
        field: String::new(),
        message: format!("cannot be read: {error}"),
        remedy: remedy.into(),
    }
}
