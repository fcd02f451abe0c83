//! Data on the filesystems of the stores that is not in any store: in full for `report` and `usage`, in one
//! sentence for `gc` and `doctor`.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use jiff::SignedDuration;

use crate::config::Config;
use crate::cri::Options;
use crate::disk::Progress;
use crate::model::refs::{self, Root};
use crate::model::text::display::{bytes, shell_word, thousands};
use crate::model::{Filesystem, FilesystemIx, Finding, Inventory, NodeIx, Size, StoreIx};
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::policy::space;
use crate::policy::thresholds::Counted;
use crate::services::diagnosis::{Cause, Disk, Part, PartKind};
use crate::services::observer::Observer;
use crate::services::request::Request;
use crate::services::{database, diagnosis, runtime};
use crate::stores::Scan;
use crate::stores::other_usage::{self, OtherUserKind, OtherUsers};
use crate::sys::namespaces::Mounts;
use crate::sys::quiet;

/// Measures the data outside the stores and shows the progress. `most_inodes`: see
/// [`other_usage::OtherUsageRequest`].
pub(crate) fn measure(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
) -> OtherUsers {
    let progress = std::sync::Arc::<Progress>::default();
    let shown = observer.measuring(&progress);
    let other_users = measure_quietly(request, config, scan, most_inodes, &progress);
    drop(shown);
    other_users
}

pub(crate) fn measure_quietly(
    request: &Request,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
    progress: &Progress,
) -> OtherUsers {
    other_usage::measure(scan, &known(request, config, scan, most_inodes), progress)
}

/// Measures the data outside the stores as [`measure`], and names the largest files.
pub(crate) fn measure_with_files(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
) -> OtherUsers {
    let mut other_users = measure(request, observer, config, scan, most_inodes);
    other_usage::add_files(scan, &known(request, config, scan, most_inodes), &mut other_users);
    find_gone_pods(request, scan, &mut other_users);
    other_users
}

/// Finds the volumes of pods that are gone: what the kubelet calls an orphaned pod. The runtime lists no sandbox of the
/// pod, and nothing is mounted below its directory. A pod that is starting has no sandbox either, but its directory is
/// young.
fn find_gone_pods(request: &Request, scan: &Scan, other_users: &mut OtherUsers) {
    /// Minimum age of the directory of a pod that is gone.
    const AGE: SignedDuration = SignedDuration::from_hours(1);
    let mut pods: Vec<_> =
        other_users.pods.iter_mut().filter(|pod| pod.kind == OtherUserKind::KubeletVolumes).collect();
    if pods.is_empty() || scan.sysroot.is_foreign() {
        return;
    }
    let client = runtime::connect(request, &Options::default().probing());
    let Some(sandboxes) = client.ok().and_then(|client| client.sandboxes().ok()) else { return };
    let alive: HashSet<_> = sandboxes.iter().flat_map(|sandbox| [&sandbox.uid, &sandbox.pod_uid]).collect();
    let places: Vec<_> = pods.iter().map(|pod| pod.path.clone()).collect();
    let Ok(mounts) = Mounts::read(&places) else { return };
    let mounts = mounts.points_below();
    for pod in &mut pods {
        let uid = pod.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let modified = quiet::facts(&pod.path).ok().and_then(|facts| facts.modified);
        let is_old = modified.is_some_and(|modified| scan.present.age(modified) >= AGE);
        pod.is_gone =
            Some(is_old && !alive.contains(&uid) && !mounts.iter().any(|mount| mount.starts_with(&pod.path)));
    }
}

/// Maximum number of inodes outside the stores for which every directory is measured, which takes a few seconds. On
/// filesystems with more, only the usual places of logs, dumps and volumes are measured.
pub(crate) const MOST_INODES: u64 = 300_000;

