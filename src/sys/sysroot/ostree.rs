//! Disk of an ostree system that is not running: a physical root with `/var` and `/etc` in other places. The layout
//! is that of ostree's "Anatomy of an OSTree repository/deployment".

use std::path::{Path, PathBuf};

use super::lookup::{self, join};

/// Host paths of the parts of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ostree {
    /// `ostree/deploy/<stateroot>/var`, unless the disk's own `/var` is used.
    pub(super) var: Option<PathBuf>,
    /// `ostree/deploy/<stateroot>/deploy/<name>`, unless the disk's own root is used.
    pub(super) deployment: Option<PathBuf>,
}

impl Ostree {
    /// Returns the host path of `inside`, a path that is absolute in the running system. The running system has the
    /// stateroot's `var` at `/var` and the physical root at `/sysroot`.
    pub(super) fn place(&self, root: &Path, inside: &Path) -> PathBuf {
        if let (Some(var), Ok(rest)) = (&self.var, inside.strip_prefix("/var")) {
            return join(var, rest);
        }
        let Some(deployment) = &self.deployment else {
            return lookup::below(root, inside);
        };
        match inside.strip_prefix("/sysroot") {
            Ok(rest) => join(root, rest),
            Err(_) => lookup::below(deployment, inside),
        }
    }

    /// Inverts [`Self::place`] for paths in `var` or the deployment.
    pub(super) fn display(&self, host_path: &Path) -> Option<PathBuf> {
        if let Some(Ok(rest)) = self.var.as_ref().map(|var| host_path.strip_prefix(var)) {
            return Some(join(Path::new("/var"), rest));
        }
        let rest = host_path.strip_prefix(self.deployment.as_ref()?).ok()?;
        Some(join(Path::new("/"), rest))
    }
}
