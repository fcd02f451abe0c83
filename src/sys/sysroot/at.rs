//! A mounted root, and the system on it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Sysroot;
use super::ostree::Ostree;
use super::reading::EntryKind;

impl Sysroot {
    /// A mounted root at `root`: post-mortem. `/` in any spelling is the running system.
    ///
    /// The root partition of an ostree system (RHEL `CoreOS`, Fedora `CoreOS`) does not look
    /// like a root while it is not running: `/var` is in `ostree/deploy/<stateroot>/var`, and
    /// everything else in a deployment, `ostree/deploy/<stateroot>/deploy/<name>`. So:
    ///
    /// * if the disk has no `/var/lib/containers`, everything below `/var` is taken from the
    ///   stateroot's `var`; of several stateroots the one that has `var/lib/containers` counts
    ///   (of several such, the first by name);
    /// * if the disk has no `/etc`, everything else is taken from the newest deployment of that
    ///   stateroot that has an `etc` (newest by change time, since ostree resets modification
    ///   times; then by name), and what is not found there from the disk itself.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let root = std::fs::canonicalize(root)
            .or_else(|_| std::path::absolute(root))
            .unwrap_or_else(|_| root.to_path_buf());
        let plain = Self { root, ostree: None };
        if !plain.is_foreign() {
            return plain;
        }
        let ostree = find(&plain);
        Self { ostree, ..plain }
    }
}

/// Looks for the layout on a disk; `None` if it is not there or not needed.
fn find(disk: &Sysroot) -> Option<Ostree> {
    let needs_var = disk.resolve(Path::new("/var/lib/containers")).is_err();
    let needs_etc = disk.resolve(Path::new("/etc")).is_err();
    if !needs_var && !needs_etc {
        return None;
    }
    let stateroots = directories(disk, Path::new("/ostree/deploy"));
    let with_var = |stateroot: &&PathBuf| disk.resolve(&stateroot.join("var")).is_ok();
    let with_containers = |stateroot: &&PathBuf| disk.resolve(&stateroot.join("var/lib/containers")).is_ok();
    let stateroot = (stateroots.iter().find(with_containers))
        .or_else(|| stateroots.iter().find(with_var))
        .or_else(|| stateroots.first())?;
    let var = if needs_var { disk.resolve(&stateroot.join("var")).ok() } else { None };
    let deployment = if needs_etc { newest_deployment(disk, stateroot) } else { None };
    (var.is_some() || deployment.is_some()).then_some(Ostree { var, deployment })
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