/// Returns the request for a measurement.
pub(crate) fn known(
    request: &Request,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
) -> other_usage::OtherUsageRequest {
    other_usage::OtherUsageRequest {
        state_dir: scan.sysroot.display(&database::state_directory(request).dir),
        places: KubeletPlaces::find(&config.kubelet, &Kubelet::read_now(&scan.sysroot)),
        threads: request.threads.map_or(0, usize::from),
        most_inodes,
    }
}

/// Returns the request for the measurement of a scan that is recorded, or compared with a recorded one.
pub(crate) fn known_to_scan(request: &Request, scan: &Scan) -> other_usage::OtherUsageRequest {
    other_usage::OtherUsageRequest {
        places: KubeletPlaces::find(&request.kubelet, &Kubelet::read_now(&scan.sysroot)),
        threads: request.threads.map_or(0, usize::from),
        most_inodes: Some(MOST_INODES),
        ..other_usage::OtherUsageRequest::default()
    }
}

/// Used bytes of one filesystem after a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    pub mount: PathBuf,
    pub used_bytes: u64,
    /// Part of `used_bytes` that is not in any store.
    pub bytes: u64,
    /// Known parts of `bytes`, the largest first.
    pub parts: Vec<Part>,
    /// Causes of the usage, ranked as in [`diagnosis::rank`], without those that the run itself deletes.
    pub causes: Vec<Cause>,
    pub scarce: Counted,
    /// Low threshold for it, if it is passed.
    pub low: Option<f64>,
    /// No store is on the filesystem: the percentage of the scarce resource that is used.
    pub without_store: Option<f64>,
}

impl Outside {
    /// Returns the rest of a filesystem after a run: `disk` describes the filesystem as it is then.
    pub(crate) fn of(scan: &Scan, other_users: &OtherUsers, disk: &Disk, causes: Vec<Cause>) -> Self {
        let inventory = &scan.inventory;
        let ix = disk.ix;
        let in_stores = refs::size_on_disk(inventory, ix).into_iter().fold(0, u64::saturating_add);
        let scarce = disk.scarce();
        let used_bytes = disk.filesystem.used_bytes;
        let parts = parts(scan, other_users, ix);
        let rest = inventory[ix].used_bytes.saturating_sub(in_stores);
        Self {
            mount: disk.filesystem.mount.clone(),
            used_bytes,
            bytes: whole(rest, &parts, used_bytes),
            parts,
            causes,
            scarce,
            low: disk.low(scarce).filter(|low| disk.percent_of(scarce).is_some_and(|used| *low < used)),
            without_store: disk.percent_of(scarce).filter(|_| !inventory.has_store(ix)),
        }
    }
}

