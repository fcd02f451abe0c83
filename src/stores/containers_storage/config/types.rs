//! Types of the configuration.

use std::path::{Path, PathBuf};

use crate::sys::sysroot::Sysroot;
use crate::sys::users::calling_uid;

/// One configured store. Paths are absolute inside the sysroot, and may be symlinks there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreConfig {
    pub graphroot: PathBuf,
    pub runroot: PathBuf,
    /// Where image layers live, if not in the graphroot (split filesystem).
    pub imagestore: Option<PathBuf>,
    /// The configured driver; `None` means: see which one the graphroot has.
    pub driver: Option<String>,
    /// Runroots that other programs with the same graphroot use: another rule of reading
    /// `storage.conf`, or CRI-O beside Podman.
    pub other_runroots: Vec<PathBuf>,
    /// Writable imagestores that other programs with the same graphroot use.
    pub other_imagestores: Vec<PathBuf>,
    /// Read-only stores that images may come from.
    pub additional_image_stores: Vec<PathBuf>,
    /// Read-only stores that layers may come from: directories that a separate program serves.
    pub additional_layer_stores: Vec<PathBuf>,
    /// Where podman keeps its database, if not in the graphroot.
    pub podman_dirs: Vec<PathBuf>,
    /// Container records live in the runroot.
    pub transient: bool,
    /// The source of this path, for messages: a file, a flag, a built-in default.
    pub origin: String,
    /// It is a store of a user other than the caller.
    pub of_another_user: bool,
}

/// A pattern that protects images from deletion, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub pattern: String,
    /// The file that says so.
    pub origin: String,
}

/// What the configuration of a node says.
#[derive(Clone, Debug, Default)]
pub struct GraphrootDiscovery {
    /// The stores, each graphroot once.
    pub stores: Vec<StoreConfig>,
    /// Of a look at named stores, all that the configuration names, those among them: they may take
    /// images from the named ones. What is wrong with them is not a problem of this scan.
    pub others: Vec<StoreConfig>,
    /// CRI-O's `pinned_images` and `pause_image`.
    pub pins: Vec<Pin>,
    /// CRI-O's `additional_artifact_stores`: directories that hold `artifacts`, and who names each.
    pub artifact_stores: Vec<Pin>,
    /// Files that could not be read or parsed: path and reason. The rest still counts.
    pub problems: Vec<(PathBuf, String)>,
    /// Where the tools leave temporary files, as configured: `image_copy_tmp_dir`, CRI-O's `big_files_temporary_dir`,
    /// `TMPDIR` in their units.
    pub temporary: Vec<PathBuf>,
    /// Whose files those are, of all users, where they may name stores.
    pub unread: Vec<UnreadConfig>,
}

/// A user's configuration that is not known in full: stores that it names, known or not, may take images from every
/// store that the user can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadConfig {
    pub uid: u32,
    /// The first file that could not be read or understood.
    pub file: PathBuf,
}

/// The relevant part of the process's environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Effective uid; in the user namespace of `podman unshare` that of the user.
    pub uid: u32,
    /// `$HOME`.
    pub home: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`.
    pub xdg_config_home: Option<PathBuf>,
    /// `$XDG_DATA_HOME`.
    pub xdg_data_home: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`.
    pub xdg_runtime_dir: Option<PathBuf>,
    /// `$CONTAINERS_STORAGE_CONF`.
    pub containers_storage_conf: Option<PathBuf>,
    /// `$CONTAINERS_STORAGE_CONF_OVERRIDE`.
    pub containers_storage_conf_override: Option<PathBuf>,
    /// `$CONTAINERS_CONF`.
    pub containers_conf: Option<PathBuf>,
    /// `$CONTAINERS_CONF_OVERRIDE`.
    pub containers_conf_override: Option<PathBuf>,
    /// `$STORAGE_DRIVER`.
    pub storage_driver: Option<String>,
    /// `$TMPDIR`, which podman and buildah honour.
    pub tmpdir: Option<PathBuf>,
}

impl Environment {
    /// This process's. On another system's disk our own variables mean nothing, so for a foreign
    /// root it is that of a root user with no variables set. An empty variable counts as unset.
    #[must_use]
    pub fn of_process(sysroot: &Sysroot) -> Self {
        if sysroot.is_foreign() {
            return Self::default();
        }
        let text = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        Self {
            uid: calling_uid(),
            home: path("HOME"),
            xdg_config_home: path("XDG_CONFIG_HOME"),
            xdg_data_home: path("XDG_DATA_HOME"),
            xdg_runtime_dir: path("XDG_RUNTIME_DIR"),
            containers_storage_conf: path("CONTAINERS_STORAGE_CONF"),
            containers_storage_conf_override: path("CONTAINERS_STORAGE_CONF_OVERRIDE"),
            containers_conf: path("CONTAINERS_CONF"),
            containers_conf_override: path("CONTAINERS_CONF_OVERRIDE"),
            tmpdir: path("TMPDIR"),
            storage_driver: text("STORAGE_DRIVER").and_then(|name| name.into_string().ok()),
        }
    }
}

/// A value and the file that sets it.
pub(super) type Sourced = (String, PathBuf);

/// What the files say, in their words: nothing is expanded and no default filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) driver: Option<String>,
    pub(super) graphroot: Option<Sourced>,
    pub(super) runroot: Option<Sourced>,
    pub(super) imagestore: Option<Sourced>,
    pub(super) rootless_storage_path: Option<Sourced>,
    pub(super) transient: bool,
    /// `options.additionalimagestores`.
    pub(super) image_stores: Strings,
    /// `options.additionallayerstores`.
    pub(super) layer_stores: Strings,
}

/// An array of strings. containers/storage 1.63 lets it carry `{append = true}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Strings {
    /// The strings.
    pub(super) values: Vec<String>,
    /// What the array says of being appended to the earlier files' value.
    pub(super) append: Option<bool>,
}

/// Errors: path inside the root, and reason.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub(super) found: Vec<(PathBuf, String)>,
    /// Whose they are.
    pub(super) unread: Vec<UnreadConfig>,
}

impl Problems {
    /// Notes a problem, once: two lookup rules may read the same file.
    pub(super) fn note(&mut self, file: &Path, reason: impl Into<String>) {
        let problem = (file.to_path_buf(), reason.into());
        if !self.found.contains(&problem) {
            self.found.push(problem);
        }
    }

    pub(super) fn note_all(&mut self, others: Self) {
        others.found.into_iter().for_each(|(file, reason)| self.note(&file, reason));
    }

    /// Notes that the configuration of a user has these problems.
    pub(super) fn note_unread(&mut self, uid: u32, own: &Self) {
        // Root can read whatever a user can.
        if self.unread.iter().all(|one| one.uid != 0) {
            self.unread.extend(own.found.first().map(|(file, _)| UnreadConfig { uid, file: file.clone() }));
        }
    }
}
