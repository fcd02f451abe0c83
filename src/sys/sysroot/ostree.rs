//! The disk of an ostree system that is not running: a physical root in which `/var` and `/etc`
//! lie elsewhere. The layout is that of ostree's "Anatomy of an OSTree repository/deployment".

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{EntryKind, Sysroot, join, lookup};

/// Where the parts of the system lie for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ostree {
    /// `ostree/deploy/<stateroot>/var`, unless the disk's own `/var` counts.
    var: Option<PathBuf>,
    /// `ostree/deploy/<stateroot>/deploy/<name>`, unless the disk's own root counts.
    deployment: Option<PathBuf>,
}

impl Ostree {
    /// Looks for the layout on a disk; `None` if it is not there or not needed.
    pub(super) fn find(disk: &Sysroot) -> Option<Self> {
        let needs_var = disk.resolve(Path::new("/var/lib/containers")).is_err();
        let needs_etc = disk.resolve(Path::new("/etc")).is_err();
        if !needs_var && !needs_etc {
            return None;
        }
        let stateroots = directories(disk, Path::new("/ostree/deploy"));
        let with_var = |stateroot: &&PathBuf| disk.resolve(&stateroot.join("var")).is_ok();
        let with_containers =
            |stateroot: &&PathBuf| disk.resolve(&stateroot.join("var/lib/containers")).is_ok();
        let stateroot = (stateroots.iter().find(with_containers))
            .or_else(|| stateroots.iter().find(with_var))
            .or_else(|| stateroots.first())?;
        let var = if needs_var { disk.resolve(&stateroot.join("var")).ok() } else { None };
        let deployment = if needs_etc { newest_deployment(disk, stateroot) } else { None };
        (var.is_some() || deployment.is_some()).then_some(Self { var, deployment })
    }

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

    /// The opposite of [`Self::place`], for what lies in `var` or the deployment.
    pub(super) fn display(&self, host_path: &Path) -> Option<PathBuf> {
        if let Some(Ok(rest)) = self.var.as_ref().map(|var| host_path.strip_prefix(var)) {
            return Some(join(Path::new("/var"), rest));
        }
        let rest = host_path.strip_prefix(self.deployment.as_ref()?).ok()?;
        Some(join(Path::new("/"), rest))
    }
}

/// The newest deployment of a stateroot that has an `etc`.
fn newest_deployment(disk: &Sysroot, stateroot: &Path) -> Option<PathBuf> {
    directories(disk, &stateroot.join("deploy"))
        .into_iter()
        .filter(|deployment| disk.resolve(&deployment.join("etc")).is_ok())
        .filter_map(|deployment| {
            let placed = disk.resolve(&deployment).ok()?;
            let metadata = std::fs::symlink_metadata(&placed).ok()?;
            Some(((metadata.ctime(), metadata.ctime_nsec(), deployment), placed))
        })
        .max_by(|left, right| left.0.cmp(&right.0))
        .map(|(_, placed)| placed)
}

/// The directories (no symlinks) in a directory, by name. What cannot be listed has none: then
/// the disk is simply not recognised as one of ostree's.
fn directories(disk: &Sysroot, inside: &Path) -> Vec<PathBuf> {
    let entries = disk.list(inside).unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::Directory)
        .map(|entry| inside.join(entry.name))
        .collect()
}
