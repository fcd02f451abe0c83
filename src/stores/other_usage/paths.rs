//! The largest paths outside the stores, for the summary of a recorded scan: so what grew later has a name.
//!
//! Their number and the length of each are bounded: about seventy summaries are kept, and users choose the names. Every
//! recorded scan reads these directories, about 250,000 files in a second; a filesystem with more files outside the stores
//! than the request allows is read only where logs and the data of pods are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::measures_everything;
use super::places::{self, identities, pod_name};
use super::things::{Entry, LEAST, count, read, things};
use super::types::{KnownUse, OtherUsageRequest, OtherUserKind};
use crate::model::FilesystemIx;
use crate::model::space::BytesAndInodes;
use crate::model::text::volume::NerdctlVolume;
use crate::stores::Scan;
use crate::sys::{mounts, quiet};

/// Maximum number of paths of a filesystem that are named for their bytes.
const MOST: usize = 200;
/// Inverse of the minimum share of the inodes of a filesystem in a path that is named for them.
const MANY_INODES: u64 = 20;
/// Maximum length of a path; what has a longer one counts with the directory around it.
const LONGEST: usize = 256;

/// A path outside the stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargePath {
    pub filesystem: FilesystemIx,
    /// Path on this system.
    pub path: PathBuf,
    pub kind: LargePathKind,
    /// Allocated bytes that are in no other of these paths.
    pub bytes: u64,
    /// Number of files and directories that are in no other of these paths.
    pub inodes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LargePathKind {
    /// A directory or file.
    Plain,
    /// Logs of a pod, `<namespace>/<name>`, or of one of its containers, `<namespace>/<name>/<container>`.
    PodLog(String),
    /// Data of a pod on this disk, `<namespace>/<name>`, or one of its volumes, `<namespace>/<name>/<volume>`.
    PodVolume(String),
    /// Everything else that was read of the filesystem: its path is the mount point.
    Rest {
        /// Minimum bytes of a path that is named.
        least: u64,
    },
}

/// Returns the largest paths of all filesystems. They may have more bytes than the filesystem reports as used outside
/// the stores, if files share bytes with a store.
#[must_use]
pub fn largest_paths(scan: &Scan, known: &OtherUsageRequest) -> Vec<LargePath> {
    let places = places::find(scan, known, &mut Vec::new());
    let names = pod_names(&places);
    let mut all = Vec::new();
    for position in 0..scan.inventory.filesystems.len() {
        all.extend(of_filesystem(scan, position.into(), known, &places, &names));
    }
    all
}

fn of_filesystem(
    scan: &Scan,
    filesystem: FilesystemIx,
    known: &OtherUsageRequest,
    places: &[KnownUse],
    names: &HashMap<String, String>,
) -> Vec<LargePath> {
    use OtherUserKind::{KubeletVolumes, Logs, PodLogs};
    let facts = &scan.inventory[filesystem];
    let mounts = mounts::read().unwrap_or_default();
    let mount = mounts::widest(&mounts, &facts.mount, scan.sysroot.root()).to_path_buf();
    let is_whole = measures_everything(scan, filesystem, known);
    let here: Vec<_> = places.iter().filter(|place| place.filesystem == Some(filesystem)).collect();
    let mut tops = Vec::new();
    if !is_whole {
        let data = here.iter().filter(|place| matches!(place.kind, KubeletVolumes | Logs | PodLogs));
        tops.extend(data.map(|place| place.path.clone()));
    } else if !places::are_of_stores(&mounts, places, &mount) {
        let location = mounts::location(&mounts, &mount);
        tops.push(mount);
        tops.extend(location.iter().flat_map(|top| places::deeper_tops(&scan.sysroot, &mounts, top)));
    }
    let stores = here.iter().filter(|place| place.is_store).map(|place| &place.path);
    let apart = identities(stores.chain(&tops).map(PathBuf::as_path));
    let read: Vec<(&PathBuf, Vec<Entry>)> = tops.iter().map(|top| (top, read(scan, top, &apart))).collect();
    // A top that cannot be opened has no entries.
    let is_whole = is_whole && read.iter().all(|(_, entries)| !entries.is_empty());
    let around = |path: &Path| Some(unit(path, places));
    let inodes = if facts.inodes == 0 { u64::MAX } else { (facts.inodes / MANY_INODES).max(1) };
    let mut least = BytesAndInodes { bytes: LEAST, inodes };
    while read.iter().map(|(top, entries)| count(top, entries, least, &around)).sum::<usize>()
        > MOST + usize::try_from(MANY_INODES).unwrap_or_default()
    {
        least.bytes = least.bytes.saturating_mul(2);
    }
    let mut rest = BytesAndInodes::default();
    let mut paths = Vec::new();
    for (top, entries) in read {
        let (found, left) = things(scan, top, &entries, least, &around);
        let mut found: Vec<_> = found.into_iter().map(|thing| (thing.path, thing.size)).collect();
        if is_whole {
            rest.bytes = rest.bytes.saturating_add(left.bytes);
            rest.inodes = rest.inodes.saturating_add(left.inodes);
        } else if left.bytes >= least.bytes {
            found.push((top.clone(), left));
        }
        paths.extend(found.into_iter().map(|(path, BytesAndInodes { bytes, inodes })| {
            let kind = kind(&path, places, names);
            LargePath { filesystem, path, kind, bytes, inodes }
        }));
    }
    if is_whole {
        let kind = LargePathKind::Rest { least: least.bytes };
        let path = facts.mount.clone();
        paths.push(LargePath { filesystem, path, kind, bytes: rest.bytes, inodes: rest.inodes });
    }
    paths
}