/// Returns the bytes outside the stores: the rest of the scan, but not less than the parts. They are measured after the
/// run, which itself may have written records since the scan.
fn whole(rest: u64, parts: &[Part], used_bytes: u64) -> u64 {
    let in_parts = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
    rest.max(in_parts.min(used_bytes))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeUse {
    pub mount: PathBuf,
    pub inodes: u64,
    /// Inodes in images, also in those that are kept.
    pub in_images: u64,
    /// Places with the most inodes, the largest first.
    pub largest: Vec<Part>,
    /// Deleting all images, also those that are kept, would not free enough of the `missing` inodes to help.
    pub is_outside: bool,
}

impl InodeUse {
    /// Returns the use for a scan that has measured the data outside the stores. `missing`: inodes that are still
    /// wanted.
    pub(crate) fn of(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx, missing: u64) -> Self {
        let inventory = &scan.inventory;
        let inodes = inventory[ix].inodes;
        let nodes = (0..inventory.nodes.len()).map(NodeIx::from);
        let of_images = nodes.filter(|node| {
            inventory[*node].filesystem == ix
                && scan.refs.reached_by(*node).any(|root| matches!(root, Root::Image(_)))
        });
        let in_images = of_images.fold(0, |sum: u64, node| sum.saturating_add(inventory[node].size.inodes));
        Self {
            mount: inventory[ix].mount.clone(),
            inodes,
            in_images,
            largest: inode_users(scan, other_users, ix),
            is_outside: !space::helps(in_images, missing),
        }
    }
}

impl InodeUse {
    /// Subtracts the inodes that deleted images have freed since the scan.
    pub(crate) fn without(self, freed: u64) -> Self {
        Self { in_images: self.in_images.saturating_sub(freed), ..self }
    }
}

/// Returns the users with at least a tenth of the inodes of a filesystem, the largest first: places outside the stores,
/// containers with their own files, volumes, and other directories in stores.
pub(crate) fn inode_users(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Vec<Part> {
    let inventory = &scan.inventory;
    let least = (inventory[ix].inodes / MANY_INODES).max(1);
    if inventory[ix].inodes == 0 {
        return Vec::new();
    }
    let mut users = parts(scan, other_users, ix);
    for (position, container) in inventory.containers.iter().enumerate() {
        let nodes = scan.refs.reach(Root::Container(position.into())).iter().copied();
        let own_nodes = nodes.filter(|node| {
            let mut roots = scan.refs.reached_by(*node);
            inventory[*node].filesystem == ix && roots.all(|root| matches!(root, Root::Container(_)))
        });
        let size: Size = own_nodes.map(|node| inventory[node].size).sum();
        let label = format!("container {}", container.name);
        users.push(Part {
            kind: PartKind::Containers,
            inodes: size.inodes,
            ..in_store(inventory, container.store, label, size.bytes)
        });
    }
    let pods = other_users.pods.iter().filter(|pod| pod.filesystem == ix && pod.inodes >= least);
    for pod in pods {
        let what = if pod.kind == OtherUserKind::PodLogs { "logs" } else { "volumes" };
        let part = diagnosis::of_use(pod.kind, &pod.path, None, pod.bytes, &|path| scan.sysroot.shown(path));
        // Their directory is named only if no pod in it is.
        let around = pod.path.parent().map(|path| scan.sysroot.shown(path));
        users.retain(|user| user.kind != part.kind || user.path != around);
        users.push(Part { label: format!("{what} of pod {}", pod.pod), inodes: pod.inodes, ..part });
    }
    let volumes =
        other_users.volumes.iter().filter(|volume| volume.filesystem == ix && volume.inodes >= least);
    let volumes: Vec<_> = volumes.collect();
    let mut large = diagnosis::large(scan, other_users, ix);
    // The directory of volumes is named only if no volume in it is.
    large.retain(|part| {
        let path = part.path.as_deref().map(Path::new);
        !volumes.iter().any(|volume| volume.path.parent() == path)
    });
    users.extend(large);
    users.extend(volumes.into_iter().map(|volume| {
        let label = format!("volume {}", volume.name);
        Part { inodes: volume.inodes, ..in_store(inventory, volume.store, label, volume.bytes) }
    }));
    users.retain(|part| part.inodes >= least);
    users.sort_by_key(|part| std::cmp::Reverse(part.inodes));
    users
}

fn in_store(inventory: &Inventory, store: StoreIx, label: String, bytes: u64) -> Part {
    Part {
        kind: PartKind::StoreOther,
        label,
        path: None,
        bytes,
        measured_bytes: bytes,
        inodes: 0,
        store: Some(inventory[store].root.to_string_lossy().into_owned()),
        tool: inventory[store].kind.facts().tool,
    }
}

/// Inverse of the minimum share of the inodes of a filesystem in a place that is named.
const MANY_INODES: u64 = 10;

/// Maximum number of inodes outside the stores for which every directory is measured on a filesystem that is short of
/// inodes. This takes seconds on an SSD; the directory that holds them is what the operator looks for.
const MOST_IF_SHORT: u64 = 2_000_000;

/// Returns `usual`, the maximum number of inodes for which every directory is measured, or more if a filesystem is
/// short of inodes.
pub(crate) fn most_inodes(scan: &Scan, usual: u64) -> Option<u64> {
    let is_short = scan.inventory.filesystems.iter().any(Filesystem::is_short_of_inodes);
    Some(if is_short { MOST_IF_SHORT } else { usual })
}

/// Names the places with their numbers of files: `/var/spool/q: 195,946 files`.
pub(crate) fn with_most_inodes(places: &[Part]) -> String {
    let places = places.iter().map(|part| format!("{}: {} files", part.title(), thousands(part.inodes)));
    places.collect::<Vec<_>>().join("; ")
}

impl fmt::Display for InodeUse {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mount, inodes, in_images, largest, is_outside } = self;
        let (all, in_images) = (thousands(*inodes), thousands(*in_images));
        if largest.is_empty() {
            let mount = shell_word(&mount.to_string_lossy());
            write!(
                to,
                "`du -x --inodes {mount} | sort -n | tail` names the directories with the most files"
            )?;
        } else {
            write!(to, "{}, of {all} inodes on {}", with_most_inodes(largest), mount.display())?;
        }
        // Files of containers and volumes belong to programs.
        let is_all_outside = !largest.is_empty() && largest.iter().all(|part| part.store.is_none());
        let by_hand = if is_all_outside { "Delete files there by hand: all" } else { "All" };
        let helps = if *is_outside { ", so deleting images does not help" } else { "" };
        write!(to, ". {by_hand} images together hold {in_images} inodes{helps}.")
    }
}

