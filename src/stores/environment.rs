//! User and environment of the process that reads the stores.

use std::path::PathBuf;

use crate::sys::sysroot::Sysroot;
use crate::sys::users::calling_uid;

/// User and environment of a process. Every field but `uid` is the environment variable of that name.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Effective uid. In the user namespace of `podman unshare`, the uid of the user who started it.
    pub uid: u32,
    pub home: Option<PathBuf>,
    pub xdg_config_home: Option<PathBuf>,
    pub xdg_data_home: Option<PathBuf>,
    pub xdg_runtime_dir: Option<PathBuf>,
    pub containers_storage_conf: Option<PathBuf>,
    pub containers_storage_conf_override: Option<PathBuf>,
    pub containers_conf: Option<PathBuf>,
    pub containers_conf_override: Option<PathBuf>,
    pub storage_driver: Option<String>,
    /// `$TMPDIR`, which podman and buildah use.
    pub tmpdir: Option<PathBuf>,
}

impl Environment {
    /// Returns the environment of this process. An empty variable counts as unset.
    ///
    /// The variables of this process mean nothing on the disk of another system. For a foreign root, the environment is
    /// that of root without any variables.
    #[must_use]
    pub fn of_process(sysroot: &Sysroot) -> Self {
        fn path(name: &str) -> Option<PathBuf> {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        }
        if sysroot.is_foreign() {
            return Self::default();
        }
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
            storage_driver: std::env::var("STORAGE_DRIVER").ok().filter(|name| !name.is_empty()),
        }
    }
}