/// Returns the names of pods by their uids.
fn pod_names(places: &[KnownUse]) -> HashMap<String, String> {
    let logs = places.iter().filter(|place| place.kind == OtherUserKind::PodLogs);
    let entries = logs.filter_map(|place| quiet::list(&place.path).ok()).flatten();
    let names = entries.filter_map(|entry| {
        let (_, uid) = entry.name.to_str()?.rsplit_once('_')?;
        Some((uid.to_owned(), pod_name(&entry.name)))
    });
    names.collect()
}

/// Returns the directory around a path, or the path itself, that is one thing: a volume, the logs of a container, the
/// files of the distribution.
fn unit(path: &Path, places: &[KnownUse]) -> PathBuf {
    fn first(path: &Path, components: usize) -> PathBuf {
        path.iter().take(components).collect()
    }
    let mut around = path;
    while around.as_os_str().len() > LONGEST {
        around = around.parent().unwrap_or(Path::new("/"));
    }
    let names: Vec<_> = around.iter().collect();
    if let Some((place, below)) = of_pod(around, places) {
        let parts = match place.kind {
            OtherUserKind::PodLogs => 2,
            // `<uid>/volumes/<plugin>/<name>`
            _ if below.iter().nth(1).is_some_and(|name| name == "volumes") && below.iter().count() > 3 => 4,
            _ => 1,
        };
        return first(around, place.path.iter().count() + parts);
    }
    if let Some(volume) = NerdctlVolume::around(around) {
        return volume.directory;
    }
    // Root's own programs and data are in `/usr/local`.
    match names.as_slice() {
        [_, top, below, ..] if *top == "boot" || *top == "usr" && *below != "local" => first(around, 2),
        _ => around.to_path_buf(),
    }
}

/// Returns the place with data of pods around a path, and the path below it.
fn of_pod<'a>(path: &'a Path, places: &'a [KnownUse]) -> Option<(&'a KnownUse, &'a Path)> {
    let of_pods = places.iter().filter(|place| place.kind.is_by_pod());
    let mut below = of_pods.filter_map(|place| Some((place, path.strip_prefix(&place.path).ok()?)));
    below.find(|(_, below)| !below.as_os_str().is_empty())
}

fn kind(path: &Path, places: &[KnownUse], names: &HashMap<String, String>) -> LargePathKind {
    let Some((place, below)) = of_pod(path, places) else { return LargePathKind::Plain };
    let parts: Vec<_> = below.iter().collect();
    let pod = pod_name(parts[0]);
    let part = parts.last().filter(|_| parts.len() > 1);
    let part = part.map_or_else(String::new, |name| format!("/{}", name.to_string_lossy()));
    match place.kind {
        OtherUserKind::PodLogs if !pod.contains('/') => LargePathKind::Plain,
        OtherUserKind::PodLogs => LargePathKind::PodLog(pod + &part),
        // Without a name the uid stands for a namespace and a name.
        _ => LargePathKind::PodVolume(names.get(&pod).map_or(pod, |name| format!("{name}{part}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(kind: OtherUserKind, path: &str) -> KnownUse {
        KnownUse { kind, path: path.into(), filesystem: None, is_store: false, holder: None }
    }

    #[test]
    fn volumes_and_logs_are_one_thing() {
        let places = [
            place(OtherUserKind::PodLogs, "/var/log/pods"),
            place(OtherUserKind::KubeletVolumes, "/var/lib/kubelet/pods"),
        ];
        let names = [("11-22".to_owned(), "shop/cart-0".to_owned())].into();
        use LargePathKind::{PodLog as Log, PodVolume as Volume};
        let pods = "/var/lib/kubelet/pods";
        for (path, around, expected) in [
            ("/var/log/pods/shop_cart-0_11-22/main/0.log", "/main", Log("shop/cart-0/main".into())),
            ("/var/log/pods/shop_cart-0_11-22", "cart-0_11-22", Log("shop/cart-0".into())),
            (
                &format!("{pods}/11-22/volumes/kubernetes.io~empty-dir/cache/a/b"),
                "/cache",
                Volume("shop/cart-0/cache".into()),
            ),
            (&format!("{pods}/11-22/volumes"), "/11-22", Volume("shop/cart-0".into())),
            (&format!("{pods}/33/etc-hosts"), "/33", Volume("33".into())),
            (
                "/var/lib/nerdctl/1935db59/volumes/default/pg/_data/base",
                "/volumes/default/pg",
                LargePathKind::Plain,
            ),
            ("/usr/lib/modules", "/usr", LargePathKind::Plain),
            ("/usr/local/data", "/usr/local/data", LargePathKind::Plain),
            ("/srv/usr/x", "/srv/usr/x", LargePathKind::Plain),
            (&format!("/srv/{}/x", "y".repeat(260)), "/srv", LargePathKind::Plain),
        ] {
            let found = unit(Path::new(path), &places);
            assert!(found.to_str().unwrap().ends_with(around), "{path}: {}", found.display());
            assert_eq!(kind(&found, &places, &names), expected, "{path}");
        }
    }
}