/// Returns the known parts of a filesystem that are not in any store, the largest first.
pub(crate) fn parts(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Vec<Part> {
    let mut parts = diagnosis::outside(scan, other_users, ix);
    parts.retain(|part| part.bytes > 0 || part.inodes > 1);
    parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    parts
}

/// Minimum size of a part that is named: deleting a smaller one does not help.
const LEAST_NAMED: u64 = 1 << 20;

/// Returns the largest parts in words; an empty string if no part is large enough.
pub(crate) fn largest(parts: &[Part]) -> String {
    const NAMED: usize = 3;
    let named =
        parts.iter().filter(|part| part.bytes >= LEAST_NAMED).take(NAMED).map(|part| match &part.path {
            Some(path) if !part.label.starts_with('/') => {
                format!("{} {} ({})", part.label, bytes(part.bytes), path)
            }
            _ => format!("{} {}", part.label, bytes(part.bytes)),
        });
    named.collect::<Vec<_>>().join(", ")
}

/// Returns a finding if the sysroot is a plain directory: it shares its filesystem with other data then.
pub(crate) fn part_of_a_filesystem(request: &Request, scan: &Scan) -> Option<Finding> {
    let sysroot = request.sysroot.as_deref().filter(|_| scan.sysroot.is_foreign())?;
    let top = scan.sysroot.resolve(Path::new("/")).ok()?;
    let filesystem = other_usage::filesystem_of(scan, &top)?;
    let mount = &scan.inventory[filesystem].mount;
    if *mount == top {
        return None;
    }
    let message = format!(
        "nothing is mounted there: filesystem figures are those of {}, which has other users",
        mount.display()
    );
    Some(Finding::new(sysroot, message))
}

/// Returns a finding if the measured parts exceed the usage that the filesystem reports.
pub(crate) fn excess(filesystem: &Filesystem, excess_bytes: u64) -> Option<Finding> {
    if excess_bytes == 0 {
        return None;
    }
    let message = format!(
        "the measured data is {} larger than the usage the filesystem reports (compression, sharing, or \
         concurrent writes); each part is scaled down in proportion",
        bytes(excess_bytes)
    );
    Some(Finding::new(&filesystem.mount, message))
}

impl fmt::Display for Outside {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(percent) = self.without_store {
            let mount = self.mount.display();
            let full = match self.scarce {
                Counted::Bytes => format!("{mount} is {percent:.1}% full"),
                Counted::Inodes => format!("{mount} has used {percent:.1}% of its inodes"),
            };
            let largest = match largest(&self.parts).as_str() {
                "" => String::new(),
                largest => format!(": {largest}"),
            };
            return write!(
                to,
                "{full} and has no store, so deleting images does not help there{largest}; `layersweep report` lists \
                 what can be deleted."
            );
        }
        let (outside, used) = (bytes(self.bytes), bytes(self.used_bytes));
        write!(
            to,
            "After this run {used} stay used on {}; {outside} of it is outside the stores",
            self.mount.display()
        )?;
        match largest(&self.parts).as_str() {
            "" => to.write_str("."),
            largest => write!(to, ": {largest}."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: PartKind, label: &str, path: &str, bytes: u64) -> Part {
        let path = Some(path.into());
        Part {
            kind,
            label: label.into(),
            path,
            bytes,
            measured_bytes: bytes,
            inodes: 0,
            store: None,
            tool: None,
        }
    }

    #[test]
    fn place_with_the_most_inodes_is_named() {
        let spool =
            Part { inodes: 195_946, ..part(PartKind::Directory, "/var/spool/q", "/var/spool/q", 5 << 20) };
        let mut use_ = InodeUse {
            mount: "/var".into(),
            inodes: 196_608,
            in_images: 306,
            largest: vec![spool],
            is_outside: true,
        };
        assert_eq!(
            use_.to_string(),
            "/var/spool/q: 195,946 files, of 196,608 inodes on /var. Delete files there by hand: all images together \
             hold 306 inodes, so deleting images does not help."
        );
        (use_.largest, use_.is_outside) = (Vec::new(), false);
        assert_eq!(
            use_.to_string(),
            "`du -x --inodes /var | sort -n | tail` names the directories with the most files. All images together \
             hold 306 inodes."
        );
        let container = Part {
            path: None,
            store: Some("/store".into()),
            inodes: 4393,
            ..part(PartKind::Containers, "container web", "", 1)
        };
        (use_.largest, use_.is_outside) = (vec![container], true);
        assert_eq!(
            use_.to_string(),
            "container web: 4,393 files, of 196,608 inodes on /var. All images together hold 306 inodes, so deleting \
             images does not help."
        );
    }

    #[test]
    fn part_is_not_larger_than_the_whole() {
        let records = [part(PartKind::Directory, "records and reserve file", "/state", 4 << 20)];
        for (rest, used, expected) in
            [(100 << 10, 1 << 30, 4 << 20), (9 << 20, 1 << 30, 9 << 20), (1 << 20, 2 << 20, 2 << 20)]
        {
            assert_eq!(whole(rest, &records, used), expected);
        }
    }

    #[test]
    fn largest_parts_are_named_with_their_path() {
        let mut outside = Outside {
            mount: "/var".into(),
            used_bytes: 3 << 30,
            bytes: 2 << 30,
            parts: vec![
                part(PartKind::CoreDumps, "core dumps", "/var/lib/systemd/coredump", 1 << 30),
                part(PartKind::Directory, "/opt", "/opt", 512 << 20),
            ],
            causes: Vec::new(),
            scarce: Counted::Bytes,
            low: None,
            without_store: None,
        };
        assert_eq!(
            outside.to_string(),
            "After this run 3.0 GiB stay used on /var; 2.0 GiB of it is outside the stores: core dumps 1.0 GiB \
             (/var/lib/systemd/coredump), /opt 512.0 MiB."
        );
        outside.parts.clear();
        assert!(outside.to_string().ends_with("2.0 GiB of it is outside the stores."));
        outside.without_store = Some(98.04);
        assert_eq!(
            outside.to_string(),
            "/var is 98.0% full and has no store, so deleting images does not help there; `layersweep report` lists what \
             can be deleted."
        );
    }
}
