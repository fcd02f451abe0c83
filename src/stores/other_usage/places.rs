//! Usual paths of other users of a node's disk.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::types::{KnownUse, OtherUsageRequest, OtherUserKind, PodShare};
use crate::disk::filesystem;
use crate::model::{FilesystemIx, Finding, StoreKind};
use crate::stores::Scan;
use crate::sys::mounts::{self, Location, Mount};
use crate::sys::sysroot::Sysroot;
use crate::sys::{quiet, root};

const LAYER_STORE: &str = "additional layer store";

/// Returns the directories of known use, and those of the stores. A place inside another one of the same use appears
/// only once.
pub(super) fn find(scan: &Scan, known: &OtherUsageRequest, findings: &mut Vec<Finding>) -> Vec<KnownUse> {
    use OtherUserKind::{CoreDumps, Journal, KubeletVolumes, Layersweep, Logs, PodLogs, Store, Swap, VarTmp};
    let mut seen = HashSet::new();
    let mut places = Vec::new();
    let mounts = mounts::read().unwrap_or_default();
    let devices: Vec<_> =
        scan.inventory.filesystems.iter().map(|filesystem| device_of(&mounts, &filesystem.mount)).collect();
    let mut add = |kind, path: PathBuf, is_store, holder: Option<String>| {
        if seen.insert(path.clone()) {
            // A FUSE process that does not answer would block `filesystem_of`.
            let is_silent = is_fuse(&mounts, &path) && !devices.contains(&device_of(&mounts, &path));
            let filesystem = if is_silent { None } else { filesystem_of(scan, &path) };
            places.push(KnownUse { kind, path, filesystem, is_store, holder });
        }
    };
    let areas: Vec<_> = scan.areas.iter().flatten().collect();
    // A bind mount in a store shows files of the store; volumes belong to users.
    let mounted = mounts.iter().map(|mount| &mount.mount_point).filter(|mount_point| {
        let names = areas.iter().filter_map(|area| mount_point.strip_prefix(area).ok());
        names.filter_map(|below| below.iter().next()).any(|name| name != "volumes")
    });
    for directory in areas.iter().copied().chain(mounted) {
        // The kind of a store's place is not used.
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
    let usual = kubelet.chain(pod_logs).chain(usual).map(|(kind, path)| (kind, path, None));
    let layer_stores = scan
        .layer_stores
        .iter()
        .map(|path| (Store(StoreKind::ContainersStorage), path.clone(), Some(LAYER_STORE)));
    for (kind, path, holder) in usual.chain(layer_stores) {
        // Files on a network filesystem are on none of these disks, and its server may not answer.
        let found = if scan.sysroot.is_foreign() {
            scan.sysroot.resolve(&path)
        } else {
            root::find_at_hand(&path).map(|(_, path)| path)
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
        // Swap files are recognized in the top directory: see `kind_on_top`.
        if is_directory {
            add(kind, resolved, false, holder.map(str::to_owned));
        }
    }
    // The scan has already measured the directories of stores.
    let in_store: Vec<_> =
        places.iter().map(|place| !place.is_store && are_of_stores(&mounts, &places, &place.path)).collect();
    let mut in_store = in_store.into_iter();
    places.retain(|_| !in_store.next().unwrap_or(false));
    places
}

/// Device and inode numbers of directories that are counted for themselves.
pub(super) type Apart = HashSet<(u64, u64)>;

pub(super) fn apart(places: &[KnownUse]) -> Apart {
    // A place on a filesystem that may not answer has none.
    identities(places.iter().filter(|place| place.filesystem.is_some()).map(|place| &*place.path))
}

/// Returns the device and inode numbers of these paths, as far as they exist.
pub(super) fn identities<'p>(paths: impl Iterator<Item = &'p Path>) -> Apart {
    paths.filter_map(|path| Some(quiet::facts(path).ok()?.identity())).collect()
}

/// Returns directories of the node that are deeper on the filesystem `top` than in the node's own tree. On an ostree
/// host the whole filesystem is mounted on `/sysroot`, and `/var` is its `ostree/deploy/<stateroot>/var`.
pub(super) fn deeper_tops(sysroot: &Sysroot, mounts: &[Mount], top: &Location) -> Vec<PathBuf> {
    let tops = ["/etc", "/usr", "/var"].into_iter().filter_map(|path| sysroot.resolve(Path::new(path)).ok());
    let deeper = tops.filter(|path| {
        mounts::location(mounts, path).is_some_and(|location| {
            let below = location.path.strip_prefix(&top.path);
            location.device == top.device && below.is_ok_and(|below| below.components().count() > 1)
        })
    });
    deeper.collect()
}

/// Returns the device of the filesystem that contains a path, by the mount table.
fn device_of(mounts: &[Mount], path: &Path) -> Option<(u32, u32)> {
    mounts::location(mounts, path).map(|location| location.device)
}

/// Returns true if a process serves the filesystem of a path (FUSE).
fn is_fuse(mounts: &[Mount], path: &Path) -> bool {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.mount_point));
    let mount = above.max_by_key(|mount| mount.mount_point.components().count());
    mount.is_some_and(|mount| mount.fstype.starts_with("fuse"))
}

