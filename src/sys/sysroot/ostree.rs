//! The disk of an ostree system that is not running: a physical root in which `/var` and `/etc`
//! lie elsewhere. The layout is that of ostree's "Anatomy of an OSTree repository/deployment".

use std::path::{Path, PathBuf};

use super::lookup::{self, join};

/// Where the parts of the system lie for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ostree {
    /// `ostree/deploy/<stateroot>/var`, unless the disk's own `/var` counts.
    pub(super) var: Option<PathBuf>,
    /// `ostree/deploy/<stateroot>/deploy/<name>`, unless the disk's own root counts.
    pub(super) deployment: Option<PathBuf>,
}

impl Ostree {
    /// Where `inside`, absolute in the running system, lies for us. The running system has the
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

    /// The opposite of [`Self::place`], for what is in `var` or the deployment.
    pub(super) fn display(&self, host_path: &Path) -> Option<PathBuf> {
        if let Some(Ok(rest)) = self.var.as_ref().map(|var| host_path.strip_prefix(var)) {
            return Some(join(Path::new("/var"), rest));
        }
        let rest = host_path.strip_prefix(self.deployment.as_ref()?).ok()?;
        Some(join(Path::new("/"), rest))
    }
}
