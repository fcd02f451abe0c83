//! Which stores a node has: `storage.conf`, CRI-O's configuration, rootless stores. (Types
//! fixed; the body is under construction.)

use std::path::{Path, PathBuf};

use crate::sys::sysroot::Sysroot;

/// One configured store. Paths are absolute inside the sysroot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The graphroot.
    pub graphroot: PathBuf,
    /// The runroot.
    pub runroot: PathBuf,
    /// Where image layers live, if not in the graphroot (split filesystem).
    pub imagestore: Option<PathBuf>,
    /// The configured driver; `None` means: see which one the graphroot has.
    pub driver: Option<String>,
    /// Read-only stores that images may come from.
    pub additional_image_stores: Vec<PathBuf>,
    /// Container records live in the runroot.
    pub transient: bool,
    /// What made us look here, for people: a file, a flag, a built-in default.
    pub origin: String,
}

/// A pattern that keeps images from deletion, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The pattern as written.
    pub pattern: String,
    /// The file that says so.
    pub origin: String,
}

/// What the configuration of a node says.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// The stores, each graphroot once.
    pub stores: Vec<StoreConfig>,
    /// CRI-O's `pinned_images` and `pause_image`.
    pub pins: Vec<Pin>,
    /// Files that could not be read or parsed: path and reason. The rest still counts.
    pub problems: Vec<(PathBuf, String)>,
}

/// What of the process's environment matters.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Effective uid.
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
    /// `$STORAGE_DRIVER`.
    pub storage_driver: Option<String>,
}

/// Finds the stores that the configuration names.
#[must_use]
pub fn discover(_sysroot: &Sysroot, _environment: &Environment) -> Discovery {
    Discovery::default()
}

/// Whether a pin covers an image name, the way CRI-O matches.
#[must_use]
pub fn pin_matches(_pattern: &str, _name: &str) -> bool {
    false
}

/// The configuration of a store that was named on the command line.
#[must_use]
pub fn named(_sysroot: &Sysroot, _environment: &Environment, _graphroot: &Path) -> StoreConfig {
    StoreConfig {
        graphroot: PathBuf::new(),
        runroot: PathBuf::new(),
        imagestore: None,
        driver: None,
        additional_image_stores: Vec::new(),
        transient: false,
        origin: String::new(),
    }
}
