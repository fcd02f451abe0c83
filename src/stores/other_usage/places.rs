//! The usual paths of other users of a node's disk.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::types::{KnownUse, OtherUsageRequest, OtherUserKind, PodShare};
use crate::disk::filesystem;
use crate::model::{FilesystemIx, Finding};
use crate::stores::Scan;
use crate::sys::mounts::{self, Mount};
use crate::sys::{quiet, root};

/// Directories of known use, and those of the stores. A place that exists only as part of another
/// one of the same use is not named again.
pub(super) fn find(scan: &Scan, known: &OtherUsageRequest, findings: &mut Vec<Finding>) -> Vec<KnownUse> {
    use OtherUserKind::{CoreDumps, Journal, KubeletVolumes, Layersweep, Logs, PodLogs, Swap, VarTmp};
    let mut seen = HashSet::new();
    let mut places = Vec::new();
    let mounts = mounts::read().unwrap_or_default();
    let device = |path: &Path| mounts::location(&mounts, path).map(|here| here.device);
    let devices: Vec<_> = scan.inventory.filesystems.iter().map(|at| device(&at.mount)).collect();
    let mut add = |kind, path: PathBuf, is_store, holder: Option<String>| {
        if seen.insert(path.clone()) {
            // The process that serves a filesystem may never answer.
            let is_silent = is_fuse(&mounts, &path) && !devices.contains(&device(&path));
            let filesystem = if is_silent { None } else { filesystem_of(scan, &path) };
            places.push(KnownUse { kind, path, filesystem, is_store, holder });
        }
    };
    let areas: Vec<_> = scan.areas.iter().flatten().collect();
    // A bind mount in a store shows files of the store; volumes are the users' own.
    let is_inside = |mount: &&Mount| {
        let names = areas.iter().filter_map(|area| mount.mount_point.strip_prefix(area).ok());
        names.filter_map(|below| below.iter().next()).any(|name| name != "volumes")
    };
    let mounted = mounts.iter().filter(is_inside).map(|mount| &mount.mount_point);
    for directory in areas.iter().copied().chain(mounted) {
        // The kind of a store's place says nothing.
        add(OtherUserKind::Directory, directory.clone(), true, None);
    }
    for (name, directory) in scan.snapshotters.iter().cloned() {
        add(OtherUserKind::Snapshotter, directory, false, Some(name));
    }
    let kubelet = known.places.data_directories().map(|root| (KubeletVolumes, root.join("pods")));
    let pod_logs = known.places.log_directories().map(|path| (PodLogs, path.to_path_buf()));
    let usual = [
        (Journal, "/var/log/journal".into()),
        (Logs, known.places.container_logs.clone()),
        (Logs, "/var/log".into()),
        (VarTmp, "/var/tmp".into()),
        (CoreDumps, "/var/lib/systemd/coredump".into()),
        (CoreDumps, "/var/crash".into()),
        (Layersweep, known.state_dir.clone()),
        (Swap, "/swap".into()),
    ];
    for (kind, path) in kubelet.chain(pod_logs).chain(usual) {
        // What a server keeps is on none of these disks, and it need never answer.
        let found = match scan.sysroot.is_foreign() {
            true => scan.sysroot.resolve(&path),
            false => root::find_at_hand(&path).map(|(_, path)| path),
        };
        let resolved = match found {
            Ok(resolved) => resolved,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                findings.push(Finding::new(path, format!("{error}; not scanned")));
                continue;
            }
            Err(_) => continue,
        };
        let is_directory =
            quiet::facts(&resolved).is_ok_and(|facts| facts.kind == quiet::FileKind::Directory);
        // Swap files are on the top: see `kind_on_top`.
        if is_directory {
            add(kind, resolved, false, None);
        }
    }
    // The scan has counted what is in a store.
    let in_store: Vec<_> =
        places.iter().map(|place| !place.is_store && are_of_stores(&mounts, &places, &place.path)).collect();
    let mut in_store = in_store.into_iter();
    places.retain(|_| !in_store.next().unwrap_or(false));
    places
}

/// Returns whether a process serves the filesystem of a path.
fn is_fuse(mounts: &[Mount], path: &Path) -> bool {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.mount_point));
    let mount = above.max_by_key(|mount| mount.mount_point.components().count());
    mount.is_some_and(|mount| mount.fstype.starts_with("fuse"))
}

/// Returns whether a directory belongs to a store, through whichever mount it is seen.
pub(super) fn are_of_stores(mounts: &[Mount], places: &[KnownUse], directory: &Path) -> bool {
    let here = mounts::location(mounts, directory);
    let mut stores = places.iter().filter(|place| place.is_store);
    here.is_some_and(|here| {
        stores.any(|store| mounts::location(mounts, &store.path).is_some_and(|store| here.is_within(&store)))
    })
}

/// The filesystem of the scan that holds a path; `None` where it is none of them.
#[must_use]
pub fn filesystem_of(scan: &Scan, path: &Path) -> Option<FilesystemIx> {
    let (facts, _) = filesystem::of(path).ok()?;
    let number = |path: &Path| quiet::facts(path).ok().map(|facts| facts.device);
    let here = number(path);
    let same = scan.inventory.filesystems.iter().position(|one| {
        match one.device.starts_with("/dev/") && facts.device.starts_with("/dev/") {
            true => one.device == facts.device,
            false => here.is_some() && number(&one.mount) == here,
        }
    });
    same.map(FilesystemIx::from)
}

/// `<namespace>/<name>` of the directory of a pod's logs, `<namespace>_<name>_<uid>`; of its
/// volumes there is only the uid.
pub(super) fn pod_name(directory: &OsStr) -> String {
    let name = directory.to_string_lossy();
    match name.split('_').collect::<Vec<_>>().as_slice() {
        [namespace, pod, _] if !namespace.is_empty() && !pod.is_empty() => format!("{namespace}/{pod}"),
        _ => name.into_owned(),
    }
}

/// The kind of an entry on the top of a filesystem.
pub(super) fn kind_on_top(entry: &quiet::DirectoryEntry) -> OtherUserKind {
    let is_swap = ["swapfile", "swap.img", "swap"].iter().any(|name| entry.name == *name);
    match entry.kind == quiet::FileKind::File && is_swap {
        true => OtherUserKind::Swap,
        false => OtherUserKind::Directory,
    }
}

/// Gives volumes of pods the names that the directories of their logs have beside the uid.
pub(super) fn name_by_uid(pods: &mut [PodShare]) {
    let names: std::collections::HashMap<String, String> = pods
        .iter()
        .filter(|pod| pod.kind == OtherUserKind::PodLogs)
        .filter_map(|pod| {
            let (_, uid) = pod.path.file_name()?.to_str()?.rsplit_once('_')?;
            Some((uid.to_owned(), pod.pod.clone()))
        })
        .collect();
    for pod in pods.iter_mut().filter(|pod| pod.kind == OtherUserKind::KubeletVolumes) {
        if let Some(name) = names.get(&pod.pod) {
            pod.pod.clone_from(name);
        }
    }
}