/// Returns true if a directory is part of a store, even if it is seen through another mount.
pub(super) fn are_of_stores(mounts: &[Mount], places: &[KnownUse], directory: &Path) -> bool {
    let here = mounts::location(mounts, directory);
    let mut stores = places.iter().filter(|place| place.is_store);
    here.is_some_and(|here| {
        stores.any(|store| mounts::location(mounts, &store.path).is_some_and(|store| here.is_within(&store)))
    })
}

#[must_use]
pub fn filesystem_of(scan: &Scan, path: &Path) -> Option<FilesystemIx> {
    let (facts, _) = filesystem::of(path).ok()?;
    let number = number_of(path);
    let same = scan.inventory.filesystems.iter().position(|known| {
        if known.device.starts_with("/dev/") && facts.device.starts_with("/dev/") {
            known.device == facts.device
        } else {
            number.is_some() && number_of(&known.mount) == number
        }
    });
    same.map(FilesystemIx::from)
}

fn number_of(path: &Path) -> Option<u64> {
    quiet::facts(path).ok().map(|facts| facts.device)
}

/// Returns `<namespace>/<name>` for the directory of a pod's logs, `<namespace>_<name>_<uid>`. The name of a
/// directory of its volumes is the uid, which is returned unchanged.
pub(super) fn pod_name(directory: &OsStr) -> String {
    let name = directory.to_string_lossy();
    match name.split('_').collect::<Vec<_>>().as_slice() {
        [namespace, pod, _] if !namespace.is_empty() && !pod.is_empty() => format!("{namespace}/{pod}"),
        _ => name.into_owned(),
    }
}

pub(super) fn kind_on_top(entry: &quiet::DirectoryEntry) -> OtherUserKind {
    let is_swap = ["swapfile", "swap.img", "swap"].iter().any(|name| entry.name == *name);
    if entry.kind == quiet::FileKind::File && is_swap {
        OtherUserKind::Swap
    } else {
        OtherUserKind::Directory
    }
}

/// Returns the directory with the records of a layersweep, of any user, for its reserve file: `reserve-` and the number
/// of a device, beside the database.
pub(super) fn records_around(file: &Path) -> Option<PathBuf> {
    const DATABASE: &str = "layersweep.db";
    let device = file.file_name()?.to_str()?.strip_prefix("reserve-")?;
    let directory = file.parent()?;
    let is_reserve = !device.is_empty() && device.bytes().all(|digit| digit.is_ascii_hexdigit());
    let database = quiet::facts(&directory.join(DATABASE));
    let is_here = database.is_ok_and(|facts| facts.kind == quiet::FileKind::File);
    (is_reserve && is_here).then(|| directory.to_path_buf())
}

/// Replaces the uid of pods' volumes by the name that the directory of the pod's logs has for the same uid.
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
